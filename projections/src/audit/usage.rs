//! What `daily_usage` should be: the log's charges, refunds and reclaims, summed by account, day and kind.
//!
//! Summed in 128 bits, so that no log overflows the audit. Bound: one sum in memory for each row that the table should have.

use std::collections::HashMap;

use recoup::account::Posting;
use recoup::codec::Event;
use recoup::job::JobEvent;
use recoup::sql::{Row, Transaction};
use recoup::store::{RecordedEvent, StoreError};
use recoup::{AccountId, Day, Kind, Position, Timestamp, Zone, values};

use super::report::{Area, Fields, Report};
use super::rows::Until;

/// How many rows are read at a time.
const ROWS: usize = 2_000;

/// The rows after one, in the order of the table.
pub(super) const ROWS_AFTER: &str =
    "SELECT account, day, kind, charged, refunded, reclaimed, jobs, last_position
    FROM daily_usage WHERE (account, day, kind) > (?1, ?2, ?3)
    ORDER BY account, day, kind LIMIT ?4";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sums {
    charged: i128,
    refunded: i128,
    reclaimed: i128,
    jobs: i128,
    last_position: i64,
}

impl Sums {
    fn fields(&self) -> Fields {
        vec![
            ("charged", self.charged.to_string()),
            ("refunded", self.refunded.to_string()),
            ("reclaimed", self.reclaimed.to_string()),
            ("jobs", self.jobs.to_string()),
            ("last_position", self.last_position.to_string()),
        ]
    }
}

type Key = (AccountId, Day, Kind);

/// A row as it is stored: account, day, kind.
type StoredKey = (String, String, String);

pub(super) struct Usage {
    until: Until,
    zone: Zone,
    day: Option<(Timestamp, Day)>,
    sums: HashMap<Key, Sums>,
}

impl Usage {
    pub(super) fn until(until: Until, zone: Zone) -> Self {
        Self {
            until,
            zone,
            day: None,
            sums: HashMap::new(),
        }
    }

    /// An event cannot be read: sums that claim to have it cannot be told.
    pub(super) fn stop_at(&mut self, position: Position) {
        if self.until.is_some_and(|until| until >= position) {
            self.until = None;
            self.sums = HashMap::new();
        }
    }

    pub(super) fn add(&mut self, recorded: &RecordedEvent, event: &Event) {
        let Event::Job(event) = event else {
            return;
        };
        let (posting, column): (&Posting, fn(&mut Sums) -> &mut i128) = match event {
            JobEvent::Charged(charged) => (&charged.posting, |sums| &mut sums.charged),
            JobEvent::Refunded(refunded) => (&refunded.posting, |sums| &mut sums.refunded),
            JobEvent::Reclaimed(reclaimed) => (&reclaimed.posting, |sums| &mut sums.reclaimed),
            _ => return,
        };
        let is_wanted = self.until.is_some_and(|until| recorded.position <= until);
        let Some(kind) = posting.kind.clone().filter(|_| is_wanted) else {
            return;
        };
        let day = self.day_of(recorded.posted_at);
        let key = (posting.account.clone(), day, kind);
        let sums = self.sums.entry(key).or_default();
        *column(sums) += i128::from(posting.amount).abs();
        sums.jobs += i128::from(matches!(event, JobEvent::Charged(_)));
        sums.last_position = recorded.position.get();
    }

    fn day_of(&mut self, at: Timestamp) -> Day {
        match self.day {
            Some((same, day)) if same == at => day,
            Some(_) | None => self.day.insert((at, self.zone.day_of(at))).1,
        }
    }

    /// Compares the union of the keys of both sides.
    pub(super) fn finish(
        mut self,
        tx: &Transaction<'_>,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        if self.until.is_none() {
            return Ok(());
        }
        report.count(Area::DailyUsage, self.sums.len() as u64);
        let mut after = StoredKey::default();
        loop {
            let rows = read(tx, &after)?;
            let is_last = rows.len() < ROWS;
            for (stored, found) in rows {
                let expected = key_of(&stored).and_then(|key| self.sums.remove(&key));
                if expected != Some(found) {
                    let values = (expected.map(|sums| sums.fields()), Some(found.fields()));
                    report.row(Area::DailyUsage, subject(&stored), values);
                }
                after = stored;
            }
            if is_last {
                break;
            }
        }
        let mut missing: Vec<_> = self.sums.into_iter().collect();
        missing.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for ((account, day, kind), expected) in missing {
            let stored = (account.to_string(), day.to_string(), kind.to_string());
            let values = (Some(expected.fields()), None);
            report.row(Area::DailyUsage, subject(&stored), values);
        }
        Ok(())
    }
}

fn subject((account, day, kind): &StoredKey) -> String {
    format!("{account}, {day}, {kind}")
}

fn key_of((account, day, kind): &StoredKey) -> Option<Key> {
    let parsed = Day::parse(day).ok()?;
    // Only the one spelling that is written: another is another row.
    (parsed.to_string() == *day).then_some(())?;
    Some((AccountId::new(account).ok()?, parsed, Kind::new(kind).ok()?))
}

fn read(tx: &Transaction<'_>, after: &StoredKey) -> Result<Vec<(StoredKey, Sums)>, StoreError> {
    let (account, day, kind) = after;
    let limit = i64::try_from(ROWS).unwrap_or(i64::MAX);
    tx.rows(ROWS_AFTER, values![account, day, kind, limit], row_of)
}

fn row_of(row: &Row<'_>) -> Result<(StoredKey, Sums), StoreError> {
    let wide = |column| row.get::<i64>(column).map(i128::from);
    Ok((
        (row.get(0)?, row.get(1)?, row.get(2)?),
        Sums {
            charged: wide(3)?,
            refunded: wide(4)?,
            reclaimed: wide(5)?,
            jobs: wide(6)?,
            last_position: row.get(7)?,
        },
    ))
}
