//! Runs on record: their progress while they run, what they came to, and every key that they found different.
//!
//! Written in writing transactions of their own, or in that of a repair. A run whose process died stays `running` until another run finds
//! that it has given no sign of life for [`ABANDONED_AFTER`], and calls it `abandoned`.

use std::time::Duration;

use recoup::sql::{Database, Row, Transaction};
use recoup::store::StoreError;
use recoup::{AccountId, Day, EventStore, Timestamp, values};
use uuid::Uuid;

use super::compare::Compared;
use super::{Mode, Origin, RebuildError, Relation};

/// How long a run may give no sign of life; it gives one about every second.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(600);

/// How many runs are kept on record, with their differences: more than a year of hours.
const KEPT_RUNS: i64 = 10_000;

/// A run, as it is on record.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its number.
    pub run: i64,
    /// `verify` or `repair`.
    pub mode: String,
    /// `hourly` or `operator`.
    pub origin: String,
    /// `running`, `done`, `failed`, `cancelled` or `abandoned`.
    pub state: String,
    /// `window`, or `all` for every day and account figures.
    pub scope: String,
    /// The one account that it was about.
    pub account: Option<String>,
    /// The first day.
    pub from: String,
    /// The last day, included.
    pub to: String,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The checkpoint that rows were compared at.
    pub position: i64,
    /// How many events were read.
    pub events_read: i64,
    /// How many keys were compared.
    pub rows_checked: i64,
    /// How many of them differed.
    pub rows_different: i64,
    /// How many of those the repair before had repaired too.
    pub rows_recurring: i64,
    /// Charged as shown ÷ as it should be, the one farthest from 1.
    pub worst_ratio: Option<f64>,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
    /// Why it failed.
    pub error: Option<String>,
}

/// A key that a run found different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `daily_usage`, `account_state` or `balance`.
    pub relation: String,
    /// Whose.
    pub account: String,
    /// The day, where the relation has days.
    pub day: Option<String>,
    /// The kind, where the relation has kinds.
    pub kind: Option<String>,
    /// The row as it was found, as JSON; none where there was none.
    pub before: Option<String>,
    /// The row as the log has it; none where there is to be none.
    pub after: Option<String>,
    /// Whether the repair before had repaired the key too.
    pub is_recurring: bool,
}

const COLUMNS: &str =
    "run, mode, origin, state, scope, account, from_day, to_day, started_at, finished_at, position,
    events_read, rows_checked, rows_different, rows_recurring, worst_ratio, duration_ms, error";

fn run_of(row: &Row<'_>) -> Result<Run, StoreError> {
    Ok(Run {
        run: row.get(0)?,
        mode: row.get(1)?,
        origin: row.get(2)?,
        state: row.get(3)?,
        scope: row.get(4)?,
        account: row.get(5)?,
        from: row.get(6)?,
        to: row.get(7)?,
        started_at: Timestamp::from_micros(row.get(8)?),
        finished_at: row.get::<Option<i64>>(9)?.map(Timestamp::from_micros),
        position: row.get(10)?,
        events_read: row.get(11)?,
        rows_checked: row.get(12)?,
        rows_different: row.get(13)?,
        rows_recurring: row.get(14)?,
        worst_ratio: row.get(15)?,
        duration_ms: row.get(16)?,
        error: row.get(17)?,
    })
}

/// What a run is about.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) mode: Mode,
    pub(crate) origin: Origin,
    pub(crate) is_all: bool,
    pub(crate) account: Option<AccountId>,
    pub(crate) days: (Day, Day),
    pub(crate) events_total: i64,
}

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sign {
    pub(crate) phase: &'static str,
    pub(crate) position: i64,
    pub(crate) events_read: i64,
}

