//! Ways out of a halt that a person decides on: skip the one event that stands in the way, or make the rows anew.
//!
//! Each is one transaction: it reads the checkpoint under the write lock, moves it, and records in `projection_skips` who decided it,
//! why and when. Nothing but that projection is touched. Runners in any process find the checkpoint moved and go on from there.
//!
//! A skip names the event that it means, so that of two people who skip one halt the second skips nothing. Rows that lack an
//! event are not what the log says: the audit names each skip until the projection is made anew. An append whose row is broken as
//! a whole has no single events; it is skipped as one.
//!
//! A reset empties the table and puts the checkpoint at the start of the log with this build's definition. That is also the way out
//! for rows of another definition or of another log. It is one transaction, which grows with the table: appends wait for
//! it, at most as long as a writer waits for anybody, and are told `Unavailable` after that.

use recoup::sql::{Row, Transaction};
use recoup::store::{EventId, StoreError};
use recoup::{Position, Reason, Timestamp, Zone, values};

use crate::catalog::Projection;
use crate::checkpoint::{self, Checkpoint, Halt, Step, UNREADABLE};
use crate::error::{ProjectionError, damaged};

/// Who decided on a way out, why and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Why; a skip needs one.
    pub reason: Option<Reason>,
    /// Who.
    pub by: String,
    /// When, by the store's clock.
    pub at: Timestamp,
}

/// An event that a projection was moved past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// Which projection.
    pub projection: Projection,
    /// The event.
    pub position: Position,
    /// The last event that was passed with it: another one only where a whole append cannot be read.
    pub last_position: Position,
    /// The event's id; none where it cannot be read.
    pub event_id: Option<EventId>,
    /// Why the event could not be applied.
    pub halted: String,
    /// Who skipped it, why and when.
    pub decision: Decision,
}

/// What became of the wish to skip an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum SkipOutcome {
    /// It was skipped.
    Skipped(Skip),
    /// Nothing was written: no event stands in the projection's way.
    NotHalted,
    /// Nothing was written: another event stands in its way.
    HaltedElsewhere(Halt),
}

/// A projection that was put back to the start of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// Which projection.
    pub projection: Projection,
    /// Where its checkpoint stood; none if it had none.
    pub position: Option<Position>,
    /// What its rows had been made by.
    pub definition: Option<String>,
    /// How many rows are gone.
    pub rows: u64,
}

/// Moves `projection` past the event at `position`, if that is what it is halted at.
pub(crate) fn skip(
    tx: &Transaction<'_>,
    zone: Zone,
    (projection, position): (Projection, Position),
    decision: Decision,
) -> Result<SkipOutcome, ProjectionError> {
    let checkpoint = stored(tx, projection)?;
    checkpoint.check_definition(zone)?;
    checkpoint.check_event(tx)?;
    let halt = match &checkpoint.halted {
        None => return Ok(SkipOutcome::NotHalted),
        Some(halt) if halt.position != position => {
            return Ok(SkipOutcome::HaltedElsewhere(halt.clone()));
        }
        Some(halt) => halt,
    };
    let event_id = checkpoint::event_at(tx, position)?;
    let last_position = match event_id {
        Some(_) => position,
        None => end_of_broken(tx, position)?,
    };
    if last_position <= checkpoint.position {
        let why = format_args!("{projection} is halted at an event before its checkpoint");
        return Err(damaged("checkpoints", why).into());
    }
    let skip = Skip {
        projection,
        position,
        last_position,
        event_id,
        halted: halt.reason.clone(),
        decision,
    };
    let step = Step {
        to: Some((last_position, event_id.unwrap_or(UNREADABLE))),
        retired: 0,
        halted: None,
    };
    if !checkpoint::advance(tx, &checkpoint, &step)? {
        let why = format_args!("{projection} moved under the write lock");
        return Err(damaged("checkpoints", why).into());
    }
    record_skip(tx, &skip)?;
    Ok(SkipOutcome::Skipped(skip))
}

fn stored(tx: &Transaction<'_>, projection: Projection) -> Result<Checkpoint, StoreError> {
    checkpoint::read(tx, projection)?
        .ok_or_else(|| damaged("checkpoints", format_args!("{projection} has no row")))
}

