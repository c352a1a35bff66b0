//! Values of arguments that are no plain ids: amounts, limits, prices, pages.

use recoup::credits::MAX_BALANCE;
use recoup::{Cost, Delta, Floor, Lease, Position, PriceSnapshot, Reason, Scale};
use recoup_projections::MAX_PAGE_ROWS;

pub(super) type Parsed<T> = Result<T, String>;

/// A whole number of the smallest unit.
fn number(text: &str) -> Parsed<i64> {
    text.parse().map_err(|_| {
        format!("{text:?} is not a whole number (of the smallest unit) that 64 bits can hold")
    })
}

pub(super) fn scale(text: &str) -> Parsed<Scale> {
    let decimals: u8 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number from 0 to 9"))?;
    Scale::new(decimals).map_err(|error| error.to_string())
}

pub(super) fn cost(text: &str) -> Parsed<Cost> {
    Cost::new(number(text)?).map_err(|error| error.to_string())
}

pub(super) fn delta(text: &str) -> Parsed<Delta> {
    Delta::new(number(text)?).map_err(|error| error.to_string())
}

/// A floor: a number, or `none` for postpaid.
pub(super) fn floor(text: &str) -> Parsed<Floor> {
    match text {
        "none" => Ok(Floor::None),
        text => check_floor(Some(number(text)?)),
    }
}

/// A floor as it stands in a document, where null is none.
pub(super) fn check_floor(floor: Option<i64>) -> Parsed<Floor> {
    match floor {
        None => Ok(Floor::None),
        Some(floor) if floor.unsigned_abs() <= MAX_BALANCE.unsigned_abs() => Ok(Floor::At(floor)),
        Some(floor) => Err(format!("floor {floor} is larger than 10^18 in size")),
    }
}

/// What a monthly cap is set to: a number, or none for no cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cap(pub(super) Option<i64>);

/// A monthly cap: a number, or `none`.
pub(super) fn cap(text: &str) -> Parsed<Cap> {
    match text {
        "none" => Ok(Cap(None)),
        text => check_cap(Some(number(text)?)),
    }
}

/// A cap as it stands in a document, where null is none.
pub(super) fn check_cap(cap: Option<i64>) -> Parsed<Cap> {
    match cap {
        Some(number) if !(0..=MAX_BALANCE).contains(&number) => {
            Err(format!("monthly cap {number} is not between 0 and 10^18"))
        }
        cap => Ok(Cap(cap)),
    }
}

/// Why a balance is corrected: not nothing.
pub(super) fn stated_reason(text: &str) -> Parsed<Reason> {
    if text.trim().is_empty() {
        return Err("reason is empty: an adjustment says why".to_owned());
    }
    Reason::new(text).map_err(|error| error.to_string())
}

/// Why a projection is skipped or reset: not nothing.
pub(super) fn why_skipped(text: &str) -> Parsed<Reason> {
    if text.trim().is_empty() {
        return Err("the reason is empty: it is what the audit shows".to_owned());
    }
    Reason::new(text).map_err(|error| error.to_string())
}

/// How long a started attempt may run without a sign of life, such as `90s`.
pub(super) fn lease(text: &str) -> Parsed<Lease> {
    let ms = super::config::parse_duration_ms(text)?;
    Lease::from_ms(ms).map_err(|error| error.to_string())
}

/// Why dead letters are moved: not nothing.
pub(super) fn stated_why(text: &str) -> Parsed<Reason> {
    if text.trim().is_empty() {
        return Err("reason is empty: whoever moves dead letters says why".to_owned());
    }
    Reason::new(text).map_err(|error| error.to_string())
}

/// A price, written as in an import line.
pub(super) fn price(text: &str) -> Parsed<PriceSnapshot> {
    super::import::parse_price(text)
}

/// Which part of a long list.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Paging {
    /// Begin behind this position: the `next` of the page before.
    #[arg(long, value_name = "POSITION", value_parser = clap::value_parser!(i64).range(0..))]
    after: Option<i64>,
    /// The most rows to show.
    #[arg(long, value_name = "ROWS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PAGE_ROWS)))]
    pub(super) limit: u32,
}

impl Paging {
    pub(super) fn after(&self) -> Option<Position> {
        self.after.map(Position::new)
    }

    /// Adds how to see more, where there is more.
    pub(super) fn with_next(self, text: String, next: Option<Position>) -> String {
        match next {
            None => text,
            Some(next) => format!("{text}\nmore: --after {next} --limit {}", self.limit),
        }
    }
}
