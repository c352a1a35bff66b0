//! Events as bytes, and back.
//!
//! A stored event is a type name, a version and postcard bytes of the struct that name and version stand for. postcard is
//! not self-describing, so a struct that has landed is frozen: a change is a new version with an *upcaster* from the old
//! one. The bytes of every version that ever landed are pinned by golden tests.
//!
//! Reading has four ends. A known type and version gives the [`Event`]. A type listed as *retired* gives
//! [`Decoded::Retired`]: skipped, and counted. A type never heard of, or a newer version, is [`CodecError::TooNew`];
//! bytes that do not decode are [`CodecError::Corrupt`]. Nobody may decide or sum over what cannot be read: commands on that
//! stream fail, projections halt there. Readers ship one release before writers.
#![warn(clippy::arithmetic_side_effects, clippy::wildcard_enum_match_arm)]

mod catalog;
mod metadata;
mod stream_name;

use crate::account::{AccountEvent, Posting};
use crate::ids::{AccountId, CommandId};
use crate::job::JobEvent;
use crate::store::{EventId, Position, RecordedEvent, Revision};

pub use catalog::{Catalog, EventType, Upcast};
pub use metadata::Metadata;
pub use stream_name::{Stream, StreamName, StreamNameError};

/// Any event of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Of a job's stream.
    Job(JobEvent),
    /// Of an account's.
    Account(AccountEvent),
}

impl Event {
    /// What the event moves, where it moves money or the hold.
    #[must_use]
    pub fn posting(&self) -> Option<&Posting> {
        match self {
            Self::Job(event) => event.posting(),
            Self::Account(event) => event.posting(),
        }
    }

    /// Whose figures the event changes.
    #[must_use]
    pub fn account(&self) -> Option<&AccountId> {
        match self {
            Self::Account(AccountEvent::LimitsSet(set)) => Some(&set.account),
            Self::Job(_) | Self::Account(AccountEvent::Granted(_) | AccountEvent::Adjusted(_)) => {
                self.posting().map(|posting| &posting.account)
            }
        }
    }

    /// The event's name, as in lists and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Job(event) => event.name(),
            Self::Account(AccountEvent::Granted(_)) => "granted",
            Self::Account(AccountEvent::Adjusted(_)) => "adjusted",
            Self::Account(AccountEvent::LimitsSet(_)) => "limits_set",
        }
    }
}

/// What stored bytes came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// An event.
    Event(Event),
    /// An event of a type that is no longer used, and moved nothing that counts.
    Retired,
}

/// Why stored bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A type never heard of, or a newer version of a known one.
    #[error(
        "event {position} has the type {name} version {version}, which this build does not know: upgrade"
    )]
    TooNew {
        /// Where.
        position: Position,
        /// Its type.
        name: String,
        /// Its version.
        version: u16,
    },
    /// Bytes that do not decode.
    #[error("event {position} is corrupt: {why}")]
    Corrupt {
        /// Where.
        position: Position,
        /// What is wrong.
        why: String,
    },
}

/// The id of the event at `revision` of `stream` that `command` causes: the same in every process that repeats the append.
///
/// A UUIDv5 (RFC 9562, section 5.5) over stream, revision, type and command id.
#[must_use]
pub fn event_id(
    stream: &StreamName,
    revision: Revision,
    event_type: EventType,
    command: &CommandId,
) -> EventId {
    const SCOPE: uuid::Uuid = uuid::uuid!("3a3f9c52-64c1-5f43-8a0b-2f4be4f0b6d1");
    EventId::new(crate::ids::derive(
        SCOPE,
        &[
            stream.as_str().as_bytes(),
            &revision.get().to_le_bytes(),
            event_type.name.as_bytes(),
            command.as_str().as_bytes(),
        ],
    ))
}

/// Reads a recorded event with the standard [`Catalog`].
pub fn decode(recorded: &RecordedEvent) -> Result<Decoded, CodecError> {
    Catalog::standard().decode(recorded)
}
