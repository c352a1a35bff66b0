//! Which ledger it is: the one event of the stream `<prefix>ledger`.
//!
//! Whoever finds no such stream writes it with "no stream" as the expected revision, and reads it in any case: of several who do so at once
//! all open what one of them made.

use kurrentdb::{EventData, StreamState};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::append::send_until_known;
use super::link::Link;
use super::read::{head_on_server, stream_on_server};
use super::{OpenError, Options};
use crate::clock::Zone;
use crate::credits::Scale;
use crate::store::{Identity, Position, Revision, StoreError};

const TYPE: &str = "recoup.ledger.created";

#[derive(Debug, Serialize, Deserialize)]
struct Created {
    ledger: Uuid,
    zone: String,
    scale: u8,
    prefix: String,
}

/// Whether there is a ledger.
pub(super) async fn exists(link: &Link, options: &Options) -> Result<bool, OpenError> {
    let stream = format!("{}ledger", options.prefix);
    Ok(read(link, &stream).await?.is_some())
}

/// Reads the ledger's identity; creates the ledger if it has none.
pub(super) async fn open(link: &Link, options: &Options) -> Result<Identity, OpenError> {
    let stream = format!("{}ledger", options.prefix);
    if let Some(created) = read(link, &stream).await? {
        return checked(created, options);
    }
    // Events without the stream that says what they are: it was deleted, or somebody else's streams have these names.
    if head_on_server(link, &options.prefix).await? != Position::START {
        let why =
            format!("there are events, and no stream {stream} that says which ledger they are of");
        return Err(StoreError::Damaged { why }.into());
    }
    let created = Created {
        ledger: Uuid::new_v4(),
        zone: options.zone.unwrap_or(Zone::UTC).to_string(),
        scale: options.scale.map_or(0, Scale::get),
        prefix: options.prefix.to_string(),
    };
    let event = EventData::json(TYPE, &created).expect("plain data always serializes");
    let event = event.id(created.ledger);
    let find = || read(link, &stream);
    let created = send_until_known(link, &stream, StreamState::NoStream, event, find).await?;
    checked(created, options)
}

async fn read(link: &Link, stream: &str) -> Result<Option<Created>, StoreError> {
    let damaged = |why: String| StoreError::Damaged {
        why: format!("{stream}: {why}"),
    };
    let events = stream_on_server(link, stream, Revision::FIRST).await?;
    let Some(event) = events.first() else {
        return Ok(None);
    };
    if event.event_type != TYPE || events.len() > 1 {
        return Err(damaged(format!(
            "{} events, the first a {}",
            events.len(),
            event.event_type
        )));
    }
    let created = serde_json::from_slice(&event.data);
    created
        .map(Some)
        .map_err(|error| damaged(error.to_string()))
}

fn checked(created: Created, options: &Options) -> Result<Identity, OpenError> {
    let Created {
        ledger,
        zone,
        scale,
        prefix,
    } = created;
    let damaged = |why: String| StoreError::Damaged { why };
    let identity = Identity {
        ledger,
        zone: Zone::parse(&zone).map_err(|error| damaged(error.to_string()))?,
        scale: Scale::new(scale).map_err(|error| damaged(error.to_string()))?,
    };
    let differs = |what, stored: String, asked: String| {
        if stored == asked {
            return Ok(());
        }
        Err(OpenError::Differs {
            what,
            stored,
            asked,
        })
    };
    let asked = options.zone.unwrap_or(identity.zone).to_string();
    differs("zone", identity.zone.to_string(), asked)?;
    let asked = options.scale.unwrap_or(identity.scale).get();
    differs("scale", scale.to_string(), asked.to_string())?;
    differs("prefix", prefix, options.prefix.to_string())?;
    Ok(identity)
}
