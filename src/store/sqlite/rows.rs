//! Rows of the log: appends as rows, rows as events.
//!
//! An append's events share one row, so a command costs one insert however many events it has. The body is postcard: a sequence of
//! (event id, type name, version, bytes).

use std::borrow::Cow;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::store_error;
use crate::clock::Timestamp;
use crate::codec::{Catalog, StreamName};
use crate::store::{Append, EventId, Position, RecordedEvent, Revision, StoreError};

#[derive(Serialize, Deserialize)]
struct StoredEvent<'a> {
    id: [u8; 16],
    type_name: &'a str,
    version: u16,
    #[serde(borrow, with = "serde_bytes")]
    data: &'a [u8],
}

/// Where the log ends.
pub(super) struct Tail {
    pub(super) head: Position,
    pub(super) posted_at: Option<Timestamp>,
}

pub(super) fn insert(
    connection: &Connection,
    first: Position,
    append: &Append,
    posted_at: Timestamp,
) -> Result<(), StoreError> {
    let events = append.events.iter().map(|event| StoredEvent {
        id: event.id.get().into_bytes(),
        type_name: event.event_type.name,
        version: event.event_type.version,
        data: &event.data,
    });
    let place = (first, append.stream.as_str(), append.expected.next());
    insert_row(
        connection,
        place,
        events.collect(),
        (posted_at, &append.metadata),
    )
}

/// Writes events that another ledger recorded as one append.
pub(super) fn insert_recorded(
    connection: &Connection,
    recorded: &[RecordedEvent],
) -> Result<(), StoreError> {
    let Some(first) = recorded.first() else {
        return Ok(());
    };
    let metadata = std::str::from_utf8(&first.metadata).map_err(|error| StoreError::Corrupt {
        position: first.position,
        why: format!("metadata: {error}"),
    })?;
    let events = recorded.iter().map(|event| StoredEvent {
        id: event.id.get().into_bytes(),
        type_name: &event.type_name,
        version: event.version,
        data: &event.data,
    });
    let place = (first.position, first.stream.as_str(), first.revision);
    insert_row(
        connection,
        place,
        events.collect(),
        (first.posted_at, metadata),
    )
}

fn insert_row(
    connection: &Connection,
    (first, stream, revision): (Position, &str, Revision),
    events: Vec<StoredEvent<'_>>,
    (posted_at, metadata): (Timestamp, &str),
) -> Result<(), StoreError> {
    let body = postcard::to_stdvec(&events).expect("names and bytes always serialize");
    let sql = "INSERT INTO appends (position, stream, revision, events, posted_at, metadata, body)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement
        .execute(params![
            first.get(),
            stream,
            stored_u64(revision.get()),
            stored_u64(events.len() as u64),
            posted_at.as_micros(),
            metadata,
            body,
        ])
        .map_err(store_error)?;
    Ok(())
}

fn stored_u64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The last event's place and instant.
pub(super) fn read_tail(connection: &Connection) -> Result<Tail, StoreError> {
    let sql = "SELECT position + events - 1, posted_at FROM appends ORDER BY position DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let last = statement
        .query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        .optional()
        .map_err(store_error)?;
    Ok(match last {
        None => Tail {
            head: Position::START,
            posted_at: None,
        },
        Some((head, posted_at)) => Tail {
            head: Position::new(head),
            posted_at: Some(Timestamp::from_micros(posted_at)),
        },
    })
}

/// The last committed position.
pub(crate) fn read_head(connection: &Connection) -> Result<Position, StoreError> {
    Ok(read_tail(connection)?.head)
}

pub(super) fn last_revision(
    connection: &Connection,
    stream: &StreamName,
) -> Result<Option<Revision>, StoreError> {
    let sql = "SELECT revision + events - 1 FROM appends
        WHERE stream = ?1 ORDER BY revision DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let last = statement
        .query_row([stream.as_str()], |row| row.get::<_, i64>(0))
        .optional()
        .map_err(store_error)?;
    Ok(last.map(|last| Revision::new(last.unsigned_abs())))
}

pub(super) fn read_stream(
    connection: &Connection,
    stream: &StreamName,
    from: Revision,
) -> Result<Vec<RecordedEvent>, StoreError> {
    let sql = "SELECT position, stream, revision, events, posted_at, metadata, body FROM appends
        WHERE stream = ?1 ORDER BY revision";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query([stream.as_str()]).map_err(store_error)?;
    let mut events = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        unpack(row, Some(stream), &mut events)?;
    }
    events.retain(|event| event.revision >= from);
    Ok(events)
}

/// At most `limit` events of the log after `after`, in order.
pub(crate) fn read_page(
    connection: &Connection,
    after: Position,
    limit: usize,
) -> Result<Vec<RecordedEvent>, StoreError> {
    // The first row is the one that holds the next event: an append may have been read in part.
    let sql = "SELECT position, stream, revision, events, posted_at, metadata, body FROM appends
        WHERE position >= (SELECT coalesce(max(position), 0) FROM appends WHERE position <= ?1)
        ORDER BY position";
    let next = after.get().saturating_add(1);
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query([next]).map_err(store_error)?;
    let mut events = Vec::with_capacity(limit.min(4_096));
    while events.len() < limit {
        let Some(row) = rows.next().map_err(store_error)? else {
            break;
        };
        unpack(row, None, &mut events)?;
        if events.first().is_some_and(|first| first.position <= after) {
            events.retain(|event| event.position > after);
        }
    }
    events.truncate(limit);
    Ok(events)
}

/// Adds the events of one row.
fn unpack(
    row: &Row<'_>,
    stream: Option<&StreamName>,
    events: &mut Vec<RecordedEvent>,
) -> Result<(), StoreError> {
    let text = |index| row.get_ref(index).and_then(|value| Ok(value.as_str()?));
    let first: i64 = row.get(0).map_err(store_error)?;
    let position = Position::new(first);
    let corrupt = |why: String| StoreError::Corrupt { position, why };
    let stream = match stream {
        Some(stream) => stream.clone(),
        None => StreamName::from_stored(text(1).map_err(store_error)?),
    };
    let revision: i64 = row.get(2).map_err(store_error)?;
    let count: i64 = row.get(3).map_err(store_error)?;
    let posted_at = Timestamp::from_micros(row.get(4).map_err(store_error)?);
    let metadata = Bytes::copy_from_slice(text(5).map_err(store_error)?.as_bytes());
    let body = Bytes::from(row.get::<_, Vec<u8>>(6).map_err(store_error)?);
    let stored: Vec<StoredEvent<'_>> =
        postcard::from_bytes(&body).map_err(|error| corrupt(format!("append: {error}")))?;
    if i64::try_from(stored.len()) != Ok(count) {
        return Err(corrupt(format!(
            "append has {} events, not {count}",
            stored.len()
        )));
    }
    let revision = u64::try_from(revision).map_err(|_| corrupt(format!("revision {revision}")))?;
    for (offset, event) in (0_u32..).zip(stored) {
        events.push(RecordedEvent {
            position: Position::new(first.saturating_add(i64::from(offset))),
            stream: stream.clone(),
            revision: Revision::new(revision).plus(u64::from(offset)),
            id: EventId::new(Uuid::from_bytes(event.id)),
            type_name: Catalog::standard()
                .known_name(event.type_name)
                .map_or_else(|| Cow::Owned(event.type_name.to_owned()), Cow::Borrowed),
            version: event.version,
            posted_at,
            metadata: metadata.clone(),
            data: body.slice_ref(event.data),
        });
    }
    Ok(())
}
