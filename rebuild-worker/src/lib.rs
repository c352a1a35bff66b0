//! What stands behind the binary `recoup`: the command line over the ledger, its projections and its proofs.
//!
//! [`cli`] has one file per verb; [`exit`] is what a script hears. [`up`] runs the loops: the projector, [`due`], which acts on timers, and
//! [`rebuild`]; [`mod@metrics`] says what it measures. [`dead_letters`] moves what people decide on, [`log_form`] is the log as a file,
//! [`signals`] are what ends a process in peace;
//! [`demo`] and [`mod@bench`] show the ledger at work and measure it.
//! Everything of the ledger itself is in the packages below, `recoup` and `recoup-projections`.

pub mod bench;
pub mod cli;
pub mod dead_letters;
pub mod demo;
pub mod due;
pub mod exit;
pub mod log_form;
pub mod metrics;
pub mod rebuild;
pub mod signals;
pub mod up;
