//! The fold of an account's figures, and the rule of admission over them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::posting::{Admission, Posting};
use crate::clock::BudgetMonth;
use crate::credits::MAX_BALANCE;
use crate::store::Position;

/// The lowest balance (less held and reserved) that a charge may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Floor {
    /// At least this, in the smallest unit; `At(0)` is prepaid.
    At(i64),
    /// No lower bound: postpaid.
    None,
}

/// What limits an account's charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The lowest balance that a charge may lead to.
    pub floor: Floor,
    /// The most that one budget month may spend and hold, in the smallest unit.
    pub monthly_cap: Option<i64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            floor: Floor::At(0),
            monthly_cap: None,
        }
    }
}

/// One budget month's figures of an account, in the smallest unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MonthState {
    /// Charged − refunded + reclaimed, of the jobs charged in this month.
    pub spent: i64,
    /// Refunded, but kept unavailable while those jobs may still run.
    pub held: i64,
    /// Taken for charges that are on their way.
    pub reserved: i64,
}

/// An account's figures, in the smallest unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountState {
    /// The sum of all entries.
    pub balance: i64,
    /// Refunded, but kept unavailable while its job may still run.
    pub held: i64,
    /// Taken for charges that are on their way; 0 where log and account state share a database.
    pub reserved: i64,
    /// What limits charges.
    pub limits: Limits,
    /// Figures by budget month. A store may load only the months that it needs.
    pub months: BTreeMap<BudgetMonth, MonthState>,
    /// The last event that moved anything here.
    pub last_position: Option<Position>,
}

/// A figure left the range of 64 bits. Admissions keep balances far inside it, so this is a broken log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the account's {figure} leaves the range of 64 bits")]
pub struct Overflow {
    figure: &'static str,
}

/// Why an admission was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Less is available than needed.
    #[error("{available} available, {needed} needed, floor {floor}")]
    InsufficientCredit {
        /// Balance − held − reserved.
        available: i64,
        /// The cost.
        needed: i64,
        /// The lowest allowed.
        floor: i64,
    },
    /// The month's cap would be passed.
    #[error("{used} of {cap} used in {month}, {needed} needed")]
    CapExceeded {
        /// The budget month.
        month: BudgetMonth,
        /// Its cap.
        cap: i64,
        /// Its spent + held + reserved.
        used: i64,
        /// The cost.
        needed: i64,
    },
    /// The balance would be larger than 10^18 in size.
    #[error("balance {balance} with {amount} more is larger than 10^18 in size")]
    BalanceOutOfRange {
        /// What it is.
        balance: i64,
        /// What was to be added.
        amount: i64,
    },
}

impl AccountState {
    /// Balance − held − reserved. Saturates: a value at the edge of 64 bits admits nothing and overdraws nothing.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.balance
            .saturating_sub(self.held)
            .saturating_sub(self.reserved)
    }

    /// One month's figures; zeros where the month has none.
    #[must_use]
    pub fn month(&self, month: BudgetMonth) -> MonthState {
        self.months.get(&month).copied().unwrap_or_default()
    }

    /// Adds what an event moved. On an error nothing has changed.
    pub fn apply(&mut self, posting: &Posting, position: Position) -> Result<(), Overflow> {
        let add =
            |value: i64, change: i64, figure| value.checked_add(change).ok_or(Overflow { figure });
        let balance = add(self.balance, posting.amount, "balance")?;
        let held = add(self.held, posting.held, "held")?;
        let month = match posting.budget_month {
            None => None,
            Some(month) => {
                let before = self.month(month);
                let spent = before.spent.checked_sub(posting.amount).ok_or(Overflow {
                    figure: "month's spent",
                })?;
                let held = add(before.held, posting.held, "month's held")?;
                Some((
                    month,
                    MonthState {
                        spent,
                        held,
                        reserved: before.reserved,
                    },
                ))
            }
        };
        self.balance = balance;
        self.held = held;
        if let Some((month, state)) = month {
            self.months.insert(month, state);
        }
        self.last_position = Some(position);
        Ok(())
    }

    /// Takes over limits that were set.
    pub fn set_limits(&mut self, limits: Limits, position: Position) {
        self.limits = limits;
        self.last_position = Some(position);
    }

    /// Says whether `admission` may pass. The caller must make the append and this check one step.
    pub fn admit(&self, admission: &Admission) -> Result<(), Refusal> {
        match admission {
            Admission::Spend {
                cost, cap_month, ..
            } => {
                self.check_range(cost.debit())?;
                self.check_floor(cost.get())?;
                match cap_month {
                    Some(month) => self.check_cap(*month, cost.get()),
                    None => Ok(()),
                }
            }
            Admission::Post { amount, .. } => self.check_range(*amount),
        }
    }

    fn check_range(&self, amount: i64) -> Result<(), Refusal> {
        let in_range = |sum: i64| sum.unsigned_abs() <= MAX_BALANCE.unsigned_abs();
        match self.balance.checked_add(amount) {
            // A balance that an ending pushed out of range may still be moved back towards it.
            Some(sum) if in_range(sum) || sum.unsigned_abs() < self.balance.unsigned_abs() => {
                Ok(())
            }
            Some(_) | None => Err(Refusal::BalanceOutOfRange {
                balance: self.balance,
                amount,
            }),
        }
    }

    fn check_floor(&self, needed: i64) -> Result<(), Refusal> {
        let Floor::At(floor) = self.limits.floor else {
            return Ok(());
        };
        let available = self.available();
        if available.saturating_sub(needed) < floor {
            return Err(Refusal::InsufficientCredit {
                available,
                needed,
                floor,
            });
        }
        Ok(())
    }

    fn check_cap(&self, month: BudgetMonth, needed: i64) -> Result<(), Refusal> {
        let Some(cap) = self.limits.monthly_cap else {
            return Ok(());
        };
        let figures = self.month(month);
        let used = figures
            .spent
            .saturating_add(figures.held)
            .saturating_add(figures.reserved);
        if used.saturating_add(needed) > cap {
            return Err(Refusal::CapExceeded {
                month,
                cap,
                used,
                needed,
            });
        }
        Ok(())
    }
}
