//! The rows of tables that jobs enter and leave, `due` and `dead_letters`, compared with the folded streams at each table's checkpoint.
//!
//! The walk stops there once to compare, and goes on. A job in the middle of an append is left out: between an attempt's failure and what
//! follows from it, its state is neither the old one nor the new one. Bound: a page of rows in memory.

use std::collections::HashSet;

use recoup::sql::{Row, Transaction, Value};
use recoup::store::StoreError;
use recoup::{JobId, Position};

use super::jobs::Jobs;
use super::report::{Area, Fields, Report};
use super::rows::{Until, or_none};
use crate::keys;

/// How many rows are read at a time.
const ROWS: i64 = 2_000;

/// A row that a job has as long as it is in some state.
pub(super) trait LiveRow: Sized + PartialEq {
    /// The check that it belongs to.
    const AREA: Area;
    /// The table's rows after the place `?1`, at most `?2`, in order.
    const ROWS_AFTER: &'static str;
    /// Those of some jobs that have a row.
    const WITH_ROW: &'static str;

    /// The place before all rows.
    fn start() -> Value<'static>;
    fn place(&self) -> Value<'static>;
    fn read(row: &Row<'_>) -> Result<Self, StoreError>;
    fn job(&self) -> &str;
    fn fields(&self) -> Fields;
    /// What the row of `job` should be. The outer none: it cannot be told. The inner one: there should be no row.
    fn of(jobs: &Jobs, job: &JobId) -> Option<Option<Self>>;
    /// The jobs that should have a row.
    fn all(jobs: &Jobs) -> impl Iterator<Item = (&JobId, Self)>;
}

/// Where a table is compared, until it is.
pub(super) struct LiveRows {
    until: Until,
}

/// How far the walk has come.
pub(super) struct Step<'a> {
    /// The event that comes next; none if none does.
    pub(super) next: Option<Position>,
    /// The job of the append that it goes on with, if it does not begin one.
    pub(super) unfinished: Option<&'a JobId>,
}

impl LiveRows {
    pub(super) const fn until(until: Until) -> Self {
        Self { until }
    }

    /// An event cannot be read: a table that claims to have it is not compared.
    pub(super) fn stop_at(&mut self, position: Position) {
        if self.until.is_some_and(|until| until >= position) {
            self.until = None;
        }
    }

    /// If the next event leaves the checkpoint behind, `jobs` is what the table should say.
    pub(super) fn compare_before<T: LiveRow>(
        &mut self,
        step: &Step<'_>,
        (tx, report): (&Transaction<'_>, &mut Report),
        jobs: &Jobs,
    ) -> Result<(), StoreError> {
        let is_due = |until: &mut Position| step.next.is_none_or(|next| next > *until);
        if self.until.take_if(is_due).is_none() {
            return Ok(());
        }
        let found = compare_rows::<T>(tx, report, (jobs, step.unfinished))?;
        let expected = T::all(jobs)
            .filter(|(job, _)| Some(*job) != step.unfinished)
            .count() as u64;
        report.count(T::AREA, expected);
        if found != expected {
            report_missing::<T>(tx, report, (jobs, step.unfinished))?;
        }
        Ok(())
    }
}

/// Compares every row of the table. Gives how many of them are of jobs that should have one.
fn compare_rows<T: LiveRow>(
    tx: &Transaction<'_>,
    report: &mut Report,
    (jobs, unfinished): (&Jobs, Option<&JobId>),
) -> Result<u64, StoreError> {
    let (mut after, mut rows_of_jobs) = (T::start(), 0);
    loop {
        let page = tx.rows(T::ROWS_AFTER, &[after, ROWS.into()], T::read)?;
        let Some(last) = page.last() else {
            return Ok(rows_of_jobs);
        };
        after = last.place();
        for row in page {
            let job = JobId::new(row.job());
            if job.as_ref().ok() == unfinished && unfinished.is_some() {
                continue;
            }
            let expected = job.map_or(Some(None), |job| T::of(jobs, &job));
            let subject = format_args!("job {}", row.job());
            match expected {
                Some(Some(expected)) => {
                    rows_of_jobs += 1;
                    if row != expected {
                        let values = (Some(expected.fields()), Some(row.fields()));
                        report.row(T::AREA, subject, values);
                    }
                }
                Some(None) => report.row(T::AREA, subject, (None, Some(row.fields()))),
                // Its stream is a finding already.
                None => {}
            }
        }
    }
}

fn report_missing<T: LiveRow>(
    tx: &Transaction<'_>,
    report: &mut Report,
    (jobs, unfinished): (&Jobs, Option<&JobId>),
) -> Result<(), StoreError> {
    let expected = || T::all(jobs).filter(|(job, _)| Some(*job) != unfinished);
    let asked: Vec<_> = expected().map(|(job, _)| [job.as_str().into()]).collect();
    let found = keys::rows(tx, T::WITH_ROW, &asked, |row| row.get(0))?;
    let found: HashSet<String> = found.into_iter().collect();
    let mut missing: Vec<_> = expected()
        .filter(|(job, _)| !found.contains(job.as_str()))
        .collect();
    missing.sort_unstable_by_key(|(job, _)| *job);
    for (job, expected) in missing {
        let subject = format_args!("job {job}");
        report.row(T::AREA, subject, (Some(expected.fields()), None));
    }
    Ok(())
}

/// A row of `due`, as it is stored.
#[derive(PartialEq)]
pub(super) struct DueRecord {
    pub(super) job: String,
    pub(super) account: String,
    pub(super) kind: String,
    pub(super) mode: String,
    pub(super) state: String,
    pub(super) timer: String,
    pub(super) armed_at: i64,
    pub(super) deadline: i64,
    pub(super) startable_at: Option<i64>,
    pub(super) attempt: i64,
    pub(super) last_position: i64,
}

impl LiveRow for DueRecord {
    const AREA: Area = Area::Due;
    const ROWS_AFTER: &'static str = "SELECT job, account, kind, mode, state, timer, armed_at,
        deadline, startable_at, attempt, last_position FROM due
        WHERE job > ?1 ORDER BY job LIMIT ?2";
    const WITH_ROW: &'static str = "SELECT job FROM due WHERE job IN (VALUES :keys)";

