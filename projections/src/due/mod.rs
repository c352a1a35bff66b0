//! `due`: every live job with the timer that ends its state, for the loop that acts on timers and for workers that ask for work.
//!
//! A row follows from the row before it and one event. A job that ends leaves no row; one that comes to life again, redriven or
//! started after a failure, gets a new one from that event alone, which carries whose job it is in its hold. A row knows the last event
//! in it and skips what it has had; an event that needs a row where there is none halts the projection. Between an attempt's failure and
//! the event that says what follows, in the same append, the row still shows the attempt: whoever acts on it is refused.
//!
//! Whoever acts on a row sends a guarded command: this table may lag, and a stale row does no harm. Bound: one row in
//! memory for each job that a batch touches.

mod source;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::time::Duration;

use recoup::account::Posting;
use recoup::job::{AttemptStarted, JobEvent, RetryScheduled, Timer};
use recoup::retry::Mode;
use recoup::store::StoreError;
use recoup::{AccountId, Attempt, JobId, Kind, Position, Revision, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::{damaged, table_error};
use crate::jobs::State;

#[cfg(test)]
pub(crate) use source::PLANS;

/// A row as a batch changes it.
#[derive(Clone)]
struct Record {
    account: AccountId,
    kind: Kind,
    mode: Mode,
    armed: Armed,
    attempt: Attempt,
    last_position: Position,
}

/// A live state and its timer.
#[derive(Clone, Copy)]
struct Armed {
    state: State,
    timer: Timer,
    armed_at: Revision,
    deadline: Timestamp,
    startable_at: Option<Timestamp>,
}

/// A job's row before and after a batch.
struct Change {
    is_stored: bool,
    row: Option<Record>,
    is_changed: bool,
}

pub(crate) struct Due<'a> {
    connection: &'a Connection,
    rows: HashMap<JobId, Change>,
}

pub(crate) const LOAD: &str =
    "SELECT account, kind, mode, state, timer, armed_at, deadline, startable_at, attempt,
    last_position FROM due WHERE job = ?1";

const WRITE: &str = "INSERT INTO due (job, account, kind, mode, state, timer, armed_at, deadline,
    startable_at, attempt, last_position)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ON CONFLICT (job) DO UPDATE SET account = ?2, kind = ?3, mode = ?4, state = ?5, timer = ?6,
    armed_at = ?7, deadline = ?8, startable_at = ?9, attempt = ?10, last_position = ?11";

pub(crate) const DELETE: &str = "DELETE FROM due WHERE job = ?1";

fn parse_mode(name: &str) -> Option<Mode> {
    [Mode::External, Mode::Claimed]
        .into_iter()
        .find(|known| known.name() == name)
}

fn parse_timer(name: &str) -> Option<Timer> {
    [Timer::StartBy, Timer::LeaseUntil, Timer::GiveUpAt]
        .into_iter()
        .find(|known| known.name() == name)
}

fn stored_revision(number: i64) -> Option<Revision> {
    u64::try_from(number).ok().map(Revision::new)
}

impl<'a> Due<'a> {
    pub(crate) fn begin(connection: &'a Connection) -> Self {
        Self {
            connection,
            rows: HashMap::new(),
        }
    }

    fn change(&mut self, job: &JobId) -> Result<&mut Change, StoreError> {
        match self.rows.entry(job.clone()) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let row = load(self.connection, job)?;
                Ok(unknown.insert(Change {
                    is_stored: row.is_some(),
                    row,
                    is_changed: false,
                }))
            }
        }
    }
}

fn load(connection: &Connection, job: &JobId) -> Result<Option<Record>, StoreError> {
    let mut statement = connection.prepare_cached(LOAD).map_err(table_error)?;
    let found = statement
        .query_row([job.as_str()], |row| Ok(Record::read(row, job)))
        .optional()
        .map_err(table_error)?;
    found.transpose()
}

impl Record {
    fn read(row: &Row<'_>, job: &JobId) -> Result<Self, StoreError> {
        let wrong = |what: &str| damaged("due", format_args!("job {job} has no known {what}"));
        let text = |column| row.get::<_, String>(column).map_err(table_error);
        let number = |column| row.get::<_, i64>(column).map_err(table_error);
        let startable_at: Option<i64> = row.get(7).map_err(table_error)?;
        Ok(Self {
            account: AccountId::new(text(0)?).map_err(|_| wrong("account"))?,
            kind: Kind::new(text(1)?).map_err(|_| wrong("kind"))?,
            mode: parse_mode(&text(2)?).ok_or_else(|| wrong("mode"))?,
            armed: Armed {
                state: State::parse(&text(3)?).ok_or_else(|| wrong("state"))?,
                timer: parse_timer(&text(4)?).ok_or_else(|| wrong("timer"))?,
                armed_at: stored_revision(number(5)?).ok_or_else(|| wrong("revision"))?,
                deadline: Timestamp::from_micros(number(6)?),
                startable_at: startable_at.map(Timestamp::from_micros),
            },
            attempt: Attempt::new(row.get(8).map_err(table_error)?),
            last_position: Position::new(number(9)?),
        })
    }