/// A run that this process is at.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) run: i64,
    database: Database,
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Record {
    /// Begins a run; calls those that died abandoned.
    pub(crate) async fn begin(database: &Database, subject: Subject) -> Result<Self, RebuildError> {
        let now = database.now();
        let begun = database.write(move |tx| {
            abandon(tx, now)?;
            let sql = "INSERT INTO rebuild_runs (mode, origin, state, scope, account, from_day, to_day, holder,
                started_at, updated_at, phase, position, events_read, events_total, rows_checked, rows_different,
                rows_recurring, duration_ms)
                VALUES (?1, ?2, 'running', ?3, ?4, ?5, ?6, ?7, ?8, ?8, 'fold', 0, 0, ?9, 0, 0, 0, 0)
                RETURNING run";
            let values = values![
                subject.mode.name(),
                subject.origin.name(),
                if subject.is_all { "all" } else { "window" },
                subject.account.as_ref().map(AccountId::as_str),
                subject.days.0.to_string(),
                subject.days.1.to_string(),
                Uuid::new_v4().to_string(),
                now.as_micros(),
                subject.events_total,
            ];
            let run = tx.row(sql, values, |row| row.get::<i64>(0))?;
            let run = run.expect("a row that was inserted is returned");
            for table in ["rebuild_differences", "rebuild_runs"] {
                let sql = format!("DELETE FROM {table} WHERE run <= ?1");
                tx.execute(&sql, values![run - KEPT_RUNS])?;
            }
            Ok::<_, StoreError>(run)
        });
        Ok(Self {
            run: begun.await?,
            database: database.clone(),
        })
    }

    /// A sign of life.
    pub(crate) async fn sign(&self, sign: Sign) -> Result<(), RebuildError> {
        let (run, now) = (self.run, self.database.now());
        let written = self.database.write(move |tx| {
            let sql = "UPDATE rebuild_runs SET phase = ?2, position = ?3, events_read = ?4, updated_at = ?5
                WHERE run = ?1 AND state = 'running'";
            let values = values![run, sign.phase, sign.position, sign.events_read, now.as_micros()];
            tx.execute(sql, values)
        });
        written.await?;
        Ok(())
    }

    /// Ends the run well.
    pub(crate) async fn done(
        &self,
        compared: Compared,
        events_read: u64,
    ) -> Result<Run, RebuildError> {
        let (run, now) = (self.run, self.database.now());
        let ended = self.database.write(move |tx| {
            let sql = "UPDATE rebuild_runs SET state = 'done', error = NULL, phase = 'end', position = ?2, events_read = ?3,
                rows_checked = ?4, rows_different = ?5, worst_ratio = ?6, updated_at = ?7, finished_at = ?7,
                duration_ms = (?7 - started_at) / 1000,
                rows_recurring = (SELECT count(*) FROM rebuild_differences d WHERE d.run = ?1 AND d.is_recurring = 1)
                WHERE run = ?1";
            let values = values![
                run,
                compared.position,
                number(events_read),
                number(compared.rows_checked),
                number(compared.rows_different),
                compared.worst_ratio,
                now.as_micros(),
            ];
            tx.execute(sql, values)?;
            read(tx, run)
        });
        Ok(ended.await?)
    }

    /// Ends the run as failed or cancelled. The reason why it ended is worth more than a failure to say so.
    pub(crate) async fn failed(&self, error: &RebuildError) {
        let state = match error {
            RebuildError::Cancelled => "cancelled",
            _ => "failed",
        };
        let (run, now, why) = (self.run, self.database.now(), error.to_string());
        let written = self.database.write(move |tx| {
            let sql =
                "UPDATE rebuild_runs SET state = ?2, error = ?3, updated_at = ?4, finished_at = ?4,
                duration_ms = (?4 - started_at) / 1000 WHERE run = ?1";
            let values = values![run, state, why, now.as_micros()];
            tx.execute(sql, values)
        });
        if let Err(error) = written.await {
            tracing::warn!(rebuild.run = run, %error, "the end of a rebuild could not be recorded");
        }
    }
}

fn abandon(tx: &Transaction<'_>, now: Timestamp) -> Result<(), StoreError> {
    let patience = i64::try_from(ABANDONED_AFTER.as_micros()).unwrap_or(i64::MAX);
    let sql =
        "UPDATE rebuild_runs SET state = 'abandoned', error = 'its process gave no sign of life'
        WHERE state = 'running' AND updated_at < ?1";
    tx.execute(sql, values![now.as_micros().saturating_sub(patience)])?;
    Ok(())
}

