//! The log as JSON lines: what `export` writes and `import` takes.
//!
//! ```text
//! {"recoup_log":1,"ledger":"…","zone":"UTC","scale":2,"head":3}
//! {"position":1,"stream":"grant-a1+g1","revision":0,"id":"…","type":"account.granted","version":1,"posted_at":"…Z","metadata":{…},"data":"…"}
//! {"end":{"events":3,"sha256":"…"}}
//! ```
//!
//! `data` is the event's stored bytes in Base64 (RFC 4648, padded), `metadata` the stored JSON, byte for byte; `posted_at` has microseconds. So nothing
//! is lost that this build cannot read. `sha256` is over every line before, each with its line feed: a file that was cut, or has
//! lost or changed a line, shows it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use recoup::codec::{Stream, StreamName};
use recoup::store::{EventId, Identity, RecordedEvent};
use recoup::{Position, Revision, Scale, Timestamp, Zone};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The form's version.
pub const FORM: u32 = 1;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The form's version.
    pub recoup_log: u32,
    /// The id of the ledger that it was taken from, where it is known.
    #[serde(default)]
    pub ledger: Option<Uuid>,
    /// The ledger's zone.
    pub zone: String,
    /// The ledger's scale.
    pub scale: u8,
    /// The last event's position, where it is known; 0 for an empty log.
    #[serde(default)]
    pub head: Option<i64>,
}

impl Head {
    /// The first line of a log of `identity` that ends at `head`.
    #[must_use]
    pub fn of(identity: &Identity, head: Position) -> Self {
        Self {
            recoup_log: FORM,
            ledger: Some(identity.ledger),
            zone: identity.zone.name().to_owned(),
            scale: identity.scale.get(),
            head: Some(head.get()),
        }
    }

    /// Whether `line` begins a log, of whatever version.
    #[must_use]
    pub fn begins(line: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Any {
            #[serde(rename = "recoup_log")]
            _form: serde::de::IgnoredAny,
        }
        // A derived reader would take an array for the struct too.
        line.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<Any>(line).is_ok()
    }

    /// Reads a first line.
    pub fn parse(line: &[u8]) -> Result<(Self, Zone, Scale), String> {
        #[derive(Deserialize)]
        struct Version {
            recoup_log: u32,
        }
        let version: Version = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if version.recoup_log != FORM {
            return Err(format!(
                "recoup_log is {}, and this build knows {FORM}: upgrade",
                version.recoup_log
            ));
        }
        let head: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let zone = Zone::parse(&head.zone).map_err(|error| error.to_string())?;
        let scale = Scale::new(head.scale).map_err(|error| error.to_string())?;
        Ok((head, zone, scale))
    }
}

/// The last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    end: Sum,
}

/// What a whole file has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    /// How many events.
    pub events: u64,
    /// The digest of the lines before, in hexadecimal.
    pub sha256: String,
}

/// Sums a file's lines up, while it is written or read.
#[derive(Debug, Clone, Default)]
pub struct Summing {
    digest: Sha256,
    /// How many events so far.
    pub events: u64,
}

impl Summing {
    /// Adds a line, without its line feed.
    pub fn add(&mut self, line: &[u8]) {
        self.digest.update(line);
        self.digest.update(b"\n");
    }

    /// What the last line says.
    #[must_use]
    pub fn end(&self) -> End {
        let digest: [u8; 32] = self.digest.clone().finalize().into();
        End {
            end: Sum {
                events: self.events,
                sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            },
        }
    }
}

/// One event.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventLine {
    position: i64,
    stream: String,
    revision: u64,
    id: Uuid,
    #[serde(rename = "type")]
    type_name: String,
    version: u16,
    posted_at: String,
    metadata: Box<RawValue>,
    data: String,
}

/// An event as a line, without its line feed.
pub fn event_line(event: &RecordedEvent) -> Result<Vec<u8>, serde_json::Error> {
    // The stores keep a text; anything else is not passed on as one that it never was.
    let metadata = std::str::from_utf8(&event.metadata).map_err(serde::ser::Error::custom)?;
    // What is no JSON, or would break the line, is kept as a text.
    let metadata = match RawValue::from_string(metadata.to_owned()) {
        Ok(raw)
            if raw.get() == metadata && !metadata.starts_with('"') && !metadata.contains('\n') =>
        {
            raw
        }
        Ok(_) | Err(_) => to_raw_value(metadata)?,
    };
    serde_json::to_vec(&EventLine {
        position: event.position.get(),
        stream: event.stream.as_str().to_owned(),
        revision: event.revision.get(),
        id: event.id.get(),
        type_name: event.type_name.clone().into_owned(),
        version: event.version,
        posted_at: event.posted_at.to_string(),
        metadata,
        data: STANDARD.encode(&event.data),
    })
}

/// A line after the first.
#[derive(Debug)]
pub enum Line {
    /// An event, with the position that it had.
    Event(RecordedEvent),
    /// The end.
    End(End),
}

impl Line {
    /// Reads a line.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        if line.starts_with(b"{\"end\"") {
            let end = serde_json::from_slice(line).map_err(|error| error.to_string())?;
            return Ok(Self::End(end));
        }
        let line: EventLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let metadata = match serde_json::from_str::<String>(line.metadata.get()) {
            Ok(text) => text,
            Err(_) => line.metadata.get().to_owned(),
        };
        let data = STANDARD
            .decode(&line.data)
            .map_err(|error| format!("data: {error}"))?;
        let stream = StreamName::from_stored(&line.stream);
        let parsed: Result<Stream, _> = stream.parse();
        parsed.map_err(|error| error.to_string())?;
        let posted_at = Timestamp::parse(&line.posted_at).map_err(|error| error.to_string())?;
        if posted_at.to_string() != line.posted_at {
            return Err(format!(
                "posted_at {:?} is not written as {posted_at}",
                line.posted_at
            ));
        }
        Ok(Self::Event(RecordedEvent {
            position: Position::new(line.position),
            stream,
            revision: Revision::new(line.revision),
            id: EventId::new(line.id),
            type_name: line.type_name.into(),
            version: line.version,
            posted_at,
            metadata: metadata.into_bytes().into(),
            data: data.into(),
        }))
    }
}
