//! One batch into one projection: rows and checkpoint in one transaction.
//!
//! Order inside the transaction: read the checkpoint under the write lock and compare it with the place that the batch was read
//! for; fold the batch's changes in memory, loading each touched row once; write each changed row once; move the checkpoint. If
//! another runner has been here, nothing is loaded and nothing is written. An event that cannot be applied halts the
//! projection before it: what comes before it is kept, the reason is stored, and the next run tries it again.
//!
//! The caller holds the write transaction and commits it; an error rolls all of it back.

use recoup::store::{EventId, StoreError};
use recoup::{Position, Zone};
use rusqlite::Connection;

use crate::batch::{Batch, BatchEvent, Body};
use crate::catalog::Projection;
use crate::checkpoint::{self, Halt, Step};
use crate::error::{ProjectionError, damaged};

/// A projection's changes by one batch: folded event by event, written once.
pub(crate) trait Changes {
    /// Folds one event. On [`Refused::Impossible`] the event has changed nothing.
    fn apply(&mut self, event: &BatchEvent) -> Result<(), Refused>;

    /// Writes what is not written yet.
    fn write(self: Box<Self>) -> Result<(), StoreError>;
}

/// Why an event was not applied.
pub(crate) enum Refused {
    /// It does not fit the rows before it: the projection halts here.
    Impossible(String),
    /// The database did not do as it was asked: the batch is rolled back.
    Store(StoreError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(crate) enum Applied {
    /// The checkpoint was where the batch begins, and has moved on.
    Advanced {
        /// Where it is now.
        to: Position,
        /// How many events were applied or skipped.
        events: u64,
        /// The event that it could not get past.
        halted: Option<Halt>,
    },
    /// Nothing was written: the event that stands in the way is the one that stood there before.
    StillHalted,
    /// Nothing was written: another runner has moved the checkpoint.
    Moved,
}

/// Applies what `batch` has after `from`, provided that the projection's checkpoint still is at `from`.
pub(crate) fn apply(
    connection: &Connection,
    zone: Zone,
    projection: Projection,
    from: Position,
    batch: &Batch,
) -> Result<Applied, ProjectionError> {
    let Some(checkpoint) = checkpoint::read(connection, projection)? else {
        return Err(damaged("checkpoints", format_args!("{projection} has no row")).into());
    };
    if checkpoint.position != from {
        return Ok(Applied::Moved);
    }
    checkpoint.check_definition(zone)?;
    let folded = fold(connection, projection, from, batch)?;
    if folded.last.is_none() && folded.halted == checkpoint.halted {
        return Ok(match folded.halted {
            Some(_) => Applied::StillHalted,
            None => Applied::Moved,
        });
    }
    let step = Step {
        to: folded.last,
        retired: folded.retired,
        halted: folded.halted.as_ref(),
    };
    if !checkpoint::advance(connection, &checkpoint, &step)? {
        let why = format_args!("{projection} moved under the write lock");
        return Err(damaged("checkpoints", why).into());
    }
    Ok(Applied::Advanced {
        to: folded.last.map_or(from, |(position, _)| position),
        events: folded.events,
        halted: folded.halted,
    })
}

/// What a batch came to, with its rows written.
#[derive(Default)]
struct Folded {
    last: Option<(Position, EventId)>,
    events: u64,
    retired: u64,
    halted: Option<Halt>,
}

fn fold(
    connection: &Connection,
    projection: Projection,
    from: Position,
    batch: &Batch,
) -> Result<Folded, StoreError> {
    let mut changes = projection.begin(connection, batch)?;
    let mut folded = Folded {
        halted: batch.unreadable.clone(),
        ..Folded::default()
    };
    for event in batch.after(from) {
        if matches!(event.body, Body::Retired) {
            folded.retired += 1;
        } else if let Err(refused) = changes.apply(event) {
            let reason = match refused {
                Refused::Impossible(reason) => reason,
                Refused::Store(error) => return Err(error),
            };
            let position = event.position;
            folded.halted = Some(Halt { position, reason });
            break;
        }
        folded.last = Some((event.position, event.id));
        folded.events += 1;
    }
    changes.write()?;
    Ok(folded)
}
