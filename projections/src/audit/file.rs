//! The database itself: its pages and indexes agree, and its tables and indexes are as they were made.
//!
//! The guard of every append is an index. One that lacks an entry lets a job be charged twice, and no row would show it before.
//! SQLite is asked to read its file through. PostgreSQL checks pages by itself, if it was set up to, and has no such question: there every
//! table and index must be there, and no index may be one that a failed build left behind.

use recoup::sql::Transaction;
use recoup::store::StoreError;
use recoup::store::sqlite::{ledger_schema_faults, schema_faults};
use recoup::values;

use super::report::{Area, Report};
use crate::catalog::{COMPONENT, MIGRATIONS};

/// How many faults of pages SQLite is asked for.
const MAX_PAGE_FAULTS: u32 = 100;

pub(super) fn check(tx: &Transaction<'_>, report: &mut Report) -> Result<(), StoreError> {
    let Some(connection) = tx.sqlite() else {
        return check_relations(tx, report);
    };
    let made = ledger_schema_faults(connection)?;
    let made_since = schema_faults(connection, COMPONENT, MIGRATIONS.sqlite)?;
    for fault in made.into_iter().chain(made_since) {
        report.wrong(Area::File, "schema", fault);
    }
    let sql = format!("PRAGMA integrity_check({MAX_PAGE_FAULTS})");
    for said in tx.rows(&sql, values![], |row| row.get::<String>(0))? {
        report.count(Area::File, 1);
        if said != "ok" {
            report.wrong(Area::File, "pages", said);
        }
    }
    Ok(())
}

/// What a PostgreSQL schema must have: what our migrations made, and no index that is not kept up to date, whosever it is.
fn check_relations(tx: &Transaction<'_>, report: &mut Report) -> Result<(), StoreError> {
    report.count(Area::File, 1);
    for fault in tx.guard_faults()? {
        report.wrong(Area::File, "schema", fault);
    }
    // Before projections were first opened there are none of ours.
    let sql = "SELECT CAST(max(number) AS BIGINT) FROM migrations WHERE component = ?1";
    let made = match tx.has_table("migrations")? {
        true => tx.row(sql, values![COMPONENT], |row| row.get::<Option<i64>>(0))?,
        false => None,
    };
    let made = made.flatten().unwrap_or(0);
    let migrations = MIGRATIONS.postgres.iter();
    let run = migrations.filter(|migration| i64::from(migration.number) <= made);
    for (kind, name) in run.flat_map(|migration| made_by(migration.sql)) {
        report.count(Area::File, 1);
        // By the schema's name: another one on the search path may have a relation of this name.
        let sql = "SELECT 1 WHERE to_regclass(quote_ident(current_schema()) || '.' || quote_ident(?1)) IS NOT NULL";
        if tx.row(sql, values![name], |_| Ok(()))?.is_none() {
            report.wrong(Area::File, "schema", format!("{kind} {name} is missing"));
        }
    }
    let sql = "SELECT indexes.relname::text FROM pg_catalog.pg_index
        JOIN pg_catalog.pg_class AS indexes ON indexes.oid = pg_index.indexrelid
        JOIN pg_catalog.pg_namespace AS spaces ON spaces.oid = indexes.relnamespace
        WHERE spaces.nspname = current_schema()
        AND NOT (pg_index.indisvalid AND pg_index.indisready AND pg_index.indislive)
        ORDER BY 1";
    for name in tx.rows(sql, values![], |row| row.get::<String>(0))? {
        let fault = format!("index {name} is not valid: rows may be missing from it");
        report.wrong(Area::File, "schema", fault);
    }
    Ok(())
}

/// The tables and indexes that a migration makes: what each is, and its name.
fn made_by(sql: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    sql.lines().filter_map(|line| {
        let made = line.strip_prefix("CREATE ")?;
        let made = made.strip_prefix("UNIQUE ").unwrap_or(made);
        let (kind, name) = [("table", "TABLE "), ("index", "INDEX ")]
            .into_iter()
            .find_map(|(kind, word)| Some((kind, made.strip_prefix(word)?)))?;
        let name = name.split([' ', '(']).next()?;
        Some((kind, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of both databases: what one has, the other has.
    #[test]
    fn every_table_and_index_is_looked_for() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let mut found = Vec::new();
        for (ours, theirs) in MIGRATIONS.sqlite.iter().zip(MIGRATIONS.postgres) {
            assert_eq!((ours.number, ours.name), (theirs.number, theirs.name));
            connection.execute_batch(ours.sql).unwrap();
            found.extend(made_by(theirs.sql));
        }
        assert_eq!(MIGRATIONS.sqlite.len(), MIGRATIONS.postgres.len());
        let tx = Transaction::on_sqlite(&connection);
        // Those with a name of SQLite's come with a key.
        let sql = "SELECT type, name FROM sqlite_schema
            WHERE type IN ('table', 'index') AND name NOT LIKE 'sqlite%'";
        let mut made: Vec<(String, String)> = tx
            .rows(sql, values![], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        made.sort_unstable();
        found.sort_unstable();
        let made = made
            .iter()
            .map(|(kind, name)| (kind.as_str(), name.as_str()));
        assert_eq!(found, made.collect::<Vec<_>>());
    }
}
