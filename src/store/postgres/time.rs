//! The database's clock, read now and then and carried on by this machine's.
//!
//! Every process takes its instants from the one server, so that no two machines' clocks meet in one ledger. Between two readings
//! the instant is the last one and the time since, by the monotonic clock; each transaction reads anew.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::clock::{Clock, SystemClock, Timestamp};

/// Asks the server what time it is, in microseconds since 1970: a column `now`, to which others may be added.
pub(super) const NOW: &str =
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now";

/// A reading of the server's clock, and when it was taken.
#[derive(Debug)]
pub(super) struct DatabaseClock(Mutex<(Timestamp, Instant)>);

impl Default for DatabaseClock {
    /// This machine's clock, until the server has been asked: each transaction begins with that.
    fn default() -> Self {
        Self(Mutex::new((SystemClock.now(), Instant::now())))
    }
}

impl DatabaseClock {
    /// The server has just said what time it is.
    pub(super) fn set(&self, read: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (read, Instant::now());
    }
}

impl Clock for DatabaseClock {
    fn now(&self) -> Timestamp {
        let (read, at) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        read.after(at.elapsed())
    }
}
