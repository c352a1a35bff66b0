//! `daily_usage`: what each account's jobs of each kind came to, by the day on which it was posted.
//!
//! Charged, refunded and reclaimed are positive sums; `jobs` counts charges. Only a job's money counts: a grant or an adjustment
//! is no usage. A row knows the last event in it and skips what it has had, so a row that was repaired ahead of the
//! checkpoint is not counted twice. Sums are checked. Bound: one row in memory for each key that a batch touches.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use recoup::account::Posting;
use recoup::job::JobEvent;
use recoup::store::StoreError;
use recoup::{AccountId, Day, Kind, Position};
use rusqlite::{Connection, OptionalExtension, params};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::table_error;

/// An account's usage on one day by jobs of one kind, in the smallest unit; all of it positive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// The day in the ledger's zone.
    pub day: Day,
    /// The jobs' kind.
    pub kind: Kind,
    /// What was charged.
    pub charged: i64,
    /// What was credited back.
    pub refunded: i64,
    /// What of that was taken back again.
    pub reclaimed: i64,
    /// How many jobs were charged.
    pub jobs: i64,
}

impl UsageRow {
    /// Charged − refunded + reclaimed. Negative where a day refunds what an earlier one charged.
    #[must_use]
    pub fn net(&self) -> i64 {
        self.charged
            .saturating_sub(self.refunded)
            .saturating_add(self.reclaimed)
    }
}

type Key = (AccountId, Day, Kind);

#[derive(Clone, Copy)]
struct Sums {
    charged: i64,
    refunded: i64,
    reclaimed: i64,
    jobs: i64,
    last_position: Position,
    is_changed: bool,
}

pub(crate) struct DailyUsage<'a> {
    connection: &'a Connection,
    rows: HashMap<Key, Sums>,
}

pub(crate) const LOAD: &str =
    "SELECT charged, refunded, reclaimed, jobs, last_position FROM daily_usage
    WHERE account = ?1 AND day = ?2 AND kind = ?3";

const WRITE: &str = "INSERT INTO daily_usage
    (account, day, kind, charged, refunded, reclaimed, jobs, last_position)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (account, day, kind) DO UPDATE SET charged = excluded.charged,
    refunded = excluded.refunded, reclaimed = excluded.reclaimed, jobs = excluded.jobs,
    last_position = excluded.last_position";

/// What an event adds.
enum Usage<'a> {
    Charged(&'a Posting),
    Refunded(&'a Posting),
    Reclaimed(&'a Posting),
}

impl<'a> Usage<'a> {
    fn of(body: &'a Body) -> Option<Self> {
        match body {
            Body::Job(_, JobEvent::Charged(charged)) => Some(Self::Charged(&charged.posting)),
            Body::Job(_, JobEvent::Refunded(refunded)) => Some(Self::Refunded(&refunded.posting)),
            Body::Job(_, JobEvent::Reclaimed(reclaimed)) => {
                Some(Self::Reclaimed(&reclaimed.posting))
            }
            Body::Job(..) | Body::Account(_) | Body::Retired => None,
        }
    }

    const fn posting(&self) -> &'a Posting {
        match self {
            Self::Charged(posting) | Self::Refunded(posting) | Self::Reclaimed(posting) => posting,
        }
    }

    /// The size of what moved; none if it moved in the wrong direction.
    fn size(&self) -> Option<i64> {
        let size = match self {
            Self::Charged(posting) | Self::Reclaimed(posting) => posting.amount.checked_neg()?,
            Self::Refunded(posting) => posting.amount,
        };
        (size >= 0).then_some(size)
    }
}

impl Sums {
    const ZERO: Self = Self {
        charged: 0,
        refunded: 0,
        reclaimed: 0,
        jobs: 0,
        last_position: Position::START,
        is_changed: false,
    };

    /// These sums with `usage` in them; none if one of them leaves 64 bits.
    fn with(self, usage: &Usage<'_>, size: i64, position: Position) -> Option<Self> {
        let mut sums = Self {
            last_position: position,
            is_changed: true,
            ..self
        };
        match usage {
            Usage::Charged(_) => {
                sums.charged = sums.charged.checked_add(size)?;
                sums.jobs = sums.jobs.checked_add(1)?;
            }
            Usage::Refunded(_) => sums.refunded = sums.refunded.checked_add(size)?,
            Usage::Reclaimed(_) => sums.reclaimed = sums.reclaimed.checked_add(size)?,
        }
        Some(sums)
    }
}

impl<'a> DailyUsage<'a> {
    pub(crate) fn begin(connection: &'a Connection) -> Self {
        Self {
            connection,
            rows: HashMap::new(),
        }
    }

    fn row(&mut self, key: Key) -> Result<&mut Sums, StoreError> {
        match self.rows.entry(key) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let sums = load(self.connection, unknown.key())?;
                Ok(unknown.insert(sums.unwrap_or(Sums::ZERO)))
            }
        }
    }
}

fn load(connection: &Connection, (account, day, kind): &Key) -> Result<Option<Sums>, StoreError> {
    let mut statement = connection.prepare_cached(LOAD).map_err(table_error)?;
    let values = params![account.as_str(), day.to_string(), kind.as_str()];
    let sums = statement.query_row(values, |row| {
        Ok(Sums {
            charged: row.get(0)?,
            refunded: row.get(1)?,
            reclaimed: row.get(2)?,
            jobs: row.get(3)?,
            last_position: Position::new(row.get(4)?),
            is_changed: false,
        })
    });
    sums.optional().map_err(table_error)
}

impl Changes for DailyUsage<'_> {
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused> {
        let Some(usage) = Usage::of(&event.body) else {
            return Ok(());
        };
        let posting = usage.posting();
        let impossible = |why: &str| {
            let Posting {
                account, amount, ..
            } = posting;
            Refused::Impossible(format!("{amount} of {account} {why}"))
        };
        let kind = posting
            .kind
            .clone()
            .ok_or_else(|| impossible("names no kind"))?;
        let size = usage
            .size()
            .ok_or_else(|| impossible("moves in the wrong direction"))?;
        let sums = self.row((posting.account.clone(), event.day, kind))?;
        if event.position > sums.last_position {
            *sums = sums
                .with(&usage, size, event.position)
                .ok_or_else(|| impossible("takes a sum out of 64 bits"))?;
        }
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        let mut changed: Vec<_> = self
            .rows
            .into_iter()
            .filter(|(_, sums)| sums.is_changed)
            .collect();
        // In the order of the table, so that neighbours share a page.
        changed.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut statement = self.connection.prepare_cached(WRITE).map_err(table_error)?;
        for ((account, day, kind), sums) in changed {
            let values = params![
                account.as_str(),
                day.to_string(),
                kind.as_str(),
                sums.charged,
                sums.refunded,
                sums.reclaimed,
                sums.jobs,
                sums.last_position.get(),
            ];
            statement.execute(values).map_err(table_error)?;
        }
        Ok(())
    }
}
