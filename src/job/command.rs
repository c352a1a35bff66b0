//! Commands on jobs: what a service, a worker, a loop or a person asks for.

use serde::{Deserialize, Serialize};

use super::state::Attempt;
use crate::credits::Cost;
use crate::ids::{AccountId, JobResult, Kind, Reason, WorkerId};
use crate::price::PriceSnapshot;
use crate::retry::{Lease, Mode, Policy};
use crate::store::Revision;

/// Which policy a charge asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyChoice {
    /// The kind's numbers, in this mode.
    Mode(Mode),
    /// These numbers.
    Full(Policy),
}

/// Take a job on and charge its cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Who pays.
    pub account: AccountId,
    /// What sort of work.
    pub kind: Kind,
    /// How much, in the smallest unit; must be what `price` multiplies out to.
    pub cost: Cost,
    /// How the cost came about.
    pub price: PriceSnapshot,
    /// What the caller asked for; none takes the kind's configured policy.
    pub choice: Option<PolicyChoice>,
    /// What that comes to with the configuration: copied into the event.
    pub policy: Policy,
}

/// Why an attempt failed, as far as the next step depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// Another attempt may succeed.
    #[default]
    Retryable,
    /// No attempt will.
    Terminal,
    /// The work was called off.
    Cancelled,
}

/// The timer of a live state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// A queued job has to be started by then.
    StartBy,
    /// A running attempt has to give a sign of life by then.
    LeaseUntil,
    /// A scheduled retry has to be started by then.
    GiveUpAt,
}

impl Timer {
    /// As it is written in events and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StartBy => "start_by",
            Self::LeaseUntil => "lease_until",
            Self::GiveUpAt => "give_up_at",
        }
    }
}

/// A command on a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobCommand {
    /// Take the job on.
    Charge(Box<Charge>),
    /// Begin the next attempt.
    Start {
        /// Who runs it.
        worker: Option<WorkerId>,
        /// How long it may run without a sign of life, now and after each renewal; none takes the policy's.
        lease: Option<Lease>,
    },
    /// The attempt is alive: renew its lease.
    Extend {
        /// Which attempt.
        attempt: Attempt,
    },
    /// The attempt failed.
    Fail {
        /// Which attempt.
        attempt: Attempt,
        /// What the next step depends on.
        class: FailureClass,
        /// What went wrong.
        reason: Option<Reason>,
    },
    /// The attempt succeeded. Never refused for money's sake.
    Succeed {
        /// Which attempt.
        attempt: Attempt,
        /// What it gave.
        result: Option<JobResult>,
    },
    /// Call the job off.
    Cancel {
        /// Why.
        reason: Option<Reason>,
    },
    /// Give a job that ran out of attempts another round.
    Redrive {
        /// Why.
        reason: Option<Reason>,
    },
    /// Give such a job up for good.
    Discard {
        /// Why.
        reason: Option<Reason>,
    },
    /// A loop saw a timer run out. Acts only if that very timer still runs and its time is over.
    Expire {
        /// Which timer.
        timer: Timer,
        /// The event that set it.
        armed_at: Revision,
    },
}

impl JobCommand {
    /// The verb, as it is written in import lines and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Charge(_) => "charge",
            Self::Start { .. } => "start",
            Self::Extend { .. } => "extend",
            Self::Fail { .. } => "fail",
            Self::Succeed { .. } => "succeed",
            Self::Cancel { .. } => "cancel",
            Self::Redrive { .. } => "redrive",
            Self::Discard { .. } => "discard",
            Self::Expire { .. } => "expire",
        }
    }

    /// The attempt that the command speaks of, where it speaks of one.
    #[must_use]
    pub const fn attempt(&self) -> Option<Attempt> {
        match self {
            Self::Extend { attempt }
            | Self::Fail { attempt, .. }
            | Self::Succeed { attempt, .. } => Some(*attempt),
            Self::Charge(_)
            | Self::Start { .. }
            | Self::Cancel { .. }
            | Self::Redrive { .. }
            | Self::Discard { .. }
            | Self::Expire { .. } => None,
        }
    }
}
