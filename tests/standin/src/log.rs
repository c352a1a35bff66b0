//! The log of the stand-in: records at positions that grow like bytes do, and the server's rules of an append.
//!
//! Every append is checked and written under one lock, which is the server's single writer. Positions are where a record would begin in the
//! transaction file: they grow by its size, so there are holes between them, and no number in a hole is a position. A record's
//! commit position is its prepare position. Between the callers' events stand the server's own, in streams that begin with `$`.
//!
//! A deleted stream keeps its events in the log, as they stay until a scavenge: reads of the stream no longer show them, and what comes after goes on with its numbers.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use uuid::Uuid;

/// What a record takes beside its content; any number will do that makes holes.
const FRAME_BYTES: u64 = 97;

/// After so many appends the server writes an event of its own.
const STATISTICS_EVERY: u64 = 5;

/// A stored event.
#[derive(Debug, Clone)]
pub struct Record {
    /// Where it begins in the log.
    pub commit_position: u64,
    /// The same, unless a test says otherwise.
    pub prepare_position: u64,
    /// Whose.
    pub stream: String,
    /// Its place there.
    pub revision: u64,
    /// Its id.
    pub id: Uuid,
    /// The name of its type.
    pub event_type: String,
    /// `application/json` or `application/octet-stream`.
    pub content_type: String,
    /// When it was written: units of 100 ns since 1970. The server always says; a test may take it away.
    pub created: Option<u64>,
    /// Its bytes.
    pub data: Bytes,
    /// The bytes beside them.
    pub metadata: Bytes,
}

/// An event on its way.
#[derive(Debug, Clone)]
pub(crate) struct Proposed {
    pub(crate) id: Uuid,
    pub(crate) event_type: String,
    pub(crate) content_type: String,
    pub(crate) data: Bytes,
    pub(crate) metadata: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Any,
    Exists,
    NoStream,
    Revision(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Written, or found: the last of its revisions, and where it is.
    Success {
        revision: Option<u64>,
        position: Option<u64>,
    },
    /// The stream is elsewhere.
    WrongExpectedVersion { current: Option<u64> },
    /// The stream was deleted for good.
    Deleted,
}

/// Which stream an event was written to, and where.
type Place = (String, u64);

/// What a deleted stream begins with: nothing that can be.
const NOTHING: u64 = u64::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    Streams(Vec<String>),
    Types(Vec<String>),
}

impl Filter {
    pub(crate) fn passes(&self, record: &Record) -> bool {
        let (prefixes, text) = match self {
            Self::Streams(prefixes) => (prefixes, &record.stream),
            Self::Types(prefixes) => (prefixes, &record.event_type),
        };
        prefixes.iter().any(|prefix| text.starts_with(prefix))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Start,
    End,
    At(u64),
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    records: Vec<Record>,
    streams: HashMap<String, Vec<usize>>,
    /// The first revision that reads of a stream show, where that is not 0.
    shown_from: HashMap<String, u64>,
    tombstones: HashSet<String>,
    /// Ids that the leader remembers, for who expects no revision.
    recent: HashMap<Uuid, Place>,
    end: u64,
    appends: u64,
}

impl Log {
    /// A log as a fresh server has it: not empty.
    pub(crate) fn new(now: u64) -> Self {
        let mut log = Self::default();
        for (stream, event_type) in [
            ("$$$settings", "$metadata"),
            ("$users", "$User"),
            ("$user-admin", "$UserCreated"),
        ] {
            log.write(stream, own(event_type), now);
        }
        log
    }

    fn current(&self, stream: &str) -> Option<u64> {
        let last = self.streams.get(stream)?.last()?;
        Some(self.records[*last].revision)
    }

    fn write(&mut self, stream: &str, proposed: Proposed, now: u64) -> &Record {
        let position = self.end;
        let record = Record {
            commit_position: position,
            prepare_position: position,
            stream: stream.to_owned(),
            revision: self.current(stream).map_or(0, |last| last + 1),
            id: proposed.id,
            event_type: proposed.event_type,
            content_type: proposed.content_type,
            created: Some(now),
            data: proposed.data,
            metadata: proposed.metadata,
        };
        let content = stream.len() + record.data.len() + record.metadata.len();
        self.end += FRAME_BYTES + content as u64;
        let index = self.records.len();
        self.streams
            .entry(stream.to_owned())
            .or_default()
            .push(index);
        let place = (stream.to_owned(), record.revision);
        self.recent.insert(record.id, place);
        self.records.push(record);
        &self.records[index]
    }

