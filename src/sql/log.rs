//! The log as a transaction sees it: appends as rows, rows as events.
//!
//! An append's events share one row, so a command costs one insert however many events it has. The body is postcard: a sequence of
//! (event id, type name, version, bytes). Rows are never updated and never deleted.

use std::borrow::Cow;
#[cfg(feature = "postgres")]
use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Connection, Row, Transaction};
use crate::account::{AccountState, MonthState};
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::{Catalog, StreamName};
use crate::ids::AccountId;
use crate::store::figures::Stored;
#[cfg(feature = "postgres")]
use crate::store::postgres::Session;
use crate::store::{Append, EventId, Position, RecordedEvent, Revision, StoreError};

/// Where an append stands in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppendSpan {
    /// Its first event.
    pub(crate) first: Position,
    /// Its last event.
    pub(crate) last: Position,
    /// When the store recorded it.
    pub(crate) posted_at: Timestamp,
}

/// Where the log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Its last event.
    pub(crate) head: Position,
    /// When that was recorded; none for an empty log.
    pub(crate) posted_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct StoredEvent<'a> {
    id: [u8; 16],
    type_name: &'a str,
    version: u16,
    #[serde(borrow, with = "serde_bytes")]
    data: &'a [u8],
}

/// The body of an append's row.
pub(crate) fn body_of(append: &Append) -> Vec<u8> {
    let events = append.events.iter().map(|event| StoredEvent {
        id: event.id.get().into_bytes(),
        type_name: event.event_type.name,
        version: event.event_type.version,
        data: &event.data,
    });
    pack(events.collect())
}

fn pack(events: Vec<StoredEvent<'_>>) -> Vec<u8> {
    postcard::to_stdvec(&events).expect("names and bytes always serialize")
}

/// A count or a revision as it is stored.
pub(crate) fn stored_u64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Account figures that follow a log elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedFigures {
    /// The last event that they have.
    pub position: Position,
    /// The event that they cannot get past, and why: no charge is admitted.
    pub halted: Option<(Position, String)>,
    /// How many charges have reserved credit and are not folded yet.
    pub reservations: u64,
    /// When the oldest of them was reserved.
    pub oldest_reservation: Option<Timestamp>,
}

/// What the tables around account figures must say, by the log: it is shown every event that they have, and then compares.
#[derive(Debug)]
pub struct FiguresCheck {
    #[cfg(feature = "kurrentdb")]
    check: Option<crate::store::kurrentdb::Check>,
}

impl FiguresCheck {
    /// The next event of the log.
    #[cfg_attr(
        not(feature = "kurrentdb"),
        expect(
            clippy::unused_self,
            clippy::needless_pass_by_ref_mut,
            reason = "for a log in KurrentDB"
        )
    )]
    pub fn see(&mut self, event: &RecordedEvent) {
        #[cfg(feature = "kurrentdb")]
        if let Some(check) = &mut self.check {
            check.see(event);
        }
        #[cfg(not(feature = "kurrentdb"))]
        let _ = event;
    }

    /// The log cannot be read any farther: what stands behind is not told.
    pub fn cut(&mut self) {
        #[cfg(feature = "kurrentdb")]
        if let Some(check) = &mut self.check {
            check.cut();
        }
    }

    /// What is wrong where the figures stand at the last event that was seen, by what it is about: events that a person had them skip, too.
    pub fn faults(self, tx: &Transaction<'_>) -> Result<Vec<(String, String)>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if let Some(check) = self.check {
            return check.faults(tx);
        }
        let _ = tx;
        Ok(Vec::new())
    }
}

