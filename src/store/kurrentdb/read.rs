//! Reads: a stream, pages of the log, its end. All of them ask the leader.
//!
//! **A page of the log** begins with the event at the position it is to follow, which is taken off. It is complete when it is full, or when it has come to the
//! last event of the ledger that there is, looked up from the end. A page that ends before that is not the end of the log: the reader goes on behind
//! it, and where the server's filter has found nothing, without the filter, so that every step gets on.
//!
//! **Bounds.** [`Options::answer_within`](super::Options::answer_within) for each event, [`WHOLE`] times that for a read.

use std::sync::Arc;
use std::time::Duration;

use kurrentdb::{
    Client, Error, ReadAllOptions, ReadStream, ReadStreamOptions, StreamPosition,
    SubscriptionFilter,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::error::{is_no_such_position, unavailable};
use super::link::{Lent, Link, NoAnswer};
use super::stored::{self, Stored};
use super::{Log, Shared};
use crate::codec::StreamName;
use crate::store::{Position, RecordedEvent, Revision, StoreError};

/// Between two tries; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// How many times the patience with one event a read may last.
const WHOLE: u32 = 12;

/// How many events of others are passed over in one step where the filter has found nothing.
const STEP: usize = 1_000;

/// How many events the server looks at before it says where it is.
const WINDOW: u32 = 1_000;

/// How many streams are read at once.
const AT_ONCE: usize = 16;

/// What the names of a ledger's streams begin with, behind its prefix.
const CATEGORIES: [&str; 4] = ["job-", "grant-", "adjustment-", "limits-"];

enum Next {
    Event(Box<kurrentdb::RecordedEvent>),
    End,
    NoStream,
}

async fn next(read: &mut ReadStream) -> Result<Next, Error> {
    match read.next().await {
        // A link whose event is gone has none; the ledger writes no links.
        Ok(Some(resolved)) => Ok(resolved
            .link
            .or(resolved.event)
            .map_or(Next::End, |event| Next::Event(Box::new(event)))),
        Ok(None) => Ok(Next::End),
        // Inside an answer this is an answer; as the answer itself it is a node that does not lead.
        Err(Error::ResourceNotFound) => Ok(Next::NoStream),
        Err(error) => Err(error),
    }
}

/// What a server is asked for.
enum Question<'a> {
    Stream(&'a str, ReadStreamOptions),
    Log(ReadAllOptions),
}

impl Question<'_> {
    async fn open(&self, client: &Client) -> Result<ReadStream, Error> {
        match self {
            Self::Stream(stream, options) => client.read_stream(*stream, options).await,
            Self::Log(options) => client.read_all(options).await,
        }
    }
}

/// All events of one read; none if there is no such stream.
async fn drain(
    link: &Link,
    lent: &Lent,
    question: &Question<'_>,
) -> Result<Vec<kurrentdb::RecordedEvent>, NoAnswer> {
    let until = Instant::now() + link.answer_within() * WHOLE;
    let mut read = link.ask(lent, question.open(&lent.client)).await?;
    let mut events = Vec::new();
    while let Next::Event(event) = link.ask(lent, next(&mut read)).await? {
        events.push(*event);
        if Instant::now() >= until {
            return Err(NoAnswer::Silence);
        }
    }
    Ok(events)
}

/// Reads, again and again as long as there is patience and a reason for it.
async fn fetch(
    link: &Link,
    question: Question<'_>,
) -> Result<Vec<kurrentdb::RecordedEvent>, StoreError> {
    let until = link.patience();
    let mut pause = FIRST_PAUSE;
    loop {
        let lent = link.client(until).await?;
        let no_answer = match drain(link, &lent, &question).await {
            Ok(events) => return Ok(events),
            Err(no_answer) => no_answer,
        };
        if let Some(refusal) = link.never(&no_answer) {
            return Err(refusal);
        }
        let next = Instant::now() + pause;
        if next >= until {
            return Err(unavailable(no_answer));
        }
        sleep_until(next).await;
        pause *= 2;
    }
}

