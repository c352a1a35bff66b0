//! Opening a ledger: which steps its tables have gone through, and why one is not opened.
//!
//! Never edit a migration that has landed. Numbers and names are the same on every database, and a ledger with a newer number than this build has
//! is refused.

use super::StoreError;

/// One step of a schema.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// From 1, without holes.
    pub number: u32,
    /// What it does, in few words.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

/// Why a ledger could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// What is there belongs to another program, or is no database.
    #[error("{path} is not a recoup ledger: {why}")]
    Foreign {
        /// The file, or the server's database and schema.
        path: String,
        /// What shows it.
        why: String,
    },
    /// It is a ledger, and part of it is missing or overwritten.
    #[error("{path} is damaged: {why}; restore a backup")]
    Damaged {
        /// The file, or the server's database and schema.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A newer recoup wrote it.
    #[error("the ledger has the {component} schema {found}, this build knows {known}: upgrade")]
    NewerSchema {
        /// Whose tables.
        component: String,
        /// The newest migration in the ledger.
        found: u32,
        /// The newest that this build has.
        known: u32,
    },
    /// The ledger was created with another zone or scale, which never changes.
    #[error("the ledger was created with {what} {stored}, not {asked}")]
    Differs {
        /// `zone` or `scale`.
        what: &'static str,
        /// What it was created with.
        stored: String,
        /// What was asked for.
        asked: String,
    },
    /// The folder or the file cannot be made or opened, or the server does not let us in.
    #[error("{why}")]
    Io {
        /// Which, and what the system said.
        why: String,
    },
    /// The database did not do as it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}
