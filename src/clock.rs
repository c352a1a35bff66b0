//! Time: instants, a ledger's zone, its days and its budget months.
//!
//! There is one clock per ledger, the store's; no caller's clock decides anything. Deadlines are durations counted
//! from `posted_at`. A day or a month is computed here and nowhere else: half open, in the ledger's zone, once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Datelike, Days, NaiveDate, NaiveTime, SecondsFormat, TimeZone, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

/// An instant: microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This instant plus `duration`, at most the last representable one.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// This instant minus a duration; not earlier than time goes.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// How long it is from `earlier` to this instant; zero if it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads an instant as RFC 3339, such as `2026-11-29T10:00:00Z`.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        DateTime::parse_from_rfc3339(text)
            .map(|at| Self(at.timestamp_micros()))
            .map_err(|_| TimestampError {
                text: text.to_owned(),
            })
    }

    fn to_utc(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).unwrap_or(if self.0 < 0 {
            DateTime::<Utc>::MIN_UTC
        } else {
            DateTime::<Utc>::MAX_UTC
        })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_utc().to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

/// A text that is not an RFC 3339 instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an instant such as 2026-11-29T10:00:00Z")]
pub struct TimestampError {
    text: String,
}

/// Where a store reads the time.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The instant it is.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(Utc::now().timestamp_micros())
    }
}

/// A clock that stands still until it is told to move; for simulations and tests.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(start.0)))
    }

    /// Moves the clock to `at`, forwards or back.
    pub fn set(&self, at: Timestamp) {
        self.0.store(at.0, Ordering::SeqCst);
    }

    /// Moves the clock forwards.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// The time zone whose midnights part a ledger's days; an IANA name such as `Asia/Seoul`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Zone(Tz);

impl Zone {
    /// UTC, the default.
    pub const UTC: Self = Self(Tz::UTC);

    /// Looks up an IANA zone name.
    pub fn parse(name: &str) -> Result<Self, ZoneError> {
        name.parse().map(Self).map_err(|_| ZoneError {
            name: name.to_owned(),
        })
    }

    /// The IANA name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// The day that `at` falls on.
    #[must_use]
    pub fn day_of(self, at: Timestamp) -> Day {
        Day(self
            .0
            .from_utc_datetime(&at.to_utc().naive_utc())
            .date_naive())
    }

    /// The budget month that `at` falls in.
    #[must_use]
    pub fn month_of(self, at: Timestamp) -> BudgetMonth {
        self.day_of(at).month()
    }

    /// The first instant of `day`. A day is `[start_of(day), start_of(day.next()))`.
    ///
    /// Where a clock change skips midnight, the day starts at the first instant that exists; where it repeats midnight, at the first of the two.
    #[must_use]
    pub fn start_of(self, day: Day) -> Timestamp {
        let midnight = day.0.and_time(NaiveTime::MIN);
        let mut local = midnight;
        // The largest gap in the IANA database is a whole day (Pacific/Apia, 2011-12-30): look no farther.
        for _ in 0..=96 {
            if let Some(at) = self.0.from_local_datetime(&local).earliest() {
                return Timestamp(at.timestamp_micros());
            }
            local += chrono::TimeDelta::minutes(15);
        }
        Timestamp(midnight.and_utc().timestamp_micros())
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not an IANA time zone such as UTC or Asia/Seoul")]
pub struct ZoneError {
    name: String,
}

/// A calendar day in a ledger's zone, written `2026-11-29`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(NaiveDate);

impl Day {
    /// Reads a day as `YYYY-MM-DD`.
    pub fn parse(text: &str) -> Result<Self, DayError> {
        let error = || DayError {
            text: text.to_owned(),
        };
        // Years of four digits only: days are compared as texts, too.
        if text.len() != 10 {
            return Err(error());
        }
        NaiveDate::parse_from_str(text, "%Y-%m-%d")
            .map(Self)
            .map_err(|_| error())
    }

    /// The day after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(
            self.0
                .checked_add_days(Days::new(1))
                .unwrap_or(NaiveDate::MAX),
        )
    }

    /// The day before this one.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(
            self.0
                .checked_sub_days(Days::new(1))
                .unwrap_or(NaiveDate::MIN),
        )
    }

    /// The month that this day is in.
    #[must_use]
    pub fn month(self) -> BudgetMonth {
        let month = u8::try_from(self.0.month()).expect("a calendar month is 1 to 12");
        BudgetMonth {
            year: self.0.year(),
            month,
        }
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.format("%Y-%m-%d"))
    }
}

