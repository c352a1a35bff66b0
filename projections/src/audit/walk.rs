//! One walk over the log, in position order, with everything that is folded and compared along the way.
//!
//! An append is over when an event of another stream or another command follows: only then must a job's state be whole.

use std::time::Duration;

use recoup::codec::{Decoded, Event, Metadata, Stream, decode, event_id};
use recoup::job::JobEvent;
use recoup::sql::Transaction;
use recoup::sql::log::FiguresCheck;
use recoup::store::{RecordedEvent, StoreError};
use recoup::{Position, Revision, Zone};

use super::accounts::Accounts;
use super::alongside::Alongside;
use super::file;
use super::job_rows::JobRows;
use super::jobs::Jobs;
use super::live_rows::{DeadLetterRecord, DueRecord, LiveRows, Step};
use super::marks::Marks;
use super::report::{Area, Audit, Report};
use super::rows::{ContradictionRecord, Entry, EntryRecord};
use super::streams::Streams;
use super::usage::Usage;
use crate::catalog::Projection;
use crate::error::ProjectionError;

/// By how much the clock of a server that keeps the log may go back: what scans of days allow for.
const MAX_STEP_BACK: Duration = Duration::from_secs(24 * 60 * 60);

/// How many events are read at a time.
const PAGE_EVENTS: usize = 2_000;

/// Audits what `tx` sees.
pub(super) fn audit(tx: &Transaction<'_>, zone: Zone) -> Result<Audit, ProjectionError> {
    let head = tx.read_head()?;
    let mut walk = Walk::begin(tx, zone)?;
    let mut after = Position::START;
    loop {
        match read(tx, after, PAGE_EVENTS)? {
            Read::Page(page) => {
                let Some(last) = page.last() else {
                    break;
                };
                after = last.position;
                for recorded in &page {
                    walk.event(recorded)?;
                }
            }
            Read::Broken { position, why } => {
                walk.cut(position, &why);
                break;
            }
        }
    }
    Ok(walk.finish(head)?)
}

/// The next events of the log, or what stands in the way of them.
enum Read {
    Page(Vec<RecordedEvent>),
    Broken { position: Position, why: String },
}

/// Reads a page, up to an append whose row is broken as a whole.
fn read(tx: &Transaction<'_>, after: Position, limit: usize) -> Result<Read, StoreError> {
    match tx.read_page(after, limit) {
        Ok(page) => Ok(Read::Page(page)),
        // Smaller pages end before the broken append, until it is the next one.
        Err(StoreError::Corrupt { .. }) if limit > 1 => read(tx, after, limit / 2),
        Err(StoreError::Corrupt { position, why }) => Ok(Read::Broken { position, why }),
        Err(error) => Err(error),
    }
}

struct Walk<'a, 'c> {
    tx: &'a Transaction<'c>,
    report: Report,
    events: u64,
    /// The last event, and whose stream it stands in.
    last: Option<(RecordedEvent, Option<Stream>)>,
    marks: Marks,
    streams: Streams,
    jobs: Jobs,
    accounts: Accounts,
    /// How far account figures are, and what stands around them, until they are compared.
    figures: Option<(Position, FiguresCheck)>,
    usage: Usage,
    job_rows: JobRows,
    due: LiveRows,
    dead_letters: LiveRows,
    entries: Alongside<EntryRecord>,
    contradictions: Alongside<ContradictionRecord>,
}

impl<'a, 'c> Walk<'a, 'c> {
    fn begin(tx: &'a Transaction<'c>, zone: Zone) -> Result<Self, ProjectionError> {
        let mut report = Report::default();
        file::check(tx, &mut report)?;
        let marks = Marks::read(tx, zone, &mut report)?;
        Ok(Self {
            tx,
            events: 0,
            last: None,
            streams: Streams::default(),
            jobs: Jobs::default(),
            accounts: Accounts::default(),
            figures: Some((tx.read_figures_position()?, tx.figures_check())),
            usage: Usage::until(marks.of(Projection::DailyUsage), zone),
            job_rows: JobRows::until(marks.of(Projection::Jobs)),
            due: LiveRows::until(marks.of(Projection::Due)),
            dead_letters: LiveRows::until(marks.of(Projection::DeadLetters)),
            entries: Alongside::until(marks.of(Projection::Entries)),
            contradictions: Alongside::until(marks.of(Projection::Contradictions)),
            marks,
            report,
        })
    }

