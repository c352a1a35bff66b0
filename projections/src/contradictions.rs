//! `contradictions`: signals that contradicted what had happened, for people to look at.
//!
//! A contradiction moves nothing and so carries no account: who pays for its job is looked up in the job's stream, before the
//! transaction begins. Nothing here depends on another projection. An event that has its row has been applied, and is skipped.
//! Bound: [`STREAMS`] streams in memory at a time, and a row for each contradiction in a batch.

use std::collections::{BTreeSet, HashMap};

use recoup::codec::{Catalog, Decoded, Event};
use recoup::job::{JobEvent, Signal};
use recoup::sql::{Database, Transaction, Value};
use recoup::store::{RecordedEvent, StoreError};
use recoup::{AccountId, JobId, JobResult, Position, Reason, Timestamp};

use crate::apply::{Changes, Refused};
use crate::batch::{Batch, BatchEvent, Body};
use crate::streams::{STREAMS, read_what_can_be};

/// A signal that contradicted what had happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContradictionRow {
    /// Its event's place in the log.
    pub position: Position,
    /// Which job.
    pub job: JobId,
    /// Who pays for it.
    pub account: AccountId,
    /// What was claimed: `failed` or `succeeded`.
    pub signal: &'static str,
    /// Of which attempt.
    pub attempt: u32,
    /// The reason of a claimed failure.
    pub reason: Option<String>,
    /// The result of a claimed success, which callers were not given.
    pub result: Option<String>,
    /// When the store recorded it.
    pub posted_at: Timestamp,
}

pub(crate) fn parse_signal(name: &str) -> Option<Signal> {
    [Signal::Failed, Signal::Succeeded]
        .into_iter()
        .find(|known| known.name() == name)
}

/// Who pays for the jobs of the contradictions in `batch`.
pub(crate) async fn payers(
    database: &Database,
    catalog: &Catalog,
    batch: &Batch,
) -> Result<HashMap<JobId, AccountId>, StoreError> {
    let contradicted = |event: &BatchEvent| match &event.body {
        Body::Job(job, JobEvent::Contradicted(_)) => Some(job.clone()),
        Body::Job(..) | Body::Account(_) | Body::Retired => None,
    };
    let jobs: BTreeSet<JobId> = batch.events.iter().filter_map(contradicted).collect();
    let jobs: Vec<JobId> = jobs.into_iter().collect();
    let mut payers = HashMap::with_capacity(jobs.len());
    for some in jobs.chunks(STREAMS) {
        // A broken stream halts this projection, at its contradiction, and no other one.
        let streams = read_what_can_be(database, some).await?;
        for (job, recorded) in some.iter().zip(streams) {
            if let Some(account) = recorded.iter().find_map(|event| charged(catalog, event)) {
                payers.insert(job.clone(), account);
            }
        }
    }
    Ok(payers)
}

fn charged(catalog: &Catalog, recorded: &RecordedEvent) -> Option<AccountId> {
    match catalog.decode(recorded) {
        Ok(Decoded::Event(Event::Job(JobEvent::Charged(charged)))) => Some(charged.posting.account),
        Ok(Decoded::Event(_) | Decoded::Retired) | Err(_) => None,
    }
}

pub(crate) struct Contradictions<'a, 'c> {
    tx: &'a Transaction<'c>,
    payers: &'a HashMap<JobId, AccountId>,
    rows: Vec<Vec<Value<'a>>>,
}

const INSERT: &str = "INSERT INTO contradictions
    (position, job, account, signal, attempt, reason, result, posted_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (position) DO NOTHING";

impl<'a, 'c> Contradictions<'a, 'c> {
    pub(crate) fn begin(tx: &'a Transaction<'c>, batch: &'a Batch) -> Self {
        Self {
            tx,
            payers: &batch.payers,
            rows: Vec::new(),
        }
    }
}

impl<'a> Changes<'a> for Contradictions<'a, '_> {
    fn prefetch(&mut self, _: &'a [BatchEvent]) -> Result<(), StoreError> {
        // No row follows from another.
        Ok(())
    }

    fn apply(&mut self, event: &'a BatchEvent) -> Result<(), Refused> {
        let Body::Job(job, JobEvent::Contradicted(said)) = &event.body else {
            return Ok(());
        };
        let account = self.payers.get(job).ok_or_else(|| {
            Refused::Impossible(format!(
                "job {job} was contradicted, and its charge cannot be read"
            ))
        })?;
        self.rows.push(vec![
            event.position.get().into(),
            job.as_str().into(),
            account.as_str().into(),
            said.signal.name().into(),
            said.attempt.get().into(),
            said.reason.as_ref().map(Reason::as_str).into(),
            said.result.as_ref().map(JobResult::as_str).into(),
            event.posted_at.as_micros().into(),
        ]);
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        self.tx.execute_many(INSERT, &self.rows)
    }
}
