//! Rebuild against a live ledger: what it finds, what it leaves alone, and what happens when it is killed, stopped or not alone.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod concurrent;
mod damage;
mod hourly;
mod world;
