//! The tables of account figures: the only stored copy of what guards charges.
//!
//! They are written in the transaction of the append that changes them, each row once, in the order of accounts; SQL computes nothing.

use std::collections::BTreeMap;

use super::{Row, Transaction, Value};
use crate::account::{AccountState, Floor, Limits, MonthState, Overflow};
use crate::clock::BudgetMonth;
use crate::codec::Event;
use crate::ids::AccountId;
use crate::store::figures::{Changes, Figures};
use crate::store::{Position, StoreError};

/// The values of a row of figures, in the order of the columns.
pub(crate) fn account_values<'v>(account: &'v AccountId, state: &AccountState) -> Vec<Value<'v>> {
    let floor = match state.limits.floor {
        Floor::At(floor) => Some(floor),
        Floor::None => None,
    };
    vec![
        account.as_str().into(),
        state.balance.into(),
        state.held.into(),
        state.reserved.into(),
        floor.into(),
        state.limits.monthly_cap.into(),
        state.last_position.map_or(0, Position::get).into(),
    ]
}

/// The figures in a row whose columns from `at` on are balance, held, reserved, floor, cap and last position.
pub(crate) fn account_of(row: &Row<'_>, at: usize) -> Result<AccountState, StoreError> {
    let floor: Option<i64> = row.get(at + 3)?;
    Ok(AccountState {
        balance: row.get(at)?,
        held: row.get(at + 1)?,
        reserved: row.get(at + 2)?,
        limits: Limits {
            floor: floor.map_or(Floor::None, Floor::At),
            monthly_cap: row.get(at + 4)?,
        },
        months: BTreeMap::new(),
        last_position: Some(Position::new(row.get(at + 5)?)),
    })
}

/// A month's figures in a row whose columns from `at` on are spent, held and reserved.
pub(crate) fn month_of(row: &Row<'_>, at: usize) -> Result<MonthState, StoreError> {
    Ok(MonthState {
        spent: row.get(at)?,
        held: row.get(at + 1)?,
        reserved: row.get(at + 2)?,
    })
}

