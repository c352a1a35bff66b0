//! One way to read and write tables in a transaction, whatever database they are in.
//!
//! Projections, audits and rebuilds are written once, as functions on a [`Transaction`]: statements with `?1`, `?2`, … for their values, rows
//! read by index. Statements keep to what the databases have in common, where texts are ordered by their bytes and integers have 64 bits;
//! what they have not in common is a method here, such as the reads of the log ([`log`]), or differs by [`Dialect`] where it is used.
//!
//! [`Database`] gives transactions of three sorts:
//!
//! - [`Database::write`]: exclusive. Of all writing transactions of one ledger one runs at a time, in every process, and each sees everything
//!   that the ones before it committed. On SQLite that is the file's write lock, which appends take as well. On PostgreSQL it is a lock of its own, which
//!   appends do not take; a transaction that needs them to hold still takes theirs too ([`Transaction::hold_log`]).
//! - [`Database::snapshot`]: everything it reads is of one moment; may take long, delays no writer.
//! - [`Database::glance`]: the same, for milliseconds.
//!
//! The functions are synchronous. SQLite answers on the calling thread, and a round trip through an executor for each row would make it
//! ten times slower; to PostgreSQL a thread that may block waits for each answer. An error rolls everything back.

pub(crate) mod accounts;
mod database;
pub mod log;
mod opening;
#[cfg(feature = "kurrentdb")]
mod remote;
mod value;

pub use database::{Database, Migrations};
pub use value::{Column, Row, Value};

use crate::store::StoreError;
#[cfg(feature = "postgres")]
use crate::store::postgres::Session;

/// The values of a statement, in the order of their numbers: integers, floats, texts, bytes, and options of them.
#[macro_export]
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::sql::Value::from($value)),*]
    };
}

/// Whose SQL a transaction speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite's.
    Sqlite,
    /// PostgreSQL's.
    Postgres,
}

/// The guard of a ledger on PostgreSQL: how its index is made, if there is one.
const GUARD: &str =
    "SELECT CASE WHEN i.indisunique AND i.indisvalid AND i.indnatts = 2 AND i.indpred IS NULL
        THEN pg_catalog.pg_get_indexdef(i.indexrelid, 1, true) || ' ' || pg_catalog.pg_get_indexdef(i.indexrelid, 2, true)
        ELSE '' END
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema() AND c.relname = 'appends_stream_revision'";

/// What is wrong with a guard of which [`GUARD`] has found this.
fn guard_fault(found: Option<&str>) -> Option<&'static str> {
    match found {
        Some("stream revision") => None,
        Some(_) => Some("index appends_stream_revision is not as it was made"),
        None => Some("index appends_stream_revision is missing"),
    }
}

/// A transaction that is open: ended by whoever gave it.
pub struct Transaction<'c> {
    connection: Connection<'c>,
    /// The log, where it is not in this database.
    #[cfg(feature = "kurrentdb")]
    remote: Option<remote::Remote>,
}

#[derive(Clone, Copy)]
enum Connection<'c> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'c rusqlite::Connection),
    #[cfg(feature = "postgres")]
    Postgres(&'c Session),
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("dialect", &self.dialect())
            .finish()
    }
}

