//! The ledger over real SQLite files.
//!
//! - [`interleavings`]: random orders, duplicates and lost answers of every command, against the oracle; [`plan`] draws them.
//! - [`batch`]: many commands in one call come to what one by one comes to.
//! - [`races`]: many callers, one outcome.
//! - [`lost`]: answers that never arrive.
//! - [`months`]: a job counts in the month that it was charged in.

mod batch;
mod interleavings;
mod lost;
mod months;
mod plan;
pub(crate) mod races;
