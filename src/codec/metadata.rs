//! What is known of an append beside its events: JSON, with the keys that KurrentDB's tools understand.
//!
//! `$causationId` is the id of the command; `$correlationId` joins everything of one job or account operation.

use serde::{Deserialize, Serialize};

use super::CodecError;
use crate::ids::CommandId;
use crate::store::Position;

/// The metadata of one append.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Joins the events of one job, grant, adjustment or account's limits.
    #[serde(rename = "$correlationId")]
    pub correlation: String,
    /// The command that caused the append.
    #[serde(rename = "$causationId")]
    pub command: CommandId,
}

impl Metadata {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("two strings always serialize")
    }

    /// Reads what was stored with the event at `position`.
    pub fn parse(json: &[u8], position: Position) -> Result<Self, CodecError> {
        serde_json::from_slice(json).map_err(|error| CodecError::Corrupt {
            position,
            why: format!("metadata: {error}"),
        })
    }
}
