//! Where events are kept: the [`EventStore`] trait, and what its implementations promise.
//!
//! - **The guard.** An append names the revision that it follows, [`Expected::NoStream`] or an exact one, never "any". Of
//!   two appends at one revision one is committed, the other is [`Appended::Conflict`].
//! - **Three-valued.** [`Appended::Unknown`] says that the events may or may not be there: repeat the identical append,
//!   then compare what is stored. It is never reported as a failure. An [`Err`] means that nothing was written. Dropping
//!   an append's future withdraws nothing.
//! - **Order.** Positions increase in commit order; no reader can pass a lower one that is not committed yet. `posted_at` is the
//!   store's clock and never decreases with the position, so that a day is a range of positions.
//! - **Limits.** Where log and account figures share a database, the append's own transaction checks revision, then
//!   admission, then writes events and figures: all or nothing. A refused append writes nothing and fails no other.
//! - **Bounds.** Every wait ends: a store that cannot take an append in time says [`StoreError::Unavailable`].
//!
//! Implementations: [`memory`] for tests, [`sqlite`] embedded. `kurrentdb` (feature `kurrentdb`) is a log without account figures. `conformance` (feature `testing`) is the suite that each of them passes.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod backfill;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod clock;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod figures;
#[cfg(all(feature = "sqlite", any(test, feature = "testing")))]
pub mod fresh;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod group;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod import;
#[cfg(feature = "kurrentdb")]
pub mod kurrentdb;
pub mod memory;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod opening;
#[cfg(any(feature = "kurrentdb", feature = "postgres"))]
mod parameters;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod queue;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

use crate::account::{AccountState, Admission, Refusal};
use crate::clock::{BudgetMonth, Timestamp, Zone};
use crate::codec::{Event, EventType, Metadata, Stream, StreamName, event_id};
use crate::credits::Scale;
use crate::ids::{AccountId, CommandId};
use crate::job::JobEvent;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use self::{
    backfill::{Backfill, BackfillError, Begun, Closing},
    group::{MAX_GROUP, QUEUE},
    import::{ImportError, LogImport},
    opening::{Migration, OpenError},
};

/// The place of an event in its stream, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// The first event's place.
    pub const FIRST: Self = Self(0);

    /// Takes a number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The place `by` events on.
    #[must_use]
    pub const fn plus(self, by: u64) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The place of an event in the log; strictly increasing in commit order. Events have positions from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(i64);

impl Position {
    /// Before the first event.
    pub const START: Self = Self(0);

    /// Takes a number.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of an event: derived from stream, revision, type and command, so that a repeated append has the same ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(Uuid);

impl EventId {
    /// Takes a UUID.
    #[must_use]
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }

    /// The UUID.
    #[must_use]
    pub const fn get(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a ledger was created with; stored in it, and never changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// A random id: two ledgers with equal content are still two.
    pub ledger: Uuid,
    /// Whose midnights part the days.
    pub zone: Zone,
    /// How many decimals people are shown.
    pub scale: Scale,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Identity {
    /// An error if it is not what was asked for: neither changes once the ledger is made.
    pub(crate) fn check_asked(
        &self,
        zone: Option<Zone>,
        scale: Option<Scale>,
    ) -> Result<(), OpenError> {
        if let Some(asked) = zone.filter(|asked| *asked != self.zone) {
            return Err(OpenError::Differs {
                what: "zone",
                stored: self.zone.name().to_owned(),
                asked: asked.name().to_owned(),
            });
        }
        if let Some(asked) = scale.filter(|asked| *asked != self.scale) {
            return Err(OpenError::Differs {
                what: "scale",
                stored: self.scale.get().to_string(),
                asked: asked.get().to_string(),
            });
        }
        Ok(())
    }
}

/// Which revision an append follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The stream has no event.
    NoStream,
    /// This is its last one.
    Exact(Revision),
}

impl Expected {
    /// What follows a stream whose last revision is `last`.
    #[must_use]
    pub const fn after(last: Option<Revision>) -> Self {
        match last {
            None => Self::NoStream,
            Some(revision) => Self::Exact(revision),
        }
    }

    /// The revision that the first appended event gets.
    #[must_use]
    pub const fn next(self) -> Revision {
        match self {
            Self::NoStream => Revision::FIRST,
            Self::Exact(revision) => revision.plus(1),
        }
    }
}

/// An event on its way to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Its derived id.
    pub id: EventId,
    /// What it is stored as.
    pub event_type: EventType,
    /// Its bytes.
    pub data: Vec<u8>,
    /// What it says, for the fold of account figures.
    pub event: Event,
}

/// One command's events on their way to one stream: committed together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// Where to.
    pub stream: StreamName,
    /// Which revision it follows.
    pub expected: Expected,
    /// At least one.
    pub events: Vec<NewEvent>,
    /// JSON: see [`Metadata`].
    pub metadata: String,
    /// What the account must allow.
    pub admission: Option<Admission>,
}

impl Append {
    /// Encodes `events` of `command` for `stream`. The same arguments give the same bytes and ids in every process.
    #[must_use]
    pub fn new(
        stream: &Stream,
        expected: Expected,
        command: &CommandId,
        events: Vec<Event>,
        admission: Option<Admission>,
    ) -> Self {
        let name = stream.name();
        let metadata = Metadata {
            correlation: stream.correlation().to_owned(),
            command: command.clone(),
        };
        let events = (0..)
            .zip(events)
            .map(|(offset, event)| {
                let event_type = event.event_type();
                let id = event_id(&name, expected.next().plus(offset), event_type, command);
                NewEvent {
                    id,
                    event_type,
                    data: event.encode(),
                    event,
                }
            })
            .collect();
        Self {
            stream: name,
            expected,
            events,
            metadata: metadata.to_json(),
            admission,
        }
    }

