//! `dead_letters`: jobs that ran out of attempts or time, and wait for a person.
//!
//! A row is written when a job becomes a dead letter and goes when it is redriven, discarded, cancelled or delivered after all.
//! An external job ends as failed and never stands here. The event alone does not say what the job costs nor why it failed last: that
//! is looked up in the job's stream, before the transaction begins, so that nothing here depends on another projection. An event
//! that is not later than the job's row has been applied, and is skipped. Bound: [`STREAMS`] streams in memory at a time.

mod list;

use std::collections::{BTreeSet, HashMap};

use recoup::codec::{Catalog, Decoded, Event, Stream};
use recoup::job::{AttemptFailed, DeadLetterCause, JobEvent};
use recoup::store::sqlite::SqliteStore;
use recoup::store::{RecordedEvent, StoreError};
use recoup::{AccountId, Attempt, EventStore, JobId, Kind, Position, Revision, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::apply::{Changes, Refused};
use crate::batch::{Batch, BatchEvent, Body};
use crate::error::table_error;

pub use list::DeadLetterFilter;
#[cfg(test)]
pub(crate) use list::LISTS;
pub(crate) use list::{count, dead_letters};

/// How many streams are read at a time: each has up to about a thousand events.
const STREAMS: usize = 64;

/// A job that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// The place of the event that made it a dead letter: the order of lists.
    pub position: Position,
    /// Which job.
    pub job: JobId,
    /// Who pays.
    pub account: AccountId,
    /// What sort of work.
    pub kind: Kind,
    /// What it costs, in the smallest unit.
    pub cost: i64,
    /// Why: `cap_reached`, `window_closed` or `not_started`.
    pub cause: &'static str,
    /// The highest attempt so far.
    pub attempts: u32,
    /// Why the last attempt failed, as far as anybody said.
    pub reason: Option<String>,
    /// When.
    pub dead_lettered_at: Timestamp,
}

/// What a job's stream says of it when it becomes a dead letter.
#[derive(Debug, Clone)]
pub(crate) struct Fate {
    account: AccountId,
    kind: Kind,
    cost: i64,
    attempts: Attempt,
    reason: Option<String>,
}

pub(crate) fn parse_cause(name: &str) -> Option<DeadLetterCause> {
    [
        DeadLetterCause::CapReached,
        DeadLetterCause::WindowClosed,
        DeadLetterCause::NotStarted,
    ]
    .into_iter()
    .find(|known| known.name() == name)
}

/// What the stream of each job says that `batch` makes a dead letter, by the position of the event that does.
pub(crate) async fn fates(
    store: &SqliteStore,
    catalog: &Catalog,
    batch: &Batch,
) -> Result<HashMap<Position, Fate>, StoreError> {
    let dead = |event: &BatchEvent| match &event.body {
        Body::Job(job, JobEvent::DeadLettered(_)) => Some(job.clone()),
        Body::Job(..) | Body::Account(_) | Body::Retired => None,
    };
    let jobs: BTreeSet<JobId> = batch.events.iter().filter_map(dead).collect();
    let jobs: Vec<JobId> = jobs.into_iter().collect();
    let mut fates = HashMap::new();
    for some in jobs.chunks(STREAMS) {
        for recorded in read_what_can_be(store, some).await? {
            fates.extend(fates_of(catalog, &recorded));
        }
    }
    Ok(fates)
}

/// The streams of `jobs`, in their order; an empty one for what cannot be read: it halts this projection at its own dead letter, and nowhere else.
pub(crate) async fn read_what_can_be(
    store: &SqliteStore,
    jobs: &[JobId],
) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
    let names = jobs.iter().map(|job| Stream::Job(job.clone()).name());
    let names: Vec<_> = names.collect();
    match store.read_streams(names.clone()).await {
        Err(StoreError::Corrupt { .. }) => {}
        read => return read,
    }
    let mut streams = Vec::with_capacity(names.len());
    for name in names {
        streams.push(match store.read_stream(&name, Revision::FIRST).await {
            Err(StoreError::Corrupt { .. }) => Vec::new(),
            read => read?,
        });
    }
    Ok(streams)
}

