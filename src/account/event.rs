//! Events of accounts. Each grant and each adjustment has a stream of its own; limits have one per account.

use serde::{Deserialize, Serialize};

use super::posting::Posting;
use super::state::Limits;
use crate::ids::{AccountId, AdjustmentId, GrantId, JobId, Reason};

/// Anything that happens to an account and not to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountEvent {
    /// Credit was given.
    Granted(Granted),
    /// A person corrected the balance.
    Adjusted(Adjusted),
    /// The floor or the monthly cap was set.
    LimitsSet(LimitsSet),
}

/// Credit was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Which grant of the account.
    pub grant: GrantId,
    /// What it moved; the amount is positive.
    pub posting: Posting,
}

/// A person corrected the balance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjusted {
    /// Which adjustment of the account.
    pub adjustment: AdjustmentId,
    /// What it moved, in either direction.
    pub posting: Posting,
    /// Why.
    pub reason: Reason,
    /// The job that it corrects, where it corrects one.
    pub job: Option<JobId>,
}

/// The floor or the monthly cap was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsSet {
    /// Whose limits.
    pub account: AccountId,
    /// Both limits, as they are from here on.
    pub limits: Limits,
}

impl AccountEvent {
    /// What the event moves, where it moves money.
    #[must_use]
    pub const fn posting(&self) -> Option<&Posting> {
        match self {
            Self::Granted(granted) => Some(&granted.posting),
            Self::Adjusted(adjusted) => Some(&adjusted.posting),
            Self::LimitsSet(_) => None,
        }
    }
}