impl Transaction<'_> {
    /// Writes an append's row; its first event gets the place `first`. For a transaction that keeps other appends out.
    #[cfg(feature = "sqlite")]
    pub(crate) fn insert_append(
        &self,
        first: Position,
        append: &Append,
        posted_at: Timestamp,
    ) -> Result<(), StoreError> {
        let place = (first, append.stream.as_str(), append.expected.next());
        let what = (append.events.len(), body_of(append));
        self.insert_row(place, what, (posted_at, &append.metadata))
    }

    /// Writes events that another ledger recorded as one append.
    pub(crate) fn insert_recorded(&self, recorded: &[RecordedEvent]) -> Result<(), StoreError> {
        let Some(first) = recorded.first() else {
            return Ok(());
        };
        let metadata =
            std::str::from_utf8(&first.metadata).map_err(|error| StoreError::Corrupt {
                position: first.position,
                why: format!("metadata: {error}"),
            })?;
        let events = recorded.iter().map(|event| StoredEvent {
            id: event.id.get().into_bytes(),
            type_name: &event.type_name,
            version: event.version,
            data: &event.data,
        });
        let place = (first.position, first.stream.as_str(), first.revision);
        let what = (recorded.len(), pack(events.collect()));
        self.insert_row(place, what, (first.posted_at, metadata))
    }

    fn insert_row(
        &self,
        (first, stream, revision): (Position, &str, Revision),
        (events, body): (usize, Vec<u8>),
        (posted_at, metadata): (Timestamp, &str),
    ) -> Result<(), StoreError> {
        let sql =
            "INSERT INTO appends (position, stream, revision, events, posted_at, metadata, body)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let values = crate::values![
            first.get(),
            stream,
            stored_u64(revision.get()),
            stored_u64(events as u64),
            posted_at.as_micros(),
            metadata,
            body.as_slice(),
        ];
        self.execute(sql, values).map(|_| ())
    }

    /// The last event's place and instant.
    pub(crate) fn read_tail(&self) -> Result<Tail, StoreError> {
        let sql =
            "SELECT position + events - 1, posted_at FROM appends ORDER BY position DESC LIMIT 1";
        let last = self.row(sql, &[], |row| {
            Ok(Tail {
                head: Position::new(row.get(0)?),
                posted_at: Some(Timestamp::from_micros(row.get(1)?)),
            })
        })?;
        Ok(last.unwrap_or(Tail {
            head: Position::START,
            posted_at: None,
        }))
    }

    /// The last committed position.
    pub fn read_head(&self) -> Result<Position, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if let Some(log) = &self.remote {
            return log.head();
        }
        Ok(self.read_tail()?.head)
    }

    /// How far account figures are: the head, where the append's own transaction writes them.
    pub fn read_figures_position(&self) -> Result<Position, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if self.remote.is_some() {
            return crate::store::kurrentdb::read_followed(self);
        }
        self.read_head()
    }

    /// Whether a person had account figures, which follow a log elsewhere, skip the event at `position`.
    #[cfg_attr(
        not(feature = "kurrentdb"),
        expect(
            unused_variables,
            clippy::unused_self,
            clippy::unnecessary_wraps,
            reason = "for a log in KurrentDB"
        )
    )]
    pub fn is_skipped_by_figures(&self, position: Position) -> Result<bool, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if self.remote.is_some() {
            return crate::store::kurrentdb::is_skipped(self, position);
        }
        Ok(false)
    }

    /// How account figures that follow a log elsewhere stand; none where the append's own transaction writes them.
    pub fn read_followed_figures(&self) -> Result<Option<FollowedFigures>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if self.is_beside_its_log() {
            let followed = crate::store::kurrentdb::read_state(self)?;
            let (reservations, oldest_reservation) = crate::store::kurrentdb::read_reserved(self)?;
            return Ok(Some(FollowedFigures {
                position: followed.position,
                halted: followed.halted,
                reservations,
                oldest_reservation,
            }));
        }
        Ok(None)
    }

    /// A check of what else is stored of account figures that follow a log elsewhere; it finds nothing where the append's own transaction writes them.
    #[must_use]
    pub fn figures_check(&self) -> FiguresCheck {
        FiguresCheck {
            #[cfg(feature = "kurrentdb")]
            check: self.is_beside_its_log().then(Default::default),
        }
    }

    /// The most events that can stand after `from` and not after `to`.
    #[must_use]
    pub fn most_events_between(&self, from: Position, to: Position) -> i64 {
        let distance = to.get().saturating_sub(from.get()).max(0);
        #[cfg(feature = "kurrentdb")]
        if self.remote.is_some() {
            return distance / crate::store::kurrentdb::LEAST_BYTES;
        }
        distance
    }

    /// A stream's last revision; none if it has no event.
    pub(crate) fn read_last_revision(
        &self,
        stream: &StreamName,
    ) -> Result<Option<Revision>, StoreError> {
        let sql = "SELECT revision + events - 1 FROM appends
            WHERE stream = ?1 ORDER BY revision DESC LIMIT 1";
        self.row(sql, crate::values![stream.as_str()], |row| {
            Ok(Revision::new(row.get::<i64>(0)?.unsigned_abs()))
        })
    }

    /// The events of one stream from `from` on, in order.
    pub(crate) fn read_stream(
        &self,
        stream: &StreamName,
        from: Revision,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        let sql =
            "SELECT position, stream, revision, events, posted_at, metadata, body FROM appends
            WHERE stream = ?1 ORDER BY revision";
        let mut events = Vec::new();
        self.each(sql, crate::values![stream.as_str()], |row| {
            unpack(row, Some(stream), &mut events)
        })?;
        events.retain(|event| event.revision >= from);
        Ok(events)
    }

    /// The events of many streams, each whole, in the order of `streams`.
    pub(crate) fn read_streams(
        &self,
        streams: &[StreamName],
    ) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
        match &self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(_) => {
                let whole = |stream| self.read_stream(stream, Revision::FIRST);
                streams.iter().map(whole).collect()
            }
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => read_many(session, streams),
        }
    }

    /// At most `limit` events of the log after `after`, in order, none of them after `until`.
    pub fn read_page_until(
        &self,
        after: Position,
        until: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        let distance = until.get().saturating_sub(after.get());
        let most = usize::try_from(distance).unwrap_or(0);
        let mut page = match limit.min(most) {
            0 => Vec::new(),
            limit => self.read_page(after, limit)?,
        };
        // Where positions have holes, fewer events than numbers lie between.
        page.truncate(page.partition_point(|event| event.position <= until));
        Ok(page)
    }

    /// At most `limit` events of the log after `after`, in order.
    pub fn read_page(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if let Some(log) = &self.remote {
            return log.page(after, limit);
        }
        // The first row is the one that holds the next event: an append may have been read in part.
        let first =
            "SELECT position, stream, revision, events, posted_at, metadata, body FROM appends
            WHERE position >= (SELECT coalesce(max(position), 0) FROM appends WHERE position <= ?1)
            ORDER BY position LIMIT ?2";
        let more =
            "SELECT position, stream, revision, events, posted_at, metadata, body FROM appends
            WHERE position > ?1 ORDER BY position LIMIT ?2";
        let (mut sql, mut place) = (first, after.get().saturating_add(1));
        let mut events: Vec<RecordedEvent> = Vec::with_capacity(limit.min(4_096));
        while events.len() < limit {
            // Most appends have two events or more: few rows are fetched in vain, and a second look is rare.
            let asked = stored_u64(((limit - events.len()) / 2 + 2) as u64);
            let (mut found, mut taken, mut last) = (0, 0, place);
            self.each(sql, crate::values![place, asked], |row| {
                found += 1;
                if events.len() < limit {
                    unpack(row, None, &mut events)?;
                    (taken, last) = (found, row.get(0)?);
                }
                Ok(())
            })?;
            if sql == first {
                events.retain(|event| event.position > after);
            }
            if taken == found && found < asked {
                break;
            }
            (sql, place) = (more, last);
        }
        events.truncate(limit);
        Ok(events)
    }

    /// The event at `position`, if there is one.
    pub fn read_event(&self, position: Position) -> Result<Option<RecordedEvent>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if let Some(log) = &self.remote {
            return log.event(position);
        }
        let before = Position::new(position.get().saturating_sub(1));
        let page = self.read_page(before, 1)?;
        Ok(page.into_iter().find(|event| event.position == position))
    }

    /// When the event at `position` was posted, if there is one; also if it cannot be read otherwise.
    pub fn read_instant(&self, position: Position) -> Result<Option<Timestamp>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if let Some(log) = &self.remote {
            return log.instant(position, false);
        }
        Ok(self.read_span(position)?.map(|span| span.posted_at))
    }

    /// When the first event after `position` was posted, if there is one; also if it cannot be read otherwise.
    pub fn read_next_instant(&self, position: Position) -> Result<Option<Timestamp>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if let Some(log) = &self.remote {
            return log.instant(position, true);
        }
        self.read_instant(Position::new(position.get().saturating_add(1)))
    }

    /// The last event of what is broken as a whole if the event at `position` is: its append, where one row holds it.
    pub fn read_end_of_broken(&self, position: Position) -> Result<Option<Position>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if self.remote.is_some() {
            return Ok(Some(position));
        }
        Ok(self.read_span(position)?.map(|span| span.last))
    }

    /// A place that no event posted at `at` or later stands at or before.
    pub fn read_scan_begin(&self, at: Timestamp) -> Result<Position, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if self.remote.is_some() {
            return crate::store::kurrentdb::read_scan_begin(self, at);
        }
        self.read_position_before(at)
    }

    /// A place that no event posted before `at` stands after; none as long as one may still come.
    pub fn read_scan_end(&self, at: Timestamp) -> Result<Option<Position>, StoreError> {
        #[cfg(feature = "kurrentdb")]
        if self.remote.is_some() {
            return crate::store::kurrentdb::read_scan_end(self, at);
        }
        let is_over = self.read_tail()?.posted_at.is_some_and(|tail| tail >= at);
        is_over.then(|| self.read_position_before(at)).transpose()
    }

    /// The last event that was posted before `at`; [`Position::START`] if none was. Instants never decrease with the position, so
    /// this is a search by halves.
    pub(crate) fn read_position_before(&self, at: Timestamp) -> Result<Position, StoreError> {
        let sql = "SELECT position, position + events - 1, posted_at FROM appends
            WHERE position <= ?1 ORDER BY position DESC LIMIT 1";
        // Everything up to `low` was posted before; everything from `high` on was not.
        let (mut low, mut high) = (0, self.read_head()?.get().saturating_add(1));
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            let found = self.row(sql, crate::values![middle], |row| {
                Ok((row.get::<i64>(0)?, row.get::<i64>(1)?, row.get::<i64>(2)?))
            })?;
            match found {
                Some((first, _, posted_at)) if posted_at >= at.as_micros() => {
                    high = first.min(middle);
                }
                // A hole in front of `middle` is as good as its append.
                Some((_, last, _)) => low = last.max(middle),
                None => low = middle,
            }
        }
        Ok(Position::new(low))
    }

    /// The append that holds the event at `position`, if there is one. No body is read: it answers for an append that is broken, too.
    pub(crate) fn read_span(&self, position: Position) -> Result<Option<AppendSpan>, StoreError> {
        // Where the next append begins is better evidence of an end than the count in a row that may be broken.
        let sql = "SELECT position, coalesce(
                (SELECT min(position) - 1 FROM appends WHERE position > ?1), position + events - 1), posted_at
            FROM appends WHERE position <= ?1 ORDER BY position DESC LIMIT 1";
        let span = self.row(sql, crate::values![position.get()], |row| {
            Ok(AppendSpan {
                first: Position::new(row.get(0)?),
                last: Position::new(row.get(1)?),
                posted_at: Timestamp::from_micros(row.get(2)?),
            })
        })?;
        Ok(span.filter(|span| span.last >= position))
    }
}

