//! Whether the tables and indexes of a file are those that its migrations make.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::error::store_error;
use crate::sql::Transaction;
use crate::store::{Migration, StoreError};

/// What of `component`'s tables and indexes is not in the file as its migrations made it; nothing for a component that has none there.
pub fn schema_faults(
    connection: &Connection,
    component: &str,
    migrations: &[Migration],
) -> Result<Vec<String>, StoreError> {
    let known = migrations.last().map_or(0, |last| last.number);
    let newest = Transaction::on_sqlite(connection).newest_migration(component)?;
    let made = newest.min(known);
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