/// The last event of the append at `position`, none of which can be read.
fn end_of_broken(tx: &Transaction<'_>, position: Position) -> Result<Position, StoreError> {
    tx.read_end_of_broken(position)?
        .ok_or_else(|| damaged("appends", format_args!("no event at position {position}")))
}

/// Empties the projection's table and puts its checkpoint to the start of the log, as this build counts it.
pub(crate) fn reset(
    tx: &Transaction<'_>,
    zone: Zone,
    projection: Projection,
    decision: &Decision,
) -> Result<Reset, ProjectionError> {
    // Read as it is: what does not fit this build, or is no checkpoint of ours at all, is what a reset is for.
    let sql = "SELECT position, definition FROM checkpoints WHERE projection = ?1";
    let before: Option<(i64, String)> = tx.row(sql, values![projection.name()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let sql = format!("DELETE FROM {}", projection.name());
    let rows = tx.execute(&sql, values![])?;
    checkpoint::restart(tx, projection, zone)?;
    let (position, definition) = before.unzip();
    let values = values![
        projection.name(),
        position.unwrap_or(0),
        definition.as_deref().unwrap_or("none"),
        decision.reason.as_ref().map(Reason::as_str),
        &decision.by,
        decision.at.as_micros(),
    ];
    let sql = "INSERT INTO projection_skips
        (projection, kind, position, last_position, found, reason, decided_by, decided_at)
        VALUES (?1, 'reset', ?2, 0, ?3, ?4, ?5, ?6)";
    tx.execute(sql, values)?;
    Ok(Reset {
        projection,
        position: position.map(Position::new),
        definition,
        rows,
    })
}

fn record_skip(tx: &Transaction<'_>, skip: &Skip) -> Result<(), StoreError> {
    let sql = "INSERT INTO projection_skips (projection, kind, position, last_position, event_id,
        found, reason, decided_by, decided_at) VALUES (?1, 'skip', ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let values = values![
        skip.projection.name(),
        skip.position.get(),
        skip.last_position.get(),
        skip.event_id.map(|id| id.to_string()),
        &skip.halted,
        skip.decision.reason.as_ref().map(Reason::as_str),
        &skip.decision.by,
        skip.decision.at.as_micros(),
    ];
    tx.execute(sql, values)?;
    Ok(())
}

pub(crate) const RECORDS: &str = "SELECT kind, position, last_position, event_id, found, reason,
    decided_by, decided_at FROM projection_skips WHERE projection = ?1 ORDER BY id";

/// The skips that the rows of `projection` are marked by: those since it was last made anew, in order. People make them one by one, so
/// there are few.
pub(crate) fn in_force(
    tx: &Transaction<'_>,
    projection: Projection,
) -> Result<Vec<Skip>, StoreError> {
    let mut skips = Vec::new();
    for record in tx.rows(RECORDS, values![projection.name()], |row| {
        skip_of(row, projection)
    })? {
        match record {
            Some(skip) => skips.push(skip),
            None => skips.clear(),
        }
    }
    Ok(skips)
}

/// Whether rows of `projection` lack events that a person had it skip.
pub fn has_skips(tx: &Transaction<'_>, projection: Projection) -> Result<bool, StoreError> {
    Ok(!in_force(tx, projection)?.is_empty())
}

/// The skip that `row` records; none if it records a reset.
fn skip_of(row: &Row<'_>, projection: Projection) -> Result<Option<Skip>, StoreError> {
    let kind: String = row.get(0)?;
    if kind == "reset" {
        return Ok(None);
    }
    let wrong = |why: &str| damaged("projection_skips", format_args!("{projection} has {why}"));
    let id: Option<String> = row.get(3)?;
    let event_id = id
        .map(|id| id.parse().map(EventId::new))
        .transpose()
        .map_err(|_| wrong("an event id that is none"))?;
    let reason: Option<String> = row.get(5)?;
    let reason = reason
        .map(Reason::new)
        .transpose()
        .map_err(|_| wrong("a reason that is none"))?;
    Ok(Some(Skip {
        projection,
        position: Position::new(row.get(1)?),
        last_position: Position::new(row.get(2)?),
        event_id,
        halted: row.get(4)?,
        decision: Decision {
            reason,
            by: row.get(6)?,
            at: Timestamp::from_micros(row.get(7)?),
        },
    }))
}
