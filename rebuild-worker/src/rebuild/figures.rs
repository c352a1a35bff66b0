//! Account figures as rows: read for one account or in the order of accounts, shown as JSON, and written by a repair.
//!
//! The ledger's tables and the shadow's have one form and are read by the same statements. An account is its row of figures and its
//! months; months without that row are an account too, so that a row that is missing is seen. Nothing is computed here.

use std::collections::BTreeMap;

use recoup::sql::{Row, Transaction, Value};
use recoup::store::StoreError;
use recoup::values;
use serde::Serialize;

use super::pages::{PAGE_ROWS, Pages};

/// What the tables say of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figures {
    state: Option<State>,
    months: BTreeMap<String, Month>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    balance: i64,
    held: i64,
    reserved: i64,
    floor: Option<i64>,
    monthly_cap: Option<i64>,
    last_position: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Month {
    spent: i64,
    held: i64,
    reserved: i64,
}

const STATE_COLUMNS: &str = "account, balance, held, reserved, floor, monthly_cap, last_position";

const MONTH_COLUMNS: &str = "account, month, spent, held, reserved";

/// Account and month.
type MonthKey = (String, String);

fn state_of(row: &Row<'_>) -> Result<(String, State), StoreError> {
    let state = State {
        balance: row.get(1)?,
        held: row.get(2)?,
        reserved: row.get(3)?,
        floor: row.get(4)?,
        monthly_cap: row.get(5)?,
        last_position: row.get(6)?,
    };
    Ok((row.get(0)?, state))
}

fn month_of(row: &Row<'_>) -> Result<(MonthKey, Month), StoreError> {
    let month = Month {
        spent: row.get(2)?,
        held: row.get(3)?,
        reserved: row.get(4)?,
    };
    Ok(((row.get(0)?, row.get(1)?), month))
}

/// What is there of one account.
pub(crate) fn read(tx: &Transaction<'_>, account: &str) -> Result<Option<Figures>, StoreError> {
    let sql = format!("SELECT {STATE_COLUMNS} FROM account_state WHERE account = ?1");
    let state = tx.row(&sql, values![account], state_of)?;
    let sql = format!("SELECT {MONTH_COLUMNS} FROM account_month WHERE account = ?1");
    let months = tx.rows(&sql, values![account], month_of)?;
    if state.is_none() && months.is_empty() {
        return Ok(None);
    }
    let months = months.into_iter();
    Ok(Some(Figures {
        state: state.map(|(_, state)| state),
        months: months.map(|((_, month), of)| (month, of)).collect(),
    }))
}

/// Makes an account's rows what `figures` are; removes them where there are none.
///
/// For a repair: the caller holds the write transaction and the log, and has folded `figures` up to its head.
pub(crate) fn write(
    tx: &Transaction<'_>,
    account: &str,
    figures: Option<&Figures>,
) -> Result<(), StoreError> {
    for table in ["account_state", "account_month"] {
        let sql = format!("DELETE FROM {table} WHERE account = ?1");
        tx.execute(&sql, values![account])?;
    }
    let Some(Figures { state, months }) = figures else {
        return Ok(());
    };
    if let Some(state) = state {
        let sql = format!(
            "INSERT INTO account_state ({STATE_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
        );
        let values = values![
            account,
            state.balance,
            state.held,
            state.reserved,
            state.floor,
            state.monthly_cap,
            state.last_position,
        ];
        tx.execute(&sql, values)?;
    }
    let sql = format!("INSERT INTO account_month ({MONTH_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5)");
    let rows = months.iter().map(|(month, of)| {
        let values: &[Value<'_>] = values![account, month, of.spent, of.held, of.reserved];
        values.to_vec()
    });
    tx.execute_many(&sql, &rows.collect::<Vec<_>>())
}

impl Figures {
    /// As JSON: the figures, absent ones where an account has months only, and its months in their order.
    pub(crate) fn image(&self) -> String {
        #[derive(Serialize)]
        struct Image<'a> {
            balance: Option<i64>,
            held: Option<i64>,
            reserved: Option<i64>,
            floor: Option<i64>,
            monthly_cap: Option<i64>,
            last_position: Option<i64>,
            months: &'a BTreeMap<String, Month>,
        }
        let state = self.state;
        let image = Image {
            balance: state.map(|state| state.balance),
            held: state.map(|state| state.held),
            reserved: state.map(|state| state.reserved),
            floor: state.and_then(|state| state.floor),
            monthly_cap: state.and_then(|state| state.monthly_cap),
            last_position: state.map(|state| state.last_position),
            months: &self.months,
        };
        serde_json::to_string(&image).expect("numbers and texts are JSON")
    }
}

