//! A page of the log, read and decoded once for all projections.
//!
//! A batch is the readable start of a page. The first event that cannot be read ends it and is kept as the [`Halt`] that every
//! projection meets there: nobody sums over what cannot be read. An event of a retired type stays in the batch as
//! [`Body::Retired`], to be skipped and counted.
//!
//! The day of an event is computed here, once, from `posted_at` in the ledger's zone. Bound: a batch has at most
//! [`MAX_PAGE_EVENTS`] events.

use std::collections::HashMap;

use recoup::account::AccountEvent;
use recoup::codec::{Catalog, Decoded, Event, Stream, StreamName};
use recoup::job::JobEvent;
use recoup::sql::Transaction;
use recoup::store::{EventId, RecordedEvent, StoreError};
use recoup::{AccountId, Day, JobId, Position, Revision, Timestamp, Zone};

use crate::checkpoint::Halt;
use crate::dead_letters::Fate;

/// How many events one batch takes, unless it is told otherwise.
pub(crate) const PAGE_EVENTS: usize = 2_000;

/// The most events that one batch may take: what bounds the memory of a runner, and how long a batch keeps the writer.
pub(crate) const MAX_PAGE_EVENTS: usize = 10_000;

/// Consecutive events of the log that can be read.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) events: Vec<BatchEvent>,
    /// The event after them, if it cannot be read.
    pub(crate) unreadable: Option<Halt>,
    /// What is known of the jobs that it makes dead letters, looked up where that projection needs it.
    pub(crate) fates: HashMap<Position, Fate>,
    /// Who pays for the jobs of the contradictions in it, looked up where that projection needs it.
    pub(crate) payers: HashMap<JobId, AccountId>,
}

/// One event, decoded.
#[derive(Debug)]
pub(crate) struct BatchEvent {
    pub(crate) position: Position,
    pub(crate) revision: Revision,
    pub(crate) id: EventId,
    pub(crate) posted_at: Timestamp,
    /// The day of `posted_at` in the ledger's zone.
    pub(crate) day: Day,
    pub(crate) body: Body,
}

/// What an event says.
#[derive(Debug)]
pub(crate) enum Body {
    Job(JobId, JobEvent),
    Account(AccountEvent),
    Retired,
}

impl BatchEvent {
    /// Which job it is an event of.
    pub(crate) const fn job(&self) -> Option<&JobId> {
        match &self.body {
            Body::Job(job, _) => Some(job),
            Body::Account(_) | Body::Retired => None,
        }
    }
}

impl Batch {
    /// Reads at most `limit` events after `after`, none of them after `until`.
    pub(crate) fn read(
        tx: &Transaction<'_>,
        (catalog, zone): (&Catalog, Zone),
        (after, until): (Position, Position),
        limit: usize,
    ) -> Result<Self, StoreError> {
        let (recorded, broken) = read_whole_appends(tx, (after, until), limit)?;
        let mut batch = Self {
            events: Vec::with_capacity(recorded.len()),
            unreadable: broken,
            fates: HashMap::new(),
            payers: HashMap::new(),
        };
        let mut decoder = Decoder {
            catalog,
            zone,
            day: None,
            job: None,
        };
        for event in &recorded {
            match decoder.decode(event) {
                Ok(event) => batch.events.push(event),
                Err(reason) => {
                    let position = event.position;
                    batch.unreadable = Some(Halt { position, reason });
                    break;
                }
            }
        }
        Ok(batch)
    }

    /// The events after `position`.
    pub(crate) fn after(&self, position: Position) -> &[BatchEvent] {
        let done = self
            .events
            .partition_point(|event| event.position <= position);
        &self.events[done..]
    }
}

/// A page up to the first append whose row is broken as a whole.
fn read_whole_appends(
    tx: &Transaction<'_>,
    (after, until): (Position, Position),
    limit: usize,
) -> Result<(Vec<RecordedEvent>, Option<Halt>), StoreError> {
    let (position, why) = match tx.read_page_until(after, until, limit) {
        Ok(recorded) => return Ok((recorded, None)),
        Err(StoreError::Corrupt { position, why }) => (position, why),
        Err(error) => return Err(error),
    };
    let halt = Halt {
        position,
        reason: format!("event {position} is corrupt: {why}"),
    };
    // As many events at the most stand before it.
    let before = position.get().saturating_sub(after.get()).saturating_sub(1);
    let recorded = match usize::try_from(before) {
        Ok(before) if before > 0 => match tx.read_page(after, before.min(limit)) {
            // Where positions have holes, it may be the next one.
            Err(StoreError::Corrupt { .. }) => Vec::new(),
            page => page?,
        },
        Ok(_) | Err(_) => Vec::new(),
    };
    Ok((recorded, Some(halt)))
}

/// Decodes events in order; remembers the last instant's day and the last stream's job, which the next event mostly shares.
struct Decoder<'a> {
    catalog: &'a Catalog,
    zone: Zone,
    day: Option<(Timestamp, Day)>,
    job: Option<(StreamName, JobId)>,
}

impl Decoder<'_> {
    fn decode(&mut self, recorded: &RecordedEvent) -> Result<BatchEvent, String> {
        let decoded = self
            .catalog
            .decode(recorded)
            .map_err(|error| error.to_string())?;
        let body = match decoded {
            Decoded::Retired => Body::Retired,
            Decoded::Event(Event::Account(event)) => Body::Account(event),
            Decoded::Event(Event::Job(event)) => Body::Job(self.job(recorded)?, event),
        };
        Ok(BatchEvent {
            position: recorded.position,
            revision: recorded.revision,
            id: recorded.id,
            posted_at: recorded.posted_at,
            day: self.day(recorded.posted_at),
            body,
        })
    }

    fn day(&mut self, at: Timestamp) -> Day {
        match self.day {
            Some((same, day)) if same == at => day,
            Some(_) | None => {
                let day = self.zone.day_of(at);
                self.day = Some((at, day));
                day
            }
        }
    }

    fn job(&mut self, recorded: &RecordedEvent) -> Result<JobId, String> {
        if let Some((stream, job)) = &self.job
            && *stream == recorded.stream
        {
            return Ok(job.clone());
        }
        let wrong = || {
            let (position, stream) = (recorded.position, &recorded.stream);
            format!("event {position} is corrupt: a job's event in stream {stream}")
        };
        let Ok(Stream::Job(job)) = recorded.stream.parse() else {
            return Err(wrong());
        };
        self.job = Some((recorded.stream.clone(), job.clone()));
        Ok(job)
    }
}
