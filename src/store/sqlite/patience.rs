//! Waiting for another process's transaction.
//!
//! SQLite's own waiting grows to steps of 100 ms, in which a lock that is free most of the time is missed again and again, while a
//! process that commits without a pause keeps it. Steps of about a millisecond, each a little different, give every process its turn.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rusqlite::Connection;

thread_local! {
    /// The handler is a plain function: what it knows is kept by the thread that its connection is used on.
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static WAITING_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets `connection`, used on this thread, wait up to `patience` for a lock. Call it again where the connection moves to another thread.
pub(super) fn install(connection: &Connection, patience: Duration) -> rusqlite::Result<()> {
    PATIENCE.set(patience);
    connection.busy_handler(Some(wait))
}

/// Waits a step; false once the patience is over. `tries` counts from 0 for every lock that is waited for.
fn wait(tries: i32) -> bool {
    let now = Instant::now();
    if tries == 0 {
        WAITING_SINCE.set(Some(now));
    }
    let since = WAITING_SINCE.get().unwrap_or(now);
    if now.duration_since(since) >= PATIENCE.get() {
        return false;
    }
    // The clock's nanoseconds are random enough to part two processes.
    let spread_us = u64::from(since.elapsed().subsec_nanos() % 700);
    std::thread::sleep(Duration::from_micros(500 + spread_us));
    true
}
