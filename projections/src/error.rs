//! What can go wrong around projections. Nothing here is a business answer: a projection that meets an event it cannot read
//! *halts*, which is part of its [`Checkpoint`](crate::Checkpoint) and no error.

use recoup::Position;
use recoup::store::OpenError;
use recoup::store::{EventId, StoreError};

use crate::catalog::Projection;

/// Why projections were not opened, brought forward or read. What was committed before stays committed, whole.
#[derive(Debug, thiserror::Error)]
pub enum ProjectionError {
    /// The tables could not be made or brought up to date.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store did not do as it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rows were made by other code or for another zone: this build neither applies to them nor repairs them.
    #[error(
        "projection {projection} was made as \"{stored}\", this build makes \"{own}\": run the build that made it, or make it anew with this one (project reset {projection})"
    )]
    OtherDefinition {
        /// Which one.
        projection: Projection,
        /// The definition in its checkpoint.
        stored: String,
        /// This build's.
        own: String,
    },
    /// The checkpoint names an event that is not at its place in the log: the rows came from another log.
    #[error(
        "the checkpoint of projection {projection} names event {stored} at position {position}, and the log has {} there: its rows are of another log",
        .found.map_or_else(|| "none".to_owned(), |found| found.to_string())
    )]
    OtherLog {
        /// Whose checkpoint.
        projection: Projection,
        /// Where it stands.
        position: Position,
        /// The event that it names.
        stored: EventId,
        /// The event that is there, if one is.
        found: Option<EventId>,
    },
    /// There is no projection of that name.
    #[error(
        "there is no projection {name:?}: there are entries, daily_usage, jobs, contradictions, due and dead_letters"
    )]
    UnknownProjection {
        /// What was asked for.
        name: String,
    },
}

impl ProjectionError {
    /// Whether the same call may succeed later, with nothing changed but time and room.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) | Self::Open(OpenError::Store(error)) => match error {
                StoreError::Unavailable { .. }
                | StoreError::Unconfirmed { .. }
                | StoreError::Full => true,
                StoreError::ReadOnly { .. }
                | StoreError::Backfilling { .. }
                | StoreError::Damaged { .. }
                | StoreError::Corrupt { .. } => false,
            },
            Self::Open(_)
            | Self::OtherDefinition { .. }
            | Self::OtherLog { .. }
            | Self::UnknownProjection { .. } => false,
        }
    }
}

/// A stored value that none of ours can be.
pub(crate) fn damaged(table: &str, why: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged {
        why: format!("table {table}: {why}"),
    }
}
