//! The tables beside the log: account figures as far as they follow it, and the credit that is taken for appends on their way.
//!
//! **Figures** are folded from the log, a page at a time, in one transaction with everything that depends on how far they are: the place itself, the last
//! revision of each job's stream, the hours that begin in the page ([`hours`]), and the reservations that it closes ([`reservations`]). A page names the place that it begins at, so of
//! two processes that fold it one does.
//!
//! Lock rule: everything that writes here runs under the lock that orders appends where an SQL store has them ([`Database::write_figures`]).

mod check;
mod hours;
mod reservations;

use std::collections::BTreeMap;

use super::read::Place;
use crate::account::{Admission, Refusal};
use crate::clock::Timestamp;
use crate::codec::{Decoded, Event, StreamName, decode};
use crate::ids::Reason;
use crate::sql::log::stored_u64;
use crate::sql::{Database, Dialect, Migrations, Transaction};
use crate::store::{Migration, OpenError, Position, RecordedEvent, Revision, StoreError};

pub(crate) use check::Check;
pub(crate) use hours::{read_scan_begin, read_scan_end};
pub(super) use reservations::{
    Old, Reservation, Reserved, Wanted, add_reserved, read_old, reserve,
};
pub(crate) use reservations::{read_account, read_reserved};

/// What the migrations are recorded under.
const COMPONENT: &str = "kurrentdb";

const MIGRATIONS: Migrations = Migrations {
    sqlite: &[Migration {
        number: 1,
        name: "figures",
        sql: include_str!("migrations/sqlite/0001_figures.sql"),
    }],
    postgres: &[Migration {
        number: 1,
        name: "figures",
        sql: include_str!("migrations/postgres/0001_figures.sql"),
    }],
};

/// A process that has had this database open as a ledger since before it was bound appends nothing here.
const CLOSE_OWN_LOG_ON_SQLITE: &str = "CREATE TRIGGER appends_are_elsewhere BEFORE INSERT ON appends BEGIN
    SELECT RAISE(ABORT, 'this database has the account figures of a log in KurrentDB, and no log of its own'); END";
const CLOSE_OWN_LOG_ON_POSTGRES: &str = "CREATE FUNCTION refuse_append() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'this database has the account figures of a log in KurrentDB, and no log of its own'
    USING ERRCODE = 'read_only_sql_transaction'; END; $$;
    CREATE TRIGGER appends_are_elsewhere BEFORE INSERT ON appends FOR EACH STATEMENT EXECUTE FUNCTION refuse_append()";

/// The least that an event takes in the server's log, in bytes of which its positions are numbers: our metadata alone is longer.
pub(crate) const LEAST_BYTES: i64 = 128;

/// Which log the tables belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) ledger: String,
    pub(super) prefix: String,
}

/// How far the figures are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Followed {
    pub(crate) position: Position,
    pub(super) event_id: Option<String>,
    hour: i64,
    pub(crate) halted: Option<(Position, String)>,
}

fn damaged(table: &str, why: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged {
        why: format!("table {table}: {why}"),
    }
}

/// Makes the tables, or brings them up to date, and binds them to the log; refuses a database that is another log's or has one of its own.
pub(super) async fn bind(database: &Database, owner: Owner) -> Result<(), OpenError> {
    let path = database.place_name();
    let foreign = move |why: &str| OpenError::Foreign {
        path: path.clone(),
        why: why.to_owned(),
    };
    let own_log =
        || foreign("it has a log of its own; a log in KurrentDB needs another database beside it");
    // Before anything is made there.
    if database.glance(has_a_log).await? {
        return Err(own_log());
    }
    database.migrate(COMPONENT, MIGRATIONS).await?;
    let (ledger, prefix) = (owner.ledger.clone(), owner.prefix.clone());
    let bound = database
        .write_figures(move |tx| {
            // And once more under the lock that appends take.
            if has_a_log(tx)? {
                return Ok(None);
            }
            let sql = "INSERT INTO followed_log (one, ledger, prefix, position, hour)
                VALUES (1, ?1, ?2, 0, 0) ON CONFLICT (one) DO NOTHING";
            if tx.execute(sql, crate::values![&ledger, &prefix])? > 0 {
                tx.execute_batch(match tx.dialect() {
                    Dialect::Sqlite => CLOSE_OWN_LOG_ON_SQLITE,
                    Dialect::Postgres => CLOSE_OWN_LOG_ON_POSTGRES,
                })?;
            }
            read_owner(tx)
        })
        .await?;
    match bound {
        Some(bound) if bound == owner => Ok(()),
        Some(_) => Err(foreign(
            "it has the account figures of another log in KurrentDB",
        )),
        None => Err(own_log()),
    }
}

