//! Projections and audit over real ledgers in files.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod audit;
mod batches;
mod damage;
mod days;
mod due;
mod example;
mod follow;
mod halts;
mod lists;
mod rows;
mod tamper;
mod ways_out;
mod world;
