//! Answers to commands.

use crate::clock::Timestamp;
use crate::codec::{CodecError, StreamName};
use crate::ids::{AccountId, JobResult, Kind};
use crate::job::{Attempt, IllegalHistory, Job, JobState, Recorded, Rejection, Work};
use crate::store::{Position, Revision, StoreError};

/// What a command came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a result is handed over, or work begun, only on the right outcome"]
pub enum Outcome {
    /// It happened now.
    Applied(Receipt),
    /// It had happened before; nothing was appended.
    AlreadyApplied(Receipt),
    /// It contradicts what had happened. The contradiction is on record; neither money nor state moved.
    Noted(Receipt),
    /// A rule says no; nothing was stored.
    Rejected {
        /// Which rule.
        rejection: Rejection,
        /// Where the stream stands, if there is one.
        at: Option<Receipt>,
    },
}

impl Outcome {
    /// Whether what was asked for holds: `Applied` or `AlreadyApplied`. On a `succeed` only this hands the result over.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        match self {
            Self::Applied(_) | Self::AlreadyApplied(_) => true,
            Self::Noted(_) | Self::Rejected { .. } => false,
        }
    }

    /// The stable name: `applied`, `already_applied`, `noted`, `rejected`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Applied(_) => "applied",
            Self::AlreadyApplied(_) => "already_applied",
            Self::Noted(_) => "noted",
            Self::Rejected { .. } => "rejected",
        }
    }

    /// Where the stream stands after the command.
    #[must_use]
    pub const fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Applied(receipt) | Self::AlreadyApplied(receipt) | Self::Noted(receipt) => {
                Some(receipt)
            }
            Self::Rejected { at, .. } => at.as_ref(),
        }
    }

    /// The rule that said no.
    #[must_use]
    pub const fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected { rejection, .. } => Some(rejection),
            Self::Applied(_) | Self::AlreadyApplied(_) | Self::Noted(_) => None,
        }
    }
}

/// Where a stream stands after a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The stream's last revision.
    pub revision: Revision,
    /// The job's figures; none for a grant, an adjustment or limits.
    pub job: Option<JobReceipt>,
}

/// Where a job stands after a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReceipt {
    /// Who pays.
    pub account: AccountId,
    /// What sort of work.
    pub kind: Kind,
    /// The state's stable name.
    pub state: &'static str,
    /// The highest attempt so far; [`Attempt::NONE`] before the first.
    pub attempt: Attempt,
    /// When the state's timer runs out: the end of a lease, of a wait; none for a state that lasts.
    pub runs_out_at: Option<Timestamp>,
    /// The stored result of a delivered job.
    pub result: Option<JobResult>,
}

impl Receipt {
    pub(super) const fn at(revision: Revision) -> Self {
        Self {
            revision,
            job: None,
        }
    }

    pub(super) fn of_job(job: &Job) -> Self {
        Self {
            revision: job.revision.unwrap_or(Revision::FIRST),
            job: job.recorded().map(JobReceipt::of),
        }
    }

    pub(super) fn of_known(job: &Job) -> Option<Self> {
        match job.state {
            JobState::None | JobState::Voided => None,
            JobState::Recorded(_) => Some(Self::of_job(job)),
        }
    }
}

impl JobReceipt {
    fn of(job: &Recorded) -> Self {
        let result = match &job.work {
            Work::Delivered { result, .. } => result.clone(),
            _ => None,
        };
        Self {
            account: job.terms.account.clone(),
            kind: job.terms.kind.clone(),
            state: job.work.name(),
            attempt: job.attempt,
            runs_out_at: job.work.timer().map(|(_, _, runs_out_at)| runs_out_at),
            result,
        }
    }
}

/// Why a command has no answer. Unless it says otherwise, nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The store did not do as it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It may or may not have happened. Repeat the same command under the same command id.
    #[error(
        "outcome unknown on stream {stream}: {cause}; repeat the command under the same command id"
    )]
    OutcomeUnknown {
        /// The stream that was appended to.
        stream: StreamName,
        /// What happened instead of an answer.
        cause: String,
    },
    /// The stream holds an event that this build cannot read: an upgrade leads out.
    #[error("stream {stream} cannot be read: {source}")]
    StreamTooNew {
        /// The stream.
        stream: StreamName,
        /// Which event.
        source: CodecError,
    },
    /// The stream holds bytes, or an order of events, that cannot be.
    #[error("stream {stream}, event {position}, is corrupt: {why}")]
    Corrupt {
        /// The stream.
        stream: StreamName,
        /// Which event.
        position: Position,
        /// What is wrong.
        why: String,
    },
}

impl LedgerError {
    /// The error of a stream that holds an event which cannot be read.
    #[must_use]
    pub fn unreadable(stream: &StreamName, error: CodecError) -> Self {
        match error {
            CodecError::TooNew { .. } => Self::StreamTooNew {
                stream: stream.clone(),
                source: error,
            },
            CodecError::Corrupt { position, why } => Self::Corrupt {
                stream: stream.clone(),
                position,
                why,
            },
        }
    }

    pub(super) fn illegal(stream: &StreamName, position: Position, error: &IllegalHistory) -> Self {
        Self::Corrupt {
            stream: stream.clone(),
            position,
            why: error.to_string(),
        }
    }
}
