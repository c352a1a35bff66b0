//! Price snapshots: how a cost came about, kept with the charge.
//!
//! cost = round(Σ quantity × unit_price ÷ per), rounded **once**, over the sum, in 128-bit integers. The price is
//! fixed at the charge; a difference known later is an adjustment that names the job.
//!
//! Bounds: 1 to 32 lines; quantity and unit price 0 to 10^15; per 1 to 10^15. One product is below 10^31 and
//! `i128` holds 10^38; the common denominator of unusual `per`s is checked and refused where it does not fit.

use serde::{Deserialize, Serialize};

use crate::credits::{AmountError, Cost, MAX_AMOUNT};
use crate::ids::{PriceListId, Unit};

/// The most lines of one price.
pub const MAX_LINES: usize = 32;

/// How a fraction of the smallest unit is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Towards the larger cost.
    Up,
    /// Towards the smaller cost.
    Down,
    /// To the nearest; a tie to the even neighbour (IEEE 754 `roundTiesToEven`).
    HalfEven,
}

/// One thing that a job is priced by: `quantity` of `unit` at `unit_price` for every `per`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceLine {
    /// What is counted.
    pub unit: Unit,
    /// How many of it.
    pub quantity: i64,
    /// Credits, in the smallest unit, for every `per` of it.
    pub unit_price: i64,
    /// How many units the unit price buys, such as 1,000 tokens.
    pub per: i64,
}

/// The price of one job, as it was at the charge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceSnapshot {
    /// The price list that it was computed from.
    pub list: PriceListId,
    /// How the sum is rounded.
    pub rounding: Rounding,
    /// What the job is priced by.
    pub lines: Vec<PriceLine>,
}

/// Why a price is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// A price has 1 to [`MAX_LINES`] lines.
    #[error("price has {lines} lines, not 1 to {MAX_LINES}")]
    Lines {
        /// How many it has.
        lines: usize,
    },
    /// A number of a line is outside its range.
    #[error("price line {line}: {field} {value} is not between {min} and 10^15")]
    OutOfRange {
        /// Which line, from 1.
        line: usize,
        /// Which of its numbers.
        field: &'static str,
        /// What it is.
        value: i64,
        /// The smallest that is allowed.
        min: i64,
    },
    /// The sum does not fit 128 bits.
    #[error("price line {line}: the sum up to it does not fit 128 bits")]
    Overflow {
        /// The line at which it stopped fitting, from 1.
        line: usize,
    },
    /// The sum is not a cost.
    #[error("price multiplies out to no cost: {0}")]
    Amount(#[from] AmountError),
    /// The sum is larger than any cost.
    #[error("price multiplies out to {sum}, more than 10^15")]
    TooLarge {
        /// The rounded sum.
        sum: i128,
    },
    /// The sum is another cost than the charge's.
    #[error("price multiplies out to {computed}, but the cost is {stated}")]
    Mismatch {
        /// What the lines give.
        computed: i64,
        /// What the charge says.
        stated: i64,
    },
}

impl PriceSnapshot {
    /// A price of one line: `cost` for the job. What a charge gets that says no price.
    #[must_use]
    pub fn flat(cost: Cost) -> Self {
        let name = |text| Unit::new(text).expect("a literal is a valid id");
        Self {
            list: PriceListId::new("flat").expect("a literal is a valid id"),
            rounding: Rounding::HalfEven,
            lines: vec![PriceLine {
                unit: name("job"),
                quantity: 1,
                unit_price: cost.get(),
                per: 1,
            }],
        }
    }

    /// What the lines multiply out to.
    pub fn cost(&self) -> Result<Cost, PriceError> {
        if self.lines.is_empty() || self.lines.len() > MAX_LINES {
            return Err(PriceError::Lines {
                lines: self.lines.len(),
            });
        }
        // The sum so far is `whole + part / denominator`, with 0 <= part < denominator.
        let (mut whole, mut part, mut denominator) = (0_i128, 0_i128, 1_i128);
        for (index, line) in self.lines.iter().enumerate() {
            let number = index + 1;
            line.check(number)?;
            let per = i128::from(line.per);
            let product = i128::from(line.quantity) * i128::from(line.unit_price);
            let overflow = PriceError::Overflow { line: number };
            let common = denominator
                .checked_mul(per / gcd(denominator, per))
                .ok_or_else(|| overflow.clone())?;
            let scaled = |value: i128, of: i128| value.checked_mul(common / of);
            let sum = scaled(part, denominator)
                .zip(scaled(product % per, per))
                .and_then(|(a, b)| a.checked_add(b))
                .ok_or(overflow)?;
            whole += product / per + sum / common;
            part = sum % common;
            denominator = common;
        }
        let rounded = whole + i128::from(rounds_up(self.rounding, whole, part, denominator));
        let amount = i64::try_from(rounded).map_err(|_| PriceError::TooLarge { sum: rounded })?;
        Ok(Cost::new(amount)?)
    }

