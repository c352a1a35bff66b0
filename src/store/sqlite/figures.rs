//! Rows of account figures: loaded when a member of a group needs them, folded in memory, written once at its end.
//!
//! The arithmetic is [`AccountState`]'s; SQL computes nothing here.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, params};

use super::error::store_error;
use crate::account::{
    AccountEvent, AccountState, Admission, Floor, Limits, MonthState, Overflow, Refusal,
};
use crate::clock::BudgetMonth;
use crate::codec::Event;
use crate::ids::AccountId;
use crate::store::{NewEvent, Position, StoreError};

/// Folds what `events` move into the account tables of `connection`, which may be another database than the ledger: the same
/// arithmetic as an append's. The caller holds the write transaction. The inner error names the event that does not fit.
pub fn fold_accounts<'e>(
    connection: &Connection,
    events: impl IntoIterator<Item = (Position, &'e Event)>,
) -> Result<Result<(), (Position, Overflow)>, StoreError> {
    let mut figures = Figures::new(connection);
    for (position, event) in events {
        if let Err(overflow) = figures.apply_one(event, position)? {
            return Ok(Err((position, overflow)));
        }
    }
    figures.write()?;
    Ok(Ok(()))
}

/// The tables of account figures, for a database that folds them apart.
pub const ACCOUNT_TABLES: &str = "
    CREATE TABLE account_state (account TEXT PRIMARY KEY, balance INTEGER NOT NULL, held INTEGER NOT NULL,
        reserved INTEGER NOT NULL, floor INTEGER, monthly_cap INTEGER, last_position INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE account_month (account TEXT NOT NULL, month TEXT NOT NULL, spent INTEGER NOT NULL, held INTEGER NOT NULL,
        reserved INTEGER NOT NULL, PRIMARY KEY (account, month)) STRICT, WITHOUT ROWID;";

/// The figures that one transaction has loaded, as it leaves them.
pub(super) struct Figures<'a> {
    connection: &'a Connection,
    /// In the order in which they are written.
    loaded: BTreeMap<AccountId, Loaded>,
}

#[derive(Clone, Default)]
struct Loaded {
    state: AccountState,
    /// Months that were looked up, whether or not they have a row.
    known: BTreeSet<BudgetMonth>,
    changed_months: BTreeSet<BudgetMonth>,
    is_changed: bool,
}

impl<'a> Figures<'a> {
    pub(super) const fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            loaded: BTreeMap::new(),
        }
    }

    /// Whether the account allows it. The outer error is the database's.
    pub(super) fn admit(
        &mut self,
        admission: &Admission,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let month = match admission {
            Admission::Spend { cap_month, .. } => *cap_month,
            Admission::Post { .. } => None,
        };
        let loaded = self.load(admission.account(), month)?;
        Ok(loaded.state.admit(admission))
    }

    /// Adds what `events` move; the first is at `first`. On an inner error nothing has changed.
    pub(super) fn apply(
        &mut self,
        events: &[NewEvent],
        first: i64,
    ) -> Result<Result<(), Overflow>, StoreError> {
        let mut before: Vec<(AccountId, Loaded)> = Vec::new();
        for (position, new) in (first..).map(Position::new).zip(events) {
            if let Some(account) = touched(&new.event) {
                let loaded = self.load(account, None)?;
                before.push((account.clone(), loaded.clone()));
            }
            if let Err(overflow) = self.apply_one(&new.event, position)? {
                self.loaded.extend(before.into_iter().rev());
                return Ok(Err(overflow));
            }
        }
        Ok(Ok(()))
    }

    /// Adds what one event moves. On an inner error the account may have a month loaded, and nothing has changed.
    fn apply_one(
        &mut self,
        event: &Event,
        position: Position,
    ) -> Result<Result<(), Overflow>, StoreError> {
        if let Some(posting) = event.posting() {
            let loaded = self.load(&posting.account, posting.budget_month)?;
            if let Err(overflow) = loaded.state.apply(posting, position) {
                return Ok(Err(overflow));
            }
            loaded.is_changed = true;
            loaded.changed_months.extend(posting.budget_month);
        } else if let Event::Account(AccountEvent::LimitsSet(set)) = event {
            let loaded = self.load(&set.account, None)?;
            loaded.state.set_limits(set.limits, position);
            loaded.is_changed = true;
        }
        Ok(Ok(()))
    }

    /// Writes every changed row.
    pub(super) fn write(self) -> Result<(), StoreError> {
        for (account, loaded) in &self.loaded {
            if loaded.is_changed {
                write_account(self.connection, account.as_str(), &loaded.state)?;
            }
            for month in &loaded.changed_months {
                write_month(
                    self.connection,
                    account.as_str(),
                    *month,
                    loaded.state.month(*month),
                )?;
            }
        }
        Ok(())
    }

    fn load(
        &mut self,
        account: &AccountId,
        month: Option<BudgetMonth>,
    ) -> Result<&mut Loaded, StoreError> {
        if !self.loaded.contains_key(account) {
            let state = read_row(self.connection, account)?;
            self.loaded.insert(
                account.clone(),
                Loaded {
                    state,
                    ..Loaded::default()
                },
            );
        }
        let loaded = self.loaded.get_mut(account).expect("it was inserted above");
        if let Some(month) = month
            && loaded.known.insert(month)
            && let Some(figures) = read_month(self.connection, account, month)?
        {
            loaded.state.months.insert(month, figures);
        }
        Ok(loaded)
    }
}

