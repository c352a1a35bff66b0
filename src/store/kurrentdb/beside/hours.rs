//! Which place in the log an instant leads to: the hours that were seen begin.
//!
//! The server's clock may go back a little when another node takes the lead, so a day is not exactly a range of positions.

use super::{Followed, read_state};
use crate::clock::Timestamp;
use crate::sql::Transaction;
use crate::store::{Position, StoreError};

const MICROS_AN_HOUR: i64 = 3_600_000_000;

/// By how many hours the server's clock may go back before an event is missed by a scan that ends early.
const SKEW_HOURS: i64 = 24;

pub(super) fn hour_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(MICROS_AN_HOUR)
}

/// A place that no event posted at `at` or later stands at or before.
pub(crate) fn read_scan_begin(tx: &Transaction<'_>, at: Timestamp) -> Result<Position, StoreError> {
    let sql = "SELECT position FROM followed_hours WHERE hour >= ?1 ORDER BY hour LIMIT 1";
    let found = tx.row(sql, crate::values![hour_of(at)], |row| row.get(0))?;
    if let Some(position) = found {
        return Ok(Position::new(position));
    }
    let state = read_state(tx)?;
    // What has not been folded may be of any hour; of an hour that was seen the row is lost.
    Ok(if state.hour < hour_of(at) {
        state.position
    } else {
        Position::START
    })
}

/// A place that no event posted before `at` stands after; none as long as one may still come.
pub(crate) fn read_scan_end(
    tx: &Transaction<'_>,
    at: Timestamp,
) -> Result<Option<Position>, StoreError> {
    let sql = "SELECT position FROM followed_hours WHERE hour > ?1 ORDER BY hour LIMIT 1";
    let late = hour_of(at).saturating_add(SKEW_HOURS);
    let found = tx.row(sql, crate::values![late], |row| row.get(0))?;
    Ok(found.map(Position::new))
}

/// Notes which hours begin in events that follow `state`. Gives the latest one that was seen.
pub(super) fn note(
    tx: &Transaction<'_>,
    state: &Followed,
    instants: impl Iterator<Item = (Position, Timestamp)>,
) -> Result<i64, StoreError> {
    let (mut hour, mut before) = (state.hour, state.position);
    let mut rows = Vec::new();
    for (position, posted_at) in instants {
        let posted_in = hour_of(posted_at);
        if posted_in > hour {
            hour = posted_in;
            rows.push(vec![hour.into(), before.get().into()]);
        }
        before = position;
    }
    let sql = "INSERT INTO followed_hours (hour, position) VALUES (?1, ?2)";
    tx.execute_many(sql, &rows)?;
    Ok(hour)
}
