//! Timers, claims and dead letters over real ledgers in files, on a clock that stands still until it is told to move.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod claims;
mod faults;
mod killed;
mod loops;
mod world;
