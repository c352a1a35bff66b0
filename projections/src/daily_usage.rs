//! `daily_usage`: what each account's jobs of each kind came to, by the day on which it was posted.
//!
//! Charged, refunded and reclaimed are positive sums; `jobs` counts charges. Only a job's money counts: a grant or an adjustment
//! is no usage. A row knows the last event in it and skips what it has had, so a row that was repaired ahead of the
//! checkpoint is not counted twice. Sums are checked. Bound: one row in memory for each key that a batch touches.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use recoup::account::Posting;
use recoup::job::JobEvent;
use recoup::sql::{Row as Stored, Transaction, Value};
use recoup::store::StoreError;
use recoup::{AccountId, Day, Kind, Position, values};

use crate::apply::{Changes, Refused};
use crate::batch::{BatchEvent, Body};
use crate::error::damaged;
use crate::keys;

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

pub(crate) struct DailyUsage<'a, 'c> {
    tx: &'a Transaction<'c>,
    rows: HashMap<Key, Row>,
}

pub(crate) const LOAD: &str =
    "SELECT charged, refunded, reclaimed, jobs, last_position FROM daily_usage
    WHERE account = ?1 AND day = ?2 AND kind = ?3";

/// The rows of many keys, each with its own.
pub(crate) const LOAD_EACH: &str =
    "SELECT charged, refunded, reclaimed, jobs, last_position, account, day, kind FROM daily_usage
    WHERE (account, day, kind) IN (VALUES :keys)";

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

impl<'a, 'c> DailyUsage<'a, 'c> {
    pub(crate) fn begin(tx: &'a Transaction<'c>) -> Self {
        Self {
            tx,
            rows: HashMap::new(),
        }
    }

    fn row(&mut self, key: Key) -> Result<&mut Row, StoreError> {
        match self.rows.entry(key) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unknown) => {
                let (account, day, kind) = unknown.key();
                let sums =
                    load_usage(self.tx, (account.as_str(), &day.to_string(), kind.as_str()))?;
                Ok(unknown.insert(Row::of(sums)))
            }
        }
    }
}

impl Row {
    fn of(stored: Option<UsageSums>) -> Self {
        Self {
            sums: stored.unwrap_or(UsageSums::ZERO),
            is_changed: false,
        }
    }
}

fn sums_of(row: &Stored<'_>) -> Result<UsageSums, StoreError> {
    Ok(UsageSums {
        charged: row.get(0)?,
        refunded: row.get(1)?,
        reclaimed: row.get(2)?,
        jobs: row.get(3)?,
        last_position: Position::new(row.get(4)?),
    })
}

/// The key of a row that has it after its sums.
fn key_of(row: &Stored<'_>) -> Result<Key, StoreError> {
    let wrong = |what: &str| damaged("daily_usage", format_args!("a row has no known {what}"));
    let (account, day, kind): (String, String, String) = (row.get(5)?, row.get(6)?, row.get(7)?);
    Ok((
        AccountId::new(account).map_err(|_| wrong("account"))?,
        Day::parse(&day).map_err(|_| wrong("day"))?,
        Kind::new(kind).map_err(|_| wrong("kind"))?,
    ))
}

/// A row's values, in the order of its table.
fn values_of<'v>(
    (account, day, kind): (&'v str, Value<'v>, &'v str),
    sums: UsageSums,
) -> [Value<'v>; 8] {
    [
        account.into(),
        day,
        kind.into(),
        sums.charged.into(),
        sums.refunded.into(),
        sums.reclaimed.into(),
        sums.jobs.into(),
        sums.last_position.get().into(),
    ]
}

/// The row of (account, day, kind), each as it is stored.
pub fn load_usage(
    tx: &Transaction<'_>,
    (account, day, kind): (&str, &str, &str),
) -> Result<Option<UsageSums>, StoreError> {
    tx.row(LOAD, values![account, day, kind], sums_of)
}

/// Writes the row of (account, day, kind), or removes it where there is to be none. The caller holds the write transaction.
pub fn write_usage(
    tx: &Transaction<'_>,
    (account, day, kind): (&str, &str, &str),
    sums: Option<UsageSums>,
) -> Result<(), StoreError> {
    match sums {
        Some(sums) => tx.execute(WRITE, &values_of((account, day.into(), kind), sums))?,
        None => tx.execute(DELETE, values![account, day, kind])?,
    };
    Ok(())
}

impl<'a> Changes<'a> for DailyUsage<'a, '_> {
    fn prefetch(&mut self, events: &'a [BatchEvent]) -> Result<(), StoreError> {
        for event in events {
            let posting = Usage::of(&event.body).map(|usage| usage.posting());
            // One without a kind is refused when it is applied.
            if let Some((posting, kind)) = posting.and_then(|of| Some((of, of.kind.as_ref()?))) {
                let key = (posting.account.clone(), event.day, kind.clone());
                self.rows.entry(key).or_insert_with(|| Row::of(None));
            }
        }
        let touched: Vec<[Value<'_>; 3]> = self
            .rows
            .keys()
            .map(|(account, day, kind)| {
                let day = day.to_string().into();
                [account.as_str().into(), day, kind.as_str().into()]
            })
            .collect();
        let stored = keys::rows(self.tx, LOAD_EACH, &touched, |row| {
            Ok((key_of(row)?, Row::of(Some(sums_of(row)?))))
        })?;
        self.rows.extend(stored);
        Ok(())
    }

    fn apply(&mut self, event: &'a BatchEvent) -> Result<(), Refused> {
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
        let mut changed: Vec<_> = self.rows.iter().filter(|(_, row)| row.is_changed).collect();
        // In the order of the table, so that neighbours share a page.
        changed.sort_unstable_by_key(|(key, _)| *key);
        let rows = changed.into_iter().map(|((account, day, kind), row)| {
            let key = (account.as_str(), day.to_string().into(), kind.as_str());
            values_of(key, row.sums).into()
        });
        let rows: Vec<Vec<Value<'_>>> = rows.collect();
        self.tx.execute_many(WRITE, &rows)
    }
}
