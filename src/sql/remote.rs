//! A log that is not in the transaction's database: asked on the transaction's thread, which may block.
//!
//! What a transaction reads of it is of no one moment, and need not be: the log only grows, and whoever reads it stops at a place that the
//! database told. Its end is asked for once in a transaction.

use std::cell::OnceCell;
use std::fmt;

use tokio::runtime::Handle;

use crate::clock::Timestamp;
use crate::store::kurrentdb::Log;
use crate::store::{Position, RecordedEvent, StoreError};

/// How a transaction asks the log beside its database.
#[derive(Clone)]
pub(crate) struct Remote {
    log: Log,
    runtime: Handle,
    head: OnceCell<Position>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("log", &self.log).finish()
    }
}

impl Remote {
    /// For transactions that are begun on the runtime of the caller. A transaction that keeps a lock is given the end that is known already.
    pub(crate) fn new(log: &Log, known: Option<Position>) -> Self {
        Self {
            log: log.clone(),
            runtime: Handle::current(),
            head: known.map_or_else(OnceCell::new, OnceCell::from),
        }
    }

    pub(super) fn head(&self) -> Result<Position, StoreError> {
        if let Some(head) = self.head.get() {
            return Ok(*head);
        }
        let head = self.runtime.block_on(self.log.head())?;
        Ok(*self.head.get_or_init(|| head))
    }

    pub(super) fn page(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.runtime.block_on(self.log.read_all(after, limit))
    }

    pub(super) fn event(&self, position: Position) -> Result<Option<RecordedEvent>, StoreError> {
        self.runtime.block_on(self.log.read_event(position))
    }

    /// When the event at `position`, or the next one after it, was recorded; also if it cannot be read otherwise.
    pub(super) fn instant(
        &self,
        position: Position,
        is_after: bool,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.runtime.block_on(self.log.instant(position, is_after))
    }
}
