//! `dead_letters`: jobs that ran out of attempts or time, and wait for a person.
//!
//! A row is written when a job becomes a dead letter and goes when it is redriven, discarded, cancelled or delivered after all.
//! An external job ends as failed and never stands here. The event alone does not say what the job costs nor why it failed last: that
//! is looked up in the job's stream, before the transaction begins, so that nothing here depends on another projection. An event
//! that is not later than the job's row has been applied, and is skipped. Bound: [`STREAMS`] streams in memory at a time, and one row
//! for each job that a batch moves in or out.

mod list;

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};

use recoup::codec::{Catalog, Decoded, Event};
use recoup::job::{AttemptFailed, DeadLetterCause, JobEvent};
use recoup::sql::{Database, Transaction, Value};
use recoup::store::{RecordedEvent, StoreError};
use recoup::{AccountId, Attempt, JobId, Kind, Position, Timestamp, values};

use crate::apply::{Changes, Refused};
use crate::batch::{Batch, BatchEvent, Body};
use crate::error::damaged;
use crate::keys;
use crate::streams::{STREAMS, read_what_can_be};

pub use list::DeadLetterFilter;
#[cfg(test)]
pub(crate) use list::LISTS;
pub(crate) use list::{count, dead_letters};

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
    database: &Database,
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
        for recorded in read_what_can_be(database, some).await? {
            fates.extend(fates_of(catalog, &recorded));
        }
    }
    Ok(fates)
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

/// A job's row before and after a batch.
struct Change<'a> {
    /// The place of the row that is stored.
    stored: Option<Position>,
    row: Letter<'a>,
}

/// A job's row.
#[derive(Clone, Copy)]
enum Letter<'a> {
    /// The one that is stored, if one is.
    AsStored,
    None,
    New {
        event: &'a BatchEvent,
        fate: &'a Fate,
        cause: DeadLetterCause,
    },
}

pub(crate) struct DeadLetters<'a, 'c> {
    tx: &'a Transaction<'c>,
    fates: &'a HashMap<Position, Fate>,
    rows: HashMap<&'a JobId, Change<'a>>,
}

pub(crate) const LOAD: &str = "SELECT position FROM dead_letters WHERE job = ?1";

/// The rows of many jobs.
pub(crate) const LOAD_EACH: &str =
    "SELECT job, position FROM dead_letters WHERE job IN (VALUES :keys)";

pub(crate) const DELETE_EACH: &str = "DELETE FROM dead_letters WHERE job IN (VALUES :keys)";

const INSERT: &str = "INSERT INTO dead_letters
    (position, job, account, kind, cost, cause, attempts, reason, dead_lettered_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

impl<'a> Change<'a> {
    const fn of(stored: Option<Position>) -> Self {
        let row = Letter::AsStored;
        Self { stored, row }
    }

    /// The place of the job's row.
    const fn place(&self) -> Option<Position> {
        match self.row {
            Letter::AsStored => self.stored,
            Letter::None => None,
            Letter::New { event, .. } => Some(event.position),
        }
    }
}

/// Whether an event makes a job a dead letter, or ends that.
enum Turn {
    In(DeadLetterCause),
    Out,
}

impl Turn {
    const fn of(said: &JobEvent) -> Option<Self> {
        match said {
            JobEvent::DeadLettered(dead) => Some(Self::In(dead.cause)),
            JobEvent::Redriven(_)
            | JobEvent::Discarded(_)
            | JobEvent::Cancelled(_)
            | JobEvent::Delivered(_) => Some(Self::Out),
            JobEvent::Charged(_)
            | JobEvent::AttemptStarted(_)
            | JobEvent::LeaseExtended(_)
            | JobEvent::AttemptFailed(_)
            | JobEvent::Refunded(_)
            | JobEvent::RetryScheduled(_)
            | JobEvent::Failed(_)
            | JobEvent::Reclaimed(_)
            | JobEvent::Contradicted(_)
            | JobEvent::Voided(_) => None,
        }
    }
}

impl<'a, 'c> DeadLetters<'a, 'c> {
    pub(crate) fn begin(tx: &'a Transaction<'c>, batch: &'a Batch) -> Self {
        Self {
            tx,
            fates: &batch.fates,
            rows: HashMap::new(),
        }
    }

    fn change(&mut self, job: &'a JobId) -> Result<&mut Change<'a>, StoreError> {
        match self.rows.entry(job) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let stored = self.tx.row(LOAD, values![job.as_str()], |row| row.get(0))?;
                Ok(unknown.insert(Change::of(stored.map(Position::new))))
            }
        }
    }
}

impl<'a> Changes<'a> for DeadLetters<'a, '_> {
    fn prefetch(&mut self, events: &'a [BatchEvent]) -> Result<(), StoreError> {
        for event in events {
            if let Body::Job(job, said) = &event.body
                && Turn::of(said).is_some()
            {
                self.rows.insert(job, Change::of(None));
            }
        }
        let touched: Vec<_> = self.rows.keys().map(|job| [job.as_str().into()]).collect();
        let stored = keys::rows(self.tx, LOAD_EACH, &touched, |row| {
            let job: String = row.get(0)?;
            let job = JobId::new(job).map_err(|error| damaged("dead_letters", error))?;
            Ok((job, Position::new(row.get(1)?)))
        })?;
        for (job, place) in stored {
            if let Some(change) = self.rows.get_mut(&job) {
                *change = Change::of(Some(place));
            }
        }
        Ok(())
    }

    fn apply(&mut self, event: &'a BatchEvent) -> Result<(), Refused> {
        let Body::Job(job, said) = &event.body else {
            return Ok(());
        };
        let Some(turn) = Turn::of(said) else {
            return Ok(());
        };
        let fates = self.fates;
        let change = self.change(job)?;
        match (turn, change.place()) {
            (Turn::In(cause), None) => {
                let fate = fates.get(&event.position).ok_or_else(|| {
                    Refused::Impossible(format!(
                        "job {job} became a dead letter, and its stream cannot be read up to there"
                    ))
                })?;
                change.row = Letter::New { event, fate, cause };
            }
            (Turn::In(_), Some(row)) if event.position > row => {
                return Err(Refused::Impossible(format!(
                    "job {job} is a dead letter since event {row}"
                )));
            }
            (Turn::Out, Some(row)) if event.position > row => change.row = Letter::None,
            (Turn::In(_) | Turn::Out, _) => {}
        }
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        let (mut rows, mut gone) = (Vec::new(), Vec::new());
        for (job, change) in &self.rows {
            if change.stored.is_some() && !matches!(change.row, Letter::AsStored) {
                gone.push([job.as_str().into()]);
            }
            if let Letter::New { event, fate, cause } = change.row {
                rows.push((job, event, fate, cause));
            }
        }
        // In the order of the table, so that neighbours share a page.
        rows.sort_unstable_by_key(|(_, event, ..)| event.position);
        let values = rows.into_iter().map(|(job, event, fate, cause)| {
            vec![
                event.position.get().into(),
                job.as_str().into(),
                fate.account.as_str().into(),
                fate.kind.as_str().into(),
                fate.cost.into(),
                cause.name().into(),
                fate.attempts.get().into(),
                fate.reason.as_ref().into(),
                event.posted_at.as_micros().into(),
            ]
        });
        let rows: Vec<Vec<Value<'_>>> = values.collect();
        keys::execute(self.tx, DELETE_EACH, &gone)?;
        self.tx.execute_many(INSERT, &rows)
    }
}
