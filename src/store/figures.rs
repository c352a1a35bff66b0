//! Account figures that a transaction changes: loaded when it needs them, folded in memory, written once at its end.
//!
//! The arithmetic is [`AccountState`]'s; no SQL computes anything. Where the figures come from is a [`Stored`]: a database that is asked as it
//! goes, or what was fetched of one beforehand. What changed comes out as [`Changes`], in the order of accounts, for whoever writes it.

use std::collections::{BTreeMap, BTreeSet};

use super::{NewEvent, Position, Revision, StoreError};
use crate::account::{AccountEvent, AccountState, Admission, MonthState, Overflow, Refusal};
use crate::clock::BudgetMonth;
use crate::codec::{Event, StreamName};
use crate::ids::AccountId;

/// What a transaction that appends needs to know of what is committed.
pub(crate) trait Stored {
    /// A stream's last revision; none if it has no event.
    fn last_revision(&self, stream: &StreamName) -> Result<Option<Revision>, StoreError>;

    /// An account's figures without its months; zeros for an unknown account.
    fn account(&self, account: &AccountId) -> Result<AccountState, StoreError>;

    /// A month's figures, if it has any.
    fn month(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<Option<MonthState>, StoreError>;
}

/// The figures that one transaction has loaded, as it leaves them.
pub(crate) struct Figures<S> {
    stored: S,
    /// In the order in which they are written.
    loaded: BTreeMap<AccountId, Loaded>,
}

/// What one transaction changes: a row each, with the values that it gets.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// In the order of accounts. Months stand in the other list.
    pub(crate) accounts: Vec<(AccountId, AccountState)>,
    /// In the order of accounts and months.
    pub(crate) months: Vec<(AccountId, BudgetMonth, MonthState)>,
}

#[derive(Clone, Default)]
struct Loaded {
    state: AccountState,
    /// Months that were looked up, whether or not they have a row.
    known: BTreeSet<BudgetMonth>,
    changed_months: BTreeSet<BudgetMonth>,
    is_changed: bool,
}

impl<S: Stored> Figures<S> {
    pub(crate) const fn new(stored: S) -> Self {
        Self {
            stored,
            loaded: BTreeMap::new(),
        }
    }

    pub(crate) const fn stored(&self) -> &S {
        &self.stored
    }

    /// Whether the account allows it. The outer error is the database's.
    pub(crate) fn admit(
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
    pub(crate) fn apply(
        &mut self,
        events: &[NewEvent],
        first: i64,
    ) -> Result<Result<(), Overflow>, StoreError> {
        let mut before: Vec<(AccountId, Loaded)> = Vec::new();
        for (position, new) in (first..).map(Position::new).zip(events) {
            if let Some(account) = new.event.account() {
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

    /// The account of an event, and the last position that it has, if that is not before the event.
    pub(crate) fn ahead_of(
        &mut self,
        event: &Event,
        position: Position,
    ) -> Result<Option<(AccountId, Position)>, StoreError> {
        let Some(account) = event.account() else {
            return Ok(None);
        };
        let last = self.load(account, None)?.state.last_position;
        let last = last.filter(|last| *last >= position);
        Ok(last.map(|last| (account.clone(), last)))
    }

    /// Adds what one event moves. On an inner error the account may have a month loaded, and nothing has changed.
    pub(crate) fn apply_one(
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

    /// Every row that has changed.
    pub(crate) fn into_changes(self) -> Changes {
        let mut changes = Changes::default();
        for (account, loaded) in self.loaded {
            for month in loaded.changed_months {
                let figures = loaded.state.month(month);
                changes.months.push((account.clone(), month, figures));
            }
            if loaded.is_changed {
                changes.accounts.push((account, loaded.state));
            }
        }
        changes
    }

    fn load(
        &mut self,
        account: &AccountId,
        month: Option<BudgetMonth>,
    ) -> Result<&mut Loaded, StoreError> {
        if !self.loaded.contains_key(account) {
            let state = self.stored.account(account)?;
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
            && let Some(figures) = self.stored.month(account, month)?
        {
            loaded.state.months.insert(month, figures);
        }
        Ok(loaded)
    }
}
