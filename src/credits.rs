//! Amounts of credit.
//!
//! Credits are whole numbers of the ledger's smallest unit. A ledger's *scale* says how many decimals
//! people are shown (scale 2: `1234` is displayed as `12.34`); it never enters the arithmetic.
//!
//! Two ranges, both checked where a value enters: one *amount* (a cost, a grant, an adjustment) is at most
//! 10^15 in size, one *balance* at most 10^18. A balance is a sum of amounts, so the room between the
//! balance limit and `i64::MAX` is more than nine thousand amounts: an ending (refund, reclaim), which is
//! never refused, cannot overflow an account that admissions kept inside the limit.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The largest size of one amount, in the smallest unit: 10^15.
pub const MAX_AMOUNT: i64 = 1_000_000_000_000_000;

/// The largest size of a balance that an admission may lead to, in the smallest unit: 10^18.
pub const MAX_BALANCE: i64 = 1_000_000_000_000_000_000;

/// What a job costs: 1 to 10^15 in the smallest unit. A job without a price is not charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Cost(i64);

impl Cost {
    /// Takes `amount`, in the smallest unit.
    pub fn new(amount: i64) -> Result<Self, AmountError> {
        if amount < 1 {
            return Err(AmountError::NotPositive { amount });
        }
        if amount > MAX_AMOUNT {
            return Err(AmountError::TooLarge { amount });
        }
        Ok(Self(amount))
    }

    /// The cost in the smallest unit.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The signed amount that charges (or reclaims) this cost.
    #[must_use]
    pub const fn debit(self) -> i64 {
        // The constructor bounds the value, so that negating cannot overflow.
        -self.0
    }
}

impl TryFrom<i64> for Cost {
    type Error = AmountError;
    fn try_from(amount: i64) -> Result<Self, AmountError> {
        Self::new(amount)
    }
}

impl From<Cost> for i64 {
    fn from(cost: Cost) -> i64 {
        cost.0
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A signed amount other than 0, at most 10^15 in size: what an adjustment moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Delta(i64);

impl Delta {
    /// Takes a signed `amount`, in the smallest unit.
    pub fn new(amount: i64) -> Result<Self, AmountError> {
        if amount == 0 {
            return Err(AmountError::Zero);
        }
        if amount.unsigned_abs() > MAX_AMOUNT.unsigned_abs() {
            return Err(AmountError::TooLarge { amount });
        }
        Ok(Self(amount))
    }

    /// The signed amount in the smallest unit.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl TryFrom<i64> for Delta {
    type Error = AmountError;
    fn try_from(amount: i64) -> Result<Self, AmountError> {
        Self::new(amount)
    }
}

impl From<Delta> for i64 {
    fn from(delta: Delta) -> i64 {
        delta.0
    }
}

/// Why a number is not an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// A cost or a grant is 1 or more.
    #[error("amount {amount} is not positive")]
    NotPositive {
        /// The number that was given.
        amount: i64,
    },
    /// An adjustment moves something.
    #[error("amount is zero")]
    Zero,
    /// Larger than [`MAX_AMOUNT`].
    #[error("amount {amount} is larger than 10^15 in size")]
    TooLarge {
        /// The number that was given.
        amount: i64,
    },
}

/// How many decimals people are shown; 0 to 9. Stored with the ledger at creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Scale(u8);

impl Scale {
    /// Takes a number of decimals, 0 to 9.
    pub fn new(decimals: u8) -> Result<Self, ScaleError> {
        if decimals > 9 {
            return Err(ScaleError { decimals });
        }
        Ok(Self(decimals))
    }

    /// The number of decimals.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Shows `amount` (smallest unit) with this many decimals: `show(-5)` at scale 2 is `-0.05`.
    #[must_use]
    pub fn show(self, amount: i64) -> String {
        let digits = usize::from(self.0);
        let sign = if amount < 0 { "-" } else { "" };
        let size = amount.unsigned_abs();
        if digits == 0 {
            return format!("{sign}{size}");
        }
        let padded = format!("{size:0>width$}", width = digits + 1);
        let (whole, fraction) = padded.split_at(padded.len() - digits);
        format!("{sign}{whole}.{fraction}")
    }
}

impl TryFrom<u8> for Scale {
    type Error = ScaleError;
    fn try_from(decimals: u8) -> Result<Self, ScaleError> {
        Self::new(decimals)
    }
}

impl From<Scale> for u8 {
    fn from(scale: Scale) -> u8 {
        scale.0
    }
}

/// More decimals than a ledger can be set to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("scale {decimals} is not between 0 and 9")]
pub struct ScaleError {
    decimals: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_bounded_where_they_enter() {
        assert_eq!(Cost::new(0), Err(AmountError::NotPositive { amount: 0 }));
        assert_eq!(Cost::new(-1), Err(AmountError::NotPositive { amount: -1 }));
        assert!(Cost::new(MAX_AMOUNT).is_ok());
        assert_eq!(
            Cost::new(MAX_AMOUNT + 1),
            Err(AmountError::TooLarge {
                amount: MAX_AMOUNT + 1
            })
        );
        assert_eq!(Delta::new(0), Err(AmountError::Zero));
        assert_eq!(
            Delta::new(i64::MIN),
            Err(AmountError::TooLarge { amount: i64::MIN })
        );
        assert!(Delta::new(-MAX_AMOUNT).is_ok());
    }

    #[test]
    fn scale_only_changes_what_is_shown() {
        let two = Scale::new(2).expect("2 is a scale");
        assert_eq!(two.show(-5), "-0.05");
        assert_eq!(two.show(123_456), "1234.56");
        assert_eq!(
            Scale::new(0).expect("0 is a scale").show(i64::MIN),
            "-9223372036854775808"
        );
        assert!(Scale::new(10).is_err());
    }
}
