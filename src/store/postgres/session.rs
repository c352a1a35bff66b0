//! One connection, in a transaction, for work that is not async: a thread that may block waits for each answer.
//!
//! Statements are written `?1`, `?2`, … as everywhere in [`crate::sql`], and prepared once for each connection. Every wait ends: an answer that
//! does not come within the bound, or a connection that is lost, makes the session useless, and whoever owns it throws the connection away.
//!
//! A statement that fails ends what can be kept: the server carries out nothing behind it. So work that passes over such an error does not commit either: the
//! session remembers the first one, rolls back, and answers with it.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, AssertSqlSafe, Executor, PgConnection, Postgres, Row as _};
use tokio::runtime::Handle;

use super::error::{self, answered_within, is_lost, store_error};
use super::pool::{Lent, commit_error};
use crate::sql::Value;
use crate::store::StoreError;

/// How many rows one statement inserts: few sizes, so that few statements are prepared.
const ROWS_AT_ONCE: [usize; 4] = [512, 64, 8, 1];

/// How many parameters a statement may have: the protocol counts them in 16 bits.
const MAX_PARAMETERS: usize = 65_535;

/// A connection that a thread drives.
pub(crate) struct Session {
    runtime: Handle,
    connection: RefCell<Lent>,
    /// How long an answer may take.
    patience: Duration,
    is_lost: Cell<bool>,
    /// The error of the first statement that failed.
    failed: RefCell<Option<StoreError>>,
    /// The number of the lock that orders appends.
    log_lock: i64,
}

impl Session {
    pub(super) const fn new(
        runtime: Handle,
        connection: Lent,
        (patience, log_lock): (Duration, i64),
    ) -> Self {
        Self {
            runtime,
            connection: RefCell::new(connection),
            patience,
            is_lost: Cell::new(false),
            failed: RefCell::new(None),
            log_lock,
        }
    }

    /// Gives the connection back to where it came from; one that was lost is closed. Says if it was.
    pub(super) fn give_back(self) -> bool {
        let was_lost = self.is_lost.get();
        let connection = self.connection.into_inner();
        if was_lost {
            drop(connection);
        } else {
            connection.give_back();
        }
        was_lost
    }

    /// Commits. An error after which it may be stored is [`StoreError::Unconfirmed`]; after a statement that failed nothing is, and its error is given.
    pub(crate) fn commit(&self) -> Result<(), StoreError> {
        if let Some(error) = self.failed.take() {
            // What the work says that it did was not done, however this ends.
            let _ = self.roll_back();
            return Err(error);
        }
        let patience = self.patience;
        let ended = self.ask(async |connection| error::commit(connection, patience).await)?;
        ended.map_err(|error| {
            self.is_lost.set(true);
            commit_error(&error)
        })
    }

    /// Rolls back.
    pub(crate) fn roll_back(&self) -> Result<(), StoreError> {
        let ended = self.ask(async |connection| connection.execute("ROLLBACK").await)?;
        ended.map(|_| ()).map_err(|error| {
            self.is_lost.set(true);
            store_error(&error)
        })
    }

    /// Waits for what `ask` says on the connection. The outer error says that it was not asked.
    fn ask<T>(
        &self,
        ask: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<Result<T, sqlx::Error>, StoreError> {
        if self.is_lost.get() {
            let cause = "the connection was lost".to_owned();
            return Err(StoreError::Unavailable { cause });
        }
        let mut connection = self.connection.borrow_mut();
        let answer = async { answered_within(self.patience, ask(&mut connection)).await };
        Ok(self.runtime.block_on(answer))
    }

    /// As [`Self::ask`], for anything but the end of the transaction.
    fn wait<T>(
        &self,
        ask: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        self.ask(ask)?.map_err(|error| {
            self.is_lost.set(is_lost(&error));
            let error = store_error(&error);
            self.failed
                .borrow_mut()
                .get_or_insert_with(|| error.clone());
            error
        })
    }

    /// Runs a statement that gives no rows. Gives how many it changed.
    pub(crate) fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        let query = sqlx::query_with(AssertSqlSafe(numbered(sql)), bound(values)?);
        let done = self.wait(async |connection| connection.execute(query).await)?;
        Ok(done.rows_affected())
    }

    /// Runs statements without values.
    pub(crate) fn execute_batch(&self, sql: &str) -> Result<(), StoreError> {
        let script = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        self.wait(async |connection| connection.execute(script).await)
            .map(|_| ())
    }