impl<'c> Transaction<'c> {
    /// Statements on a connection of SQLite's, in the transaction that it is in.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub const fn on_sqlite(connection: &'c rusqlite::Connection) -> Self {
        Self {
            connection: Connection::Sqlite(connection),
            #[cfg(feature = "kurrentdb")]
            remote: None,
        }
    }

    /// Statements in the transaction that a session is in.
    #[cfg(feature = "postgres")]
    pub(crate) const fn on_postgres(session: &'c Session) -> Self {
        Self {
            connection: Connection::Postgres(session),
            #[cfg(feature = "kurrentdb")]
            remote: None,
        }
    }

    /// The same transaction, whose log is `remote`.
    #[cfg(feature = "kurrentdb")]
    pub(crate) fn with_log(&self, remote: remote::Remote) -> Self {
        Self {
            connection: self.connection,
            remote: Some(remote),
        }
    }

    /// Ends the transaction of a session. For whoever has begun it.
    #[cfg(feature = "postgres")]
    pub(crate) fn end_postgres(&self, is_commit: bool) -> Result<(), StoreError> {
        match &self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(_) => Ok(()),
            Connection::Postgres(session) if is_commit => session.commit(),
            Connection::Postgres(session) => session.roll_back(),
        }
    }

    /// Whether the log is not in this database: its positions have holes, and its instants may go back a little.
    #[must_use]
    pub const fn is_beside_its_log(&self) -> bool {
        #[cfg(feature = "kurrentdb")]
        {
            self.remote.is_some()
        }
        #[cfg(not(feature = "kurrentdb"))]
        {
            false
        }
    }

    /// Whose SQL it speaks.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        match self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(_) => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => Dialect::Postgres,
        }
    }

    /// The connection, if it is SQLite's.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub const fn sqlite(&self) -> Option<&'c rusqlite::Connection> {
        match self.connection {
            Connection::Sqlite(connection) => Some(connection),
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => None,
        }
    }

    /// Runs a statement that gives no rows. Gives how many it changed.
    ///
    /// A row that breaks a constraint is [`StoreError::Damaged`]: another one stands where the rows before it leave no room for it.
    pub fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        match &self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(sql).map_err(table_error)?;
                let changed = statement
                    .execute(rusqlite::params_from_iter(values))
                    .map_err(table_error)?;
                Ok(changed as u64)
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => session.execute(sql, values),
        }
    }

    /// Runs statements without values.
    pub(crate) fn execute_batch(&self, sql: &str) -> Result<(), StoreError> {
        match &self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(connection) => connection
                .execute_batch(sql)
                .map_err(crate::store::sqlite::store_error),
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => session.execute_batch(sql),
        }
    }

    /// Runs one statement for many rows of values, in order: one call where the database makes that cheaper.
    ///
    /// The statement is an `INSERT` with one tuple of values, `VALUES (?1, ?2, …)`, in the order of their numbers; no two rows touch the same key.
    pub fn execute_many(&self, sql: &str, rows: &[Vec<Value<'_>>]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        match &self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(sql).map_err(table_error)?;
                for values in rows {
                    statement
                        .execute(rusqlite::params_from_iter(values))
                        .map_err(table_error)?;
                }
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => session.execute_many(sql, rows),
        }
    }

    /// The first row of a query, if it gives one.
    pub fn row<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match &self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(sql).map_err(table_error)?;
                let mut rows = statement
                    .query(rusqlite::params_from_iter(values))
                    .map_err(table_error)?;
                let row = rows.next().map_err(table_error)?;
                row.map(|row| read(&Row::of_sqlite(row))).transpose()
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => {
                let rows = session.rows(sql, values)?;
                let row = rows.first();
                row.map(|row| read(&Row::of_postgres(row))).transpose()
            }
        }
    }

    /// Every row of a query. All of them are in memory at once: a long table is read in pages.
    pub fn rows<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut all = Vec::new();
        self.each(sql, values, |row| {
            all.push(read(row)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Gives every row of a query to `read`, as it comes.
    pub(crate) fn each(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&Row<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match &self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(sql).map_err(table_error)?;
                let mut rows = statement
                    .query(rusqlite::params_from_iter(values))
                    .map_err(table_error)?;
                while let Some(row) = rows.next().map_err(table_error)? {
                    read(&Row::of_sqlite(row))?;
                }
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => {
                let rows = session.rows(sql, values)?;
                rows.iter().try_for_each(|row| read(&Row::of_postgres(row)))
            }
        }
    }

    /// Whether the ledger has a table of that name: it has a component's only once they were made.
    pub fn has_table(&self, name: &str) -> Result<bool, StoreError> {
        let sql = match self.dialect() {
            Dialect::Sqlite => "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1",
            Dialect::Postgres => {
                "SELECT 1 FROM pg_catalog.pg_tables
                WHERE schemaname = current_schema() AND tablename = ?1"
            }
        };
        let found = self.row(sql, values![name], |_| Ok(()))?;
        Ok(found.is_some())
    }

    /// What of the ledger's guard is not there as it was made: on a server, the index that lets one of two appends at one revision in. The file of an embedded
    /// ledger is looked at as a whole ([`crate::store::sqlite::ledger_schema_faults`]).
    pub fn guard_faults(&self) -> Result<Vec<String>, StoreError> {
        if self.dialect() != Dialect::Postgres {
            return Ok(Vec::new());
        }
        let found = self.row(GUARD, &[], |row| row.get::<String>(0))?;
        let fault = guard_fault(found.as_deref());
        Ok(fault.map(str::to_owned).into_iter().collect())
    }

    /// Keeps appends out until this transaction ends, so that the log's head and the account figures stay what they are. For a writing transaction.
    pub fn hold_log(&self) -> Result<(), StoreError> {
        match &self.connection {
            // The file has one writer, and this is it.
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(_) => Ok(()),
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => session.hold_log(),
        }
    }
}

/// Maps an error of a statement on a table.
#[cfg(feature = "sqlite")]
fn table_error(error: rusqlite::Error) -> StoreError {
    let is_constraint =
        error.sqlite_error_code() == Some(rusqlite::ffi::ErrorCode::ConstraintViolation);
    if is_constraint && !crate::store::sqlite::is_of_trigger(&error) {
        return StoreError::Damaged {
            why: format!("a row does not fit its table: {error}"),
        };
    }
    crate::store::sqlite::store_error(error)
}
