//! Commands on accounts.

use super::event::{Adjusted, Granted};
use super::state::{Floor, Limits};
use crate::credits::{Cost, Delta};
use crate::ids::{AccountId, AdjustmentId, GrantId, JobId, Reason};
use crate::job::Rejection;

/// Give credit to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Who gets it.
    pub account: AccountId,
    /// Names the grant within the account: the same grant is given once.
    pub grant: GrantId,
    /// How much, in the smallest unit.
    pub amount: Cost,
}

/// Correct a balance. Ignores the floor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adjust {
    /// Whose balance.
    pub account: AccountId,
    /// Names the adjustment within the account: the same one is made once.
    pub adjustment: AdjustmentId,
    /// By how much, signed, in the smallest unit.
    pub amount: Delta,
    /// Why.
    pub reason: Reason,
    /// The job that it corrects, where it corrects one.
    pub job: Option<JobId>,
}

/// Set an account's floor, its monthly cap, or both. What is absent stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Whose limits.
    pub account: AccountId,
    /// The new floor, where it changes.
    pub floor: Option<Floor>,
    /// The new monthly cap, where it changes; `Some(None)` takes it away.
    pub monthly_cap: Option<Option<i64>>,
}

impl Grant {
    /// Says which field of a stored grant is another one than this command's.
    pub fn compare(&self, stored: &Granted) -> Result<(), Rejection> {
        if stored.posting.amount != self.amount.get() {
            return Err(Rejection::Differs { field: "amount" });
        }
        Ok(())
    }
}

impl Adjust {
    /// Says which field of a stored adjustment is another one than this command's.
    pub fn compare(&self, stored: &Adjusted) -> Result<(), Rejection> {
        let field = if stored.posting.amount != self.amount.get() {
            "amount"
        } else if stored.reason != self.reason {
            "reason"
        } else if stored.job != self.job {
            "job"
        } else {
            return Ok(());
        };
        Err(Rejection::Differs { field })
    }
}

impl Limit {
    /// The limits after this command, given the ones before it.
    #[must_use]
    pub fn apply(&self, before: Limits) -> Limits {
        Limits {
            floor: self.floor.unwrap_or(before.floor),
            monthly_cap: self.monthly_cap.unwrap_or(before.monthly_cap),
        }
    }
}