    /// What a new leader knows of the events that the one before it wrote: not their ids.
    pub(crate) fn forget_recent(&mut self) {
        self.recent.clear();
    }

    /// Hides what is before `revision` from reads of the stream, as `$tb` in its metadata does.
    pub(crate) fn truncate(&mut self, stream: &str, revision: u64, now: u64) {
        self.shown_from.insert(stream.to_owned(), revision);
        self.write(&format!("$${stream}"), own("$metadata"), now);
    }

    /// Deletes a stream that is where it is expected to be: until somebody writes to it again, or for good.
    pub(crate) fn delete(
        &mut self,
        stream: &str,
        expected: Expected,
        is_for_good: bool,
        now: u64,
    ) -> Outcome {
        if self.tombstones.contains(stream) {
            return Outcome::Deleted;
        }
        let current = self.current(stream);
        let is_there = match expected {
            Expected::Any | Expected::Exists => current.is_some(),
            Expected::NoStream => false,
            Expected::Revision(revision) => current == Some(revision),
        };
        if !is_there {
            return Outcome::WrongExpectedVersion { current };
        }
        if is_for_good {
            self.write(stream, own("$streamDeleted"), now);
            self.tombstones.insert(stream.to_owned());
        } else {
            self.truncate(stream, NOTHING, now);
        }
        Outcome::Success {
            revision: current,
            position: self.records.last().map(|last| last.commit_position),
        }
    }

    /// The server's rules: where the stream is at the expected revision, no id is looked at; where it is further on, ids alone decide
    /// whether this is a repeat.
    pub(crate) fn append(
        &mut self,
        stream: &str,
        expected: Expected,
        events: &[Proposed],
        now: u64,
    ) -> Outcome {
        if self.tombstones.contains(stream) {
            return Outcome::Deleted;
        }
        let current = self.current(stream);
        let is_hidden = self.shown_from.get(stream) == Some(&NOTHING);
        let wrong = Outcome::WrongExpectedVersion { current };
        let first = match (expected, current) {
            (Expected::NoStream, None) => None,
            (Expected::Any, _) | (Expected::Exists, Some(_)) => {
                match self.remembered(stream, events) {
                    Some(outcome) => return outcome.unwrap_or(wrong),
                    None => None,
                }
            }
            (Expected::Exists, None) | (Expected::Revision(_), None) => return wrong,
            (Expected::NoStream, Some(_)) => Some(0),
            (Expected::Revision(expected), Some(current)) => match expected.cmp(&current) {
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Less => Some(expected + 1),
                std::cmp::Ordering::Greater => return wrong,
            },
        };
        if let Some(first) = first {
            let repeated = self.repeated(stream, first, events);
            // To who expects no stream a deleted one is none, unless this is what was in it.
            let is_new = is_hidden && expected == Expected::NoStream && repeated.is_none();
            if !is_new {
                return repeated.unwrap_or(wrong);
            }
        }
        if is_hidden {
            let next = current.map_or(0, |last| last + 1);
            self.truncate(stream, next, now);
        }
        let mut written = Outcome::Success {
            revision: current,
            position: None,
        };
        for proposed in events {
            let record = self.write(stream, proposed.clone(), now);
            written = Outcome::Success {
                revision: Some(record.revision),
                position: Some(record.commit_position),
            };
        }
        self.appends += 1;
        if self.appends.is_multiple_of(STATISTICS_EVERY) {
            self.write("$stats-127.0.0.1:2113", own("$statsCollected"), now);
        }
        written
    }

    /// What the leader remembers of these ids, where no revision is expected: nothing of the first, or all of them, or too few to be a repeat.
    fn remembered(&self, stream: &str, events: &[Proposed]) -> Option<Option<Outcome>> {
        let known = |event: &Proposed| {
            let (of, revision) = self.recent.get(&event.id)?;
            (of == stream).then_some(*revision)
        };
        known(events.first()?)?;
        let revisions: Option<Vec<_>> = events.iter().map(known).collect();
        Some(revisions.and_then(|revisions| {
            let index = self.streams[stream].get(usize::try_from(*revisions.last()?).ok()?)?;
            Some(Outcome::Success {
                revision: revisions.last().copied(),
                position: Some(self.records[*index].commit_position),
            })
        }))
    }

