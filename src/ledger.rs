//! The ledger: what services call.
//!
//! Every command goes the same way. Load the stream, from the cache of recent states or freshly; decide; append at exactly
//! the loaded revision. The append is the guard: of two callers that decided on one revision one is committed, the other
//! conflicts, loads again and decides again. So a stale cached state costs a round trip and never an error in money. An answer
//! that appends nothing ("already applied", a rejection) is given only on a freshly read stream.
//!
//! An append whose outcome is unknown is repeated, identically, and what is stored is compared before a conflict is
//! believed; only when that does not settle it within its bound is the caller told [`LedgerError::OutcomeUnknown`].
//! Repeating a command under its command id is always safe.
//!
//! Bounds: [`MAX_DECISIONS`] decisions for one command, [`MAX_REPEATS`] repeats of one append, [`CACHED_JOBS`] cached states.

mod accounts;
mod batch;
pub mod load;
mod outcome;
mod policies;

use std::sync::Arc;
use std::time::Duration;

use quick_cache::sync::Cache;

use crate::account::{AccountState, Adjust, Admission, Grant, Limit};
use crate::clock::Timestamp;
use crate::codec::{Event, Stream, StreamName};
use crate::credits::Cost;
use crate::ids::{AccountId, CommandId, JobId, Kind};
use crate::job::{Charge, Decision, Job, JobCommand, JobEvent, Now, PolicyChoice, decide};
use crate::price::{PriceError, PriceSnapshot};
use crate::retry::PolicyError;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::store::Revision;
use crate::store::memory::MemoryStore;
use crate::store::{Append, Appended, EventStore, Expected, StoreError};

pub use outcome::{JobReceipt, LedgerError, Outcome, Receipt};
pub use policies::Policies;

/// How often one command is decided anew after a conflict before its caller is told that the stream is too busy.
pub const MAX_DECISIONS: u32 = 64;

/// How often an append of unknown outcome is repeated.
pub const MAX_REPEATS: u32 = 8;

/// How many recent job states are cached.
pub const CACHED_JOBS: usize = 16_384;

/// A command on a job or an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// On a job.
    Job(JobId, JobCommand),
    /// Give credit.
    Grant(Grant),
    /// Correct a balance.
    Adjust(Adjust),
    /// Set limits.
    Limit(Limit),
}

impl Command {
    /// The stream that the command speaks of.
    #[must_use]
    pub fn stream(&self) -> Stream {
        match self {
            Self::Job(job, _) => Stream::Job(job.clone()),
            Self::Grant(grant) => Stream::Grant(grant.account.clone(), grant.grant.clone()),
            Self::Adjust(adjust) => {
                Stream::Adjustment(adjust.account.clone(), adjust.adjustment.clone())
            }
            Self::Limit(limit) => Stream::Limits(limit.account.clone()),
        }
    }
}

/// A handle on a ledger. Clones are cheap and share the store and the cache.
#[derive(Debug, Clone)]
pub struct Ledger {
    store: Arc<dyn EventStore>,
    policies: Arc<Policies>,
    recent: Arc<Cache<StreamName, Arc<Job>>>,
}

