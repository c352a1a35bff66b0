//! Checkpoints: how far each projection is, and proof that it counts the same log in the same way.
//!
//! A checkpoint has the position and the id of the last event that was applied or skipped, and the definition that the rows were
//! made by. [`advance`] is the last statement of a batch's transaction and names the position it moves from: of two runners that
//! apply the same page, one moves the checkpoint and the other finds it moved before it has written anything.
//!
//! Lock rule: [`advance`] is called under the write lock, after [`read`] under the same lock.

use std::str::FromStr;

use recoup::sql::{Row, Transaction};
use recoup::store::{EventId, StoreError};
use recoup::{Position, Zone, values};
use uuid::Uuid;

use crate::catalog::Projection;
use crate::error::{ProjectionError, damaged};

/// An event stands in a projection's way: what comes after it is not applied until it can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// Which event.
    pub position: Position,
    /// Why it cannot be applied.
    pub reason: String,
}

/// How far a projection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Which projection.
    pub projection: Projection,
    /// The last event that was applied or skipped; [`Position::START`] before the first.
    pub position: Position,
    /// The id of that event.
    pub event_id: Option<EventId>,
    /// What its rows were made by; see [`Projection::definition`].
    pub definition: String,
    /// How many events of retired types were skipped.
    pub retired: u64,
    /// The event that stands in its way.
    pub halted: Option<Halt>,
    /// How many positions the log's head was ahead, when this was read.
    pub lag_events: u64,
}

impl Checkpoint {
    /// An error if the rows were made by another definition than this build's.
    pub(crate) fn check_definition(&self, zone: Zone) -> Result<(), ProjectionError> {
        let own = self.projection.definition(zone);
        if self.definition == own {
            return Ok(());
        }
        Err(ProjectionError::OtherDefinition {
            projection: self.projection,
            stored: self.definition.clone(),
            own,
        })
    }

    /// An error if another event than the one it names stands at its place in the log.
    pub(crate) fn check_event(&self, tx: &Transaction<'_>) -> Result<(), ProjectionError> {
        let Some(stored) = self.event_id.filter(|id| *id != UNREADABLE) else {
            return Ok(());
        };
        let found = event_at(tx, self.position)?;
        if found == Some(stored) {
            return Ok(());
        }
        Err(ProjectionError::OtherLog {
            projection: self.projection,
            position: self.position,
            stored,
            found,
        })
    }
}

/// Stands for the id of an event that was skipped and whose id cannot be read: no event has it, since ours are of version 5.
pub(crate) const UNREADABLE: EventId = EventId::new(Uuid::nil());

