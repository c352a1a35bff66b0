//! `jobs`: where each job stands, for lists.
//!
//! A row follows from the row before it and one event: events stand alone, so a batch may begin or end anywhere, also between
//! two events of one append. Whoever decides folds the stream instead; this table may lag. A row knows the last event in it and
//! skips what it has had. Bound: one row in memory for each job that a batch touches.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use recoup::job::{JobEvent, Money};
use recoup::sql::{Row, Transaction, Value};
use recoup::store::StoreError;
use recoup::{AccountId, Attempt, JobId, Kind, Position, Timestamp, values};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::damaged;
use crate::keys;

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
    /// What does not change. Not known of a row that was loaded by itself, which is changed without it.
    terms: Option<Terms>,
    /// It is not in the table yet.
    is_new: bool,
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

pub(crate) struct Jobs<'a, 'c> {
    tx: &'a Transaction<'c>,
    rows: HashMap<JobId, Option<Record>>,
}

pub(crate) const LOAD: &str =
    "SELECT opened, state, money, attempt, held, updated_at, last_position
    FROM jobs WHERE job = ?1";

/// The rows of many jobs, each with what does not change in it.
pub(crate) const LOAD_EACH: &str =
    "SELECT opened, state, money, attempt, held, updated_at, last_position,
    job, account, kind, cost, charged_at FROM jobs WHERE job IN (VALUES :keys)";

const INSERT: &str = "INSERT INTO jobs (opened, job, account, kind, cost, state, money, attempt,
    held, charged_at, updated_at, last_position)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

// Changes rows that are there, many of them in one statement: PostgreSQL rewrites no index for a value that stays the same.
const REPLACE: &str = "INSERT INTO jobs (opened, job, account, kind, cost, state, money, attempt,
    held, charged_at, updated_at, last_position)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
    ON CONFLICT (opened) DO UPDATE SET state = excluded.state, money = excluded.money,
    attempt = excluded.attempt, held = excluded.held, updated_at = excluded.updated_at,
    last_position = excluded.last_position";

// Two statements, as an update that names the state rewrites the indexes on it, whether or not it is another one.
pub(crate) const MOVE: &str =
    "UPDATE jobs SET money = ?2, attempt = ?3, held = ?4, updated_at = ?5,
    last_position = ?6, state = ?7 WHERE opened = ?1";
pub(crate) const UPDATE: &str =
    "UPDATE jobs SET money = ?2, attempt = ?3, held = ?4, updated_at = ?5,
    last_position = ?6 WHERE opened = ?1";

impl<'a, 'c> Jobs<'a, 'c> {
    pub(crate) fn begin(tx: &'a Transaction<'c>) -> Self {
        Self {
            tx,
            rows: HashMap::new(),
        }
    }

    fn row(&mut self, job: &JobId) -> Result<&mut Option<Record>, StoreError> {
        match self.rows.entry(job.clone()) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => Ok(unknown.insert(load(self.tx, job)?)),
        }
    }
}

fn load(tx: &Transaction<'_>, job: &JobId) -> Result<Option<Record>, StoreError> {
    tx.row(LOAD, values![job.as_str()], |row| Record::read(row, job))
}

fn load_each(
    tx: &Transaction<'_>,
    jobs: &BTreeSet<&JobId>,
) -> Result<Vec<(JobId, Record)>, StoreError> {
    let jobs: Vec<_> = jobs.iter().map(|job| [job.as_str().into()]).collect();
    keys::rows(tx, LOAD_EACH, &jobs, |row| {
        let (job, account, kind): (String, String, String) =
            (row.get(7)?, row.get(8)?, row.get(9)?);
        let wrong = |what: &str| damaged("jobs", format_args!("job {job} has no known {what}"));
        let id = JobId::new(&job).map_err(|_| wrong("id"))?;
        let terms = Terms {
            account: AccountId::new(account).map_err(|_| wrong("account"))?,
            kind: Kind::new(kind).map_err(|_| wrong("kind"))?,
            cost: row.get(10)?,
            charged_at: Timestamp::from_micros(row.get(11)?),
        };
        let record = Record {
            terms: Some(terms),
            ..Record::read(row, &id)?
        };
        Ok((id, record))
    })
}

impl Record {
    /// A row that begins with the columns of [`LOAD`].
    fn read(row: &Row<'_>, job: &JobId) -> Result<Self, StoreError> {
        let (state, money): (String, String) = (row.get(1)?, row.get(2)?);
        let Some((state, money)) = State::parse(&state).zip(parse_money(&money)) else {
            let why = format_args!("job {job} is {state} and {money}");
            return Err(damaged("jobs", why));
        };
        Ok(Self {
            opened: Position::new(row.get(0)?),
            state,
            money,
            attempt: Attempt::new(row.get(3)?),
            held: row.get(4)?,
            updated_at: Timestamp::from_micros(row.get(5)?),
            last_position: Position::new(row.get(6)?),
            terms: None,
            is_new: false,
            is_changed: false,
            is_moved: false,
        })
    }

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
            terms: Some(Terms {
                account: posting.account.clone(),
                kind,
                cost,
                charged_at,
            }),
            is_new: true,
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

    /// The values of the whole row, in the order of its table; none if not all are known.
    fn values<'v>(&'v self, job: &'v JobId) -> Option<Vec<Value<'v>>> {
        let terms = self.terms.as_ref()?;
        Some(vec![
            self.opened.get().into(),
            job.as_str().into(),
            terms.account.as_str().into(),
            terms.kind.as_str().into(),
            terms.cost.into(),
            self.state.name().into(),
            self.money.name().into(),
            self.attempt.get().into(),
            self.held.into(),
            terms.charged_at.as_micros().into(),
            self.updated_at.as_micros().into(),
            self.last_position.get().into(),
        ])
    }

    /// Changes the row by itself.
    fn update(&self, tx: &Transaction<'_>) -> Result<(), StoreError> {
        let values = values![
            self.opened.get(),
            self.money.name(),
            self.attempt.get(),
            self.held,
            self.updated_at.as_micros(),
            self.last_position.get(),
            self.state.name(),
        ];
        if self.is_moved {
            tx.execute(MOVE, values)?;
        } else {
            tx.execute(UPDATE, &values[..values.len() - 1])?;
        }
        Ok(())
    }
}

impl<'a> Changes<'a> for Jobs<'a, '_> {
    fn prefetch(&mut self, events: &'a [BatchEvent]) -> Result<(), StoreError> {
        let jobs: BTreeSet<&JobId> = events.iter().filter_map(BatchEvent::job).collect();
        let stored = load_each(self.tx, &jobs)?;
        self.rows
            .extend(jobs.into_iter().map(|job| (job.clone(), None)));
        let stored = stored.into_iter().map(|(job, record)| (job, Some(record)));
        self.rows.extend(stored);
        Ok(())
    }

    fn apply(&mut self, event: &'a BatchEvent) -> Result<(), Refused> {
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
        // In the order of the table, so that neighbours share a page; those that are new come last in it.
        changed.sort_unstable_by_key(|(_, record)| record.opened);
        let (mut known, mut new) = (Vec::new(), Vec::new());
        for (job, record) in changed {
            match record.values(job) {
                Some(values) if record.is_new => new.push(values),
                Some(values) => known.push(values),
                None => record.update(self.tx)?,
            }
        }
        self.tx.execute_many(REPLACE, &known)?;
        self.tx.execute_many(INSERT, &new)
    }
}
