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

/// What a row of daily usage adds up to, in the smallest unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageSums {
    /// What was charged.
    pub charged: i64,
    /// What was credited back.
    pub refunded: i64,
    /// What of that was taken back again.
    pub reclaimed: i64,
    /// How many jobs were charged.
    pub jobs: i64,
    /// The last event in it.
    pub last_position: Position,
}

impl UsageSums {
    /// Of no event.
    pub const ZERO: Self = Self {
        charged: 0,
        refunded: 0,
        reclaimed: 0,
        jobs: 0,
        last_position: Position::START,
    };

    /// These sums with later ones added; none if one of them leaves 64 bits.
    #[must_use]
    pub fn plus(self, later: Self) -> Option<Self> {
        Some(Self {
            charged: self.charged.checked_add(later.charged)?,
            refunded: self.refunded.checked_add(later.refunded)?,
            reclaimed: self.reclaimed.checked_add(later.reclaimed)?,
            jobs: self.jobs.checked_add(later.jobs)?,
            last_position: self.last_position.max(later.last_position),
        })
    }
}

struct Row {
    sums: UsageSums,
    is_changed: bool,
}

pub(crate) struct DailyUsage<'a> {
    connection: &'a Connection,
    rows: HashMap<Key, Row>,
}

pub(crate) const LOAD: &str =
    "SELECT charged, refunded, reclaimed, jobs, last_position FROM daily_usage
    WHERE account = ?1 AND day = ?2 AND kind = ?3";

pub(crate) const DELETE: &str =
    "DELETE FROM daily_usage WHERE account = ?1 AND day = ?2 AND kind = ?3";

const WRITE: &str = "INSERT INTO daily_usage
    (account, day, kind, charged, refunded, reclaimed, jobs, last_position)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (account, day, kind) DO UPDATE SET charged = excluded.charged,
    refunded = excluded.refunded, reclaimed = excluded.reclaimed, jobs = excluded.jobs,
    last_position = excluded.last_position";

/// What an event adds.
pub(crate) enum Usage<'a> {
    Charged(&'a Posting),
    Refunded(&'a Posting),
    Reclaimed(&'a Posting),
}

impl<'a> Usage<'a> {
    pub(crate) fn of(body: &'a Body) -> Option<Self> {
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

    /// What the event at `position` adds, and to which kind; or why that cannot be.
    pub(crate) fn delta(&self, position: Position) -> Result<(&'a Kind, UsageSums), String> {
        let posting = self.posting();
        let kind = posting
            .kind
            .as_ref()
            .ok_or_else(|| self.impossible("names no kind"))?;
        let size = self
            .size()
            .ok_or_else(|| self.impossible("moves in the wrong direction"))?;
        let mut sums = UsageSums {
            last_position: position,
            ..UsageSums::ZERO
        };
        match self {
            Self::Charged(_) => (sums.charged, sums.jobs) = (size, 1),
            Self::Refunded(_) => sums.refunded = size,
            Self::Reclaimed(_) => sums.reclaimed = size,
        }
        Ok((kind, sums))
    }

    fn impossible(&self, why: &str) -> String {
        let posting = self.posting();
        format!("{} of {} {why}", posting.amount, posting.account)
    }
}

impl<'a> DailyUsage<'a> {
    pub(crate) fn begin(connection: &'a Connection) -> Self {
        Self {
            connection,
            rows: HashMap::new(),
        }
    }

    fn row(&mut self, key: Key) -> Result<&mut Row, StoreError> {
        match self.rows.entry(key) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let (account, day, kind) = unknown.key();
                let sums = load_usage(
                    self.connection,
                    (account.as_str(), &day.to_string(), kind.as_str()),
                )?;
                Ok(unknown.insert(Row {
                    sums: sums.unwrap_or(UsageSums::ZERO),
                    is_changed: false,
                }))
            }
        }
    }
}

/// The row of (account, day, kind), each as it is stored.
pub fn load_usage(
    connection: &Connection,
    (account, day, kind): (&str, &str, &str),
) -> Result<Option<UsageSums>, StoreError> {
    let mut statement = connection.prepare_cached(LOAD).map_err(table_error)?;
    let sums = statement.query_row(params![account, day, kind], |row| {
        Ok(UsageSums {
            charged: row.get(0)?,
            refunded: row.get(1)?,
            reclaimed: row.get(2)?,
            jobs: row.get(3)?,
            last_position: Position::new(row.get(4)?),
        })
    });
    sums.optional().map_err(table_error)
}

/// Writes the row of (account, day, kind), or removes it where there is to be none. The caller holds the write transaction.
pub fn write_usage(
    connection: &Connection,
    (account, day, kind): (&str, &str, &str),
    sums: Option<UsageSums>,
) -> Result<(), StoreError> {
    let Some(sums) = sums else {
        let mut statement = connection.prepare_cached(DELETE).map_err(table_error)?;
        statement
            .execute(params![account, day, kind])
            .map_err(table_error)?;
        return Ok(());
    };
    let mut statement = connection.prepare_cached(WRITE).map_err(table_error)?;
    let values = params![
        account,
        day,
        kind,
        sums.charged,
        sums.refunded,
        sums.reclaimed,
        sums.jobs,
        sums.last_position.get(),
    ];
    statement.execute(values).map_err(table_error)?;
    Ok(())
}

impl Changes for DailyUsage<'_> {
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused> {
        let Some(usage) = Usage::of(&event.body) else {
            return Ok(());
        };
        let (kind, delta) = usage.delta(event.position).map_err(Refused::Impossible)?;
        let account = usage.posting().account.clone();
        let row = self.row((account, event.day, kind.clone()))?;
        if event.position > row.sums.last_position {
            row.sums = row.sums.plus(delta).ok_or_else(|| {
                Refused::Impossible(usage.impossible("takes a sum out of 64 bits"))
            })?;
            row.is_changed = true;
        }
        Ok(())
    }

    fn write(self: Box<Self>) -> Result<(), StoreError> {
        let mut changed: Vec<_> = self
            .rows
            .into_iter()
            .filter(|(_, row)| row.is_changed)
            .collect();
        // In the order of the table, so that neighbours share a page.
        changed.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for ((account, day, kind), row) in changed {
            let key = (account.as_str(), &*day.to_string(), kind.as_str());
            write_usage(self.connection, key, Some(row.sums))?;
        }
        Ok(())
    }
}