/// The events of a stream of the server.
pub(super) async fn stream_on_server(
    link: &Link,
    stream: &str,
    from: Revision,
) -> Result<Vec<kurrentdb::RecordedEvent>, StoreError> {
    let options = ReadStreamOptions::default().position(StreamPosition::Position(from.get()));
    fetch(link, Question::Stream(stream, options)).await
}

fn ours(prefix: &super::StreamPrefix) -> SubscriptionFilter {
    let filter = SubscriptionFilter::on_stream_name().max(WINDOW);
    CATEGORIES.iter().fold(filter, |filter, category| {
        filter.add_prefix(format!("{prefix}{category}"))
    })
}

/// The position of the last event that a ledger has; [`Position::START`] if it has none.
pub(super) async fn head_on_server(
    link: &Link,
    prefix: &super::StreamPrefix,
) -> Result<Position, StoreError> {
    let options = ReadAllOptions::default()
        .position(StreamPosition::End)
        .filter(ours(prefix))
        .max_count(1);
    let events = fetch(link, Question::Log(options)).await?;
    events.first().map_or(Ok(Position::START), stored::position)
}

/// What the server tells of an event, also of one that cannot be read otherwise.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) stream: StreamName,
    pub(super) revision: Revision,
    pub(super) id: crate::store::EventId,
    /// None if it does not say.
    pub(super) posted_at: Option<crate::clock::Timestamp>,
}

impl Log {
    /// The events of one stream from `from` on, in order, freshly read.
    pub async fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        let stored = self.shared.stream(stream, from).await?;
        Ok(stored.into_iter().map(|stored| stored.event).collect())
    }

    /// The events of many streams, each whole and freshly read, in the order of `streams`.
    pub async fn read_streams(
        &self,
        streams: Vec<StreamName>,
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        let mut read: Vec<_> = streams.iter().map(|_| Vec::new()).collect();
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = JoinSet::new();
        for (index, stream) in streams.into_iter().enumerate() {
            let (log, turns) = (self.clone(), Arc::clone(&turns));
            running.spawn(async move {
                let _turn = turns.acquire().await;
                (index, log.read_stream(&stream, Revision::FIRST).await)
            });
        }
        for (index, events) in running.join_all().await {
            read[index] = events?;
        }
        Ok(read)
    }

    /// At most `limit` events of the ledger after `after`, in order. A page may end between two events of one append.
    ///
    /// `after` is a position that the log has given, or [`Position::START`]: the server knows no others.
    pub async fn read_all(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        let shared = &self.shared;
        let (mut found, mut cursor) = (Vec::new(), after);
        let mut end = *shared.head.borrow();
        while found.len() < limit {
            if end <= cursor {
                end = shared.head_position().await?;
                if end <= cursor {
                    break;
                }
            }
            match shared.page(cursor, limit, &mut found).await {
                Ok(reached) => cursor = reached,
                // What stands before an event that cannot be read is not withheld: the next page begins with that.
                Err(StoreError::Corrupt { .. }) if !found.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The event at a position that the log has given, if it is there.
    pub async fn read_event(
        &self,
        position: Position,
    ) -> Result<Option<RecordedEvent>, StoreError> {
        let found = self.shared.raw_event(position).await?;
        let taken = found.map(|event| self.shared.take(event)).transpose()?;
        Ok(taken.map(|stored| stored.event))
    }

    /// What the server tells of the event at a position.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) async fn place_of(&self, position: Position) -> Result<Option<Place>, StoreError> {
        let prefix = self.shared.options.prefix.as_str();
        let found = self.shared.raw_event(position).await?;
        Ok(found.and_then(|event| {
            let stream = event.stream_id().strip_prefix(prefix)?;
            Some(Place {
                stream: StreamName::from_stored(stream),
                revision: Revision::new(event.revision),
                id: crate::store::EventId::new(event.id),
                posted_at: stored::created(&event).ok(),
            })
        }))
    }

    /// When the event at a position that the log has given was recorded, or, if asked so, the first one after it. None if it is not there, or does not say.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) async fn instant(
        &self,
        position: Position,
        is_after: bool,
    ) -> Result<Option<crate::clock::Timestamp>, StoreError> {
        let at = if is_after {
            match self.read_all(position, 1).await {
                Ok(page) => return Ok(page.first().map(|event| event.posted_at)),
                Err(StoreError::Corrupt { position, .. }) => position,
                Err(error) => return Err(error),
            }
        } else {
            position
        };
        let found = self.shared.raw_event(at).await?;
        Ok(found.and_then(|event| stored::created(&event).ok()))
    }

    /// The last committed position of the ledger; [`Position::START`] for an empty log.
    pub async fn head(&self) -> Result<Position, StoreError> {
        self.shared.head_position().await
    }
}