impl Transaction<'_> {
    /// An account's figures without its months; zeros for an unknown account.
    pub(crate) fn read_account_row(&self, account: &AccountId) -> Result<AccountState, StoreError> {
        let sql = "SELECT balance, held, reserved, floor, monthly_cap, last_position
            FROM account_state WHERE account = ?1";
        let row = self.row(sql, crate::values![account.as_str()], |row| {
            account_of(row, 0)
        })?;
        Ok(row.unwrap_or_default())
    }

    /// A month's figures, if it has any.
    pub(crate) fn read_month(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<Option<MonthState>, StoreError> {
        let sql =
            "SELECT spent, held, reserved FROM account_month WHERE account = ?1 AND month = ?2";
        let values = crate::values![account.as_str(), month.to_string()];
        self.row(sql, values, |row| month_of(row, 0))
    }

    /// An account's figures, with those of `month` and with what is reserved; zeros for an unknown account.
    pub fn read_account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if self.remote.is_some() {
            return crate::store::kurrentdb::read_account(self, account, month);
        }
        self.read_account_rows(account, month)
    }

    /// An account's figures, with those of `month`, as they are stored.
    pub(crate) fn read_account_rows(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        // One statement, so that both rows are of one moment.
        let sql = "SELECT s.balance, s.held, s.reserved, s.floor, s.monthly_cap,
            s.last_position, m.spent, m.held, m.reserved
            FROM account_state s LEFT JOIN account_month m ON m.account = s.account AND m.month = ?2
            WHERE s.account = ?1";
        let values = crate::values![account.as_str(), month.to_string()];
        let row = self.row(sql, values, |row| {
            let mut state = account_of(row, 0)?;
            if row.get::<Option<i64>>(6)?.is_some() {
                state.months.insert(month, month_of(row, 6)?);
            }
            Ok(state)
        })?;
        Ok(row.unwrap_or_default())
    }

    /// At most `limit` accounts after `after` in byte order, with all of their months.
    pub fn read_accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        let sql = "SELECT account, balance, held, reserved, floor, monthly_cap, last_position
            FROM account_state WHERE account > ?1 ORDER BY account LIMIT ?2";
        let from = after.map_or("", AccountId::as_str);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut accounts = self.rows(sql, crate::values![from, limit], |row| {
            let account = row.text(0)?;
            let account = AccountId::new(account).map_err(|error| StoreError::Damaged {
                why: format!("account_state has {account:?}: {error}"),
            })?;
            Ok((account, account_of(row, 1)?))
        })?;
        let Some((last, _)) = accounts.last() else {
            return Ok(accounts);
        };
        let sql = "SELECT account, month, spent, held, reserved FROM account_month
            WHERE account > ?1 AND account <= ?2 ORDER BY account";
        let months = self.rows(sql, crate::values![from, last.as_str()], |row| {
            let month = BudgetMonth::parse(row.text(1)?).map_err(|error| StoreError::Damaged {
                why: format!("account_month: {error}"),
            })?;
            Ok((row.get::<String>(0)?, month, month_of(row, 2)?))
        })?;
        // Both are in the order of accounts; a month without its account is not an account's.
        let mut months = months.into_iter().peekable();
        for (account, state) in &mut accounts {
            while months
                .next_if(|(of, _, _)| of.as_str() < account.as_str())
                .is_some()
            {}
            while let Some((_, month, figures)) =
                months.next_if(|(of, _, _)| of == account.as_str())
            {
                state.months.insert(month, figures);
            }
        }
        Ok(accounts)
    }

    /// Writes what has changed.
    pub(crate) fn write_figures(&self, changes: &Changes) -> Result<(), StoreError> {
        let sql = "INSERT INTO account_state
            (account, balance, held, reserved, floor, monthly_cap, last_position)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
            ON CONFLICT (account) DO UPDATE SET balance = excluded.balance, held = excluded.held,
            reserved = excluded.reserved, floor = excluded.floor, monthly_cap = excluded.monthly_cap,
            last_position = excluded.last_position";
        let rows: Vec<_> = changes
            .accounts
            .iter()
            .map(|(account, state)| account_values(account, state))
            .collect();
        self.execute_many(sql, &rows)?;
        let sql = "INSERT INTO account_month (account, month, spent, held, reserved)
            VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT (account, month) DO UPDATE SET spent = excluded.spent, held = excluded.held,
            reserved = excluded.reserved";
        let rows: Vec<_> = changes
            .months
            .iter()
            .map(|(account, month, figures)| {
                vec![
                    account.as_str().into(),
                    month.to_string().into(),
                    figures.spent.into(),
                    figures.held.into(),
                    figures.reserved.into(),
                ]
            })
            .collect();
        self.execute_many(sql, &rows)
    }

    /// Folds what `events` move into the tables of account figures: the same arithmetic as an append's. For a writing transaction. The inner error names
    /// the event that does not fit. Fails with [`StoreError::Damaged`] where an account has an event of them already, or a later one.
    pub fn fold_accounts<'e>(
        &self,
        events: impl IntoIterator<Item = (Position, &'e Event)>,
    ) -> Result<Result<(), (Position, Overflow)>, StoreError> {
        let mut figures = Figures::new(self);
        for (position, event) in events {
            if let Some((account, last)) = figures.ahead_of(event, position)? {
                let why = format!(
                    "table account_state: account {account} has what came up to position {last}, and event {position} is folded only now"
                );
                return Err(StoreError::Damaged { why });
            }
            if let Err(overflow) = figures.apply_one(event, position)? {
                return Ok(Err((position, overflow)));
            }
        }
        self.write_figures(&figures.into_changes())?;
        Ok(Ok(()))
    }
}