/// Every account in the order of their ids.
pub(crate) struct Walk<'a> {
    states: Pages<'a, String, State>,
    months: Pages<'a, MonthKey, Month>,
}

impl<'a> Walk<'a> {
    pub(crate) fn over(tx: &'a Transaction<'_>) -> Self {
        Self {
            states: Pages::of(|after| page_of_states(tx, after)),
            months: Pages::of(|after| page_of_months(tx, after)),
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<(String, Figures)>, StoreError> {
        let account = match (self.states.peek()?, self.months.peek()?) {
            (None, None) => return Ok(None),
            (Some((account, _)), None) | (None, Some(((account, _), _))) => account,
            (Some((account, _)), Some(((other, _), _))) => account.min(other),
        };
        let account = account.clone();
        let state = self.states.next_if(|of| *of == account)?;
        let mut months = BTreeMap::new();
        while let Some(((_, month), of)) = self.months.next_if(|(of, _)| *of == account)? {
            months.insert(month, of);
        }
        let state = state.map(|(_, state)| state);
        Ok(Some((account, Figures { state, months })))
    }
}

/// Rows behind an account, in the order of accounts.
fn page_of_states(
    tx: &Transaction<'_>,
    after: Option<&String>,
) -> Result<Vec<(String, State)>, StoreError> {
    let (behind, values) = match after {
        None => ("", Vec::new()),
        Some(after) => ("WHERE account > ?1", vec![Value::from(after)]),
    };
    let sql = format!(
        "SELECT {STATE_COLUMNS} FROM account_state {behind} ORDER BY account LIMIT {PAGE_ROWS}"
    );
    tx.rows(&sql, &values, state_of)
}

fn page_of_months(
    tx: &Transaction<'_>,
    after: Option<&MonthKey>,
) -> Result<Vec<(MonthKey, Month)>, StoreError> {
    let (behind, values) = match after {
        None => ("", Vec::new()),
        Some((account, month)) => (
            "WHERE (account, month) > (?1, ?2)",
            vec![Value::from(account), Value::from(month)],
        ),
    };
    let sql = format!(
        "SELECT {MONTH_COLUMNS} FROM account_month {behind} ORDER BY account, month LIMIT {PAGE_ROWS}"
    );
    tx.rows(&sql, &values, month_of)
}

#[cfg(test)]
mod tests {
    use recoup::store::sqlite::ACCOUNT_TABLES;
    use rusqlite::Connection;

    use super::*;

    fn tables(rows: &str) -> Connection {
        let connection = Connection::open_in_memory().expect("memory opens");
        connection.execute_batch(ACCOUNT_TABLES).expect("made");
        connection.execute_batch(rows).expect("filled");
        connection
    }

    const ROWS: &str = "
        INSERT INTO account_state VALUES ('a', 1, 2, 3, NULL, 5, 6), ('b', -1, 0, 0, 0, NULL, 7), ('', 1, 1, 1, 1, 1, 1);
        INSERT INTO account_month VALUES ('a', '2026-11', 4, 0, 1), ('a', '2026-10', 2, 1, 0), ('c', '2026-10', 9, 0, 0);";

    fn walked(connection: &Connection) -> Vec<(String, Figures)> {
        let tx = Transaction::on_sqlite(connection);
        let mut walk = Walk::over(&tx);
        std::iter::from_fn(|| walk.next().expect("read")).collect()
    }

    #[test]
    fn accounts_are_walked_in_order_and_shown_as_ever() {
        let connection = tables(ROWS);
        let images: Vec<(String, String)> = walked(&connection)
            .iter()
            .map(|(account, figures)| (account.clone(), figures.image()))
            .collect();
        let expected = [
            (
                "",
                r#"{"balance":1,"held":1,"reserved":1,"floor":1,"monthly_cap":1,"last_position":1,"months":{}}"#,
            ),
            (
                "a",
                r#"{"balance":1,"held":2,"reserved":3,"floor":null,"monthly_cap":5,"last_position":6,"months":{"2026-10":{"spent":2,"held":1,"reserved":0},"2026-11":{"spent":4,"held":0,"reserved":1}}}"#,
            ),
            (
                "b",
                r#"{"balance":-1,"held":0,"reserved":0,"floor":0,"monthly_cap":null,"last_position":7,"months":{}}"#,
            ),
            (
                "c",
                r#"{"balance":null,"held":null,"reserved":null,"floor":null,"monthly_cap":null,"last_position":null,"months":{"2026-10":{"spent":9,"held":0,"reserved":0}}}"#,
            ),
        ];
        let expected = expected.map(|(account, image)| (account.to_owned(), image.to_owned()));
        assert_eq!(images, expected);
    }

    #[test]
    fn one_account_reads_as_the_walk_gives_it() {
        let connection = tables(ROWS);
        let tx = Transaction::on_sqlite(&connection);
        for (account, figures) in walked(&connection) {
            assert_eq!(read(&tx, &account).expect("read"), Some(figures));
        }
        assert_eq!(read(&tx, "d").expect("read"), None);
    }

    #[test]
    fn written_figures_take_the_place_of_what_was_there() {
        let (from, to) = (
            tables(ROWS),
            tables(
                "INSERT INTO account_state VALUES ('a', 9, 9, 9, 9, 9, 9), ('d', 1, 1, 1, 1, 1, 1);
                INSERT INTO account_month VALUES ('a', '2026-09', 1, 1, 1), ('b', '2026-09', 1, 1, 1);",
            ),
        );
        let (source, target) = (Transaction::on_sqlite(&from), Transaction::on_sqlite(&to));
        for account in ["", "a", "b", "c", "d"] {
            let figures = read(&source, account).expect("read");
            write(&target, account, figures.as_ref()).expect("written");
        }
        assert_eq!(walked(&to), walked(&from));
    }

    /// More rows than a page, with months that cross its border.
    #[test]
    fn a_walk_crosses_pages() {
        let connection = tables(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3100)
            INSERT INTO account_state SELECT printf('a%05d', n), n, 0, 0, NULL, NULL, n FROM n WHERE n % 7 > 0;
            WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3100)
            INSERT INTO account_month SELECT printf('a%05d', n), printf('2026-%02d', m), n, m, 0
                FROM n, (SELECT 1 AS m UNION SELECT 2 UNION SELECT 3) WHERE n % 5 > 0;",
        );
        let walked = walked(&connection);
        let numbers = (1..=3_100).filter(|number| number % 7 > 0 || number % 5 > 0);
        let expected: Vec<String> = numbers.map(|number| format!("a{number:05}")).collect();
        let accounts: Vec<String> = walked.iter().map(|(account, _)| account.clone()).collect();
        assert_eq!(accounts, expected);
        let tx = Transaction::on_sqlite(&connection);
        for (account, figures) in walked.iter().step_by(13) {
            assert_eq!(read(&tx, account).expect("read").as_ref(), Some(figures));
        }
    }
}