/// One statement for all streams: on a server each costs a round trip.
#[cfg(feature = "postgres")]
fn read_many(
    session: &Session,
    streams: &[StreamName],
) -> Result<Vec<Vec<RecordedEvent>>, StoreError> {
    let sql = "SELECT position, stream, revision, events, posted_at, metadata, body FROM appends
        WHERE stream = ANY($1) ORDER BY stream, revision";
    let names: Vec<&str> = streams.iter().map(StreamName::as_str).collect();
    let mut found: HashMap<StreamName, Vec<RecordedEvent>> = HashMap::new();
    let mut events = Vec::new();
    for row in &session.rows_of(sql, &names)? {
        unpack(&Row::of_postgres(row), None, &mut events)?;
        for event in events.drain(..) {
            found.entry(event.stream.clone()).or_default().push(event);
        }
    }
    // A stream may be asked for twice.
    let whole = |stream| found.get(stream).cloned().unwrap_or_default();
    Ok(streams.iter().map(whole).collect())
}

impl Stored for &Transaction<'_> {
    fn last_revision(&self, stream: &StreamName) -> Result<Option<Revision>, StoreError> {
        self.read_last_revision(stream)
    }

    fn account(&self, account: &AccountId) -> Result<AccountState, StoreError> {
        self.read_account_row(account)
    }

    fn month(
        &self,
        account: &AccountId,
        month: BudgetMonth,
    ) -> Result<Option<MonthState>, StoreError> {
        self.read_month(account, month)
    }
}

