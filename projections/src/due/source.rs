//! What is due, as the table knows it: the lists that workers and the loop read.
//!
//! Each list is a page in the order of an index, whatever the table's size. Jobs of many kinds are read kind by kind and
//! merged, so that each kind goes by the index. Bound: a page has at most [`MAX_ROWS`] rows.
//!
//! A row that cannot be read is passed over, so that it keeps nobody else from their end; it is said once in a process. Behind more than
//! [`MAX_UNSOUND`] of them the list is an error: then the rows have to be made anew (`project reset due`). The audit names each.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use recoup::sql::Row;
use recoup::store::StoreError;
use recoup::{DueSource, Expired, JobId, Kind, Timestamp, values};

use super::{parse_timer, stored_revision};
use crate::Projections;
use crate::error::damaged;

/// The most rows of one list; a larger limit is taken for this one.
const MAX_ROWS: usize = 10_000;

/// How many rows of one list may be passed over.
const MAX_UNSOUND: usize = 100;

/// How many rows that were passed over are remembered, so as not to be said again.
const MAX_TOLD: usize = 1_000;

/// What was said of rows that cannot be read.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

const STARTABLE: &str = "SELECT job, startable_at FROM due WHERE startable_at <= ?1
    ORDER BY startable_at, job LIMIT ?2";

const STARTABLE_OF_KIND: &str = "SELECT job, startable_at FROM due
    WHERE startable_at <= ?1 AND kind = ?3 ORDER BY startable_at, job LIMIT ?2";

const EXPIRED: &str = "SELECT job, timer, armed_at, deadline FROM due
    WHERE deadline <= ?1 AND (deadline, job) > (?3, ?4) ORDER BY deadline, job LIMIT ?2";

const NEXT_DEADLINE: &str = "SELECT min(deadline) FROM due WHERE deadline > ?1";

/// The lists, and how each is carried out.
#[cfg(test)]
pub(crate) const PLANS: [(&str, &str); 4] = [
    (
        STARTABLE,
        "SEARCH due USING COVERING INDEX due_startable (startable_at<?)",
    ),
    (
        STARTABLE_OF_KIND,
        "SEARCH due USING COVERING INDEX due_kind_startable (kind=? AND startable_at<?)",
    ),
    (
        EXPIRED,
        "SEARCH due USING INDEX due_deadline ((deadline,job)>(?,?) AND deadline<?)",
    ),
    (
        NEXT_DEADLINE,
        "SEARCH due USING COVERING INDEX due_deadline (deadline>?)",
    ),
];

fn bounded(limit: usize) -> usize {
    limit.clamp(1, MAX_ROWS)
}

/// How many rows are fetched for `limit` that can be read.
fn rows(limit: usize) -> i64 {
    i64::try_from(bounded(limit) + MAX_UNSOUND + 1).unwrap_or(1)
}

/// The rows that can be read, at most `limit` of them; an error if too many cannot.
fn sound<T>(found: Vec<Result<T, StoreError>>, limit: usize) -> Result<Vec<T>, StoreError> {
    let mut rows = Vec::with_capacity(found.len().min(limit));
    let mut unsound = 0;
    for row in found {
        match row {
            Ok(row) => rows.push(row),
            Err(error @ StoreError::Damaged { .. }) if unsound < MAX_UNSOUND => {
                unsound += 1;
                let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
                if told.len() < MAX_TOLD && told.insert(error.to_string()) {
                    tracing::error!(%error, "a row of due is passed over: make the rows anew (project reset due)");
                }
            }
            Err(StoreError::Damaged { why }) => {
                let why =
                    format!("{why}, as many rows before it: make them anew (project reset due)");
                return Err(StoreError::Damaged { why });
            }
            Err(error) => return Err(error),
        }
        if rows.len() == limit {
            break;
        }
    }
    Ok(rows)
}

/// A job and from when it may be started.
fn waiting(row: &Row<'_>) -> Result<(Timestamp, JobId), StoreError> {
    let (job, startable_at): (String, i64) = (row.get(0)?, row.get(1)?);
    let job = JobId::new(job).map_err(|error| damaged("due", error))?;
    Ok((Timestamp::from_micros(startable_at), job))
}

fn expired(row: &Row<'_>) -> Result<Expired, StoreError> {
    let (job, timer): (String, String) = (row.get(0)?, row.get(1)?);
    let wrong = |what: &str| damaged("due", format_args!("job {job} has no known {what}"));
    Ok(Expired {
        timer: parse_timer(&timer).ok_or_else(|| wrong("timer"))?,
        armed_at: stored_revision(row.get(2)?).ok_or_else(|| wrong("revision"))?,
        deadline: Timestamp::from_micros(row.get(3)?),
        job: JobId::new(&job).map_err(|error| damaged("due", error))?,
    })
}

impl Projections {
    async fn waiting(
        &self,
        kind: Option<&Kind>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, JobId)>, StoreError> {
        let (kind, now) = (kind.cloned(), now.as_micros());
        let (limit, fetched) = (bounded(limit), rows(limit));
        self.database
            .glance(move |tx| {
                let found = match &kind {
                    None => tx.rows(STARTABLE, values![now, fetched], |row| Ok(waiting(row))),
                    Some(kind) => {
                        let values = values![now, fetched, kind.as_str()];
                        tx.rows(STARTABLE_OF_KIND, values, |row| Ok(waiting(row)))
                    }
                };
                sound(found?, limit)
            })
            .await
    }

    async fn run_out(
        &self,
        now: Timestamp,
        after: Option<&Expired>,
        limit: usize,
    ) -> Result<Vec<Expired>, StoreError> {
        let (deadline, job) = after.map_or((i64::MIN, String::new()), |after| {
            (after.deadline.as_micros(), after.job.to_string())
        });
        let (now, limit, fetched) = (now.as_micros(), bounded(limit), rows(limit));
        self.database
            .glance(move |tx| {
                let values = values![now, fetched, deadline, job];
                let found = tx.rows(EXPIRED, values, |row| Ok(expired(row)))?;
                sound(found, limit)
            })
            .await
    }

    async fn deadline_after(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let now = now.as_micros();
        let deadline = self
            .database
            .glance(move |tx| tx.row(NEXT_DEADLINE, values![now], |row| row.get::<Option<i64>>(0)));
        Ok(deadline.await?.flatten().map(Timestamp::from_micros))
    }
}

#[async_trait]
impl DueSource for Projections {
    async fn startable(
        &self,
        kinds: &[Kind],
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<JobId>, StoreError> {
        let mut found = Vec::new();
        if kinds.is_empty() {
            found = self.waiting(None, now, limit).await?;
        }
        for kind in kinds {
            found.append(&mut self.waiting(Some(kind), now, limit).await?);
        }
        found.sort_unstable();
        // A kind that is named twice gives its jobs twice.
        found.dedup();
        found.truncate(limit);
        Ok(found.into_iter().map(|(_, job)| job).collect())
    }

    async fn expired(
        &self,
        now: Timestamp,
        after: Option<&Expired>,
        limit: usize,
    ) -> Result<Vec<Expired>, StoreError> {
        self.run_out(now, after, limit).await
    }

    async fn next_deadline(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.deadline_after(now).await
    }
}