fn read(tx: &Transaction<'_>, run: i64) -> Result<Run, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM rebuild_runs WHERE run = ?1");
    let found = tx.row(&sql, values![run], run_of)?;
    found.ok_or_else(|| StoreError::Damaged {
        why: format!("table rebuild_runs: no run {run}"),
    })
}

/// Writes down a difference: recurring if a repair since the last whole one of this key has repaired it too, that one included. In the transaction that
/// repairs it, where one does.
pub(crate) fn add_difference(
    tx: &Transaction<'_>,
    run: i64,
    relation: Relation,
    [account, day, kind]: [&str; 3],
    (before, after): (Option<&str>, Option<&str>),
) -> Result<(), StoreError> {
    let sql = "INSERT INTO rebuild_differences (run, relation, account, day, kind, before, after, is_recurring)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, CASE WHEN ?2 <> 'balance' AND EXISTS (
            SELECT 1 FROM rebuild_differences d JOIN rebuild_runs m ON m.run = d.run AND m.mode = 'repair'
            WHERE d.relation = ?2 AND d.account = ?3 AND d.day = ?4 AND d.kind = ?5 AND d.run < ?1
            AND d.run >= (SELECT coalesce(max(r.run), 0) FROM rebuild_runs r
                WHERE r.run < ?1 AND r.mode = 'repair' AND r.state = 'done' AND (r.account IS NULL OR r.account = ?3)
                AND (r.scope = 'all' OR (?2 = 'daily_usage' AND r.from_day <= ?4 AND r.to_day >= ?4)))) THEN 1 ELSE 0 END)
        ON CONFLICT (run, relation, account, day, kind) DO NOTHING";
    let values = values![run, relation.name(), account, day, kind, before, after];
    tx.execute(sql, values)?;
    Ok(())
}

/// At most `limit` differences of a run, after `after`, in the order of their keys.
pub async fn differences(
    database: &Database,
    run: i64,
    after: Option<Difference>,
    limit: usize,
) -> Result<Vec<Difference>, StoreError> {
    database
        .snapshot(move |tx| {
            let sql = "SELECT relation, account, day, kind, before, after, is_recurring FROM rebuild_differences
                WHERE run = ?1 AND (relation, account, day, kind) > (?2, ?3, ?4, ?5)
                ORDER BY relation, account, day, kind LIMIT ?6";
            let (relation, account, day, kind) = after.map_or_else(Default::default, |after| {
                let (day, kind) = (after.day, after.kind);
                (after.relation, after.account, day.unwrap_or_default(), kind.unwrap_or_default())
            });
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let text = |text: String| Some(text).filter(|text| !text.is_empty());
            tx.rows(sql, values![run, relation, account, day, kind, limit], |row| {
                Ok(Difference {
                    relation: row.get(0)?,
                    account: row.get(1)?,
                    day: text(row.get(2)?),
                    kind: text(row.get(3)?),
                    before: row.get(4)?,
                    after: row.get(5)?,
                    is_recurring: row.get::<i64>(6)? != 0,
                })
            })
        })
        .await
}

/// The latest runs, the last one first.
pub async fn latest(database: &Database, limit: usize) -> Result<Vec<Run>, StoreError> {
    database
        .snapshot(move |tx| {
            let sql = format!("SELECT {COLUMNS} FROM rebuild_runs ORDER BY run DESC LIMIT ?1");
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            tx.rows(&sql, values![limit], run_of)
        })
        .await
}

/// The last day of the last scheduled run that ended well. One that found an empty log vouches for nothing: its past may come from a file yet.
pub(crate) fn last_good_day(tx: &Transaction<'_>) -> Result<Option<Day>, StoreError> {
    let sql = "SELECT to_day FROM rebuild_runs WHERE origin = 'hourly' AND state = 'done' AND position > 0
        ORDER BY run DESC LIMIT 1";
    let day = tx.row(sql, values![], |row| row.get::<String>(0))?;
    day.map(|day| {
        Day::parse(&day).map_err(|error| StoreError::Damaged {
            why: format!("table rebuild_runs: {error}"),
        })
    })
    .transpose()
}
