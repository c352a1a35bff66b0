//! Events as bytes: pinned, read back, and refused where they cannot be read.
//!
//! - [`golden`]: the bytes of every version of every type that ever landed. A line is added for a new version and never edited.
//! - [`reading`]: upcasters, retired types, types of the future, and bytes that are no event.
//! - [`names`]: names of streams, and ids of events.

mod golden;
mod names;
mod reading;
mod samples;

use std::borrow::Cow;

use bytes::Bytes;
use recoup::codec::{Event, StreamName};
use recoup::store::{EventId, RecordedEvent};
use recoup::{Position, Revision};

use crate::values::noon;

/// A stored event at position 7 of the log.
fn recorded(type_name: &str, version: u16, data: Vec<u8>) -> RecordedEvent {
    RecordedEvent {
        position: Position::new(7),
        stream: StreamName::from_stored("job-video.1"),
        revision: Revision::FIRST,
        id: EventId::new(uuid::Uuid::nil()),
        type_name: Cow::Owned(type_name.to_owned()),
        version,
        posted_at: noon(),
        metadata: Bytes::from_static(b"{}"),
        data: Bytes::from(data),
    }
}

fn stored(event: &Event) -> RecordedEvent {
    let event_type = event.event_type();
    recorded(event_type.name, event_type.version, event.encode())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("hex digits are ASCII");
        u8::from_str_radix(pair, 16).expect("two hex digits")
    };
    digits.chunks(2).map(byte).collect()
}
