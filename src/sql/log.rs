//! The log and the account figures as a transaction sees them.

use super::{Connection, Transaction};
use crate::account::AccountState;
use crate::clock::{BudgetMonth, Timestamp};
use crate::ids::AccountId;
use crate::store::{Position, RecordedEvent, StoreError};

/// Where an append stands in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendSpan {
    /// Its first event.
    pub first: Position,
    /// Its last event.
    pub last: Position,
    /// When the store recorded it.
    pub posted_at: Timestamp,
}

impl Transaction<'_> {
    /// The last committed position.
    pub fn read_head(&self) -> Result<Position, StoreError> {
        match &self.connection {
            Connection::Sqlite(connection) => crate::store::sqlite::read_head(connection),
        }
    }

    /// At most `limit` events of the log after `after`, in order.
    pub fn read_page(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        match &self.connection {
            Connection::Sqlite(connection) => {
                crate::store::sqlite::read_page(connection, after, limit)
            }
        }
    }

    /// The last event that was posted before `at`; [`Position::START`] if none was. Instants never decrease with the position, so
    /// this is a search by halves.
    pub fn read_position_before(&self, at: Timestamp) -> Result<Position, StoreError> {
        let sql = "SELECT position, position + events - 1, posted_at FROM appends
            WHERE position <= ?1 ORDER BY position DESC LIMIT 1";
        // Everything up to `low` was posted before; everything from `high` on was not.
        let (mut low, mut high) = (0, self.read_head()?.get().saturating_add(1));
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            let found = self.row(sql, crate::values![middle], |row| {
                Ok((row.get::<i64>(0)?, row.get::<i64>(1)?, row.get::<i64>(2)?))
            })?;
            match found {
                Some((first, _, posted_at)) if posted_at >= at.as_micros() => {
                    high = first.min(middle);
                }
                // A hole in front of `middle` is as good as its append.
                Some((_, last, _)) => low = last.max(middle),
                None => low = middle,
            }
        }
        Ok(Position::new(low))
    }

    /// The append that holds the event at `position`, if there is one. No body is read: it answers for an append that is broken, too.
    pub fn read_span(&self, position: Position) -> Result<Option<AppendSpan>, StoreError> {
        // Where the next append begins is better evidence of an end than the count in a row that may be broken.
        let sql = "SELECT position, coalesce(
                (SELECT min(position) - 1 FROM appends WHERE position > ?1), position + events - 1), posted_at
            FROM appends WHERE position <= ?1 ORDER BY position DESC LIMIT 1";
        let span = self.row(sql, crate::values![position.get()], |row| {
            Ok(AppendSpan {
                first: Position::new(row.get(0)?),
                last: Position::new(row.get(1)?),
                posted_at: Timestamp::from_micros(row.get(2)?),
            })
        })?;
        Ok(span.filter(|span| span.last >= position))
    }

    /// An account's figures, with those of `month`; zeros for an unknown account.
    pub fn read_account(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<AccountState, StoreError> {
        match &self.connection {
            Connection::Sqlite(connection) => {
                crate::store::sqlite::read_account(connection, account, month)
            }
        }
    }

    /// At most `limit` accounts after `after` in byte order, with all of their months.
    pub fn read_accounts(
        &self,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Result<Vec<(AccountId, AccountState)>, StoreError> {
        match &self.connection {
            Connection::Sqlite(connection) => {
                crate::store::sqlite::read_accounts(connection, after, limit)
            }
        }
    }
}
