//! Projections and audit over real ledgers in files.

mod audit;
mod batches;
mod days;
mod follow;
mod halts;
mod lists;
mod rows;
mod tamper;
mod world;
