//! Accounts: what moves their figures, the fold of those figures, and the rule that admits a charge.
//!
//! Everything here is pure. [`AccountState`] is the one fold of balance, held and per-month figures; the append's
//! transaction, the audit and the rebuild all call it, so no second formula can drift from it. [`AccountState::admit`] is
//! the one place that says yes or no to a charge, a redrive or a start of a failed job.
//!
//! Invariants: `available = balance − held − reserved`; a month's figures count the jobs *charged* in that month,
//! whenever their refund, reclaim or hold happens; only a success after an end, or an adjustment, may take a balance
//! below the floor.
#![warn(clippy::arithmetic_side_effects, clippy::wildcard_enum_match_arm)]

mod command;
mod event;
mod posting;
mod state;

pub use command::{Adjust, Grant, Limit};
pub use event::{AccountEvent, Adjusted, Granted, LimitsSet};
pub use posting::{Admission, Posting};
pub use state::{AccountState, Floor, Limits, MonthState, Overflow, Refusal};