fn has_a_log(tx: &Transaction<'_>) -> Result<bool, StoreError> {
    let found = tx.row("SELECT 1 FROM appends LIMIT 1", &[], |_| Ok(()))?;
    Ok(found.is_some())
}

fn read_owner(tx: &Transaction<'_>) -> Result<Option<Owner>, StoreError> {
    tx.row("SELECT ledger, prefix FROM followed_log", &[], |row| {
        Ok(Owner {
            ledger: row.get(0)?,
            prefix: row.get(1)?,
        })
    })
}

/// How far the figures are.
pub(crate) fn read_state(tx: &Transaction<'_>) -> Result<Followed, StoreError> {
    let sql = "SELECT position, event_id, hour, halted_at, halted_reason FROM followed_log";
    let found = tx.row(sql, &[], |row| {
        let halted_at: Option<i64> = row.get(3)?;
        let reason: Option<String> = row.get(4)?;
        Ok(Followed {
            position: Position::new(row.get(0)?),
            event_id: row.get(1)?,
            hour: row.get(2)?,
            halted: halted_at.map(Position::new).zip(reason),
        })
    })?;
    found.ok_or_else(|| damaged("followed_log", "it has no row"))
}

/// The last event that the figures have.
pub(crate) fn read_followed(tx: &Transaction<'_>) -> Result<Position, StoreError> {
    Ok(read_state(tx)?.position)
}

/// Where a person had the figures skip an event, and why: their sums lack it.
pub(super) fn skipped(tx: &Transaction<'_>) -> Result<Vec<(Position, String)>, StoreError> {
    let sql = "SELECT position, reason, decided_by FROM followed_skips ORDER BY position";
    tx.rows(sql, &[], |row| {
        let (reason, by): (String, String) = (row.get(1)?, row.get(2)?);
        Ok((
            Position::new(row.get(0)?),
            format!("account figures skip it: {reason} ({by})"),
        ))
    })
}

/// Whether a person had the figures skip the event at `position`.
pub(crate) fn is_skipped(tx: &Transaction<'_>, position: Position) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM followed_skips WHERE position = ?1";
    let found = tx.row(sql, crate::values![position.get()], |_| Ok(()))?;
    Ok(found.is_some())
}

/// The last revision of a job's stream that is folded.
fn followed_revision(
    tx: &Transaction<'_>,
    stream: &StreamName,
) -> Result<Option<Revision>, StoreError> {
    let sql = "SELECT revision FROM followed_streams WHERE stream = ?1";
    tx.row(sql, crate::values![stream.as_str()], |row| {
        Ok(Revision::new(row.get::<i64>(0)?.unsigned_abs()))
    })
}

/// Says whether a posting that spends nothing may pass.
pub(super) fn admit_post(
    tx: &Transaction<'_>,
    admission: &Admission,
) -> Result<Result<(), Refusal>, StoreError> {
    Ok(tx.read_account_row(admission.account())?.admit(admission))
}