    /// The row of a job that comes to life, for the first time or again. Its posting says whose it is.
    fn open(
        event: &BatchEvent,
        posting: &Posting,
        (mode, attempt): (Mode, Attempt),
        armed: Armed,
    ) -> Result<Self, &'static str> {
        Ok(Self {
            account: posting.account.clone(),
            kind: posting.kind.clone().ok_or("its posting lacks the kind")?,
            mode,
            armed,
            attempt,
            last_position: event.position,
        })
    }

    fn write(&self, connection: &Connection, job: &JobId) -> Result<(), StoreError> {
        let armed = &self.armed;
        let mut write = connection.prepare_cached(WRITE).map_err(table_error)?;
        let values = params![
            job.as_str(),
            self.account.as_str(),
            self.kind.as_str(),
            self.mode.name(),
            armed.state.name(),
            armed.timer.name(),
            i64::try_from(armed.armed_at.get()).unwrap_or(i64::MAX),
            armed.deadline.as_micros(),
            armed.startable_at.map(Timestamp::as_micros),
            self.attempt.get(),
            self.last_position.get(),
        ];
        write.execute(values).map(drop).map_err(table_error)
    }
}

fn queued(event: &BatchEvent, mode: Mode, start_within_ms: u64) -> Armed {
    Armed {
        state: State::Queued,
        timer: Timer::StartBy,
        armed_at: event.revision,
        deadline: event
            .posted_at
            .after(Duration::from_millis(start_within_ms)),
        startable_at: (mode == Mode::Claimed).then_some(event.posted_at),
    }
}

fn running(event: &BatchEvent, lease_ms: u64) -> Armed {
    Armed {
        state: State::Running,
        timer: Timer::LeaseUntil,
        armed_at: event.revision,
        deadline: event.posted_at.after(Duration::from_millis(lease_ms)),
        startable_at: None,
    }
}

fn waiting(event: &BatchEvent, scheduled: &RetryScheduled) -> Armed {
    let due_at = event
        .posted_at
        .after(Duration::from_millis(scheduled.delay_ms));
    Armed {
        state: State::RetryScheduled,
        timer: Timer::GiveUpAt,
        armed_at: event.revision,
        deadline: due_at.after(Duration::from_millis(scheduled.start_within_ms)),
        startable_at: Some(due_at),
    }
}

fn start(
    row: Option<&Record>,
    event: &BatchEvent,
    started: &AttemptStarted,
) -> Result<Record, &'static str> {
    let armed = running(event, started.lease_ms);
    match (row, &started.hold) {
        (Some(row), _) if row.armed.state == State::Running => Err("an attempt runs"),
        (Some(row), _) => Ok(Record {
            armed,
            attempt: started.attempt,
            ..row.clone()
        }),
        // Only a failed external job is started without having been live.
        (None, Some(hold)) => Record::open(event, hold, (Mode::External, started.attempt), armed),
        (None, None) => Err("it has no row, and takes no hold"),
    }
}

/// The row after one more event; none if the job is not live any more.
fn step(
    row: Option<&Record>,
    event: &BatchEvent,
    said: &JobEvent,
) -> Result<Option<Record>, &'static str> {
    let next = match said {
        JobEvent::Charged(_) | JobEvent::Redriven(_) if row.is_some() => {
            return Err("it has a row, and was not live before this");
        }
        JobEvent::Charged(charged) => {
            let policy = &charged.policy;
            let armed = queued(event, policy.mode, policy.start_within_ms);
            Record::open(event, &charged.posting, (policy.mode, Attempt::NONE), armed)?
        }
        JobEvent::Redriven(redriven) => {
            let mode = Mode::Claimed;
            let armed = queued(event, mode, redriven.start_within_ms);
            Record::open(event, &redriven.hold, (mode, redriven.base), armed)?
        }
        JobEvent::AttemptStarted(started) => start(row, event, started)?,
        JobEvent::LeaseExtended(extended) => match row {
            Some(row) if row.armed.state == State::Running => Record {
                armed: running(event, extended.lease_ms),
                ..row.clone()
            },
            Some(_) | None => return Err("no attempt runs"),
        },
        JobEvent::RetryScheduled(scheduled) => {
            let row = row.ok_or("it has no row, and is to be retried")?;
            Record {
                armed: waiting(event, scheduled),
                attempt: scheduled.attempt,
                ..row.clone()
            }
        }
        JobEvent::AttemptFailed(failed) => match row {
            Some(row) => Record {
                attempt: row.attempt.max(failed.attempt),
                ..row.clone()
            },
            None => return Ok(None),
        },
        JobEvent::Failed(_)
        | JobEvent::DeadLettered(_)
        | JobEvent::Delivered(_)
        | JobEvent::Cancelled(_)
        | JobEvent::Discarded(_) => return Ok(None),
        JobEvent::Refunded(_)
        | JobEvent::Reclaimed(_)
        | JobEvent::Contradicted(_)
        | JobEvent::Voided(_) => match row {
            Some(row) => row.clone(),
            None => return Ok(None),
        },
    };
    Ok(Some(Record {
        last_position: event.position,
        ..next
    }))
}

impl Changes for Due<'_> {
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused> {
        let Body::Job(job, said) = &event.body else {
            return Ok(());
        };
        let change = self.change(job)?;
        let row = change.row.as_ref();
        if row.is_some_and(|row| event.position <= row.last_position) {
            return Ok(());
        }
        let impossible = |why| Refused::Impossible(format!("job {job}, {}: {why}", said.name()));
        change.row = step(row, event, said).map_err(impossible)?;
        change.is_changed = true;
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        let mut changed: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, change)| change.is_changed)
            .collect();
        // In the order of the table, so that neighbours share a page.
        changed.sort_unstable_by_key(|(job, _)| *job);
        for (job, change) in changed {
            if let Some(row) = &change.row {
                row.write(self.connection, job)?;
            } else if change.is_stored {
                let mut delete = self
                    .connection
                    .prepare_cached(DELETE)
                    .map_err(table_error)?;
                delete.execute([job.as_str()]).map_err(table_error)?;
            }
        }
        Ok(())
    }
}
