//! SQLite's answers into ours: once, here, by code and never by text.

use rusqlite::ffi::ErrorCode;

use crate::store::StoreError;

/// Maps an error of a statement. Nothing is committed: the transaction is rolled back.
#[must_use]
pub fn store_error(error: rusqlite::Error) -> StoreError {
    let cause = match &error {
        // Without the statement, which says nothing to whoever reads it.
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        error => error.to_string(),
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full,
        // The one trigger that there may be: on the log, where another one is the ledger's.
        Some(_) if is_of_trigger(&error) => StoreError::ReadOnly { cause },
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::ReadOnly { cause },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged { why: cause }
        }
        Some(_) => StoreError::Unavailable { cause },
        // Not SQLite's: a stored value of another type or range than ours.
        None => StoreError::Damaged { why: cause },
    }
}

/// Whether a trigger has refused the statement.
pub(crate) fn is_of_trigger(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    code == Some(rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER)
}

/// Whether an error of COMMIT leaves it open if the transaction is stored.
///
/// A full disk does not: the commit mark is the last frame that is written to the log file, and a write that came up short
/// left it without a valid checksum (<https://www.sqlite.org/fileformat2.html#wal_file_format>). Nor does a busy file: COMMIT then
/// changed nothing. After any other error, a failed sync above all, the frames may be there and be found by a recovery.
pub(super) fn is_unknown_after_commit(error: &rusqlite::Error) -> bool {
    !matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DiskFull
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::ReadOnly
        )
    )
}
