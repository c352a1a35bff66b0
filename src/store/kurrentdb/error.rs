//! The client's errors into ours: once, here, by type. By text only where a read asks for a position that is in the middle of the log and none: the client hands
//! that on as text alone, and to ask again would not help.

use kurrentdb::Error;

use crate::store::StoreError;

/// Why a ledger's log could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The connection string is no such thing, or asks for what cannot work.
    #[error("the connection string {why}")]
    Connection {
        /// What is wrong with it.
        why: String,
    },
    /// The ledger was created with another value, which never changes.
    #[error("the ledger was created with {what} {stored}, not {asked}")]
    Differs {
        /// `zone`, `scale` or `prefix`.
        what: &'static str,
        /// What it was created with.
        stored: String,
        /// What was asked for.
        asked: String,
    },
    /// The server did not do as it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl From<OpenError> for crate::store::OpenError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Connection { .. } => Self::Io {
                why: error.to_string(),
            },
            OpenError::Differs {
                what,
                stored,
                asked,
            } => Self::Differs {
                what,
                stored,
                asked,
            },
            OpenError::Store(error) => Self::Store(error),
        }
    }
}

/// A text that streams' names cannot begin with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a stream prefix: 1 to 50 bytes of [A-Za-z0-9._:@]")]
pub struct StreamPrefixError {
    pub(super) text: String,
}

/// What an error says about the client that gave it, and about what was asked.
#[derive(Debug)]
pub(super) enum Meaning {
    /// The connection is of no more use, or leads to a node that is not asked.
    Lost,
    /// The server is there, and did not do it in time.
    Late,
    /// The server will not: asking again changes nothing. Nothing was written.
    Never(StoreError),
}

// Numbers of <https://grpc.io/docs/guides/status-codes/>.
const CANCELLED: i32 = 1;
const INVALID_ARGUMENT: i32 = 3;

/// Reads an error of a call. `WrongExpectedVersion`, and a stream that is not found, are answers: who asks looks for them first.
pub(super) fn meaning(error: &Error) -> Meaning {
    match error {
        Error::AccessDenied => Meaning::Never(StoreError::ReadOnly {
            cause: "the server denies access".to_owned(),
        }),
        Error::ResourceDeleted => Meaning::Never(StoreError::Damaged {
            why: "a stream of the ledger was deleted".to_owned(),
        }),
        // The client goes to the leader that is named. Where nobody is there it ends, which shows at the next call.
        Error::NotLeaderException(_) => Meaning::Late,
        Error::Grpc { code, message } => match i32::from(*code) {
            CANCELLED => Meaning::Lost,
            INVALID_ARGUMENT => Meaning::Never(StoreError::Unavailable {
                cause: message.clone(),
            }),
            // Aborted above all: the server's own wait for a write ran out, and the write may still happen.
            _ => Meaning::Late,
        },
        Error::DeadlineExceeded => Meaning::Late,
        Error::UnsupportedFeature => Meaning::Never(StoreError::Unavailable {
            cause: "the server does not know the request".to_owned(),
        }),
        Error::ServerError(message) if message.contains("Invalid position") => {
            Meaning::Never(no_such_position())
        }
        // Not found, outside of the answer to a read: a node that does not lead, and that cannot say who does.
        Error::ResourceNotFound
        | Error::ServerError(_)
        | Error::ConnectionClosed
        | Error::GrpcConnectionError(_)
        | Error::InternalParsingError(_)
        | Error::ResourceAlreadyExists
        | Error::InternalClientError
        | Error::InitializationError(_)
        | Error::IllegalStateError(_)
        | Error::WrongExpectedVersion { .. } => Meaning::Lost,
    }
}

/// What the server says to a read of the log from a position that it never gave.
fn no_such_position() -> StoreError {
    StoreError::Damaged {
        why: "the log has no such position: what names it was changed, or belongs to another log"
            .to_owned(),
    }
}

/// Whether a read failed for that.
pub(super) fn is_no_such_position(error: &StoreError) -> bool {
    *error == no_such_position()
}

pub(super) fn unavailable(cause: impl ToString) -> StoreError {
    StoreError::Unavailable {
        cause: cause.to_string(),
    }
}