/// Whose figures an event changes.
fn touched(event: &Event) -> Option<&AccountId> {
    match event {
        Event::Account(AccountEvent::LimitsSet(set)) => Some(&set.account),
        event => event.posting().map(|posting| &posting.account),
    }
}

fn write_account(
    connection: &Connection,
    account: &str,
    state: &AccountState,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO account_state
        (account, balance, held, reserved, floor, monthly_cap, last_position)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        ON CONFLICT (account) DO UPDATE SET balance = excluded.balance, held = excluded.held,
        reserved = excluded.reserved, floor = excluded.floor, monthly_cap = excluded.monthly_cap,
        last_position = excluded.last_position";
    let floor = match state.limits.floor {
        Floor::At(floor) => Some(floor),
        Floor::None => None,
    };
    let values = params![
        account,
        state.balance,
        state.held,
        state.reserved,
        floor,
        state.limits.monthly_cap,
        state.last_position.map_or(0, Position::get),
    ];
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement.execute(values).map_err(store_error)?;
    Ok(())
}

fn write_month(
    connection: &Connection,
    account: &str,
    month: BudgetMonth,
    figures: MonthState,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO account_month (account, month, spent, held, reserved)
        VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (account, month) DO UPDATE SET spent = excluded.spent, held = excluded.held,
        reserved = excluded.reserved";
    let values = params![
        account,
        month.to_string(),
        figures.spent,
        figures.held,
        figures.reserved,
    ];
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement.execute(values).map_err(store_error)?;
    Ok(())
}

const COLUMNS: &str = "account, balance, held, reserved, floor, monthly_cap, last_position";

fn account_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<AccountState> {
    let floor: Option<i64> = row.get(4)?;
    Ok(AccountState {
        balance: row.get(1)?,
        held: row.get(2)?,
        reserved: row.get(3)?,
        limits: Limits {
            floor: floor.map_or(Floor::None, Floor::At),
            monthly_cap: row.get(5)?,
        },
        months: BTreeMap::new(),
        last_position: Some(Position::new(row.get(6)?)),
    })
}

fn read_row(connection: &Connection, account: &AccountId) -> Result<AccountState, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM account_state WHERE account = ?1");
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let row = statement
        .query_row([account.as_str()], account_of)
        .optional()
        .map_err(store_error)?;
    Ok(row.unwrap_or_default())
}