    /// What a repeat is answered with: success, if every id is where it would have been written.
    fn repeated(&self, stream: &str, first: u64, events: &[Proposed]) -> Option<Outcome> {
        let indexes = self.streams.get(stream)?;
        let mut last = None;
        for (revision, proposed) in (first..).zip(events) {
            let index = *indexes.get(usize::try_from(revision).ok()?)?;
            let record = &self.records[index];
            if record.id != proposed.id {
                return None;
            }
            last = Some(record);
        }
        let record = last?;
        Some(Outcome::Success {
            revision: Some(record.revision),
            position: Some(record.commit_position),
        })
    }

    /// Whether a stream was deleted for good.
    pub(crate) fn is_tombstone(&self, stream: &str) -> bool {
        self.tombstones.contains(stream)
    }

    /// One stream's events; none if it does not exist, or was deleted.
    pub(crate) fn stream(
        &self,
        stream: &str,
        from: From,
        is_backwards: bool,
        limit: usize,
    ) -> Option<Vec<Record>> {
        let shown_from = self.shown_from.get(stream).copied().unwrap_or(0);
        if shown_from == NOTHING {
            return None;
        }
        let records = self.streams.get(stream)?.iter();
        let records = records.map(|&index| &self.records[index]);
        let records = records.filter(|record| record.revision >= shown_from);
        let read = if is_backwards {
            let last = match from {
                From::Start => 0,
                From::End => u64::MAX,
                From::At(revision) => revision,
            };
            let records = records.rev().filter(|record| record.revision <= last);
            records.take(limit).cloned().collect()
        } else {
            let first = match from {
                From::Start => 0,
                From::End => u64::MAX,
                From::At(revision) => revision,
            };
            let records = records.filter(|record| record.revision >= first);
            records.take(limit).cloned().collect()
        };
        Some(read)
    }

    /// Events of the whole log that pass the filter, at most `limit` of at most `scanned` that are looked at. Forwards begins with the event
    /// at the position, backwards with the one before it. None for a position at which no event begins.
    pub(crate) fn all(
        &self,
        from: From,
        is_backwards: bool,
        filter: Option<&Filter>,
        limit: usize,
        scanned: usize,
    ) -> Option<Vec<Record>> {
        let at = match from {
            From::Start => 0,
            From::End => self.records.len(),
            From::At(position) => {
                let at = self
                    .records
                    .partition_point(|record| record.commit_position < position);
                let is_inside = self
                    .records
                    .get(at)
                    .map_or(position < self.end, |next| next.commit_position != position);
                if is_inside {
                    return None;
                }
                at
            }
        };
        let passes = |record: &&Record| filter.is_none_or(|filter| filter.passes(record));
        let read = if is_backwards {
            let records = self.records[..at].iter().rev().take(scanned);
            records.filter(passes).take(limit).cloned().collect()
        } else {
            let records = self.records[at..].iter().take(scanned);
            records.filter(passes).take(limit).cloned().collect()
        };
        Some(read)
    }