/// Follows a stream up to the first event that cannot be read.
fn fates_of(catalog: &Catalog, recorded: &[RecordedEvent]) -> Vec<(Position, Fate)> {
    let mut fates = Vec::new();
    let mut known: Option<Fate> = None;
    for event in recorded {
        let said = match catalog.decode(event) {
            Ok(Decoded::Event(Event::Job(said))) => said,
            Ok(Decoded::Event(Event::Account(_)) | Decoded::Retired) => continue,
            Err(_) => break,
        };
        match (&said, &mut known) {
            (JobEvent::Charged(charged), known) => {
                let posting = &charged.posting;
                *known = posting.kind.clone().map(|kind| Fate {
                    account: posting.account.clone(),
                    kind,
                    cost: posting.amount.saturating_neg(),
                    attempts: Attempt::NONE,
                    reason: None,
                });
            }
            (JobEvent::AttemptStarted(started), Some(known)) => known.attempts = started.attempt,
            (JobEvent::AttemptFailed(failed), Some(known)) => {
                known.attempts = known.attempts.max(failed.attempt);
                known.reason = reason_of(failed);
            }
            (JobEvent::DeadLettered(_), Some(known)) => fates.push((event.position, known.clone())),
            _ => {}
        }
    }
    fates
}

/// What is known of why an attempt failed: what the worker said, or the timer that nobody beat.
fn reason_of(failed: &AttemptFailed) -> Option<String> {
    let timer = || {
        failed
            .timer
            .map(|timer| format!("{} ran out", timer.name()))
    };
    failed
        .reason
        .as_ref()
        .map(ToString::to_string)
        .or_else(timer)
}

pub(crate) struct DeadLetters<'a> {
    connection: &'a Connection,
    fates: &'a HashMap<Position, Fate>,
}

pub(crate) const LOAD: &str = "SELECT position FROM dead_letters WHERE job = ?1";

pub(crate) const DELETE: &str = "DELETE FROM dead_letters WHERE job = ?1";

const INSERT: &str = "INSERT INTO dead_letters
    (position, job, account, kind, cost, cause, attempts, reason, dead_lettered_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

impl<'a> DeadLetters<'a> {
    pub(crate) fn begin(connection: &'a Connection, batch: &'a Batch) -> Self {
        Self {
            connection,
            fates: &batch.fates,
        }
    }

    /// The place of the job's row.
    fn row(&self, job: &JobId) -> Result<Option<Position>, StoreError> {
        let mut load = self.connection.prepare_cached(LOAD).map_err(table_error)?;
        let found = load.query_row([job.as_str()], |row| row.get(0)).optional();
        Ok(found.map_err(table_error)?.map(Position::new))
    }

    fn insert(
        &self,
        event: &BatchEvent,
        job: &JobId,
        cause: DeadLetterCause,
    ) -> Result<(), Refused> {
        let fate = self.fates.get(&event.position).ok_or_else(|| {
            Refused::Impossible(format!(
                "job {job} became a dead letter, and its stream cannot be read up to there"
            ))
        })?;
        let mut insert = self
            .connection
            .prepare_cached(INSERT)
            .map_err(table_error)?;
        let values = params![
            event.position.get(),
            job.as_str(),
            fate.account.as_str(),
            fate.kind.as_str(),
            fate.cost,
            cause.name(),
            fate.attempts.get(),
            fate.reason,
            event.posted_at.as_micros(),
        ];
        insert.execute(values).map_err(table_error)?;
        Ok(())
    }
}

impl Changes for DeadLetters<'_> {
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused> {
        let Body::Job(job, said) = &event.body else {
            return Ok(());
        };
        match said {
            JobEvent::DeadLettered(dead) => match self.row(job)? {
                None => self.insert(event, job, dead.cause),
                Some(row) if event.position <= row => Ok(()),
                Some(row) => Err(Refused::Impossible(format!(
                    "job {job} is a dead letter since event {row}"
                ))),
            },
            JobEvent::Redriven(_)
            | JobEvent::Discarded(_)
            | JobEvent::Cancelled(_)
            | JobEvent::Delivered(_) => {
                if self.row(job)?.is_some_and(|row| row < event.position) {
                    let mut delete = self
                        .connection
                        .prepare_cached(DELETE)
                        .map_err(table_error)?;
                    delete.execute([job.as_str()]).map_err(table_error)?;
                }
                Ok(())
            }
            JobEvent::Charged(_)
            | JobEvent::AttemptStarted(_)
            | JobEvent::LeaseExtended(_)
            | JobEvent::AttemptFailed(_)
            | JobEvent::Refunded(_)
            | JobEvent::RetryScheduled(_)
            | JobEvent::Failed(_)
            | JobEvent::Reclaimed(_)
            | JobEvent::Contradicted(_)
            | JobEvent::Voided(_) => Ok(()),
        }
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        // Each row was written, or deleted, with its event.
        Ok(())
    }
}
