//! PostgreSQL's answers into ours: once, here, by SQLSTATE and never by text.
//!
//! <https://www.postgresql.org/docs/current/errcodes-appendix.html>

use std::time::Duration;

use sqlx::{Error, Executor, PgConnection};

use crate::store::StoreError;

/// How a transaction is committed.
///
/// The server answers the COMMIT of a transaction in which a statement has failed with a rollback, and that of none with a warning; here both look like
/// success. So a statement stands before it that only a transaction takes, and only a whole one: where it is refused, COMMIT is not carried out.
const COMMIT: &str = "SAVEPOINT whole; COMMIT";

/// Maps an error of anything but COMMIT. Nothing is committed: the transaction is rolled back, by us or with its connection.
pub(super) fn store_error(error: &Error) -> StoreError {
    let cause = error.to_string();
    match error {
        Error::Database(answer) => {
            let code = answer.code().unwrap_or_default().into_owned();
            let cause = format!("{} ({code})", answer.message());
            match (code.get(..2).unwrap_or_default(), code.as_str()) {
                (_, "53100") => StoreError::Full,
                // A standby, a transaction that may not write, or a role that may not.
                (_, "25006" | "42501") => StoreError::ReadOnly { cause },
                // A row that breaks a constraint, and a value that is none of its type.
                ("22" | "23", _) => StoreError::Damaged {
                    why: format!("a row does not fit its table: {cause}"),
                },
                // What the ledger's tables lack, and what the server found broken on its disk.
                ("3F" | "XX", _) | (_, "42P01" | "42703" | "42883") => {
                    StoreError::Damaged { why: cause }
                }
                _ => StoreError::Unavailable { cause },
            }
        }
        Error::ColumnDecode { .. }
        | Error::Decode(_)
        | Error::ColumnNotFound(_)
        | Error::ColumnIndexOutOfBounds { .. }
        | Error::TypeNotFound { .. } => StoreError::Damaged { why: cause },
        _ => StoreError::Unavailable { cause },
    }
}

/// Whether an error of COMMIT leaves it open if the transaction is stored.
///
/// A constraint or a conflict that COMMIT itself found does not: the server has rolled back. Nor does a transaction in which a statement had failed before. After anything
/// else, a lost connection or a server that is going down above all, the commit may be there.
pub(super) fn is_unknown_after_commit(error: &Error) -> bool {
    let Error::Database(answer) = error else {
        return true;
    };
    let code = answer.code().unwrap_or_default();
    code == "40003" || (!matches!(code.get(..2), Some("23" | "40")) && code != "25P02")
}

/// Whether it says that the connection is of no more use; then what was asked for on it has not been answered.
pub(super) fn is_lost(error: &Error) -> bool {
    match error {
        // The session is being ended: by an administrator, a crash, a shutdown, or for having idled.
        Error::Database(answer) => matches!(
            answer.code().as_deref(),
            Some("57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25P04")
        ),
        Error::Io(_) | Error::Protocol(_) | Error::Tls(_) | Error::WorkerCrashed => true,
        _ => false,
    }
}

/// Commits the transaction that `connection` is in: a success means that it is stored.
pub(super) async fn commit(connection: &mut PgConnection, patience: Duration) -> Result<(), Error> {
    answered_within(patience, connection.execute(COMMIT))
        .await
        .map(|_| ())
}

/// Waits for what the server was asked for, and no longer than `patience`: then it is as if the connection were lost.
pub(super) async fn answered_within<T>(
    patience: Duration,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(patience, asked)
        .await
        .unwrap_or_else(|_| {
            let why = format!("the server has not answered within {patience:?}");
            let timed_out = std::io::Error::new(std::io::ErrorKind::TimedOut, why);
            Err(Error::Io(timed_out))
        })
}
