//! Which days a run takes: whole days of the ledger's zone, both ends included.
//!
//! A day is what [`Zone::day_of`] says of an event's `posted_at`, event by event. The scan begins somewhat before the first day, since a
//! zone may put its clocks back across midnight: the first instants of a day may be followed by some more of the day before.

use std::str::FromStr;
use std::time::Duration;

use recoup::{Day, Timestamp, Zone};

/// By how much a zone puts its clocks back at the most; the IANA database has no larger step since 1970.
const STEP_BACK: Duration = Duration::from_secs(3 * 60 * 60);

/// The most days that a window may count back.
const MAX_DAYS: u32 = 36_525;

/// Days to rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last so many days, today included.
    Last(u32),
    /// These days, both included.
    Days {
        /// The first.
        from: Day,
        /// The last.
        to: Day,
    },
    /// Every day, and account figures too.
    All,
}

impl Default for Window {
    /// Yesterday and today.
    fn default() -> Self {
        Self::Last(2)
    }
}

/// A text that is no window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Not of the form `2d`.
    #[error("{0:?} is not a number of days such as 2d, from 1d to {MAX_DAYS}d")]
    NotDays(String),
    /// The last day is before the first.
    #[error("--to {to} is before --from {from}")]
    Backwards {
        /// The first day.
        from: Day,
        /// The last day.
        to: Day,
    },
}

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let days = text
            .strip_suffix('d')
            .filter(|days| days.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|days| days.parse().ok())
            .filter(|days| (1..=MAX_DAYS).contains(days));
        days.map(Self::Last)
            .ok_or_else(|| WindowError::NotDays(text.to_owned()))
    }
}

impl Window {
    /// The days from `from` to `to`.
    pub fn days(from: Day, to: Day) -> Result<Self, WindowError> {
        if to < from {
            return Err(WindowError::Backwards { from, to });
        }
        Ok(Self::Days { from, to })
    }

    /// The first and the last day, as of `now`; `first` is the day of the log's first event.
    pub(crate) fn resolve(self, now: Timestamp, zone: Zone, first: Option<Day>) -> (Day, Day) {
        let today = zone.day_of(now);
        match self {
            Self::Last(days) => {
                let from = (1..days).fold(today, |day, _| day.previous());
                (from, today)
            }
            Self::Days { from, to } => (from, to),
            Self::All => (first.unwrap_or(today).min(today), today),
        }
    }
}

/// Before this instant no event is of `from` or later.
pub(crate) fn scan_from(zone: Zone, from: Day) -> Timestamp {
    let step = i64::try_from(STEP_BACK.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(zone.start_of(from).as_micros().saturating_sub(step))
}

/// From this instant on no event is of `to` or earlier.
pub(crate) fn scan_until(zone: Zone, to: Day) -> Timestamp {
    zone.start_of(to.next()).after(STEP_BACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> Day {
        Day::parse(text).unwrap()
    }

    #[test]
    fn a_window_is_whole_days_of_the_zone() {
        let now = Timestamp::parse("2026-11-30T15:30:00Z").unwrap();
        let cases = [
            ("UTC", "2d", "2026-11-29", "2026-11-30"),
            ("Asia/Seoul", "2d", "2026-11-30", "2026-12-01"),
            ("America/New_York", "1d", "2026-11-30", "2026-11-30"),
            ("UTC", "31d", "2026-10-31", "2026-11-30"),
        ];
        for (zone, window, from, to) in cases {
            let window: Window = window.parse().unwrap();
            let zone = Zone::parse(zone).unwrap();
            assert_eq!(
                window.resolve(now, zone, None),
                (day(from), day(to)),
                "{zone}"
            );
        }
    }

    #[test]
    fn what_is_no_window_says_so() {
        for text in [
            "",
            "d",
            "2",
            "0d",
            "-1d",
            "+1d",
            "2h",
            "2d ",
            "99999d",
            "4294967297d",
        ] {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
        assert!(Window::days(day("2026-11-30"), day("2026-11-29")).is_err());
    }

    /// St. John's put its clocks back at 00:01 in 2010: a minute of Sunday came before another 59 minutes of Saturday.
    #[test]
    fn the_scan_covers_a_midnight_that_was_passed_twice() {
        let zone = Zone::parse("America/St_Johns").unwrap();
        let sunday = day("2010-11-07");
        let mut at = Timestamp::parse("2010-11-07T00:00:00Z").unwrap();
        let end = Timestamp::parse("2010-11-08T12:00:00Z").unwrap();
        let mut seen = 0;
        while at < end {
            if zone.day_of(at) == sunday {
                seen += 1;
                assert!(
                    at >= scan_from(zone, sunday) && at < scan_until(zone, sunday),
                    "{at}"
                );
            }
            if zone.day_of(at) == sunday.previous() {
                assert!(at < scan_until(zone, sunday.previous()), "{at}");
            }
            at = at.after(Duration::from_secs(30));
        }
        assert!(seen > 0);
    }
}