/// A text that is not a calendar day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a day such as 2026-11-29")]
pub struct DayError {
    text: String,
}

/// The calendar month whose cap a job counts against, written `2026-11`. Set once, at the charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(i32, u8)", into = "(i32, u8)")]
pub struct BudgetMonth {
    year: i32,
    month: u8,
}

impl TryFrom<(i32, u8)> for BudgetMonth {
    type Error = MonthError;

    fn try_from((year, month): (i32, u8)) -> Result<Self, MonthError> {
        if (1..=12).contains(&month) {
            return Ok(Self { year, month });
        }
        Err(MonthError {
            text: format!("{year}-{month}"),
        })
    }
}

impl From<BudgetMonth> for (i32, u8) {
    fn from(month: BudgetMonth) -> Self {
        (month.year, month.month)
    }
}

impl BudgetMonth {
    /// Reads a month as `YYYY-MM`.
    pub fn parse(text: &str) -> Result<Self, MonthError> {
        Day::parse(&format!("{text}-01"))
            .map(Day::month)
            .map_err(|_| MonthError {
                text: text.to_owned(),
            })
    }
}

impl fmt::Display for BudgetMonth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)
    }
}

/// A text that is not a calendar month.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a month such as 2026-11")]
pub struct MonthError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("a test's instant is valid")
    }

    #[test]
    fn days_part_at_the_zones_midnight() {
        let cases = [
            // (zone, the last microsecond of a day, that day)
            ("UTC", "2026-11-29T23:59:59.999999Z", "2026-11-29"),
            ("Asia/Seoul", "2026-11-29T14:59:59.999999Z", "2026-11-29"),
            // New York springs forward on 2026-03-08 and falls back on 2026-11-01: days of 23 and 25 hours.
            (
                "America/New_York",
                "2026-03-08T04:59:59.999999Z",
                "2026-03-07",
            ),
            (
                "America/New_York",
                "2026-03-09T03:59:59.999999Z",
                "2026-03-08",
            ),
            (
                "America/New_York",
                "2026-11-01T03:59:59.999999Z",
                "2026-10-31",
            ),
            (
                "America/New_York",
                "2026-11-02T04:59:59.999999Z",
                "2026-11-01",
            ),
        ];
        for (zone, last, day) in cases {
            let zone = Zone::parse(zone).expect("a test's zone is valid");
            let day = Day::parse(day).expect("a test's day is valid");
            let next = Timestamp::from_micros(at(last).as_micros() + 1);
            assert_eq!(zone.day_of(at(last)), day, "{zone} {last}");
            assert_eq!(zone.day_of(next), day.next(), "{zone} {last}");
            assert_eq!(zone.start_of(day.next()), next, "{zone} {last}");
        }
    }

    #[test]
    fn a_skipped_or_repeated_midnight_has_one_start() {
        // Beirut springs forward at midnight: 2026-03-29 starts at 01:00 local, 2026-03-28T22:00Z.
        let beirut = Zone::parse("Asia/Beirut").expect("a test's zone is valid");
        let day = Day::parse("2026-03-29").expect("a test's day is valid");
        assert_eq!(beirut.start_of(day), at("2026-03-28T22:00:00Z"));
        // Havana falls back at 01:00 to 00:00: 2026-11-01 has two midnights, and starts at the first.
        let havana = Zone::parse("America/Havana").expect("a test's zone is valid");
        let day = Day::parse("2026-11-01").expect("a test's day is valid");
        assert_eq!(havana.start_of(day), at("2026-11-01T04:00:00Z"));
        assert_eq!(havana.day_of(at("2026-11-01T05:30:00Z")), day);
    }

    #[test]
    fn text_forms_round_trip() {
        assert_eq!(
            at("2026-11-29T10:00:00.000001Z").to_string(),
            "2026-11-29T10:00:00.000001Z"
        );
        assert_eq!(
            BudgetMonth::parse("2026-02").expect("valid").to_string(),
            "2026-02"
        );
        assert!(BudgetMonth::parse("2026-13").is_err());
        assert!(Zone::parse("Mars/Olympus").is_err());
    }
}
