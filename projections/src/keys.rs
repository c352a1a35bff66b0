//! Statements on the rows of many keys at once, for a database that is a round trip away.
//!
//! A statement has [`KEYS`] where its keys go, as in `… WHERE (account, day) IN (VALUES :keys)`: both databases look each of them up
//! by an index. A key that is given twice is one key.
//!
//! Bounds: [`MAX_KEYS`] keys a statement. Their number is rounded up to one of [`SIZES`] with the last key repeated, so that a connection
//! keeps few statements prepared.

use recoup::sql::{Row, Transaction, Value};
use recoup::store::StoreError;

/// Stands for the keys in a statement.
const KEYS: &str = ":keys";

/// How many keys a statement may name.
const SIZES: [usize; 4] = [1, 10, 100, MAX_KEYS];

/// The most keys that one statement names.
const MAX_KEYS: usize = 500;

/// The rows that a query gives for `keys`, in no order.
pub(crate) fn rows<T, const COLUMNS: usize>(
    tx: &Transaction<'_>,
    sql: &str,
    keys: &[[Value<'_>; COLUMNS]],
    mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut found = Vec::with_capacity(keys.len());
    for some in keys.chunks(MAX_KEYS) {
        let (sql, values) = statement(sql, some);
        found.append(&mut tx.rows(&sql, &values, &mut read)?);
    }
    Ok(found)
}

/// Runs a statement that gives no rows for `keys`.
pub(crate) fn execute<const COLUMNS: usize>(
    tx: &Transaction<'_>,
    sql: &str,
    keys: &[[Value<'_>; COLUMNS]],
) -> Result<(), StoreError> {
    for some in keys.chunks(MAX_KEYS) {
        let (sql, values) = statement(sql, some);
        tx.execute(&sql, &values)?;
    }
    Ok(())
}

/// A statement with places for at least as many keys as there are in `some`, and the values for all of them.
fn statement<'v, const COLUMNS: usize>(
    sql: &str,
    some: &[[Value<'v>; COLUMNS]],
) -> (String, Vec<Value<'v>>) {
    let size = SIZES.into_iter().find(|size| *size >= some.len());
    let size = size.unwrap_or(some.len());
    let tuple = |key: usize| {
        let numbers = (1..=COLUMNS).map(|column| format!("?{}", key * COLUMNS + column));
        format!("({})", numbers.collect::<Vec<_>>().join(", "))
    };
    let tuples: Vec<String> = (0..size).map(tuple).collect();
    let repeated = std::iter::repeat(some.last()).flatten();
    let keys = some.iter().chain(repeated).take(size);
    (
        sql.replacen(KEYS, &tuples.join(", "), 1),
        keys.flatten().cloned().collect(),
    )
}

#[cfg(test)]
mod tests {
    use recoup::values;
    use rusqlite::Connection;

    use super::*;

    /// Numbers around every size: all are found, and each of them once.
    #[test]
    fn every_key_is_found_whatever_their_number() {
        let connection = Connection::open_in_memory().unwrap();
        let tx = Transaction::on_sqlite(&connection);
        let table = "CREATE TABLE pairs (name TEXT, number INTEGER, PRIMARY KEY (name, number))";
        tx.execute(table, values![]).unwrap();
        let names: Vec<String> = (0..1_201).map(|number| format!("n{number}")).collect();
        for (name, number) in names.iter().zip(0_i64..) {
            let sql = "INSERT INTO pairs VALUES (?1, ?2)";
            tx.execute(sql, values![name, number]).unwrap();
        }
        let all: Vec<[Value<'_>; 2]> = names
            .iter()
            .zip(0_i64..)
            .map(|(name, number)| [name.into(), number.into()])
            .collect();
        let read = |keys: &[_]| {
            let sql = "SELECT number FROM pairs WHERE (name, number) IN (VALUES :keys)";
            let mut found = rows(&tx, sql, keys, |row| row.get::<i64>(0)).unwrap();
            found.sort_unstable();
            found
        };
        for count in [
            0_i64, 1, 2, 9, 10, 11, 100, 101, 499, 500, 501, 1_000, 1_201,
        ] {
            let some = &all[..usize::try_from(count).unwrap()];
            assert_eq!(read(some), (0..count).collect::<Vec<_>>());
        }
        let sql = "DELETE FROM pairs WHERE (name, number) IN (VALUES :keys)";
        execute(&tx, sql, &all[..1_200]).unwrap();
        assert_eq!(read(&all), [1_200]);
    }
}