    /// Whether it charges a job in an earlier month than the log has come to: its clock was behind, and the cap that it would be
    /// checked against is one that has closed. It has to be decided again.
    #[must_use]
    pub fn is_charged_before_month_of(&self, posted_at: Timestamp, zone: Zone) -> bool {
        let charged_in = |new: &NewEvent| match &new.event {
            Event::Job(JobEvent::Charged(charged)) => charged.posting.budget_month,
            Event::Job(_) | Event::Account(_) => None,
        };
        let mut months = self.events.iter().filter_map(charged_in);
        months.any(|month| month < zone.month_of(posted_at))
    }

    /// The revision that the last event gets.
    #[must_use]
    pub fn last_revision(&self) -> Revision {
        self.expected
            .next()
            .plus((self.events.len() as u64).saturating_sub(1))
    }
}

/// What an append came to. An `Err` beside it means that nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// It is stored, durably.
    Committed {
        /// The last event's place in the log.
        position: Position,
        /// When the store recorded it.
        posted_at: Timestamp,
    },
    /// The stream is not at the expected revision, or the append charges in a month that the log has left behind. Nothing was
    /// written: load, and decide again.
    Conflict {
        /// Where it is; none if it has no event.
        current: Option<Revision>,
    },
    /// The account does not allow it. Nothing was written.
    Refused(Refusal),
    /// It may or may not be stored. Repeat the identical append, then compare.
    Unknown {
        /// What happened instead of an answer.
        cause: String,
    },
}

/// An event as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEvent {
    /// Its place in the log.
    pub position: Position,
    /// Whose stream.
    pub stream: StreamName,
    /// Its place there.
    pub revision: Revision,
    /// Its id.
    pub id: EventId,
    /// The name of its type.
    pub type_name: Cow<'static, str>,
    /// The version of its struct.
    pub version: u16,
    /// When the store recorded it.
    pub posted_at: Timestamp,
    /// JSON: see [`Metadata`].
    pub metadata: Bytes,
    /// Its bytes: see [`crate::codec`].
    pub data: Bytes,
}

/// Why a store did not do as it was asked. Nothing was written, but for [`Self::Unconfirmed`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot answer in time; the same call may be repeated.
    #[error("the store is unavailable: {cause}")]
    Unavailable {
        /// What happened.
        cause: String,
    },
    /// A transaction of other work than appends has no answer to its commit: what it wrote may or may not be there. Look, and
    /// repeat it. Appends say [`Appended::Unknown`] instead.
    #[error("a commit has no answer: {cause}")]
    Unconfirmed {
        /// What happened.
        cause: String,
    },
    /// The ledger takes its past from a file, and nothing else until that is closed.
    #[error(
        "a backfill is open: go on with the file whose SHA-256 is {sha256}, or end it (import FILE --backfill --close)"
    )]
    Backfilling {
        /// The file's digest, in hexadecimal.
        sha256: String,
    },
    /// There is no room for more.
    #[error("the disk is full: nothing was written")]
    Full,
    /// The ledger may not be written to.
    #[error("the ledger is read-only: {cause}")]
    ReadOnly {
        /// What happened.
        cause: String,
    },
    /// The database is not what it was: restore a backup.
    #[error("the database is damaged: {why}")]
    Damaged {
        /// What is wrong.
        why: String,
    },
    /// A stored event, or a figure folded from it, cannot be.
    #[error("event {position} is corrupt: {why}")]
    Corrupt {
        /// Where.
        position: Position,
        /// What is wrong.
        why: String,
    },
}

/// Keeps streams of events, and beside them the account figures that guard appends.
#[async_trait]
pub trait EventStore: Send + Sync + fmt::Debug + 'static {
    /// What the ledger was created with.
    fn identity(&self) -> &Identity;

    /// The store's clock: what deadlines are compared with and months are computed from. Not earlier than any `posted_at` that this
    /// process has seen.
    fn now(&self) -> Timestamp;

    /// By how much the clocks may differ that stamp events and that deadlines are compared with. Nothing where they are one.
    fn clock_skew(&self) -> Duration {
        Duration::ZERO
    }

    /// Appends one command's events.
    async fn append(&self, append: Append) -> Result<Appended, StoreError>;

    /// Appends many, in order, sharing commits; an answer each. Later ones see the earlier ones, also within one stream.
    ///
    /// Appends to one stream are a chain: each was decided on what the one before it says. Behind the first that is not
    /// `Committed` the rest of its chain is not tried and answers `Conflict`: at the same revision may stand what nobody decided on.
    async fn append_many(&self, appends: Vec<Append>) -> Vec<Result<Appended, StoreError>>;

    /// The events of one stream from `from` on, in order, freshly read.
    async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError>;

    /// The events of many streams, each whole and freshly read, in the order of `streams`.
    async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError>;

    /// At most `limit` events of the log after `after`, in order. A page may end between two events of one append.
    async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError>;

    /// The last committed position; [`Position::START`] for an empty log.
    async fn head(&self) -> Result<Position, StoreError>;

    /// An account's figures, with those of `month`; zeros for an account that nothing ever happened to.
    async fn account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError>;

    /// At most `limit` accounts after `after` in byte order, with all of their months.
    async fn accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError>;

    /// Changes when this process has appended. A hint: what other processes append shows only in [`Self::head`].
    fn appended(&self) -> watch::Receiver<Position>;
}
