//! The log of the stand-in: records at positions that grow like bytes do, and the server's rules of an append.
//!
//! Every append is checked and written under one lock, which is the server's single writer. Positions are where a record would begin in the
//! transaction file: they grow by its size, so there are holes between them, and no number in a hole is a position. A record's
//! commit position is its prepare position. Between the callers' events stand the server's own, in streams that begin with `$`.

use std::collections::HashMap;

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
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    Streams(Vec<String>),
    Types(Vec<String>),
}

impl Filter {
    fn passes(&self, record: &Record) -> bool {
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
        self.records.push(record);
        &self.records[index]
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
        let current = self.current(stream);
        let wrong = Outcome::WrongExpectedVersion { current };
        let first = match (expected, current) {
            (Expected::Any, _) | (Expected::NoStream, None) => None,
            (Expected::Exists, Some(_)) => None,
            (Expected::Exists, None) | (Expected::Revision(_), None) => return wrong,
            (Expected::NoStream, Some(_)) => Some(0),
            (Expected::Revision(expected), Some(current)) => match expected.cmp(&current) {
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Less => Some(expected + 1),
                std::cmp::Ordering::Greater => return wrong,
            },
        };
        if let Some(first) = first {
            return self.repeated(stream, first, events).unwrap_or(wrong);
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

    /// One stream's events; none if it does not exist.
    pub(crate) fn stream(
        &self,
        stream: &str,
        from: From,
        is_backwards: bool,
        limit: usize,
    ) -> Option<Vec<Record>> {
        let records = self.streams.get(stream)?.iter();
        let records = records.map(|&index| &self.records[index]);
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
