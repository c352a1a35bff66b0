//! Taking over a log: events of another ledger, with their ids, bytes and instants, into one that has none.
//!
//! Everything is one write transaction, so that the ledger has the whole log or nothing of it. Positions are given anew, in the order of
//! the source: they are the same where those had no holes. The events of one append, which have one stream and one metadata and stand
//! together, become one row again; account figures are folded by the arithmetic of appends. An event that cannot be read is refused: what it
//! moved could not be folded.
//!
//! Bound: [`FOLDED`] and [`MAX_ROW_EVENTS`] events in memory.

use std::time::Duration;

use super::{Position, RecordedEvent, Revision, StoreError};
use crate::clock::Timestamp;
use crate::codec::{Decoded, Event, Metadata, decode, event_id};
use crate::sql::Transaction;

/// How many events' figures are folded together.
const FOLDED: usize = 2_000;

/// How far the clock of the machine that a log comes from may be ahead of this one's.
const MAX_SKEW: Duration = Duration::from_secs(60);

/// How many events one row takes at the most; an append has fewer.
const MAX_ROW_EVENTS: usize = 64;

/// Why a log was not taken over. Nothing of it is in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The ledger has events.
    #[error("the ledger has events, or a backfill, already: a log is taken into an empty one")]
    NotEmpty,
    /// An event does not follow from those before it, or is not what it says.
    #[error("{0}")]
    Event(String),
    /// The store did not do as it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A log on its way into a ledger, inside the write transaction.
pub struct LogImport<'a> {
    tx: &'a Transaction<'a>,
    head: Position,
    posted_at: Option<Timestamp>,
    /// No event was posted later.
    latest: Timestamp,
    /// The events of an append that may go on.
    append: Vec<RecordedEvent>,
    events: Vec<(Position, Event)>,
}

impl<'a> LogImport<'a> {
    /// Begins, if the ledger is empty. `now` is this machine's: a log from the future is refused, as the store's clock, which never goes back behind the
    /// log, would stand still until then, and with it every timer.
    pub fn begin(tx: &'a Transaction<'a>, now: Timestamp) -> Result<Self, ImportError> {
        if tx.is_beside_its_log() {
            let why = "a log in KurrentDB has its server's instants: it takes over no other log";
            return Err(ImportError::Event(why.to_owned()));
        }
        // The past of a ledger comes from one place: not from a log where a file of commands has begun.
        tx.hold_log()?;
        let used =
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM appends) OR EXISTS (SELECT 1 FROM account_state)
            OR EXISTS (SELECT 1 FROM backfill)";
        if tx.row(used, &[], |_| Ok(()))?.is_some() {
            return Err(ImportError::NotEmpty);
        }
        Ok(Self {
            tx,
            head: Position::START,
            posted_at: None,
            latest: now.after(MAX_SKEW),
            append: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Takes the next event; its position is given anew.
    pub fn push(&mut self, mut recorded: RecordedEvent) -> Result<(), ImportError> {
        let wrong = |why: String| Err(ImportError::Event(why));
        if let Some(before) = self.posted_at.filter(|before| *before > recorded.posted_at) {
            return wrong(format!(
                "posted at {}, before the event before it, at {before}",
                recorded.posted_at
            ));
        }
        if recorded.posted_at > self.latest {
            return wrong(format!(
                "posted at {}, which has not come yet",
                recorded.posted_at
            ));
        }
        if recorded.posted_at < Timestamp::from_micros(0) {
            return wrong(format!("posted at {}, before 1970", recorded.posted_at));
        }
        recorded.position = Position::new(self.head.get() + 1);
        let metadata = match Metadata::parse(&recorded.metadata, recorded.position) {
            Ok(metadata) => metadata,
            Err(error) => return wrong(error.to_string()),
        };
        let event = match decode(&recorded) {
            Ok(Decoded::Event(event)) => Some(event),
            Ok(Decoded::Retired) => None,
            Err(error) => return wrong(error.to_string()),
        };
        if let Some(event) = &event {
            let (stream, revision) = (&recorded.stream, recorded.revision);
            let id = event_id(stream, revision, event.event_type(), &metadata.command);
            if id != recorded.id {
                return wrong(format!("its id is not that of its place and command, {id}"));
            }
        }
        if !self.continues(&recorded) {
            self.write_append()?;
            let last = self.tx.read_last_revision(&recorded.stream)?;
            let expected = last.map_or(Revision::FIRST, |last| last.plus(1));
            if recorded.revision != expected {
                return wrong(format!(
                    "revision {} of stream {}, where {expected} comes next",
                    recorded.revision, recorded.stream
                ));
            }
        }
        self.head = recorded.position;
        self.posted_at = Some(recorded.posted_at);
        self.events
            .extend(event.map(|event| (recorded.position, event)));
        self.append.push(recorded);
        if self.events.len() >= FOLDED {
            self.fold()?;
        }
        Ok(())
    }

    /// Ends: gives the head. The caller commits.
    pub fn finish(mut self) -> Result<Position, ImportError> {
        self.write_append()?;
        self.fold()?;
        Ok(self.head)
    }

    /// Whether an event is of the append before it.
    fn continues(&self, recorded: &RecordedEvent) -> bool {
        self.append.last().is_some_and(|last| {
            self.append.len() < MAX_ROW_EVENTS
                && last.stream == recorded.stream
                && last.metadata == recorded.metadata
                && last.posted_at == recorded.posted_at
                && last.revision.plus(1) == recorded.revision
        })
    }

    fn write_append(&mut self) -> Result<(), ImportError> {
        if !self.append.is_empty() {
            self.tx.insert_recorded(&self.append)?;
            self.append.clear();
        }
        Ok(())
    }

    fn fold(&mut self) -> Result<(), ImportError> {
        let events = self.events.iter().map(|(at, event)| (*at, event));
        match self.tx.fold_accounts(events)? {
            Ok(()) => {
                self.events.clear();
                Ok(())
            }
            Err((position, overflow)) => {
                Err(ImportError::Event(format!("event {position}: {overflow}")))
            }
        }
    }
}