impl Shared {
    pub(super) async fn head_position(&self) -> Result<Position, StoreError> {
        let head = head_on_server(&self.link, &self.options.prefix).await?;
        self.reached(head);
        Ok(head)
    }

    /// What the server has at `position`, if it is of the ledger.
    async fn raw_event(
        &self,
        position: Position,
    ) -> Result<Option<kurrentdb::RecordedEvent>, StoreError> {
        let events = match fetch(&self.link, Question::Log(from(position).max_count(1))).await {
            Err(error) if is_no_such_position(&error) => return Ok(None),
            events => events?,
        };
        let is_it = |event: &kurrentdb::RecordedEvent| {
            i64::try_from(event.position.commit) == Ok(position.get())
                && self.is_ours(event.stream_id())
        };
        Ok(events.into_iter().find(is_it))
    }

    /// Whether a stream of the server is one of the ledger's.
    fn is_ours(&self, stream: &str) -> bool {
        let name = stream.strip_prefix(self.options.prefix.as_str());
        name.is_some_and(|name| CATEGORIES.iter().any(|it| name.starts_with(it)))
    }

    pub(super) async fn stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<Stored>, StoreError> {
        let name = stored::stream_on_server(&self.options.prefix, stream);
        let events = stream_on_server(&self.link, &name, from).await?;
        events.into_iter().map(|event| self.take(event)).collect()
    }

    fn take(&self, event: kurrentdb::RecordedEvent) -> Result<Stored, StoreError> {
        let stored = stored::recorded(&self.options.prefix, event)?;
        self.saw(&stored.event);
        Ok(stored)
    }

    /// Adds events after `after` until there are `limit`, as far as one look goes; says how far that is.
    async fn page(
        &self,
        after: Position,
        limit: usize,
        found: &mut Vec<RecordedEvent>,
    ) -> Result<Position, StoreError> {
        // One more, for the event that it begins with.
        let count = (limit - found.len()).saturating_add(1);
        let filtered = from(after).filter(ours(&self.options.prefix));
        let events = fetch(&self.link, Question::Log(filtered.max_count(count))).await?;
        let reached = self.add(events, after, limit, found)?;
        if reached > after {
            return Ok(reached);
        }
        let events = fetch(&self.link, Question::Log(from(after).max_count(STEP))).await?;
        let reached = self.add(events, after, limit, found)?;
        if reached > after {
            Ok(reached)
        } else {
            Err(unavailable("the log ends before its last event"))
        }
    }

    /// Adds what is the ledger's among `events`. What was read before is not looked at again: it may be what could not be read.
    fn add(
        &self,
        events: Vec<kurrentdb::RecordedEvent>,
        after: Position,
        limit: usize,
        found: &mut Vec<RecordedEvent>,
    ) -> Result<Position, StoreError> {
        let mut reached = after;
        for event in events {
            let position = i64::try_from(event.position.commit);
            let position = position.map_or(reached, Position::new);
            if position <= after {
                continue;
            }
            if found.len() == limit {
                break;
            }
            if self.is_ours(event.stream_id()) {
                found.push(self.take(event)?.event);
            }
            reached = position;
        }
        Ok(reached)
    }
}

fn from(after: Position) -> ReadAllOptions {
    let options = ReadAllOptions::default().forwards();
    match u64::try_from(after.get()) {
        Ok(number) if number > 0 => {
            let position = kurrentdb::Position {
                commit: number,
                prepare: number,
            };
            options.position(StreamPosition::Position(position))
        }
        _ => options.position(StreamPosition::Start),
    }
}
