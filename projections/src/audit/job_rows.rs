//! The rows of `jobs`, compared with the folded streams at that projection's checkpoint.
//!
//! The walk stops there once to compare, and goes on. Bound: a page of rows in memory.

use std::collections::HashSet;

use recoup::sql::{Row, Transaction};
use recoup::store::StoreError;
use recoup::{JobId, Position, values};

use super::jobs::{Jobs, Standing};
use super::report::{Area, Fields, Report};
use crate::keys;

/// How many rows are read at a time.
const ROWS: i64 = 2_000;

/// The rows after one, in the order of the table.
pub(super) const ROWS_AFTER: &str =
    "SELECT opened, job, account, kind, cost, state, money, attempt, held, charged_at,
    updated_at, last_position FROM jobs WHERE opened > ?1 ORDER BY opened LIMIT ?2";

/// A row as it is stored.
struct Stored {
    opened: i64,
    job: String,
    account: String,
    kind: String,
    cost: i64,
    state: String,
    money: String,
    attempt: i64,
    held: i64,
    charged_at: i64,
    updated_at: i64,
    last_position: i64,
}

impl Stored {
    fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            opened: row.get(0)?,
            job: row.get(1)?,
            account: row.get(2)?,
            kind: row.get(3)?,
            cost: row.get(4)?,
            state: row.get(5)?,
            money: row.get(6)?,
            attempt: row.get(7)?,
            held: row.get(8)?,
            charged_at: row.get(9)?,
            updated_at: row.get(10)?,
            last_position: row.get(11)?,
        })
    }

    fn is(&self, standing: &Standing) -> bool {
        self.opened == standing.opened
            && self.account == standing.account.as_str()
            && self.kind == standing.kind.as_str()
            && self.cost == standing.cost
            && self.state == standing.state
            && self.money == standing.money
            && self.attempt == i64::from(standing.attempt)
            && self.held == standing.held
            && self.charged_at == standing.charged_at
            && self.updated_at == standing.updated_at
            && self.last_position == standing.last_position
    }

    fn fields(&self) -> Fields {
        vec![
            ("account", self.account.clone()),
            ("kind", self.kind.clone()),
            ("cost", self.cost.to_string()),
            ("state", self.state.clone()),
            ("money", self.money.clone()),
            ("attempt", self.attempt.to_string()),
            ("held", self.held.to_string()),
            ("charged_at", self.charged_at.to_string()),
            ("updated_at", self.updated_at.to_string()),
            ("opened", self.opened.to_string()),
            ("last_position", self.last_position.to_string()),
        ]
    }
}

impl Standing {
    fn fields(&self) -> Fields {
        vec![
            ("account", self.account.to_string()),
            ("kind", self.kind.to_string()),
            ("cost", self.cost.to_string()),
            ("state", self.state.to_owned()),
            ("money", self.money.to_owned()),
            ("attempt", self.attempt.to_string()),
            ("held", self.held.to_string()),
            ("charged_at", self.charged_at.to_string()),
            ("updated_at", self.updated_at.to_string()),
            ("opened", self.opened.to_string()),
            ("last_position", self.last_position.to_string()),
        ]
    }
}

/// Where the table is compared, until it is.
pub(super) struct JobRows {
    until: Option<Position>,
}

impl JobRows {
    pub(super) const fn until(until: Option<Position>) -> Self {
        Self { until }
    }

    /// An event cannot be read: a table that claims to have it is not compared.
    pub(super) fn stop_at(&mut self, position: Position) {
        if self.until.is_some_and(|until| until >= position) {
            self.until = None;
        }
    }

    /// The event at `next` comes next, or none does: if that leaves the checkpoint behind, `jobs` is what the table should say.
    pub(super) fn compare_before(
        &mut self,
        next: Option<Position>,
        (tx, report): (&Transaction<'_>, &mut Report),
        jobs: &Jobs,
    ) -> Result<(), StoreError> {
        let is_due = |until: &mut Position| next.is_none_or(|next| next > *until);
        if self.until.take_if(is_due).is_none() {
            return Ok(());
        }
        let rows_of_jobs = compare_rows(tx, report, jobs)?;
        let expected = jobs.standings().count() as u64;
        report.count(Area::JobRows, expected);
        if rows_of_jobs != expected {
            report_missing(tx, report, jobs)?;
        }
        Ok(())
    }
}

/// Compares every row of the table. Gives how many of them are of jobs that should have one.
fn compare_rows(tx: &Transaction<'_>, report: &mut Report, jobs: &Jobs) -> Result<u64, StoreError> {
    let (mut after, mut rows_of_jobs) = (i64::MIN, 0);
    loop {
        let page = tx.rows(ROWS_AFTER, values![after, ROWS], Stored::read)?;
        let Some(last) = page.last() else {
            return Ok(rows_of_jobs);
        };
        after = last.opened;
        for row in page {
            let standing = JobId::new(&row.job).map_or(Some(None), |job| jobs.standing(&job));
            let subject = format_args!("job {}", row.job);
            match standing {
                Some(Some(standing)) => {
                    rows_of_jobs += 1;
                    if !row.is(&standing) {
                        let values = (Some(standing.fields()), Some(row.fields()));
                        report.row(Area::JobRows, subject, values);
                    }
                }
                Some(None) => report.row(Area::JobRows, subject, (None, Some(row.fields()))),
                // Its stream is a finding already.
                None => {}
            }
        }
    }
}

fn report_missing(
    tx: &Transaction<'_>,
    report: &mut Report,
    jobs: &Jobs,
) -> Result<(), StoreError> {
    let sql = "SELECT job FROM jobs WHERE job IN (VALUES :keys)";
    let expected: Vec<_> = jobs
        .standings()
        .map(|(job, _)| [job.as_str().into()])
        .collect();
    let found = keys::rows(tx, sql, &expected, |row| row.get(0))?;
    let found: HashSet<String> = found.into_iter().collect();
    let mut missing: Vec<_> = jobs
        .standings()
        .filter(|(job, _)| !found.contains(job.as_str()))
        .collect();
    missing.sort_unstable_by_key(|(_, standing)| standing.opened);
    for (job, standing) in missing {
        let subject = format_args!("job {job}");
        report.row(Area::JobRows, subject, (Some(standing.fields()), None));
    }
    Ok(())
}