    fn event(&mut self, recorded: &RecordedEvent) -> Result<(), StoreError> {
        self.events += 1;
        self.check_place(recorded);
        match &mut self.figures {
            Some((figures, check)) if recorded.position <= *figures => check.see(recorded),
            _ => self.compare_accounts()?,
        }
        let tools = (self.tx, &mut self.report);
        self.job_rows
            .compare_before(Some(recorded.position), tools, &self.jobs)?;
        self.compare_live_rows(Some(recorded))?;
        let stream = self.enter(recorded);
        match decode(recorded) {
            Ok(Decoded::Event(event)) => {
                self.check_id(recorded, &event);
                self.fold(recorded, stream.as_ref(), &event)
            }
            Ok(Decoded::Retired) => {
                self.fold_stream(recorded, stream.as_ref(), None);
                Ok(())
            }
            Err(error) => {
                self.unreadable(recorded, stream.as_ref(), &error.to_string());
                Ok(())
            }
        }
    }

    /// Compares the tables that jobs enter and leave, if the event that comes next leaves their checkpoints behind.
    fn compare_live_rows(&mut self, next: Option<&RecordedEvent>) -> Result<(), StoreError> {
        let unfinished = match (&self.last, next) {
            (Some((last, Some(Stream::Job(job)))), Some(next))
                if last.stream == next.stream && last.metadata == next.metadata =>
            {
                Some(job)
            }
            _ => None,
        };
        let step = Step {
            next: next.map(|next| next.position),
            unfinished,
        };
        let (tx, report) = (self.tx, &mut self.report);
        self.due
            .compare_before::<DueRecord>(&step, (tx, report), &self.jobs)?;
        self.dead_letters
            .compare_before::<DeadLetterRecord>(&step, (tx, report), &self.jobs)
    }

    /// Compares account figures once, when the fold is where they are.
    fn compare_accounts(&mut self) -> Result<(), StoreError> {
        let Some((_, check)) = self.figures.take() else {
            return Ok(());
        };
        for (subject, what) in check.faults(self.tx)? {
            self.report.wrong(Area::AccountState, subject, what);
        }
        self.accounts.compare_all(self.tx, &mut self.report)
    }

    /// Positions follow each other, and time does not run back; where another server keeps the log, positions have holes, and its clock may differ by
    /// [`MAX_STEP_BACK`] from that of the node that led before.
    fn check_place(&mut self, recorded: &RecordedEvent) {
        let position = recorded.position;
        let last = self.last.as_ref().map(|(last, _)| last);
        let (is_apart, after) = (
            self.tx.is_beside_its_log(),
            last.map_or(0, |last| last.position.get()),
        );
        let expected = after.saturating_add(1);
        if (is_apart && position.get() <= after) || (!is_apart && position.get() != expected) {
            let what = "another event comes next";
            let places = (expected, position);
            self.report.differs(
                Area::Positions,
                format_args!("position {expected}"),
                what,
                places,
            );
        }
        let step = if is_apart {
            MAX_STEP_BACK
        } else {
            Duration::ZERO
        };
        if last.is_some_and(|last| recorded.posted_at.after(step) < last.posted_at) {
            let what = format!(
                "posted at {}, before the event before it",
                recorded.posted_at
            );
            self.report
                .wrong(Area::Positions, format_args!("event {position}"), what);
        }
    }

    /// An event's id is derived from its stream, revision, type and command: neither can be changed alone.
    fn check_id(&mut self, recorded: &RecordedEvent, event: &Event) {
        let subject = format_args!("event {}", recorded.position);
        match Metadata::parse(&recorded.metadata, recorded.position) {
            Ok(Metadata { command, .. }) => {
                let (stream, revision) = (&recorded.stream, recorded.revision);
                let id = event_id(stream, revision, event.event_type(), &command);
                if id != recorded.id {
                    let what = "its id is not that of its place and command";
                    self.report
                        .differs(Area::Events, subject, what, (id, recorded.id));
                }
            }
            Err(error) => self.report.wrong(Area::Events, subject, error.to_string()),
        }
    }

    /// Ends the last append, if this event is not of it. Gives whose stream the event stands in.
    fn enter(&mut self, recorded: &RecordedEvent) -> Option<Stream> {
        let stream = match self.last.take() {
            Some((last, stream)) if last.stream == recorded.stream => {
                if last.metadata != recorded.metadata {
                    self.close(stream.as_ref());
                }
                stream
            }
            last => {
                self.close(last.and_then(|(_, stream)| stream).as_ref());
                recorded.stream.parse().ok()
            }
        };
        self.last = Some((recorded.clone(), stream.clone()));
        stream
    }

    fn close(&mut self, stream: Option<&Stream>) {
        if let Some(Stream::Job(job)) = stream {
            self.jobs.close(&mut self.report, job);
        }
    }

