//! What is due, as the table knows it: the lists that workers and the loop read.
//!
//! Each list is a page in the order of an index, whatever the table's size. Jobs of many kinds are read kind by kind and
//! merged, so that each kind goes by the index. Bound: a page has at most [`MAX_ROWS`] rows.

use async_trait::async_trait;
use recoup::sql::Row;
use recoup::store::StoreError;
use recoup::{DueSource, Expired, JobId, Kind, Timestamp, values};

use super::{parse_timer, stored_revision};
use crate::Projections;
use crate::error::damaged;

/// The most rows of one list; a larger limit is taken for this one.
const MAX_ROWS: usize = 10_000;

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

fn rows(limit: usize) -> i64 {
    i64::try_from(limit.clamp(1, MAX_ROWS)).unwrap_or(1)
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
        let (kind, now, limit) = (kind.cloned(), now.as_micros(), rows(limit));
        self.database
            .glance(move |tx| match &kind {
                None => tx.rows(STARTABLE, values![now, limit], waiting),
                Some(kind) => {
                    let values = values![now, limit, kind.as_str()];
                    tx.rows(STARTABLE_OF_KIND, values, waiting)
                }
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
        let (now, limit) = (now.as_micros(), rows(limit));
        self.database
            .glance(move |tx| tx.rows(EXPIRED, values![now, limit, deadline, job], expired))
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