/// Why a charge cannot even be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChargeError {
    /// The price does not multiply out to the cost.
    #[error(transparent)]
    Price(#[from] PriceError),
    /// The policy has a number outside its range.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// What an append came to, once unknown outcomes are settled.
enum Settled {
    Committed(Timestamp),
    Conflict,
    Refused(crate::account::Refusal),
}

impl Ledger {
    /// A ledger over `store`; `policies` says how jobs of each kind are run.
    #[must_use]
    pub fn new(store: Arc<dyn EventStore>, policies: Policies) -> Self {
        Self {
            store,
            policies: Arc::new(policies),
            recent: Arc::new(Cache::new(CACHED_JOBS)),
        }
    }

    /// A ledger that is gone with the process; for tests and examples.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(Arc::new(MemoryStore::default()), Policies::default())
    }

    /// Opens, or creates with the defaults (UTC, scale 0), the embedded ledger in the file `path`.
    #[cfg(feature = "sqlite")]
    pub async fn open(path: impl AsRef<std::path::Path>) -> Result<Self, crate::store::OpenError> {
        let store =
            crate::store::sqlite::SqliteStore::open(crate::store::sqlite::Options::at(path))
                .await?;
        Ok(Self::new(Arc::new(store), Policies::default()))
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn EventStore> {
        &self.store
    }

    /// A charge with the policy resolved: the caller's `choice`, else the kind's configured one.
    pub fn charge_of(
        &self,
        account: AccountId,
        kind: Kind,
        cost: Cost,
        price: PriceSnapshot,
        choice: Option<PolicyChoice>,
    ) -> Result<Charge, ChargeError> {
        price.check(cost)?;
        let policy = self.policies.resolve(&kind, choice);
        policy.check()?;
        Ok(Charge {
            account,
            kind,
            cost,
            price,
            choice,
            policy,
        })
    }

    /// Carries out a command, known by `id`. The caller makes the id once and keeps it over repeats.
    pub async fn execute(&self, id: CommandId, command: Command) -> Result<Outcome, LedgerError> {
        match command {
            Command::Job(job, command) => self.job(id, job, command).await,
            Command::Grant(grant) => self.grant(id, grant).await,
            Command::Adjust(adjust) => self.adjust(id, adjust).await,
            Command::Limit(limit) => self.limit(id, limit).await,
        }
    }

    /// Carries out a command on a job.
    ///
    /// A service hands a result over only when its `succeed` is answered with `Applied` or `AlreadyApplied`: see [`Outcome::is_done`].
    pub async fn job(
        &self,
        id: CommandId,
        job: JobId,
        command: JobCommand,
    ) -> Result<Outcome, LedgerError> {
        self.job_as_of(id, job, command, None).await
    }

    /// Lets a job's timer run out although its time has not come: at the end of a backfill, for what nobody will go on with. Decided as of the
    /// timer's deadline, and posted by the store's clock as any event.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub async fn expire_early(
        &self,
        _closing: &crate::store::Closing,
        id: CommandId,
        job: JobId,
        (timer, armed_at, deadline): (crate::job::Timer, Revision, Timestamp),
    ) -> Result<Outcome, LedgerError> {
        let command = JobCommand::Expire { timer, armed_at };
        self.job_as_of(id, job, command, Some(deadline)).await
    }

    async fn job_as_of(
        &self,
        id: CommandId,
        job: JobId,
        command: JobCommand,
        as_of: Option<Timestamp>,
    ) -> Result<Outcome, LedgerError> {
        let stream = Stream::Job(job.clone());
        let (mut state, mut is_fresh) = self.recent_job(&stream, &job, &command).await?;
        for decision in 0..MAX_DECISIONS {
            pause_before(decision).await;
            let mut now = self.now();
            now.at = as_of.map_or(now.at, |as_of| as_of.max(now.at));
            let answer = decide(&state, &id, &command, now);
            let (events, admission, noted) = match answer {
                Ok(Decision::Append { events, admission }) => (events, admission, false),
                Ok(Decision::Noted { event: Some(event) }) => (vec![event], None, true),
                _ if !is_fresh => {
                    state = self.load_job(&stream, &job).await?;
                    is_fresh = true;
                    continue;
                }
                Ok(Decision::AlreadyApplied) => {
                    return Ok(Outcome::AlreadyApplied(Receipt::of_job(&state)));
                }
                Ok(Decision::Noted { event: None }) => {
                    return Ok(Outcome::Noted(Receipt::of_job(&state)));
                }
                Err(rejection) => {
                    return Ok(Outcome::Rejected {
                        rejection,
                        at: Receipt::of_known(&state),
                    });
                }
            };
            let append = job_append(&stream, &state, &id, &events, admission);
            match self.settle(append).await? {
                Settled::Committed(posted_at) => {
                    let state = self.advance_committed(&stream, &state, &events, posted_at, &id)?;
                    let receipt = Receipt::of_job(&state);
                    self.remember(stream.name(), state);
                    return Ok(if noted {
                        Outcome::Noted(receipt)
                    } else {
                        Outcome::Applied(receipt)
                    });
                }
                Settled::Refused(refusal) => {
                    return Ok(Outcome::Rejected {
                        rejection: refusal.into(),
                        at: Receipt::of_known(&state),
                    });
                }
                Settled::Conflict => {
                    state = self.load_job(&stream, &job).await?;
                    is_fresh = true;
                }
            }
        }
        Err(LedgerError::Store(StoreError::Unavailable {
            cause: format!(
                "{stream} kept changing: {MAX_DECISIONS} conflicts",
                stream = stream.name()
            ),
        }))
    }

    /// Says what a command on a job would come to, and appends nothing. Limits are checked against the figures of this moment.
    pub async fn dry_run(
        &self,
        id: &CommandId,
        job: &JobId,
        command: &JobCommand,
    ) -> Result<Outcome, LedgerError> {
        let state = self.load_job(&Stream::Job(job.clone()), job).await?;
        let now = self.now();
        Ok(match decide(&state, id, command, now) {
            Ok(Decision::AlreadyApplied) => Outcome::AlreadyApplied(Receipt::of_job(&state)),
            Ok(Decision::Noted { .. }) => Outcome::Noted(Receipt::of_job(&state)),
            Err(rejection) => Outcome::Rejected {
                rejection,
                at: Receipt::of_known(&state),
            },
            Ok(Decision::Append { events, admission }) => {
                if let Some(admission) = admission {
                    let figures = self
                        .store
                        .account(admission.account(), now.zone.month_of(now.at))
                        .await?;
                    if let Err(refusal) = figures.admit(&admission) {
                        return Ok(Outcome::Rejected {
                            rejection: refusal.into(),
                            at: Receipt::of_known(&state),
                        });
                    }
                }
                let stream = Stream::Job(job.clone()).name();
                Outcome::Applied(Receipt::of_job(&load::advance(
                    &state, &stream, &events, now.at, id,
                )?))
            }
        })
    }

    /// The job as its stream tells it, freshly read, with every event.
    pub async fn show(&self, job: &JobId) -> Result<(Job, Vec<load::History>), LedgerError> {
        self.history(job).await
    }

    /// An account's figures, with those of the month it is. Zeros for an account that nothing ever happened to.
    pub async fn account(&self, account: &AccountId) -> Result<AccountState, LedgerError> {
        let now = self.now();
        Ok(self
            .store
            .account(account, now.zone.month_of(now.at))
            .await?)
    }

    /// The store's clock and the ledger's zone.
    #[must_use]
    pub fn now(&self) -> Now {
        Now {
            at: self.store.now(),
            zone: self.store.identity().zone,
            clock_skew: self.store.clock_skew(),
        }
    }

    /// The state after a commit. What was stored and cannot be folded was applied all the same: it is not told as a failure.
    fn advance_committed(
        &self,
        stream: &Stream,
        state: &Job,
        events: &[JobEvent],
        posted_at: Timestamp,
        id: &CommandId,
    ) -> Result<Job, LedgerError> {
        let stream = stream.name();
        load::advance(state, &stream, events, posted_at, id).map_err(|error| {
            self.recent.remove(&stream);
            let cause = error.to_string();
            LedgerError::OutcomeUnknown { stream, cause }
        })
    }

    /// Appends; where the outcome stays unknown, repeats the identical append and compares what is stored.
    async fn settle(&self, append: Append) -> Result<Settled, LedgerError> {
        let answer = self.store.append(append.clone()).await;
        self.settle_answer(&append, answer).await
    }

    async fn settle_answer(
        &self,
        append: &Append,
        answer: Result<Appended, StoreError>,
    ) -> Result<Settled, LedgerError> {
        let mut cause = match answer {
            Ok(Appended::Committed { posted_at, .. }) => return Ok(Settled::Committed(posted_at)),
            Ok(Appended::Conflict { .. }) => return Ok(Settled::Conflict),
            Ok(Appended::Refused(refusal)) => return Ok(Settled::Refused(refusal)),
            Ok(Appended::Unknown { cause }) => cause,
            Err(error) => return Err(error.into()),
        };
        let is_posting = matches!(append.admission, Some(Admission::Post { .. }));
        for repeat in 0..MAX_REPEATS {
            tracing::debug!(stream.name = %append.stream, repeat, cause, "an append's outcome is unknown: repeating it");
            pause_before(repeat + 1).await;
            match self.store.append(append.clone()).await {
                Ok(Appended::Committed { posted_at, .. }) => {
                    return Ok(Settled::Committed(posted_at));
                }
                Ok(Appended::Conflict { .. }) => match self.stored(append).await {
                    Ok(Some(posted_at)) => return Ok(Settled::Committed(posted_at)),
                    Ok(None) => return Ok(Settled::Conflict),
                    Err(error) => cause = error.to_string(),
                },
                // What reserves nothing may still arrive where the log is another server's.
                Ok(Appended::Refused(refusal)) if is_posting => cause = refusal.to_string(),
                // Refused after the revision was checked: the first try is not there.
                Ok(Appended::Refused(refusal)) => return Ok(Settled::Refused(refusal)),
                Ok(Appended::Unknown { cause: again }) => cause = again,
                Err(error) => cause = error.to_string(),
            }
        }
        Err(LedgerError::OutcomeUnknown {
            stream: append.stream.clone(),
            cause,
        })
    }

    /// When exactly this append was stored; none if something else stands at its revisions.
    ///
    /// Equal ids are not enough: another caller that used the same command id at the same revision has them too. What it said
    /// may differ, if only by the instant of its charge, and then what is stored is the answer, to be decided on.
    async fn stored(&self, append: &Append) -> Result<Option<Timestamp>, StoreError> {
        let first = append.expected.next();
        let stored = self.store.read_stream(&append.stream, first).await?;
        let is_ours = stored.len() >= append.events.len()
            && stored
                .iter()
                .zip(&append.events)
                .all(|(stored, new)| stored.id == new.id && stored.data == new.data);
        Ok(stored
            .first()
            .filter(|_| is_ours)
            .map(|first| first.posted_at))
    }
}

fn job_append(
    stream: &Stream,
    state: &Job,
    id: &CommandId,
    events: &[JobEvent],
    admission: Option<crate::account::Admission>,
) -> Append {
    let events = events.iter().cloned().map(Event::Job).collect();
    Append::new(
        stream,
        Expected::after(state.revision),
        id,
        events,
        admission,
    )
}

/// A small random pause before every try but the first two: callers that collided come back apart.
async fn pause_before(tries: u32) {
    if tries < 2 {
        return;
    }
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    let ceiling_us = 500_u64.saturating_mul(1 << tries.min(7));
    let pause_us = ceiling_us.saturating_mul(u64::try_from(random).unwrap_or(0)) / 1000;
    tokio::time::sleep(Duration::from_micros(pause_us)).await;
}
