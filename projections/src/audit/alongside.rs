//! Rows that stand for one event each, held against the log as it goes by.
//!
//! Both sides come in position order: a row before the event that is due stands for nothing, an event without its row is missing
//! one. Bound: a page of rows in memory.

use std::collections::VecDeque;

use recoup::sql::{Row, Transaction};
use recoup::store::StoreError;
use recoup::{Position, values};

use super::report::{Area, Fields, Report};

/// How many rows are read at a time.
const ROWS: i64 = 2_000;

/// A row that stands for one event.
pub(super) trait LogRow: Sized + PartialEq {
    /// The check that it belongs to.
    const AREA: Area;
    /// The table's rows after position `?1`, at most `?2`, in order.
    const SQL: &'static str;

    fn read(row: &Row<'_>) -> Result<Self, StoreError>;
    fn position(&self) -> i64;
    fn fields(&self) -> Fields;
}

/// A table beside the log.
pub(super) struct Alongside<T> {
    /// The checkpoint that the table is compared at; none if it is not compared, or not any more.
    until: Option<Position>,
    rows: VecDeque<T>,
    read_to: i64,
    is_exhausted: bool,
}

impl<T: LogRow> Alongside<T> {
    pub(super) const fn until(until: Option<Position>) -> Self {
        Self {
            until,
            rows: VecDeque::new(),
            read_to: i64::MIN,
            is_exhausted: false,
        }
    }

    /// The event at `position` calls for a row.
    pub(super) fn expect(
        &mut self,
        (tx, report): (&Transaction<'_>, &mut Report),
        position: Position,
        expected: impl FnOnce() -> T,
    ) -> Result<(), StoreError> {
        if self.until.is_none_or(|until| position > until) {
            return Ok(());
        }
        let expected = expected();
        report.count(T::AREA, 1);
        loop {
            let due = expected.position();
            let Some(row) = self.next(tx, |row| row.position() <= due)? else {
                let subject = format_args!("position {due}");
                report.row(T::AREA, subject, (Some(expected.fields()), None));
                return Ok(());
            };
            if row.position() < due {
                invented(report, &row);
                continue;
            }
            if row != expected {
                let subject = format_args!("position {due}");
                report.row(
                    T::AREA,
                    subject,
                    (Some(expected.fields()), Some(row.fields())),
                );
            }
            return Ok(());
        }
    }

    /// An event cannot be read: a table that claims to have passed it is compared up to there and no farther.
    pub(super) fn stop_at(&mut self, position: Position) {
        if self.until.is_some_and(|until| until >= position) {
            self.until = None;
        }
    }

    /// No more events: what is left in the table stands for nothing.
    pub(super) fn finish(
        mut self,
        tx: &Transaction<'_>,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        if self.until.is_some() {
            while let Some(row) = self.next(tx, |_| true)? {
                invented(report, &row);
            }
        }
        Ok(())
    }

    /// Takes the next row, if there is one that `is_wanted`.
    fn next(
        &mut self,
        tx: &Transaction<'_>,
        is_wanted: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, StoreError> {
        if self.rows.is_empty() && !self.is_exhausted {
            let page = tx.rows(T::SQL, values![self.read_to, ROWS], T::read)?;
            self.rows = page.into();
            match self.rows.back() {
                Some(last) => self.read_to = last.position(),
                None => self.is_exhausted = true,
            }
        }
        Ok(self.rows.pop_front_if(|row| is_wanted(row)))
    }
}

fn invented<T: LogRow>(report: &mut Report, row: &T) {
    let subject = format_args!("position {}", row.position());
    report.row(T::AREA, subject, (None, Some(row.fields())));
}