/// The id of the event at `position`, if one is there and can be read.
pub(crate) fn event_at(
    tx: &Transaction<'_>,
    position: Position,
) -> Result<Option<EventId>, StoreError> {
    match tx.read_event(position) {
        Ok(found) => Ok(found.map(|event| event.id)),
        Err(StoreError::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

const COLUMNS: &str =
    "projection, position, event_id, definition, retired, halted_at, halted_reason";

/// Adds the checkpoints that are not there yet, at the start of the log.
pub(crate) fn create_missing(tx: &Transaction<'_>, zone: Zone) -> Result<(), StoreError> {
    let sql = "INSERT INTO checkpoints (projection, position, definition, retired)
        VALUES (?1, 0, ?2, 0) ON CONFLICT (projection) DO NOTHING";
    for projection in Projection::ALL {
        let values = values![projection.name(), projection.definition(zone)];
        tx.execute(sql, values)?;
    }
    Ok(())
}

/// Every checkpoint, in the order of [`Projection::ALL`]; those of projections that this build does not know are left out.
pub(crate) fn read_all(tx: &Transaction<'_>) -> Result<Vec<Checkpoint>, StoreError> {
    let head = tx.read_head()?;
    let read = |projection| read_at(tx, projection, head).transpose();
    Projection::ALL.into_iter().filter_map(read).collect()
}

/// The checkpoint of rows that this build may compare and repair: an error if they are of another definition or another log.
pub fn read_checked(
    tx: &Transaction<'_>,
    projection: Projection,
    zone: Zone,
) -> Result<Checkpoint, ProjectionError> {
    let checkpoint = read(tx, projection)?
        .ok_or_else(|| damaged("checkpoints", format_args!("{projection} has no row")))?;
    checkpoint.check_definition(zone)?;
    checkpoint.check_event(tx)?;
    Ok(checkpoint)
}

/// One checkpoint, with its lag.
pub(crate) fn read(
    tx: &Transaction<'_>,
    projection: Projection,
) -> Result<Option<Checkpoint>, StoreError> {
    read_at(tx, projection, tx.read_head()?)
}

fn read_at(
    tx: &Transaction<'_>,
    projection: Projection,
    head: Position,
) -> Result<Option<Checkpoint>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM checkpoints WHERE projection = ?1");
    tx.row(&sql, values![projection.name()], |row| {
        checkpoint_of(row, projection, head)
    })
}

fn checkpoint_of(
    row: &Row<'_>,
    projection: Projection,
    head: Position,
) -> Result<Checkpoint, StoreError> {
    let wrong = |why: &str| damaged("checkpoints", format_args!("{projection} has {why}"));
    let position: i64 = row.get(1)?;
    let event_id: Option<String> = row.get(2)?;
    let event_id = event_id
        .map(|id| Uuid::from_str(&id).map(EventId::new))
        .transpose()
        .map_err(|_| wrong("an event id that is none"))?;
    let retired: i64 = row.get(4)?;
    let halted_at: Option<i64> = row.get(5)?;
    let reason: Option<String> = row.get(6)?;
    let lag_events = head.get().saturating_sub(position);
    Ok(Checkpoint {
        projection,
        position: Position::new(position),
        event_id,
        definition: row.get(3)?,
        retired: u64::try_from(retired).map_err(|_| wrong("a negative count"))?,
        halted: halted_at.zip(reason).map(|(position, reason)| Halt {
            position: Position::new(position),
            reason,
        }),
        lag_events: u64::try_from(lag_events).unwrap_or(0),
    })
}

/// Puts the checkpoint back to the start of the log, with the definition of this build: the caller has emptied the table.
pub(crate) fn restart(
    tx: &Transaction<'_>,
    projection: Projection,
    zone: Zone,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO checkpoints (projection, position, definition, retired)
        VALUES (?1, 0, ?2, 0) ON CONFLICT (projection) DO UPDATE SET position = 0, event_id = NULL,
        definition = excluded.definition, retired = 0, halted_at = NULL, halted_reason = NULL";
    let values = values![projection.name(), projection.definition(zone)];
    tx.execute(sql, values)?;
    Ok(())
}

/// Where a batch leaves its projection.
pub(crate) struct Step<'a> {
    /// The last event that was applied or skipped; none if the batch got past no event.
    pub(crate) to: Option<(Position, EventId)>,
    /// How many events of retired types it skipped.
    pub(crate) retired: u64,
    /// The event that it could not get past.
    pub(crate) halted: Option<&'a Halt>,
}

/// Moves the checkpoint on from `from`. Gives false, and leaves it alone, if it is not there any more.
pub(crate) fn advance(
    tx: &Transaction<'_>,
    from: &Checkpoint,
    step: &Step<'_>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE checkpoints SET position = ?3, event_id = ?4, retired = ?5,
        halted_at = ?6, halted_reason = ?7
        WHERE projection = ?1 AND position = ?2 AND definition = ?8";
    let (position, event_id) = match step.to {
        Some((position, id)) => (position, Some(id)),
        None => (from.position, from.event_id),
    };
    let retired = from.retired.saturating_add(step.retired);
    let values = values![
        from.projection.name(),
        from.position.get(),
        position.get(),
        event_id.map(|id| id.to_string()),
        i64::try_from(retired).unwrap_or(i64::MAX),
        step.halted.map(|halt| halt.position.get()),
        step.halted.map(|halt| &halt.reason),
        &from.definition,
    ];
    Ok(tx.execute(sql, values)? == 1)
}