    /// Runs an `INSERT` with one tuple of values for every row of `rows`, many of them in one statement.
    pub(crate) fn execute_many(
        &self,
        sql: &str,
        rows: &[Vec<Value<'_>>],
    ) -> Result<(), StoreError> {
        let (head, tuple, tail) = parts(sql)?;
        let width = tuple.len();
        let mut rest = rows;
        for size in ROWS_AT_ONCE {
            if size * width > MAX_PARAMETERS {
                continue;
            }
            while rest.len() >= size {
                let (now, later) = rest.split_at(size);
                let mut sql = head.to_owned();
                for row in 0..size {
                    sql.push_str(if row == 0 { "(" } else { ", (" });
                    for (place, number) in tuple.iter().enumerate() {
                        let comma = if place == 0 { "" } else { ", " };
                        let _ = write!(sql, "{comma}${}", row * width + number);
                    }
                    sql.push(')');
                }
                sql.push_str(tail);
                let mut arguments = PgArguments::default();
                for value in now.iter().flatten() {
                    bind(&mut arguments, value)?;
                }
                let query = sqlx::query_with::<Postgres, _>(AssertSqlSafe(sql), arguments);
                self.wait(async |connection| connection.execute(query).await)?;
                rest = later;
            }
        }
        Ok(())
    }

    /// The rows of a query.
    pub(crate) fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<PgRow>, StoreError> {
        let query = sqlx::query_with(AssertSqlSafe(numbered(sql)), bound(values)?);
        self.wait(async |connection| connection.fetch_all(query).await)
    }

    /// The rows of a query whose only value is a list of texts, `$1`.
    pub(crate) fn rows_of(
        &self,
        sql: &'static str,
        texts: &[&str],
    ) -> Result<Vec<PgRow>, StoreError> {
        let query = sqlx::query(sql).bind(texts);
        self.wait(async |connection| connection.fetch_all(query).await)
    }

    /// Keeps appends out until the transaction ends.
    pub(crate) fn hold_log(&self) -> Result<(), StoreError> {
        let query = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(self.log_lock);
        self.wait(async |connection| connection.execute(query).await)
            .map(|_| ())
    }
}

/// PostgreSQL's way of writing `?1`.
fn numbered(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut characters = sql.chars().peekable();
    while let Some(character) = characters.next() {
        let is_number = characters.peek().is_some_and(char::is_ascii_digit);
        text.push(if character == '?' && is_number {
            '$'
        } else {
            character
        });
    }
    text
}

/// An `INSERT` as what stands before its tuple of values, the numbers in that, and what stands behind it.
fn parts(sql: &str) -> Result<(&str, Vec<usize>, &str), StoreError> {
    let wrong = || StoreError::Damaged {
        why: format!("no tuple of values in {sql}"),
    };
    let values = sql.find("VALUES").ok_or_else(wrong)?;
    let open = values + sql[values..].find('(').ok_or_else(wrong)?;
    let close = open + sql[open..].find(')').ok_or_else(wrong)?;
    let numbers = sql[open + 1..close].split(',').map(|value| {
        let number = value.trim().strip_prefix('?').and_then(|n| n.parse().ok());
        number.ok_or_else(wrong)
    });
    let numbers = numbers.collect::<Result<_, _>>()?;
    Ok((&sql[..open], numbers, &sql[close + 1..]))
}

fn bound(values: &[Value<'_>]) -> Result<PgArguments, StoreError> {
    let mut arguments = PgArguments::default();
    for value in values {
        bind(&mut arguments, value)?;
    }
    Ok(arguments)
}

fn bind(arguments: &mut PgArguments, value: &Value<'_>) -> Result<(), StoreError> {
    let bound = match value {
        Value::Integer(number) => arguments.add(*number),
        Value::Text(text) => arguments.add(text.as_deref()),
        Value::Bytes(bytes) => arguments.add(bytes.as_deref()),
        Value::Real(number) => arguments.add(*number),
    };
    bound.map_err(|error| StoreError::Damaged {
        why: format!("a value that cannot be sent: {error}"),
    })
}

/// An integer of whatever width the server gives it.
pub(crate) fn integer(row: &PgRow, index: usize) -> Result<i64, StoreError> {
    use sqlx::{Column as _, TypeInfo as _};
    let columns = row.columns();
    let name = columns.get(index).map(|column| column.type_info().name());
    let number = match name {
        Some("INT4") => row.try_get::<i32, _>(index).map(i64::from),
        Some("INT2") => row.try_get::<i16, _>(index).map(i64::from),
        _ => row.try_get(index),
    };
    number.map_err(|error| store_error(&error))
}

/// A column of a type that only one width of it has.
pub(crate) fn plain<'r, T>(row: &'r PgRow, index: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    row.try_get(index).map_err(|error| store_error(&error))
}

/// Whether the column at `index` is NULL.
pub(crate) fn is_null(row: &PgRow, index: usize) -> Result<bool, StoreError> {
    use sqlx::ValueRef as _;
    let value = row.try_get_raw(index);
    value
        .map(|value| value.is_null())
        .map_err(|error| store_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_as_the_server_has_it() {
        let sql = "SELECT a ? b FROM t WHERE c = ?1 AND d = ?12";
        assert_eq!(
            numbered(sql),
            "SELECT a ? b FROM t WHERE c = $1 AND d = $12"
        );
    }

    #[test]
    fn an_insert_is_taken_apart_at_its_tuple() {
        let sql = "INSERT INTO t (a, b) VALUES (?2, ?1) ON CONFLICT (a) DO NOTHING";
        let expected = (
            "INSERT INTO t (a, b) VALUES ",
            vec![2, 1],
            " ON CONFLICT (a) DO NOTHING",
        );
        assert_eq!(parts(sql).unwrap(), expected);
        for wrong in [
            "INSERT INTO t DEFAULT VALUES",
            "INSERT INTO t VALUES (1)",
            "SELECT 1",
        ] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }
}
