//! The store's clock: the machine's, and never earlier than what the log was posted at.
//!
//! A clock that was set back must not bring a month back: what is decided now stands behind everything that is in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::{Clock, Timestamp};

/// Clones share what they know of the log.
#[derive(Debug, Clone)]
pub(crate) struct StoreClock {
    clock: Arc<dyn Clock>,
    /// The latest `posted_at` that this process has seen, in microseconds.
    posted_at: Arc<AtomicI64>,
}

impl StoreClock {
    pub(crate) fn new(clock: Arc<dyn Clock>, posted_at: Option<Timestamp>) -> Self {
        let posted_at = posted_at.map_or(i64::MIN, Timestamp::as_micros);
        Self {
            clock,
            posted_at: Arc::new(AtomicI64::new(posted_at)),
        }
    }

    /// The clock alone, whatever the log says.
    pub(crate) fn injected(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn now(&self) -> Timestamp {
        let posted_at = Timestamp::from_micros(self.posted_at.load(Ordering::Acquire));
        self.clock.now().max(posted_at)
    }

    /// The log's last event was posted then: by this process or by another.
    pub(crate) fn saw(&self, posted_at: Timestamp) {
        self.posted_at
            .fetch_max(posted_at.as_micros(), Ordering::AcqRel);
    }
}
