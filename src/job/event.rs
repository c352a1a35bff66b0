//! Events of a job's stream. Facts, in the past tense; nothing is ever edited.
//!
//! An event that moves money or the hold carries its [`Posting`]. The change of held sits in `Refunded` or `Reclaimed`
//! where the append has one, else in the event of the state.

use serde::{Deserialize, Serialize};

use super::command::{FailureClass, Timer};
use super::state::Attempt;
use crate::account::Posting;
use crate::ids::{CommandId, JobResult, Reason, WorkerId};
use crate::price::PriceSnapshot;
use crate::retry::Policy;

/// Anything that happens to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant is the struct of its name, documented there"
)]
pub enum JobEvent {
    Charged(Charged),
    AttemptStarted(AttemptStarted),
    LeaseExtended(LeaseExtended),
    AttemptFailed(AttemptFailed),
    Refunded(Refunded),
    RetryScheduled(RetryScheduled),
    Failed(Failed),
    DeadLettered(DeadLettered),
    Delivered(Delivered),
    Reclaimed(Reclaimed),
    Redriven(Redriven),
    Cancelled(Cancelled),
    Discarded(Discarded),
    Contradicted(Contradicted),
    Voided(Voided),
}

/// The job was taken on and its cost charged. Sets `start_by`: posted_at + the policy's `start_within`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charged {
    /// −cost.
    pub posting: Posting,
    /// How the cost came about.
    pub price: PriceSnapshot,
    /// How the job's attempts are run.
    pub policy: Policy,
}

/// An attempt began. Sets `lease_until`: posted_at + `lease_ms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptStarted {
    /// Which attempt.
    pub attempt: Attempt,
    /// Who runs it.
    pub worker: Option<WorkerId>,
    /// How long it may run without a sign of life, in milliseconds.
    pub lease_ms: u64,
    /// The hold that a failed job takes again when it is started again.
    pub hold: Option<Posting>,
}

/// A running attempt gave a sign of life. Sets `lease_until` anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseExtended {
    /// Which attempt.
    pub attempt: Attempt,
    /// How long it may run from here, in milliseconds.
    pub lease_ms: u64,
}

/// An attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptFailed {
    /// Which attempt.
    pub attempt: Attempt,
    /// What the next step depended on.
    pub class: FailureClass,
    /// What went wrong.
    pub reason: Option<Reason>,
    /// The timer that ran out, where no signal but a timer failed it.
    pub timer: Option<Timer>,
}

/// The cost was credited back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refunded {
    /// +cost, and the hold if the job may still run.
    pub posting: Posting,
}

/// Another attempt will be due. Sets `due_at`: posted_at + `delay_ms`; `give_up_at`: due_at + `start_within_ms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryScheduled {
    /// The attempt that failed.
    pub attempt: Attempt,
    /// How long until the next is due, in milliseconds.
    pub delay_ms: u64,
    /// How long it may then wait to be started, in milliseconds.
    pub start_within_ms: u64,
}

/// The job ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The end of the hold, where no refund of the same append carries it.
    pub hold: Option<Posting>,
}

/// Why a job became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterCause {
    /// As many starts as the policy allows.
    CapReached,
    /// The next attempt would be due after the policy's window.
    WindowClosed,
    /// Nobody started it in time.
    NotStarted,
}

impl DeadLetterCause {
    /// As it is written in lists.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CapReached => "cap_reached",
            Self::WindowClosed => "window_closed",
            Self::NotStarted => "not_started",
        }
    }
}

/// The job ran out of attempts or time; only a person moves it on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLettered {
    /// Why.
    pub cause: DeadLetterCause,
    /// The end of the hold, where no refund of the same append carries it.
    pub hold: Option<Posting>,
}

/// The job gave its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// The attempt that did.
    pub attempt: Attempt,
    /// What it gave.
    pub result: Option<JobResult>,
}

/// A refund was taken back, as the job was delivered after all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// −cost, and the end of the hold where there was one.
    pub posting: Posting,
}

/// A person gave the job another round. Sets `start_by`: posted_at + `start_within_ms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redriven {
    /// The highest attempt so far: cap, delay and window count from here.
    pub base: Attempt,
    /// How long it may wait to be started, in milliseconds.
    pub start_within_ms: u64,
    /// Why.
    pub reason: Option<Reason>,
    /// The hold taken again.
    pub hold: Posting,
}

/// The job was called off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Why.
    pub reason: Option<Reason>,
    /// The end of the hold, where no refund of the same append carries it.
    pub hold: Option<Posting>,
}

/// The job was given up for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discarded {
    /// Why.
    pub reason: Option<Reason>,
}

/// What a contradiction claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// That the attempt failed, though the job was delivered by it.
    Failed,
    /// That the attempt succeeded, though the job was called off or given up.
    Succeeded,
}

impl Signal {
    /// As it is written in lists.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Succeeded => "succeeded",
        }
    }
}

/// A signal contradicted what had happened. Moves neither money nor state; once per signal and attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradicted {
    /// What was claimed.
    pub signal: Signal,
    /// Of which attempt.
    pub attempt: Attempt,
    /// The class of a claimed failure.
    pub class: Option<FailureClass>,
    /// The reason of a claimed failure.
    pub reason: Option<Reason>,
    /// The result of a claimed success: kept for people, withheld from callers.
    pub result: Option<JobResult>,
}

/// A command whose append had not arrived was ruled out for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voided {
    /// The command that can no longer succeed at this revision.
    pub command: CommandId,
}

impl JobEvent {
    /// What the event moves, where it moves money or the hold.
    #[must_use]
    pub fn posting(&self) -> Option<&Posting> {
        match self {
            Self::Charged(Charged { posting, .. })
            | Self::Refunded(Refunded { posting })
            | Self::Reclaimed(Reclaimed { posting })
            | Self::Redriven(Redriven { hold: posting, .. }) => Some(posting),
            Self::AttemptStarted(AttemptStarted { hold, .. })
            | Self::Failed(Failed { hold })
            | Self::DeadLettered(DeadLettered { hold, .. })
            | Self::Cancelled(Cancelled { hold, .. }) => hold.as_ref(),
            Self::LeaseExtended(_)
            | Self::AttemptFailed(_)
            | Self::RetryScheduled(_)
            | Self::Delivered(_)
            | Self::Discarded(_)
            | Self::Contradicted(_)
            | Self::Voided(_) => None,
        }
    }

    /// The event's name, as in lists and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Charged(_) => "charged",
            Self::AttemptStarted(_) => "attempt_started",
            Self::LeaseExtended(_) => "lease_extended",
            Self::AttemptFailed(_) => "attempt_failed",
            Self::Refunded(_) => "refunded",
            Self::RetryScheduled(_) => "retry_scheduled",
            Self::Failed(_) => "failed",
            Self::DeadLettered(_) => "dead_lettered",
            Self::Delivered(_) => "delivered",
            Self::Reclaimed(_) => "reclaimed",
            Self::Redriven(_) => "redriven",
            Self::Cancelled(_) => "cancelled",
            Self::Discarded(_) => "discarded",
            Self::Contradicted(_) => "contradicted",
            Self::Voided(_) => "voided",
        }
    }
}