    /// Writes into `stream` what no client sent.
    pub(crate) fn put(&mut self, stream: &str, event_type: &str, data: &[u8], now: u64) {
        let proposed = Proposed {
            data: Bytes::copy_from_slice(data),
            ..own(event_type)
        };
        self.write(stream, proposed, now);
    }

    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(crate) fn edit(&mut self, stream: &str, revision: u64, edit: impl FnOnce(&mut Record)) {
        let indexes = self.streams.get(stream);
        let index = usize::try_from(revision)
            .ok()
            .and_then(|at| indexes.and_then(|indexes| indexes.get(at)));
        let index = *index.expect("the test names an event that is there");
        edit(&mut self.records[index]);
    }
}

fn own(event_type: &str) -> Proposed {
    Proposed {
        id: Uuid::new_v4(),
        event_type: event_type.to_owned(),
        content_type: "application/json".to_owned(),
        data: Bytes::from_static(b"{}"),
        metadata: Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u128) -> Proposed {
        Proposed {
            id: Uuid::from_u128(id),
            ..own("t")
        }
    }

    fn at(revision: u64) -> impl Fn(Outcome) -> bool {
        move |outcome| matches!(outcome, Outcome::Success { revision: Some(at), position: Some(_) } if at == revision)
    }

    #[test]
    fn ids_decide_only_behind_the_current_revision() {
        let mut log = Log::new(0);
        let two = [event(1), event(2)];
        assert!(at(1)(log.append("s", Expected::NoStream, &two, 0)));
        let before = log.records.len();
        assert!(at(1)(log.append("s", Expected::NoStream, &two, 0)));
        assert!(at(0)(log.append("s", Expected::NoStream, &two[..1], 0)));
        assert!(at(1)(log.append("s", Expected::Revision(0), &two[1..], 0)));
        assert_eq!(log.records.len(), before, "repeats write nothing");
        let wrong = Outcome::WrongExpectedVersion { current: Some(1) };
        let overlap = [event(2), event(3)];
        assert_eq!(log.append("s", Expected::Revision(0), &overlap, 0), wrong);
        assert_eq!(log.append("s", Expected::NoStream, &overlap, 0), wrong);
        assert_eq!(log.append("s", Expected::Revision(2), &two, 0), wrong);
        // At the current revision the same ids are written again.
        assert!(at(3)(log.append("s", Expected::Revision(1), &two, 0)));
    }

    /// Only as long as the leader remembers: without an expected revision the same events may be written again.
    #[test]
    fn without_an_expected_revision_memory_decides() {
        let mut log = Log::new(0);
        let two = [event(1), event(2)];
        assert!(at(1)(log.append("s", Expected::Any, &two, 0)));
        assert!(at(1)(log.append("s", Expected::Any, &two, 0)));
        assert!(at(0)(log.append("s", Expected::Exists, &two[..1], 0)));
        let overlap = [event(2), event(3)];
        let wrong = Outcome::WrongExpectedVersion { current: Some(1) };
        assert_eq!(log.append("s", Expected::Any, &overlap, 0), wrong);
        // Known, but of another stream.
        assert!(at(1)(log.append("t", Expected::Any, &two, 0)));
        log.forget_recent();
        assert!(at(3)(log.append("s", Expected::Any, &two, 0)));
    }

    #[test]
    fn a_deleted_stream_goes_on_with_its_numbers() {
        let mut log = Log::new(0);
        let shown = |log: &Log| log.stream("s", From::Start, false, 10).map(|it| it.len());
        log.append("s", Expected::NoStream, &[event(1), event(2)], 0);
        let early = log.delete("s", Expected::Revision(0), false, 0);
        assert_eq!(early, Outcome::WrongExpectedVersion { current: Some(1) });
        assert!(at(1)(log.delete("s", Expected::Exists, false, 0)));
        assert_eq!(shown(&log), None);
        // What was in it is still a repeat; anything else begins anew.
        assert!(at(0)(log.append("s", Expected::NoStream, &[event(1)], 0)));
        assert!(at(2)(log.append("s", Expected::NoStream, &[event(3)], 0)));
        assert_eq!(shown(&log), Some(1));
        assert!(at(2)(log.delete("s", Expected::Any, true, 0)));
        assert_eq!(
            log.append("s", Expected::Any, &[event(4)], 0),
            Outcome::Deleted
        );
        assert!(log.is_tombstone("s"));
        let missing = log.delete("t", Expected::Any, false, 0);
        assert_eq!(missing, Outcome::WrongExpectedVersion { current: None });
    }

    #[test]
    fn positions_have_holes_and_reads_take_none_of_them() {
        let mut log = Log::new(0);
        for id in 0..12 {
            log.append("s", Expected::Any, &[event(id)], 0);
        }
        let positions: Vec<_> = log.records.iter().map(|it| it.commit_position).collect();
        assert!(positions.windows(2).all(|pair| pair[0] + 1 < pair[1]));
        let all = |from| log.all(from, false, None, 100, usize::MAX);
        assert_eq!(all(From::At(positions[3] + 1)).map(|it| it.len()), None);
        assert_eq!(all(From::At(log.end + 5)).map(|it| it.len()), Some(0));
        let rest = all(From::At(positions[3])).expect("an event begins there");
        assert_eq!(rest.len(), positions.len() - 3, "reads are inclusive");
        let filter = Filter::Streams(vec!["s".to_owned()]);
        let last = log.all(From::End, true, Some(&filter), 1, usize::MAX);
        assert_eq!(last.expect("a position")[0].revision, 11);
    }
}
