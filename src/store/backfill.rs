//! The state of a ledger that takes its past from a file.
//!
//! While a backfill is open, appends are taken only from a store that opened that very file's: every other process is told
//! [`StoreError::Backfilling`], in the transaction of its append. The instants come from the injected clock, which the importer sets; a second
//! process at the same file, whose clock is behind what the first has posted, is refused rather than posted later than it says.

use std::sync::{Arc, Mutex, PoisonError};

use super::StoreError;
use crate::clock::{Clock, Timestamp};
use crate::sql::{Database, Transaction};

/// Where a ledger's backfill stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backfill {
    /// There was none.
    None,
    /// It goes on.
    Open {
        /// The digest of its file, in hexadecimal.
        sha256: String,
    },
    /// It has ended: the ledger is as any other.
    Closed {
        /// The digest of its file, in hexadecimal.
        sha256: String,
    },
}

/// Where a backfill goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// With its lines.
    Open,
    /// With the end of what is open: its lines are done.
    Closing,
    /// Nowhere: it has ended.
    Closed,
}

/// Why a backfill was not begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackfillError {
    /// The ledger has events that came otherwise.
    #[error("the ledger has events already: a backfill begins in an empty one")]
    NotEmpty,
    /// The backfill of another file is open.
    #[error("the backfill of another file is open, the one with the SHA-256 {sha256}")]
    Other {
        /// That file's digest.
        sha256: String,
    },
    /// The log is stamped by the server that keeps it.
    #[error("a log in KurrentDB has its server's instants: it takes no past")]
    NoPast,
    /// The store did not do as it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Transaction<'_> {
    /// Where the ledger's backfill stands.
    pub(crate) fn read_backfill(&self) -> Result<Backfill, StoreError> {
        let sql = "SELECT sha256, state FROM backfill";
        let found = self.row(sql, &[], |row| Ok((row.get(0)?, row.text(1)? == "closed")))?;
        Ok(match found {
            None => Backfill::None,
            Some((sha256, false)) => Backfill::Open { sha256 },
            Some((sha256, true)) => Backfill::Closed { sha256 },
        })
    }
}

/// The right to end jobs whose time has not come: given when the lines of a backfill are done, and to nobody else.
#[derive(Debug)]
pub struct Closing(());

/// Which file's backfill this process is at.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsBackfill(Arc<Mutex<Option<String>>>);

impl IsBackfill {
    pub(crate) fn set(&self, sha256: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sha256;
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// An error if this process must not append now: by what the transaction of the append finds, by its clock, and by when the log's last event was posted.
    pub(crate) fn check(
        &self,
        (found, clock, tail): (Backfill, &dyn Clock, Option<Timestamp>),
    ) -> Result<(), StoreError> {
        let ours = self.get();
        let cause = match (found, ours) {
            (Backfill::None | Backfill::Closed { .. }, None) => return Ok(()),
            (Backfill::Open { sha256 }, ours) if ours.as_ref() != Some(&sha256) => {
                return Err(StoreError::Backfilling { sha256 });
            }
            (Backfill::Open { .. }, _) if tail.is_none_or(|tail| clock.now() >= tail) => {
                return Ok(());
            }
            (Backfill::Open { .. }, _) => "another process is farther in this backfill",
            (Backfill::None | Backfill::Closed { .. }, Some(_)) => {
                "another process has closed this backfill"
            }
        };
        // Given again it goes on: it is as if this process had lost its turn.
        let cause = cause.to_owned();
        Err(StoreError::Unavailable { cause })
    }
}

impl Database {
    /// Where this ledger's backfill stands.
    pub async fn backfill(&self) -> Result<Backfill, StoreError> {
        self.glance(|tx| tx.read_backfill()).await
    }

    /// Begins the backfill of a file, or goes on with it. From here on this store's appends are part of it, unless it is closed.
    pub async fn begin_backfill(&self, sha256: String) -> Result<Begun, BackfillError> {
        let ours = sha256.clone();
        let begun = self.write(move |tx| begin(tx, &sha256)).await?;
        let is_ours = begun != Begun::Closed;
        self.is_backfill().set(is_ours.then_some(ours));
        Ok(begun)
    }

    /// The lines of this store's backfill are done: what is left is to end what is open.
    pub async fn begin_closing(&self) -> Result<Closing, StoreError> {
        self.set_state("closing").await?;
        Ok(Closing(()))
    }

    /// Ends the backfill: the ledger is as any other.
    pub async fn close_backfill(&self, _closing: Closing) -> Result<(), StoreError> {
        self.set_state("closed").await?;
        self.is_backfill().set(None);
        Ok(())
    }

    /// Moves on this store's own backfill, unless another process has ended it: a closed one is never opened again.
    async fn set_state(&self, state: &'static str) -> Result<(), StoreError> {
        let ours = self.is_backfill().get();
        self.write(move |tx| {
            tx.hold_log()?;
            let sql = "UPDATE backfill SET state = ?1 WHERE sha256 = ?2 AND state <> 'closed'";
            if tx.execute(sql, crate::values![state, ours.as_ref()])? == 0 {
                let cause = "another process has closed this backfill".to_owned();
                return Err(StoreError::Unavailable { cause });
            }
            Ok(())
        })
        .await
    }
}

fn begin(tx: &Transaction<'_>, sha256: &str) -> Result<Begun, BackfillError> {
    if tx.is_beside_its_log() {
        return Err(BackfillError::NoPast);
    }
    tx.hold_log()?;
    match tx.read_backfill()? {
        Backfill::None => {
            if tx
                .row("SELECT 1 FROM appends LIMIT 1", &[], |_| Ok(()))?
                .is_some()
            {
                return Err(BackfillError::NotEmpty);
            }
            let sql = "INSERT INTO backfill (one, sha256, state) VALUES (1, ?1, 'open')";
            tx.execute(sql, crate::values![sha256])?;
            Ok(Begun::Open)
        }
        Backfill::Open { sha256: same } if same == sha256 => {
            let state = tx.row("SELECT state FROM backfill", &[], |row| {
                row.get::<String>(0)
            })?;
            Ok(if state.as_deref() == Some("closing") {
                Begun::Closing
            } else {
                Begun::Open
            })
        }
        Backfill::Closed { sha256: same } if same == sha256 => Ok(Begun::Closed),
        Backfill::Open { sha256 } => Err(BackfillError::Other { sha256 }),
        Backfill::Closed { .. } => Err(BackfillError::NotEmpty),
    }
}
