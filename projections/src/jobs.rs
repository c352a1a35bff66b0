//! `jobs`: where each job stands, for lists.
//!
//! A row follows from the row before it and one event: events stand alone, so a batch may begin or end anywhere, also between
//! two events of one append. Whoever decides folds the stream instead; this table may lag. A row knows the last event in it and
//! skips what it has had. Bound: one row in memory for each job that a batch touches.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fmt;

use recoup::job::{JobEvent, Money};
use recoup::store::StoreError;
use recoup::{AccountId, Attempt, JobId, Kind, Position, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::{damaged, table_error};

/// Where a job's work stands, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "each is the state of that name in recoup::job::Work"
)]
pub enum State {
    Queued,
    Running,
    RetryScheduled,
    Failed,
    DeadLettered,
    Delivered,
    Cancelled,
    Discarded,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::RetryScheduled,
        Self::Failed,
        Self::DeadLettered,
        Self::Delivered,
        Self::Cancelled,
        Self::Discarded,
    ];

    /// The stable name, the same as [`Work::name`](recoup::job::Work::name).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::RetryScheduled => "retry_scheduled",
            Self::Failed => "failed",
            Self::DeadLettered => "dead_lettered",
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
            Self::Discarded => "discarded",
        }
    }

    /// The state of that name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// The state that an event leads to; none if it leaves the state as it is.
    const fn after(event: &JobEvent) -> Option<Self> {
        match event {
            JobEvent::Charged(_) | JobEvent::Redriven(_) => Some(Self::Queued),
            JobEvent::AttemptStarted(_) => Some(Self::Running),
            JobEvent::RetryScheduled(_) => Some(Self::RetryScheduled),
            JobEvent::Failed(_) => Some(Self::Failed),
            JobEvent::DeadLettered(_) => Some(Self::DeadLettered),
            JobEvent::Delivered(_) => Some(Self::Delivered),
            JobEvent::Cancelled(_) => Some(Self::Cancelled),
            JobEvent::Discarded(_) => Some(Self::Discarded),
            JobEvent::LeaseExtended(_)
            | JobEvent::AttemptFailed(_)
            | JobEvent::Refunded(_)
            | JobEvent::Reclaimed(_)
            | JobEvent::Contradicted(_)
            | JobEvent::Voided(_) => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(crate) fn parse_money(name: &str) -> Option<Money> {
    [Money::Charged, Money::Refunded, Money::Reclaimed]
        .into_iter()
        .find(|known| known.name() == name)
}

/// Where a job stands, as far as the projection has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Which job.
    pub job: JobId,
    /// Who pays.
    pub account: AccountId,
    /// What sort of work.
    pub kind: Kind,
    /// What it costs, in the smallest unit.
    pub cost: i64,
    /// The state's stable name: one of [`State::ALL`].
    pub state: &'static str,
    /// The stable name of where the money stands: `charged`, `refunded` or `reclaimed`.
    pub money: &'static str,
    /// The highest attempt so far; 0 before the first.
    pub attempt: u32,
    /// What is held for it, in the smallest unit.
    pub held: i64,
    /// When it was charged.
    pub charged_at: Timestamp,
    /// When its last event was posted.
    pub updated_at: Timestamp,
    /// The place of its charge in the log: the order of lists.
    pub opened: Position,
    /// The place of its last event.
    pub last_position: Position,
}

impl JobRow {
    /// The sum of the job's entries: 0 or −cost.
    #[must_use]
    pub fn net(&self) -> i64 {
        if self.money == Money::Refunded.name() {
            0
        } else {
            self.cost.saturating_neg()
        }
    }
}

/// A row as a batch changes it.
#[derive(Clone)]
struct Record {
    opened: Position,
    state: State,
    money: Money,
    attempt: Attempt,
    held: i64,
    updated_at: Timestamp,
    last_position: Position,
    /// What does not change, of a row that is not in the table yet.
    new: Option<Terms>,
    is_changed: bool,
    is_moved: bool,
}

#[derive(Clone)]
struct Terms {
    account: AccountId,
    kind: Kind,
    cost: i64,
    charged_at: Timestamp,
}

pub(crate) struct Jobs<'a> {
    connection: &'a Connection,
    rows: HashMap<JobId, Option<Record>>,
}

pub(crate) const LOAD: &str =
    "SELECT opened, state, money, attempt, held, updated_at, last_position
    FROM jobs WHERE job = ?1";

const INSERT: &str = "INSERT INTO jobs (opened, job, account, kind, cost, state, money, attempt,
    held, charged_at, updated_at, last_position)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

// Two statements, as an update that names the state rewrites the indexes on it, whether or not it is another one.
pub(crate) const MOVE: &str =
    "UPDATE jobs SET money = ?2, attempt = ?3, held = ?4, updated_at = ?5,
    last_position = ?6, state = ?7 WHERE opened = ?1";
pub(crate) const UPDATE: &str =
    "UPDATE jobs SET money = ?2, attempt = ?3, held = ?4, updated_at = ?5,
    last_position = ?6 WHERE opened = ?1";

impl<'a> Jobs<'a> {
    pub(crate) fn begin(connection: &'a Connection) -> Self {
        Self {
            connection,
            rows: HashMap::new(),
        }
    }

    fn row(&mut self, job: &JobId) -> Result<&mut Option<Record>, StoreError> {
        match self.rows.entry(job.clone()) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => Ok(unknown.insert(load(self.connection, job)?)),
        }
    }
}

