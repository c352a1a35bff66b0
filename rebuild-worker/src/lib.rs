//! What stands behind the binary `recoup`: the command line over the ledger, its projections and its proofs.
//!
//! [`cli`] has one file per verb; [`exit`] is what a script hears; [`up`] runs the
//! loops, and [`mod@metrics`] says what it measures; [`demo`] and [`mod@bench`] show the ledger at work and measure it.
//! Everything of the ledger itself is in the packages below, `recoup` and `recoup-projections`.

pub mod bench;
pub mod cli;
pub mod demo;
pub mod exit;
pub mod log_form;
pub mod rebuild;
pub mod metrics;
pub mod up;