    /// Refuses a price that multiplies out to another cost than `stated`.
    pub fn check(&self, stated: Cost) -> Result<(), PriceError> {
        let computed = self.cost()?;
        if computed != stated {
            return Err(PriceError::Mismatch {
                computed: computed.get(),
                stated: stated.get(),
            });
        }
        Ok(())
    }
}

impl PriceLine {
    fn check(&self, line: usize) -> Result<(), PriceError> {
        let fields = [
            ("quantity", self.quantity, 0),
            ("unit_price", self.unit_price, 0),
            ("per", self.per, 1),
        ];
        for (field, value, min) in fields {
            if value < min || value > MAX_AMOUNT {
                return Err(PriceError::OutOfRange {
                    line,
                    field,
                    value,
                    min,
                });
            }
        }
        Ok(())
    }
}

fn rounds_up(rounding: Rounding, whole: i128, part: i128, denominator: i128) -> bool {
    // `denominator - part` instead of `2 × part`: the product could leave 128 bits.
    let rest = denominator - part;
    match rounding {
        Rounding::Up => part > 0,
        Rounding::Down => false,
        Rounding::HalfEven => part > rest || (part == rest && whole % 2 == 1),
    }
}

fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(rounding: Rounding, lines: &[(i64, i64, i64)]) -> PriceSnapshot {
        PriceSnapshot {
            list: PriceListId::new("2026-11").expect("valid"),
            rounding,
            lines: lines
                .iter()
                .map(|&(quantity, unit_price, per)| PriceLine {
                    unit: Unit::new("token").expect("valid"),
                    quantity,
                    unit_price,
                    per,
                })
                .collect(),
        }
    }

    #[test]
    fn the_sum_is_rounded_once() {
        use Rounding::{Down, HalfEven, Up};
        type Lines = &'static [(i64, i64, i64)];
        // (lines, up, down, half even); each half of 1.5 alone would round to 0 or 2, together they are 3.
        let cases: [(Lines, i64, i64, i64); 6] = [
            (&[(1, 3, 2), (1, 3, 2)], 3, 3, 3),
            (&[(5, 1, 2)], 3, 2, 2),
            (&[(7, 1, 2)], 4, 3, 4),
            (&[(1, 4, 3)], 2, 1, 1),
            (&[(1, 1, 3), (1, 1, 7), (1, 11, 21)], 1, 1, 1),
            (&[(4808, 30, 1000), (10, 60, 1000)], 145, 144, 145),
        ];
        for (lines, up, down, half_even) in cases {
            for (rounding, want) in [(Up, up), (Down, down), (HalfEven, half_even)] {
                let cost = price(rounding, lines)
                    .cost()
                    .expect("a case is a valid price");
                assert_eq!(cost.get(), want, "{lines:?} {rounding:?}");
            }
        }
    }

    #[test]
    fn a_price_outside_its_range_says_where() {
        let of = |lines: &[(i64, i64, i64)]| {
            price(Rounding::Up, lines)
                .cost()
                .expect_err("refused")
                .to_string()
        };
        assert_eq!(of(&[]), "price has 0 lines, not 1 to 32");
        assert_eq!(
            of(&[(1, 1, 1), (-1, 1, 1)]),
            "price line 2: quantity -1 is not between 0 and 10^15"
        );
        assert_eq!(
            of(&[(1, 1, 0)]),
            "price line 1: per 0 is not between 1 and 10^15"
        );
        assert_eq!(
            of(&[(0, 1, 1)]),
            "price multiplies out to no cost: amount 0 is not positive"
        );
        assert_eq!(
            of(&[(MAX_AMOUNT, MAX_AMOUNT, 1)]),
            format!(
                "price multiplies out to {}, more than 10^15",
                i128::from(MAX_AMOUNT).pow(2)
            )
        );
        // Three large coprime denominators do not have a common one in 128 bits.
        assert_eq!(
            of(&[
                (1, 1, 999_999_999_999_989),
                (1, 1, 999_999_999_999_947),
                (1, 1, 999_999_999_999_883)
            ]),
            "price line 3: the sum up to it does not fit 128 bits"
        );
    }

    #[test]
    fn a_stated_cost_must_be_the_computed_one() {
        let cost = |amount| Cost::new(amount).expect("valid");
        assert_eq!(PriceSnapshot::flat(cost(40)).check(cost(40)), Ok(()));
        assert_eq!(
            price(Rounding::Up, &[(2, 20, 1)]).check(cost(41)),
            Err(PriceError::Mismatch {
                computed: 40,
                stated: 41
            })
        );
    }
}
