//! Due work: what a worker may start, and which timers have run out.
//!
//! Due work is an index on time, not a list that is popped and pushed back. A [`DueSource`] only suggests: it may lag, and
//! several claimers may see the same job. The guarded start decides, so that one of them gets it, and a claimer that dies
//! between looking and starting has taken nothing away. In the same way a timer that a source names is acted on by
//! [`JobCommand::Expire`], which does nothing unless that very timer still runs and its time is over.
//!
//! Command ids of starts are random, made by the claiming process and never derived: two claimers that derived the same id
//! would both be told that the attempt is theirs.
//!
//! Bounds: a claim gives at most [`MAX_CLAIM`] jobs and looks at no more than [`MAX_LOOK`]; starts are sent [`STARTS`] at a time,
//! so that they share commits.

use std::collections::HashSet;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{AccountId, CommandId, JobId, Kind, WorkerId};
use crate::job::{Attempt, JobCommand, Timer};
use crate::ledger::{Command, Ledger, LedgerError, Outcome};
use crate::retry::Lease;
use crate::store::{Revision, StoreError};

/// The most jobs that one claim gives.
pub const MAX_CLAIM: usize = 1_000;

/// The most jobs that one claim looks at: behind so many that others have started, it is the source that has to catch up.
pub const MAX_LOOK: usize = 10_000;

/// How many starts are sent at a time.
const STARTS: usize = 64;

/// A timer that has run out, as far as a source knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// Whose.
    pub job: JobId,
    /// Which.
    pub timer: Timer,
    /// The event that set it.
    pub armed_at: Revision,
    /// When it ran out.
    pub deadline: Timestamp,
}

/// Knows which jobs have something due. May lag behind the log, and then names what is over already.
#[async_trait]
pub trait DueSource: Send + Sync {
    /// At most `limit` jobs that may be started at `now`, those that wait the longest first. An empty `kinds` is every kind.
    async fn startable(
        &self,
        kinds: &[Kind],
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<JobId>, StoreError>;

    /// At most `limit` timers that have run out at `now`, behind `after` in the order of deadline and job.
    async fn expired(
        &self,
        now: Timestamp,
        after: Option<&Expired>,
        limit: usize,
    ) -> Result<Vec<Expired>, StoreError>;

    /// The first deadline later than `now`.
    async fn next_deadline(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError>;
}

/// A job that a claim has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// Which job.
    pub job: JobId,
    /// Who pays for it.
    pub account: AccountId,
    /// What sort of work.
    pub kind: Kind,
    /// The attempt that was started.
    pub attempt: Attempt,
    /// When it fails unless it gives a sign of life: see [`JobCommand::Extend`].
    pub lease_until: Timestamp,
    /// The stream's last revision.
    pub revision: Revision,
}

impl Ledger {
    /// Starts at most `limit` due jobs of `kinds` (every kind, if that is empty) for `worker`, those that wait the longest first.
    ///
    /// A job that another worker won, or whose stream cannot be read, is skipped. An error means that nothing was claimed for sure:
    /// once something is, it is given, and what came after the error waits for the next claim or its lease's end.
    pub async fn claim(
        &self,
        due: &dyn DueSource,
        kinds: &[Kind],
        worker: &WorkerId,
        lease: Option<Lease>,
        limit: usize,
    ) -> Result<Vec<Claimed>, LedgerError> {
        let limit = limit.min(MAX_CLAIM);
        let (mut claimed, mut tried) = (Vec::new(), HashSet::new());
        let mut look = limit;
        while claimed.len() < limit {
            let found = due.startable(kinds, self.now().at, look).await;
            let found = match found {
                Ok(found) => found,
                Err(error) if claimed.is_empty() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, claimed = claimed.len(), "a claim ends early");
                    break;
                }
            };
            let is_all = found.len() < look || look >= MAX_LOOK;
            let fresh: Vec<JobId> = found
                .into_iter()
                .filter(|job| tried.insert(job.clone()))
                .collect();
            if let Err(error) = self
                .start_some(&fresh, worker, lease, limit, &mut claimed)
                .await
            {
                if claimed.is_empty() {
                    return Err(error);
                }
                tracing::warn!(%error, claimed = claimed.len(), "a claim ends early");
                break;
            }
            if is_all {
                break;
            }
            // The source lags, or others were faster: look behind what was tried.
            look = look.saturating_mul(2).clamp(STARTS, MAX_LOOK);
        }
        Ok(claimed)
    }

    /// Starts `jobs` in order until `limit` are claimed.
    async fn start_some(
        &self,
        jobs: &[JobId],
        worker: &WorkerId,
        lease: Option<Lease>,
        limit: usize,
        claimed: &mut Vec<Claimed>,
    ) -> Result<(), LedgerError> {
        let mut jobs = jobs;
        while !jobs.is_empty() && claimed.len() < limit {
            let wanted = (limit - claimed.len()).min(STARTS).min(jobs.len());
            let (some, rest) = jobs.split_at(wanted);
            jobs = rest;
            let start = |job: &JobId| {
                let command = JobCommand::Start {
                    worker: Some(worker.clone()),
                    lease,
                };
                (CommandId::random(), Command::Job(job.clone(), command))
            };
            let answers = self.batch(some.iter().map(start).collect()).await;
            let mut failed = None;
            for (job, answer) in some.iter().zip(answers) {
                match answer {
                    Ok(Outcome::Applied(receipt)) => {
                        claimed.extend(Claimed::of(job, receipt.revision, receipt.job));
                    }
                    // Another worker has it, or it is over.
                    Ok(
                        Outcome::AlreadyApplied(_) | Outcome::Noted(_) | Outcome::Rejected { .. },
                    ) => {}
                    Err(
                        error @ (LedgerError::StreamTooNew { .. } | LedgerError::Corrupt { .. }),
                    ) => {
                        tracing::warn!(job.id = %job, %error, "a job cannot be claimed");
                    }
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Claimed {
    fn of(
        job: &JobId,
        revision: Revision,
        receipt: Option<crate::ledger::JobReceipt>,
    ) -> Option<Self> {
        let receipt = receipt?;
        Some(Self {
            job: job.clone(),
            account: receipt.account,
            kind: receipt.kind,
            attempt: receipt.attempt,
            lease_until: receipt.runs_out_at?,
            revision,
        })
    }
}
