//! An event as KurrentDB keeps it, and back.
//!
//! ```text
//! stream             <prefix>job-7            type          recoup.job.charged
//! data               ours (postcard)          content-type  application/octet-stream
//! custom metadata    {"recoup":{"version":1,"sending":"<uuid>"},"$correlationId":"7","$causationId":"<command>"}
//! ```
//!
//! The version stands in the metadata and not in the type's name, so that the server's indexes by type show one type however often its struct changes.
//! What stands behind the key `recoup` is the caller's metadata, byte for byte; taking the key off gives it back.

use std::borrow::Cow;

use bytes::Bytes;
use kurrentdb::EventData;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::StreamPrefix;
use crate::clock::Timestamp;
use crate::codec::{Catalog, StreamName};
use crate::store::{Append, EventId, Position, RecordedEvent, Revision, StoreError};

/// What stands beside the caller's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Beside {
    version: u16,
    sending: Uuid,
}

#[derive(Deserialize)]
struct Envelope {
    recoup: Beside,
}

impl Beside {
    fn head(self) -> String {
        let beside = serde_json::to_string(&self).expect("a number and a UUID always serialize");
        format!("{{\"recoup\":{beside}")
    }

    fn wrap(self, metadata: &str) -> String {
        let rest = metadata.strip_prefix('{');
        let rest = rest.expect("metadata is a JSON object");
        let comma = if rest.starts_with('}') { "" } else { "," };
        format!("{}{comma}{rest}", self.head())
    }

    fn unwrap(stored: &Bytes) -> Result<(Self, Bytes), String> {
        let envelope: Envelope =
            serde_json::from_slice(stored).map_err(|error| format!("metadata: {error}"))?;
        let beside = envelope.recoup;
        // The head is written in one way; whoever wrote it in another may have changed the rest as well.
        let rest = stored
            .strip_prefix(beside.head().as_bytes())
            .ok_or("metadata: not as it was written")?;
        let rest = rest.strip_prefix(b",").unwrap_or(rest);
        let mut metadata = Vec::with_capacity(rest.len() + 1);
        metadata.push(b'{');
        metadata.extend_from_slice(rest);
        Ok((beside, Bytes::from(metadata)))
    }
}

/// The name that a stream of the ledger has on the server.
pub(super) fn stream_on_server(prefix: &StreamPrefix, stream: &StreamName) -> String {
    format!("{prefix}{stream}")
}

/// The events of an append, as this sending of it writes them.
pub(super) fn proposed(append: &Append, sending: Uuid) -> Vec<EventData> {
    let events = append.events.iter().map(|event| {
        let beside = Beside {
            version: event.event_type.version,
            sending,
        };
        EventData::binary(event.event_type.name, Bytes::copy_from_slice(&event.data))
            .id(event.id.get())
            .metadata(Bytes::from(beside.wrap(&append.metadata)))
    });
    events.collect()
}

/// An event that was read, and the sending that wrote it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) event: RecordedEvent,
    pub(super) sending: Uuid,
}

/// The position of an event on the server. There is no telling the order of one that was prepared elsewhere than it was committed.
pub(super) fn position(event: &kurrentdb::RecordedEvent) -> Result<Position, StoreError> {
    let (commit, prepare) = (event.position.commit, event.position.prepare);
    let Ok(number) = i64::try_from(commit) else {
        return Err(StoreError::Damaged {
            why: format!(
                "the server tells no position of {}: 22.6 or newer is needed",
                event.stream_id()
            ),
        });
    };
    let position = Position::new(number);
    if prepare == commit {
        Ok(position)
    } else {
        let why = format!("it was prepared at {prepare}: a transaction wrote it, not recoup");
        Err(StoreError::Corrupt { position, why })
    }
}

/// Reads what the server gave.
pub(super) fn recorded(
    prefix: &StreamPrefix,
    event: kurrentdb::RecordedEvent,
) -> Result<Stored, StoreError> {
    let position = position(&event)?;
    let corrupt = |why: String| StoreError::Corrupt { position, why };
    let stream = event.stream_id().strip_prefix(prefix.as_str());
    let stream = stream
        .ok_or_else(|| corrupt(format!("{} is no stream of the ledger", event.stream_id())))?;
    let stream = StreamName::from_stored(stream);
    let posted_at = created(&event).map_err(corrupt)?;
    let (beside, metadata) = Beside::unwrap(&event.custom_metadata).map_err(corrupt)?;
    let type_name = Catalog::standard()
        .known_name(&event.event_type)
        .map_or_else(|| Cow::Owned(event.event_type), Cow::Borrowed);
    Ok(Stored {
        sending: beside.sending,
        event: RecordedEvent {
            position,
            stream,
            revision: Revision::new(event.revision),
            id: EventId::new(event.id),
            type_name,
            version: beside.version,
            posted_at,
            metadata,
            data: event.data,
        },
    })
}

/// When the server wrote it. The client's own field is cut to seconds, and 1970 where the server did not say.
pub(super) fn created(event: &kurrentdb::RecordedEvent) -> Result<Timestamp, String> {
    let ticks = event.metadata.get("created");
    let ticks = ticks.ok_or("the server does not say when it was written")?;
    // Units of 100 ns since 1970.
    let ticks: i64 = ticks
        .parse()
        .map_err(|_| format!("it was written at {ticks:?}, which is no number"))?;
    Ok(Timestamp::from_micros(ticks / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_comes_back_byte_for_byte() {
        let beside = Beside {
            version: 7,
            sending: Uuid::from_u128(1),
        };
        for metadata in [
            "{}",
            r#"{"$correlationId":"a\",\"recoup\":{","$causationId":"}"}"#,
            r#"{ "other" : [1, 2] }"#,
        ] {
            let stored = beside.wrap(metadata);
            serde_json::from_str::<serde_json::Value>(&stored).expect("JSON");
            let back = Beside::unwrap(&Bytes::from(stored));
            assert_eq!(back, Ok((beside, Bytes::from(metadata))));
        }
    }

    #[test]
    fn metadata_that_is_not_ours_is_refused() {
        let beside = Beside {
            version: 7,
            sending: Uuid::from_u128(1),
        };
        let moved = beside.wrap("{}").replace("{\"recoup\"", "{ \"recoup\"");
        for stored in ["", "{}", "[]", r#"{"$correlationId":"a"}"#, moved.as_str()] {
            let stored = Bytes::copy_from_slice(stored.as_bytes());
            assert!(Beside::unwrap(&stored).is_err(), "{stored:?}");
        }
    }
}
