//! What an event moves, and what has to be admitted before it may.

use serde::{Deserialize, Serialize};

use crate::clock::{BudgetMonth, Timestamp};
use crate::credits::Cost;
use crate::ids::{AccountId, Kind};

/// What one event moves. It stands alone: any range of the log folds by the postings in it, without an earlier event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posting {
    /// Whose figures move.
    pub account: AccountId,
    /// The job's kind; none for a grant or an adjustment.
    pub kind: Option<Kind>,
    /// The signed change of the balance, in the smallest unit; may be 0.
    pub amount: i64,
    /// The signed change of what is held, in the smallest unit.
    pub held: i64,
    /// When the job was charged, by the store's clock; none for a grant or an adjustment.
    pub charged_at: Option<Timestamp>,
    /// The month that the job counts in; none for a grant or an adjustment.
    pub budget_month: Option<BudgetMonth>,
}

/// A condition on an account's figures that an append is subject to: its store checks and takes in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// A charge, a redrive, or a start of a failed job: `cost` must be available, and fit the month's cap.
    Spend {
        /// Whose credit is spent or held.
        account: AccountId,
        /// How much.
        cost: Cost,
        /// The month whose cap is checked; none once the job's budget month has ended.
        cap_month: Option<BudgetMonth>,
    },
    /// A grant or an adjustment: the balance it leads to must be in range. The floor is ignored.
    Post {
        /// Whose balance moves.
        account: AccountId,
        /// By how much, signed.
        amount: i64,
    },
}

impl Admission {
    /// Whose figures are checked.
    #[must_use]
    pub fn account(&self) -> &AccountId {
        match self {
            Self::Spend { account, .. } | Self::Post { account, .. } => account,
        }
    }
}
