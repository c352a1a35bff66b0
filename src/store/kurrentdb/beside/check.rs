//! What the tables beside the log must say, by the log: for the audit.

use std::collections::{BTreeMap, HashMap};

use super::hours::hour_of;
use super::reservations::{Reservation, read_after};
use super::skipped;
use crate::sql::Transaction;
use crate::store::{Position, RecordedEvent, Revision, StoreError};

/// How many rows are read at once.
const ROWS: i64 = 2_000;

/// What is wrong, by what it is about.
pub(crate) type Faults = Vec<(String, String)>;

/// What is expected of the tables when the log is folded so far.
#[derive(Debug)]
pub(crate) struct Check {
    streams: HashMap<String, Revision>,
    hours: BTreeMap<i64, Position>,
    last: Position,
    is_cut: bool,
}

impl Default for Check {
    fn default() -> Self {
        Self {
            streams: HashMap::new(),
            hours: BTreeMap::new(),
            last: Position::START,
            is_cut: false,
        }
    }
}

impl Check {
    /// The next event of the log.
    pub(crate) fn see(&mut self, event: &RecordedEvent) {
        if event.stream.is_job() {
            self.streams
                .insert(event.stream.to_string(), event.revision);
        }
        let hour = hour_of(event.posted_at);
        let latest = self.hours.last_key_value().map_or(0, |(hour, _)| *hour);
        if hour > latest {
            self.hours.insert(hour, self.last);
        }
        self.last = event.position;
    }

    /// What comes next is not known: only what is wrong by itself is told.
    pub(crate) const fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Compares with what is stored, which stands where the last event does.
    pub(crate) fn faults(mut self, tx: &Transaction<'_>) -> Result<Faults, StoreError> {
        let mut faults = Faults::new();
        self.compare_reservations(tx, &mut faults)?;
        if !self.is_cut {
            self.compare_hours(tx, &mut faults)?;
            self.compare_streams(tx, &mut faults)?;
        }
        for (position, what) in skipped(tx)? {
            faults.push((format!("event {position}"), what));
        }
        Ok(faults)
    }

    fn compare_hours(&self, tx: &Transaction<'_>, faults: &mut Faults) -> Result<(), StoreError> {
        let sql = "SELECT hour, position FROM followed_hours";
        let found = tx.rows(sql, &[], |row| {
            Ok((row.get::<i64>(0)?, Position::new(row.get(1)?)))
        })?;
        let found: BTreeMap<_, _> = found.into_iter().collect();
        let all: std::collections::BTreeSet<_> = found.keys().chain(self.hours.keys()).collect();
        for hour in all {
            let (expected, found) = (self.hours.get(hour), found.get(hour));
            if expected != found {
                let what = differs(expected, found, "begins behind position");
                faults.push((format!("hour {hour} of the log"), what));
            }
        }
        Ok(())
    }

    fn compare_reservations(
        &self,
        tx: &Transaction<'_>,
        faults: &mut Faults,
    ) -> Result<(), StoreError> {
        let mut after = String::new();
        loop {
            let page = read_after(tx, &after, ROWS)?;
            for (stream, read) in &page {
                let folded = self.streams.get(stream.as_str());
                let next = folded.map_or(0, |last| last.get() + 1);
                // Behind a cut the stream may go on.
                let next = (!self.is_cut).then_some(next);
                if let Some(what) = reservation_fault(read, next) {
                    faults.push((stream.clone(), what));
                }
            }
            match page.into_iter().next_back() {
                Some((stream, _)) => after = stream,
                None => return Ok(()),
            }
        }
    }

    fn compare_streams(
        &mut self,
        tx: &Transaction<'_>,
        faults: &mut Faults,
    ) -> Result<(), StoreError> {
        let sql = "SELECT stream, revision FROM followed_streams WHERE stream > ?1 ORDER BY stream LIMIT ?2";
        let mut after = String::new();
        loop {
            let page = tx.rows(sql, crate::values![&after, ROWS], |row| {
                Ok((row.get::<String>(0)?, row.get::<i64>(1)?))
            })?;
            for (stream, found) in &page {
                let expected = self.streams.remove(stream.as_str());
                let expected = expected.map(|revision| crate::sql::log::stored_u64(revision.get()));
                if expected != Some(*found) {
                    let what = differs(expected.as_ref(), Some(found), "is folded up to revision");
                    faults.push((stream.clone(), what));
                }
            }
            match page.into_iter().next_back() {
                Some((stream, _)) => after = stream,
                None => break,
            }
        }
        for (stream, revision) in self.streams.drain() {
            let what = differs::<_, i64>(Some(&revision), None, "is folded up to revision");
            faults.push((stream, what));
        }
        Ok(())
    }
}

fn differs<T: std::fmt::Display, U: std::fmt::Display>(
    expected: Option<&T>,
    found: Option<&U>,
    what: &str,
) -> String {
    let show = |value: Option<String>| value.unwrap_or_else(|| "no row".to_owned());
    format!(
        "{what}: expected {}, found {}",
        show(expected.map(T::to_string)),
        show(found.map(U::to_string))
    )
}

/// What is wrong with a reservation of a stream whose next revision is `next`, if that is known.
fn reservation_fault(read: &Result<Reservation, StoreError>, next: Option<u64>) -> Option<String> {
    let reservation = match read {
        Ok(reservation) => reservation,
        Err(error) => return Some(error.to_string()),
    };
    if let Err(error) = reservation.check() {
        return Some(format!("credit is reserved for {error}"));
    }
    let revision = reservation.revision.get();
    let next = next.filter(|next| *next != revision)?;
    Some(format!(
        "credit is reserved for command {} at revision {revision}, and the next one of the stream is {next}",
        reservation.command
    ))
}
