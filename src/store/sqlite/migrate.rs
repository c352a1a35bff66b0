//! Numbered migrations: which have run is stored in the file, and one transaction runs the rest.
//!
//! Never edit one that has landed. Numbers and names are the same on every database. A file with a newer number than this build
//! has is refused.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::error::store_error;
use crate::store::{Migration, OpenError, StoreError};

/// The newest migration in the file; 0 for none.
fn found(connection: &Connection, component: &str) -> Result<u32, OpenError> {
    let exists = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migrations'";
    let exists = connection
        .query_row(exists, [], |_| Ok(()))
        .optional()
        .map_err(store_error)?;
    if exists.is_none() {
        return Ok(0);
    }
    let newest = "SELECT max(number) FROM migrations WHERE component = ?1";
    let newest: Option<u32> = connection
        .query_row(newest, [component], |row| row.get(0))
        .map_err(store_error)?;
    Ok(newest.unwrap_or(0))
}

/// Whether nothing is missing; an error if the file is newer than this build. Only reads.
pub(super) fn is_current(
    connection: &Connection,
    component: &'static str,
    migrations: &[Migration],
) -> Result<bool, OpenError> {
    let known = migrations.last().map_or(0, |last| last.number);
    let found = found(connection, component)?;
    if found > known {
        return Err(OpenError::NewerSchema {
            component: component.to_owned(),
            found,
            known,
        });
    }
    Ok(found == known)
}

/// Runs what is missing. The caller holds a write transaction.
pub(super) fn run(
    connection: &Connection,
    component: &'static str,
    migrations: &[Migration],
) -> Result<(), OpenError> {
    if is_current(connection, component, migrations)? {
        return Ok(());
    }
    let table = "CREATE TABLE IF NOT EXISTS migrations (
        component TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL,
        PRIMARY KEY (component, number)) STRICT, WITHOUT ROWID";
    connection.execute_batch(table).map_err(store_error)?;
    let found = found(connection, component)?;
    for migration in migrations
        .iter()
        .filter(|migration| migration.number > found)
    {
        connection
            .execute_batch(migration.sql)
            .map_err(store_error)?;
        connection
            .execute(
                "INSERT INTO migrations (component, number, name) VALUES (?1, ?2, ?3)",
                params![component, migration.number, migration.name],
            )
            .map_err(store_error)?;
    }
    Ok(())
}

/// What of `component`'s tables and indexes is not in the file as its migrations made it; nothing for a component that has none there.
pub fn schema_faults(
    connection: &Connection,
    component: &str,
    migrations: &[Migration],
) -> Result<Vec<String>, StoreError> {
    let known = migrations.last().map_or(0, |last| last.number);
    let made = match found(connection, component) {
        Ok(made) => made.min(known),
        Err(OpenError::Store(error)) => return Err(error),
        Err(error) => {
            return Err(StoreError::Damaged {
                why: error.to_string(),
            });
        }
    };
    let model = Connection::open_in_memory().map_err(store_error)?;
    for migration in migrations
        .iter()
        .filter(|migration| migration.number <= made)
    {
        model.execute_batch(migration.sql).map_err(store_error)?;
    }
    let (expected, found) = (schema(&model)?, schema(connection)?);
    let faults = expected
        .iter()
        .filter_map(|(name, sql)| match found.get(name) {
            None => Some(format!("{name} is missing")),
            Some(found) if found != sql => Some(format!("{name} is not as it was made")),
            Some(_) => None,
        });
    Ok(faults.collect())
}

/// Tables and indexes with the statements that made them.
fn schema(connection: &Connection) -> Result<BTreeMap<String, String>, StoreError> {
    let sql = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL";
    let mut statement = connection.prepare(sql).map_err(store_error)?;
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(store_error)?;
    rows.collect::<Result<_, _>>().map_err(store_error)
}