/// Folds a page that begins behind `from`, if that is where the figures are; says where they are then.
pub(super) fn fold(
    tx: &Transaction<'_>,
    from: Position,
    page: &[RecordedEvent],
    halt: Option<&(Position, String)>,
) -> Result<Followed, StoreError> {
    let state = read_state(tx)?;
    if state.position != from {
        return Ok(state);
    }
    let mut events: Vec<(Position, Event)> = Vec::with_capacity(page.len());
    for recorded in page {
        match decode(recorded) {
            Ok(Decoded::Event(event)) => events.push((recorded.position, event)),
            Ok(Decoded::Retired) => {}
            Err(error) => {
                return Err(StoreError::Corrupt {
                    position: recorded.position,
                    why: error.to_string(),
                });
            }
        }
    }
    let events = events.iter().map(|(position, event)| (*position, event));
    tx.fold_accounts(events)?
        .map_err(|(position, overflow)| StoreError::Corrupt {
            position,
            why: overflow.to_string(),
        })?;
    let places = page
        .iter()
        .map(|event| (event.stream.clone(), event.revision));
    pass(tx, places)?;
    let instants = page.iter().map(|event| (event.position, event.posted_at));
    let hour = hours::note(tx, &state, instants)?;
    let last = page.last();
    let next = Followed {
        position: last.map_or(state.position, |last| last.position),
        event_id: last.map_or(state.event_id, |last| Some(last.id.to_string())),
        hour,
        halted: halt.cloned(),
    };
    write_state(tx, &next)?;
    Ok(next)
}

fn write_state(tx: &Transaction<'_>, state: &Followed) -> Result<(), StoreError> {
    let sql = "UPDATE followed_log SET position = ?1, event_id = ?2, hour = ?3,
        halted_at = ?4, halted_reason = ?5";
    let halted = state.halted.as_ref();
    let values = crate::values![
        state.position.get(),
        state.event_id.as_ref(),
        state.hour,
        halted.map(|(position, _)| position.get()),
        halted.map(|(_, why)| why),
    ];
    tx.execute(sql, values).map(|_| ())
}

/// The events at these places are folded: closes the reservations that waited for them.
fn pass(
    tx: &Transaction<'_>,
    places: impl Iterator<Item = (StreamName, Revision)>,
) -> Result<(), StoreError> {
    let mut last: BTreeMap<StreamName, Revision> = BTreeMap::new();
    for (stream, revision) in places.filter(|(stream, _)| stream.is_job()) {
        let known = last.entry(stream).or_insert(revision);
        *known = revision.max(*known);
    }
    let rows: Vec<_> = last
        .iter()
        .map(|(stream, revision)| vec![stream.as_str().into(), stored_u64(revision.get()).into()])
        .collect();
    let sql = "INSERT INTO followed_streams (stream, revision) VALUES (?1, ?2)
        ON CONFLICT (stream) DO UPDATE SET revision = excluded.revision";
    tx.execute_many(sql, &rows)?;
    let sql = "DELETE FROM reservations WHERE revision <= (
        SELECT revision FROM followed_streams WHERE followed_streams.stream = reservations.stream)";
    tx.execute(sql, &[]).map(|_| ())
}

/// A person's decision that the figures go on without an event.
#[derive(Debug, Clone)]
pub(super) struct Skip {
    pub(super) position: Position,
    pub(super) reason: Reason,
    pub(super) by: String,
    pub(super) at: Timestamp,
    /// As far as the server tells of it.
    pub(super) event: Option<Place>,
}

/// Moves the figures past the event that they are halted at. False if they are not halted there.
pub(super) fn skip(tx: &Transaction<'_>, skip: &Skip) -> Result<bool, StoreError> {
    let state = read_state(tx)?;
    let Some((position, found)) = state.halted.clone() else {
        return Ok(false);
    };
    if position != skip.position {
        return Ok(false);
    }
    let sql = "INSERT INTO followed_skips (position, found, reason, decided_by, decided_at)
        VALUES (?1, ?2, ?3, ?4, ?5)";
    let values = crate::values![
        position.get(),
        &found,
        skip.reason.as_str(),
        &skip.by,
        skip.at.as_micros(),
    ];
    tx.execute(sql, values)?;
    if let Some(event) = &skip.event {
        pass(tx, std::iter::once((event.stream.clone(), event.revision)))?;
    }
    let instant = skip.event.as_ref().and_then(|event| event.posted_at);
    let instants = instant.into_iter().map(|posted_at| (position, posted_at));
    let hour = hours::note(tx, &state, instants)?;
    let id = skip.event.as_ref().map(|event| event.id.to_string());
    let next = Followed {
        position,
        event_id: Some(id.unwrap_or_else(|| uuid::Uuid::nil().to_string())),
        hour,
        halted: None,
    };
    write_state(tx, &next)?;
    Ok(true)
}