    fn start() -> Value<'static> {
        "".into()
    }

    fn place(&self) -> Value<'static> {
        self.job.clone().into()
    }

    fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            job: row.get(0)?,
            account: row.get(1)?,
            kind: row.get(2)?,
            mode: row.get(3)?,
            state: row.get(4)?,
            timer: row.get(5)?,
            armed_at: row.get(6)?,
            deadline: row.get(7)?,
            startable_at: row.get(8)?,
            attempt: row.get(9)?,
            last_position: row.get(10)?,
        })
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn fields(&self) -> Fields {
        vec![
            ("account", self.account.clone()),
            ("kind", self.kind.clone()),
            ("mode", self.mode.clone()),
            ("state", self.state.clone()),
            ("timer", self.timer.clone()),
            ("armed_at", self.armed_at.to_string()),
            ("deadline", self.deadline.to_string()),
            ("startable_at", or_none(self.startable_at)),
            ("attempt", self.attempt.to_string()),
            ("last_position", self.last_position.to_string()),
        ]
    }

    fn of(jobs: &Jobs, job: &JobId) -> Option<Option<Self>> {
        jobs.due(job)
    }

    fn all(jobs: &Jobs) -> impl Iterator<Item = (&JobId, Self)> {
        jobs.all_due()
    }
}

/// A row of `dead_letters`, as it is stored.
#[derive(PartialEq)]
pub(super) struct DeadLetterRecord {
    pub(super) position: i64,
    pub(super) job: String,
    pub(super) account: String,
    pub(super) kind: String,
    pub(super) cost: i64,
    pub(super) cause: String,
    pub(super) attempts: i64,
    pub(super) reason: Option<String>,
    pub(super) dead_lettered_at: i64,
}

impl LiveRow for DeadLetterRecord {
    const AREA: Area = Area::DeadLetters;
    const ROWS_AFTER: &'static str = "SELECT position, job, account, kind, cost, cause, attempts,
        reason, dead_lettered_at FROM dead_letters WHERE position > ?1 ORDER BY position LIMIT ?2";
    const WITH_ROW: &'static str = "SELECT job FROM dead_letters WHERE job IN (VALUES :keys)";

    fn start() -> Value<'static> {
        i64::MIN.into()
    }

    fn place(&self) -> Value<'static> {
        self.position.into()
    }

    fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            position: row.get(0)?,
            job: row.get(1)?,
            account: row.get(2)?,
            kind: row.get(3)?,
            cost: row.get(4)?,
            cause: row.get(5)?,
            attempts: row.get(6)?,
            reason: row.get(7)?,
            dead_lettered_at: row.get(8)?,
        })
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn fields(&self) -> Fields {
        vec![
            ("position", self.position.to_string()),
            ("account", self.account.clone()),
            ("kind", self.kind.clone()),
            ("cost", self.cost.to_string()),
            ("cause", self.cause.clone()),
            ("attempts", self.attempts.to_string()),
            ("reason", or_none(self.reason.as_ref())),
            ("dead_lettered_at", self.dead_lettered_at.to_string()),
        ]
    }

    fn of(jobs: &Jobs, job: &JobId) -> Option<Option<Self>> {
        jobs.dead_letter(job)
    }

    fn all(jobs: &Jobs) -> impl Iterator<Item = (&JobId, Self)> {
        jobs.all_dead_letters()
    }
}