    fn fold(
        &mut self,
        recorded: &RecordedEvent,
        stream: Option<&Stream>,
        event: &Event,
    ) -> Result<(), StoreError> {
        let position = recorded.position;
        self.fold_stream(recorded, stream, Some(event));
        let balance = self.accounts.fold(&mut self.report, position, event);
        self.usage.add(recorded, event);
        let job = match stream {
            Some(Stream::Job(job)) => Some(job),
            Some(Stream::Grant(..) | Stream::Adjustment(..) | Stream::Limits(_)) | None => None,
        };
        if let Some(entry) = Entry::of(event, job) {
            match balance {
                Some(balance) => {
                    let tools = (self.tx, &mut self.report);
                    let expected = || entry.record(recorded, balance);
                    self.entries.expect(tools, position, expected)?;
                }
                // The account's fold has stopped, which is a finding: what its rows should say cannot be told.
                None => self.entries.stop_at(position),
            }
        }
        match (job, event) {
            (Some(job), Event::Job(JobEvent::Contradicted(said))) => {
                let Some(account) = self.jobs.account(job) else {
                    return Ok(());
                };
                let tools = (self.tx, &mut self.report);
                let expected = || ContradictionRecord::of(recorded, said, (job, account));
                self.contradictions.expect(tools, position, expected)
            }
            _ => Ok(()),
        }
    }

    /// Folds or checks the event's stream; none for an event of a retired type.
    fn fold_stream(
        &mut self,
        recorded: &RecordedEvent,
        stream: Option<&Stream>,
        event: Option<&Event>,
    ) {
        if recorded.revision == Revision::FIRST {
            self.report.count(Area::Streams, 1);
        }
        let name = &recorded.stream;
        let subject = format_args!("stream {name}");
        match (stream, event) {
            (Some(Stream::Job(job)), None) => {
                self.jobs.fold(&mut self.report, job, recorded, None);
            }
            (Some(Stream::Job(job)), Some(Event::Job(event))) => {
                self.jobs.fold(&mut self.report, job, recorded, Some(event));
            }
            (Some(Stream::Job(job)), Some(Event::Account(_))) => {
                let what = format!("event {}: an account's event", recorded.position);
                self.report.wrong(Area::Streams, subject, what);
                self.jobs.stop(job);
            }
            (Some(stream), event) => {
                if let Err(what) = self.streams.check(stream, recorded, event) {
                    self.report.wrong(Area::Streams, subject, what);
                }
            }
            (None, _) => {
                let what = format!("event {}: no stream has this name", recorded.position);
                self.report.wrong(Area::Streams, subject, what);
            }
        }
    }

    /// An event cannot be read: nothing is summed over it.
    fn unreadable(&mut self, recorded: &RecordedEvent, stream: Option<&Stream>, why: &str) {
        let account = match stream {
            Some(Stream::Job(job)) => {
                let account = self.jobs.account(job).cloned();
                self.jobs.stop(job);
                account
            }
            Some(
                Stream::Grant(account, _)
                | Stream::Adjustment(account, _)
                | Stream::Limits(account),
            ) => Some(account.clone()),
            None => None,
        };
        let whose = account.as_ref().map_or_else(
            || "of every account, as nobody can tell whose it is,".to_owned(),
            |account| format!("of account {account}"),
        );
        let what = format!("{why}; the fold of the stream and {whose} stops there");
        let subject = format_args!("stream {}", recorded.stream);
        self.report.wrong(Area::Events, subject, what);
        self.accounts.stop(account.as_ref());
        self.stop_at(recorded.position);
    }

    /// An append's row is broken as a whole: nobody can tell what it held, nor where it ends.
    fn cut(&mut self, position: Position, why: &str) {
        let what = format!("{why}; the log is not read any farther");
        let subject = format_args!("event {position}");
        self.report.wrong(Area::Events, subject, what);
        self.accounts.stop(None);
        if let Some((_, check)) = &mut self.figures {
            check.cut();
        }
        self.stop_at(position);
    }

    fn stop_at(&mut self, position: Position) {
        self.marks.stop_at(position, &mut self.report);
        self.usage.stop_at(position);
        self.job_rows.stop_at(position);
        self.due.stop_at(position);
        self.dead_letters.stop_at(position);
        self.entries.stop_at(position);
        self.contradictions.stop_at(position);
    }

    fn finish(mut self, head: Position) -> Result<Audit, StoreError> {
        if let Some((_, stream)) = self.last.take() {
            self.close(stream.as_ref());
        }
        self.compare_live_rows(None)?;
        self.compare_accounts()?;
        let (tx, report) = (self.tx, &mut self.report);
        self.job_rows
            .compare_before(None, (tx, report), &self.jobs)?;
        self.entries.finish(tx, report)?;
        self.contradictions.finish(tx, report)?;
        self.usage.finish(tx, report)?;
        self.jobs.count(report);
        report.count(Area::Events, self.events);
        report.count(Area::Positions, self.events);
        Ok(self.report.finish(head, self.events))
    }
}