fn load(connection: &Connection, job: &JobId) -> Result<Option<Record>, StoreError> {
    let mut statement = connection.prepare_cached(LOAD).map_err(table_error)?;
    let found = statement.query_row([job.as_str()], |row| {
        let (state, money): (String, String) = (row.get(1)?, row.get(2)?);
        let Some((state, money)) = State::parse(&state).zip(parse_money(&money)) else {
            let why = format_args!("job {job} is {state} and {money}");
            return Ok(Err(damaged("jobs", why)));
        };
        Ok(Ok(Record {
            opened: Position::new(row.get(0)?),
            state,
            money,
            attempt: Attempt::new(row.get(3)?),
            held: row.get(4)?,
            updated_at: Timestamp::from_micros(row.get(5)?),
            last_position: Position::new(row.get(6)?),
            new: None,
            is_changed: false,
            is_moved: false,
        }))
    });
    found.optional().map_err(table_error)?.transpose()
}

impl Record {
    /// A row of a job that was just charged.
    fn open(event: &BatchEvent, said: &JobEvent) -> Result<Self, &'static str> {
        let JobEvent::Charged(charged) = said else {
            return Err("it has no row, and this is no charge");
        };
        let posting = &charged.posting;
        let (Some(kind), Some(charged_at)) = (posting.kind.clone(), posting.charged_at) else {
            return Err("its charge lacks kind or instant");
        };
        let cost = posting
            .amount
            .checked_neg()
            .ok_or("its cost is out of range")?;
        Ok(Self {
            opened: event.position,
            state: State::Queued,
            money: Money::Charged,
            attempt: Attempt::NONE,
            held: posting.held,
            updated_at: event.posted_at,
            last_position: event.position,
            new: Some(Terms {
                account: posting.account.clone(),
                kind,
                cost,
                charged_at,
            }),
            is_changed: true,
            is_moved: true,
        })
    }

    /// The row after one more event.
    fn step(&mut self, event: &BatchEvent, said: &JobEvent) -> Result<(), &'static str> {
        if matches!(said, JobEvent::Charged(_)) {
            return Err("it was charged before");
        }
        if let Some(posting) = said.posting() {
            self.held = self
                .held
                .checked_add(posting.held)
                .ok_or("its hold leaves 64 bits")?;
        }
        match said {
            JobEvent::AttemptStarted(started) => self.attempt = self.attempt.max(started.attempt),
            JobEvent::AttemptFailed(failed) => self.attempt = self.attempt.max(failed.attempt),
            JobEvent::Delivered(delivered) => self.attempt = self.attempt.max(delivered.attempt),
            JobEvent::Refunded(_) => self.money = Money::Refunded,
            JobEvent::Reclaimed(_) => self.money = Money::Reclaimed,
            _ => {}
        }
        if let Some(state) = State::after(said) {
            self.is_moved |= state != self.state;
            self.state = state;
        }
        self.updated_at = event.posted_at;
        self.last_position = event.position;
        self.is_changed = true;
        Ok(())
    }

    fn write(&self, connection: &Connection, job: &JobId) -> Result<(), StoreError> {
        if let Some(terms) = &self.new {
            let mut insert = connection.prepare_cached(INSERT).map_err(table_error)?;
            insert.execute(params![
                self.opened.get(),
                job.as_str(),
                terms.account.as_str(),
                terms.kind.as_str(),
                terms.cost,
                self.state.name(),
                self.money.name(),
                self.attempt.get(),
                self.held,
                terms.charged_at.as_micros(),
                self.updated_at.as_micros(),
                self.last_position.get(),
            ])
        } else if self.is_moved {
            let mut update = connection.prepare_cached(MOVE).map_err(table_error)?;
            update.execute(params![
                self.opened.get(),
                self.money.name(),
                self.attempt.get(),
                self.held,
                self.updated_at.as_micros(),
                self.last_position.get(),
                self.state.name(),
            ])
        } else {
            let mut update = connection.prepare_cached(UPDATE).map_err(table_error)?;
            update.execute(params![
                self.opened.get(),
                self.money.name(),
                self.attempt.get(),
                self.held,
                self.updated_at.as_micros(),
                self.last_position.get(),
            ])
        }
        .map(drop)
        .map_err(table_error)
    }
}

impl Changes for Jobs<'_> {
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused> {
        let Body::Job(job, said) = &event.body else {
            return Ok(());
        };
        let impossible = |why| Refused::Impossible(format!("job {job}, {}: {why}", said.name()));
        match self.row(job)? {
            Some(record) if event.position <= record.last_position => {}
            Some(record) => record.step(event, said).map_err(impossible)?,
            // Ruled out before it was charged: there is no job yet.
            None if matches!(said, JobEvent::Voided(_)) => {}
            none @ None => *none = Some(Record::open(event, said).map_err(impossible)?),
        }
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        let mut changed: Vec<_> = self
            .rows
            .iter()
            .filter_map(|(job, record)| Some((job, record.as_ref()?)))
            .filter(|(_, record)| record.is_changed)
            .collect();
        // In the order of the table, so that neighbours share a page.
        changed.sort_unstable_by_key(|(_, record)| record.opened);
        changed
            .into_iter()
            .try_for_each(|(job, record)| record.write(self.connection, job))
    }
}