fn read_month(
    connection: &Connection,
    account: &AccountId,
    month: BudgetMonth,
) -> Result<Option<MonthState>, StoreError> {
    let sql = "SELECT spent, held, reserved FROM account_month WHERE account = ?1 AND month = ?2";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let figures = statement
        .query_row(params![account.as_str(), month.to_string()], |row| {
            Ok(MonthState {
                spent: row.get(0)?,
                held: row.get(1)?,
                reserved: row.get(2)?,
            })
        })
        .optional();
    figures.map_err(store_error)
}

/// An account's figures, with those of `month`; zeros for an unknown account.
pub(crate) fn read_account(
    connection: &Connection,
    account: &AccountId,
    month: BudgetMonth,
) -> Result<AccountState, StoreError> {
    // One statement, so that both rows are of one moment.
    let sql = "SELECT s.account, s.balance, s.held, s.reserved, s.floor, s.monthly_cap,
        s.last_position, m.spent, m.held, m.reserved
        FROM account_state s LEFT JOIN account_month m ON m.account = s.account AND m.month = ?2
        WHERE s.account = ?1";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let row = statement
        .query_row(params![account.as_str(), month.to_string()], |row| {
            let mut state = account_of(row)?;
            if let Some(spent) = row.get::<_, Option<i64>>(7)? {
                let figures = MonthState {
                    spent,
                    held: row.get(8)?,
                    reserved: row.get(9)?,
                };
                state.months.insert(month, figures);
            }
            Ok(state)
        })
        .optional()
        .map_err(store_error)?;
    Ok(row.unwrap_or_default())
}

/// At most `limit` accounts after `after` in byte order, with all of their months.
pub(crate) fn read_accounts(
    connection: &Connection,
    after: Option<&AccountId>,
    limit: usize,
) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM account_state WHERE account > ?1 ORDER BY account LIMIT ?2");
    let damaged = |why: String| StoreError::Damaged { why };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let rows = statement
        .query_map(params![after.map_or("", AccountId::as_str), limit], |row| {
            Ok((row.get::<_, String>(0)?, account_of(row)?))
        })
        .map_err(store_error)?;
    let mut accounts = Vec::new();
    for row in rows {
        let (account, mut state) = row.map_err(store_error)?;
        state.months = read_months(connection, &account)?;
        let account = AccountId::new(&account)
            .map_err(|error| damaged(format!("account_state has {account:?}: {error}")))?;
        accounts.push((account, state));
    }
    Ok(accounts)
}

fn read_months(
    connection: &Connection,
    account: &str,
) -> Result<BTreeMap<BudgetMonth, MonthState>, StoreError> {
    let sql = "SELECT month, spent, held, reserved FROM account_month WHERE account = ?1";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let rows = statement
        .query_map([account], |row| {
            let figures = MonthState {
                spent: row.get(1)?,
                held: row.get(2)?,
                reserved: row.get(3)?,
            };
            Ok((row.get::<_, String>(0)?, figures))
        })
        .map_err(store_error)?;
    let mut months = BTreeMap::new();
    for row in rows {
        let (month, figures) = row.map_err(store_error)?;
        let month = BudgetMonth::parse(&month).map_err(|error| StoreError::Damaged {
            why: format!("account_month: {error}"),
        })?;
        months.insert(month, figures);
    }
    Ok(months)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fold apart has the columns of the ledger's own tables.
    #[test]
    fn tables_for_a_fold_apart_are_those_of_the_ledger() {
        let columns = |sql: &str| {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch(sql).unwrap();
            let of = |table: &str| {
                let sql =
                    format!("SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')");
                let mut statement = connection.prepare(&sql).unwrap();
                let rows = statement.query_map([], |row| {
                    Ok((
                        row.get::<_, String>(0)?,
                        row.get::<_, String>(1)?,
                        row.get::<_, bool>(2)?,
                        row.get::<_, i64>(3)?,
                    ))
                });
                rows.unwrap().map(Result::unwrap).collect::<Vec<_>>()
            };
            (of("account_state"), of("account_month"))
        };
        assert_eq!(
            columns(ACCOUNT_TABLES),
            columns(include_str!("migrations/0001_log.sql"))
        );
    }
}