/// Adds the events of one row.
fn unpack(
    row: &Row<'_>,
    stream: Option<&StreamName>,
    events: &mut Vec<RecordedEvent>,
) -> Result<(), StoreError> {
    let first: i64 = row.get(0)?;
    let position = Position::new(first);
    let corrupt = |why: String| StoreError::Corrupt { position, why };
    let stream = match stream {
        Some(stream) => stream.clone(),
        None => StreamName::from_stored(row.text(1)?),
    };
    let revision: i64 = row.get(2)?;
    let count: i64 = row.get(3)?;
    let posted_at = Timestamp::from_micros(row.get(4)?);
    let metadata = Bytes::copy_from_slice(row.text(5)?.as_bytes());
    let body = Bytes::from(row.get::<Vec<u8>>(6)?);
    let stored: Vec<StoredEvent<'_>> =
        postcard::from_bytes(&body).map_err(|error| corrupt(format!("append: {error}")))?;
    if i64::try_from(stored.len()) != Ok(count) {
        return Err(corrupt(format!(
            "append has {} events, not {count}",
            stored.len()
        )));
    }
    let revision = u64::try_from(revision).map_err(|_| corrupt(format!("revision {revision}")))?;
    for (offset, event) in (0_u32..).zip(stored) {
        events.push(RecordedEvent {
            position: Position::new(first.saturating_add(i64::from(offset))),
            stream: stream.clone(),
            revision: Revision::new(revision).plus(u64::from(offset)),
            id: EventId::new(Uuid::from_bytes(event.id)),
            type_name: Catalog::standard()
                .known_name(event.type_name)
                .map_or_else(|| Cow::Owned(event.type_name.to_owned()), Cow::Borrowed),
            version: event.version,
            posted_at,
            metadata: metadata.clone(),
            data: body.slice_ref(event.data),
        });
    }
    Ok(())
}
