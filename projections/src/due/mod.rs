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

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use recoup::account::Posting;
use recoup::job::{AttemptStarted, JobEvent, RetryScheduled, Timer};
use recoup::retry::Mode;
use recoup::sql::{Row, Transaction, Value};
use recoup::store::StoreError;
use recoup::{AccountId, Attempt, JobId, Kind, Position, Revision, Timestamp, values};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::damaged;
use crate::jobs::State;
use crate::keys;

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

pub(crate) struct Due<'a, 'c> {
    tx: &'a Transaction<'c>,
    rows: HashMap<JobId, Change>,
}

pub(crate) const LOAD: &str =
    "SELECT account, kind, mode, state, timer, armed_at, deadline, startable_at, attempt,
    last_position FROM due WHERE job = ?1";

/// The rows of many jobs.
pub(crate) const LOAD_EACH: &str =
    "SELECT account, kind, mode, state, timer, armed_at, deadline, startable_at, attempt,
    last_position, job FROM due WHERE job IN (VALUES :keys)";

const WRITE: &str = "INSERT INTO due (job, account, kind, mode, state, timer, armed_at, deadline,
    startable_at, attempt, last_position)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ON CONFLICT (job) DO UPDATE SET account = excluded.account, kind = excluded.kind,
    mode = excluded.mode, state = excluded.state, timer = excluded.timer,
    armed_at = excluded.armed_at, deadline = excluded.deadline,
    startable_at = excluded.startable_at, attempt = excluded.attempt,
    last_position = excluded.last_position";

pub(crate) const DELETE_EACH: &str = "DELETE FROM due WHERE job IN (VALUES :keys)";

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

impl<'a, 'c> Due<'a, 'c> {
    pub(crate) fn begin(tx: &'a Transaction<'c>) -> Self {
        Self {
            tx,
            rows: HashMap::new(),
        }
    }

    fn change(&mut self, job: &JobId) -> Result<&mut Change, StoreError> {
        match self.rows.entry(job.clone()) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let row = load(self.tx, job)?;
                Ok(unknown.insert(Change::of(row)))
            }
        }
    }
}

impl Change {
    const fn of(stored: Option<Record>) -> Self {
        Self {
            is_stored: stored.is_some(),
            row: stored,
            is_changed: false,
        }
    }
}

fn load(tx: &Transaction<'_>, job: &JobId) -> Result<Option<Record>, StoreError> {
    tx.row(LOAD, values![job.as_str()], |row| Record::read(row, job))
}

impl Record {
    fn read(row: &Row<'_>, job: &JobId) -> Result<Self, StoreError> {
        let wrong = |what: &str| damaged("due", format_args!("job {job} has no known {what}"));
        let text = |column| row.get::<String>(column);
        let number = |column| row.get::<i64>(column);
        let startable_at: Option<i64> = row.get(7)?;
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
            attempt: Attempt::new(row.get(8)?),
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

    /// The values of the row, in the order of its table.
    fn values<'v>(&'v self, job: &'v JobId) -> Vec<Value<'v>> {
        let armed = &self.armed;
        vec![
            job.as_str().into(),
            self.account.as_str().into(),
            self.kind.as_str().into(),
            self.mode.name().into(),
            armed.state.name().into(),
            armed.timer.name().into(),
            i64::try_from(armed.armed_at.get())
                .unwrap_or(i64::MAX)
                .into(),
            armed.deadline.as_micros().into(),
            armed.startable_at.map(Timestamp::as_micros).into(),
            self.attempt.get().into(),
            self.last_position.get().into(),
        ]
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

impl<'a> Changes<'a> for Due<'a, '_> {
    fn prefetch(&mut self, events: &'a [BatchEvent]) -> Result<(), StoreError> {
        let jobs: BTreeSet<&JobId> = events.iter().filter_map(BatchEvent::job).collect();
        let touched: Vec<_> = jobs.iter().map(|job| [job.as_str().into()]).collect();
        let stored = keys::rows(self.tx, LOAD_EACH, &touched, |row| {
            let job = JobId::new(row.get::<String>(10)?).map_err(|error| damaged("due", error))?;
            let change = Change::of(Some(Record::read(row, &job)?));
            Ok((job, change))
        })?;
        self.rows
            .extend(jobs.into_iter().map(|job| (job.clone(), Change::of(None))));
        self.rows.extend(stored);
        Ok(())
    }

    fn apply(&mut self, event: &'a BatchEvent) -> Result<(), Refused> {
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
        let (mut rows, mut gone) = (Vec::new(), Vec::new());
        for (job, change) in changed {
            match &change.row {
                Some(row) => rows.push(row.values(job)),
                None if change.is_stored => gone.push([job.as_str().into()]),
                None => {}
            }
        }
        keys::execute(self.tx, DELETE_EACH, &gone)?;
        self.tx.execute_many(WRITE, &rows)
    }
}
