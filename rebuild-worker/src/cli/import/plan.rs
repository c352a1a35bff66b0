//! Where chunks are cut, so that a batch gives what carrying out line after line would give.
//!
//! The batch call appends, in order, whatever it can decide in one pass. A command that appends nothing, and every command of the
//! same stream behind it, waits for a second pass. That is as good as one by one exactly if nothing in the second pass appends:
//! lines of other jobs on the same account would have been admitted or refused before it. Nor may a command rest on one that may
//! still be refused, or on a guess. So a chunk ends before a line whose stream is in it already, unless
//!
//! - every command of the stream in the chunk surely appends, or
//! - the first one is the charge of a new job, and no other charge follows: if it is refused, all others answer `no_such_job`, or
//! - the line appends nothing, like one before it.
//!
//! What a command comes to is foretold by deciding it, as the ledger will, on a state of the stream that is read when the window
//! begins or the stream is first met, and is carried forward by what was foretold; the next chunk reads such a stream anew. Limits
//! go alone: the lines behind them are decided under them.
//!
//! A line that appends nothing, on a stream that no line before it in the chunk speaks of, is answered here: the state was freshly
//! read. A file that is given again is thus read and compared, and costs no commit. So is a line that an earlier run of the file
//! had carried out without an append, see [`super::earlier`]: it is answered with what it came to then, decided on the stream as
//! it was before the later line.
//!
//! Bounds: the streams of one window.

use std::collections::{HashMap, HashSet};

use recoup::codec::{Metadata, Stream, StreamName};
use recoup::job::{Decision, Job, JobCommand, JobState, Now, decide, evolve};
use recoup::ledger::load;
use recoup::store::RecordedEvent;
use recoup::{AccountId, Command, CommandId, JobId, Ledger, Revision};

use super::Line;
use super::earlier::Earlier;
use super::report::Told;

/// Where a line goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Into the open chunk.
    Join,
    /// Behind the open chunk: the chunk ends before it.
    Behind,
    /// Into a chunk of its own.
    Alone,
    /// Nowhere: this is the answer.
    Told(Told),
}

/// What the commands of one job in the open chunk come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// All of them append.
    Appends,
    /// A new job is charged, unless it is refused; the others append.
    Opens,
    /// One of them appends nothing.
    Waits,
    /// Nothing may follow.
    Closed,
}

/// What a command is foretold to come to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Foretold {
    /// The charge of a new job.
    Opens,
    /// An append.
    Appends,
    /// An append, if the account allows it.
    IsAdmitted,
    /// No append, but this answer.
    Nothing(Told),
}

/// A job's stream, as far as it is known or foretold.
struct Shadow {
    job: Job,
    /// The stored events, where lines of this file are among them.
    recorded: Vec<RecordedEvent>,
    /// The last line of this file that is stored.
    last_line: u64,
}

/// The plan of one window.
pub(super) struct Plan<'a> {
    ledger: &'a Ledger,
    earlier: &'a mut Earlier,
    /// None for a stream that cannot be read: its commands go alone, and say why.
    shadows: HashMap<JobId, Option<Shadow>>,
    marks: HashMap<JobId, Mark>,
    /// Jobs of the open chunk whose state was carried forward by what is only foretold.
    moved: HashSet<JobId>,
    /// Streams of grants and adjustments in the open chunk.
    postings: HashSet<StreamName>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(ledger: &'a Ledger, earlier: &'a mut Earlier) -> Self {
        Self {
            ledger,
            earlier,
            shadows: HashMap::new(),
            marks: HashMap::new(),
            moved: HashSet::new(),
            postings: HashSet::new(),
        }
    }

    /// Reads the streams of the window's jobs in one go.
    pub(super) async fn prefetch(&mut self, window: &[Line]) {
        let mut jobs: Vec<JobId> = Vec::new();
        let mut seen = HashSet::new();
        for line in window {
            if let Command::Job(job, _) = &line.command
                && seen.insert(job)
            {
                jobs.push(job.clone());
            }
        }
        let names = jobs
            .iter()
            .map(|job| Stream::Job(job.clone()).name())
            .collect();
        // What is not read here is read when it is met.
        if let Ok(streams) = self.ledger.store().read_streams(names).await {
            for (job, recorded) in jobs.into_iter().zip(streams) {
                let shadow = Shadow::of(&job, recorded, self.earlier);
                self.shadows.insert(job, shadow);
            }
        }
    }

    /// Begins another chunk: the one before has been carried out.
    pub(super) fn begin_chunk(&mut self) {
        self.postings.clear();
        self.marks.clear();
        for job in self.moved.drain() {
            self.shadows.remove(&job);
        }
    }

    /// Says where `line` goes. With [`Place::Join`] it counts as part of the open chunk.
    pub(super) async fn place(&mut self, line: &Line) -> Place {
        match &line.command {
            Command::Job(job, command) => self.place_job(line, job, command).await,
            Command::Limit(limit) => self.place_limit(line, &limit.account).await,
            Command::Grant(_) | Command::Adjust(_) => {
                if self.postings.insert(line.command.stream().name()) {
                    Place::Join
                } else {
                    Place::Behind
                }
            }
        }
    }

    async fn place_limit(&mut self, line: &Line, account: &AccountId) -> Place {
        let name = Stream::Limits(account.clone()).name();
        let Ok(recorded) = self
            .ledger
            .store()
            .read_stream(&name, Revision::FIRST)
            .await
        else {
            return Place::Alone;
        };
        let ids: Vec<CommandId> = recorded.iter().filter_map(command_of).collect();
        if !ids.contains(&line.id) && self.earlier.last_line(ids.iter()) > line.number {
            // Limits are never rejected: it was equal to what was set.
            return Place::Told(Told::AlreadyApplied);
        }
        Place::Alone
    }

    async fn place_job(&mut self, line: &Line, job: &JobId, command: &JobCommand) -> Place {
        if !self.shadows.contains_key(job) {
            let shadow = self.read(job).await;
            self.shadows.insert(job.clone(), shadow);
        }
        let now = self.ledger.now();
        let Some(Some(shadow)) = self.shadows.get_mut(job) else {
            return Place::Alone;
        };
        if let Some(told) = shadow.told_before(line, command, now, self.earlier) {
            return Place::Told(told);
        }
        let mark = self.marks.get(job).copied();
        let (foretold, next) = shadow.foretell(&line.id, command, now);
        let mark = match (mark, foretold) {
            (None, Foretold::Nothing(told)) => return Place::Told(told),
            (None, Foretold::Opens) => Mark::Opens,
            (None, Foretold::Appends) => Mark::Appends,
            (None, Foretold::IsAdmitted) => Mark::Closed,
            (Some(mark), foretold) => match joined(mark, &foretold, command) {
                Some(mark) => mark,
                None => return Place::Behind,
            },
        };
        if let Some(next) = next {
            shadow.job = next;
            self.moved.insert(job.clone());
        }
        self.marks.insert(job.clone(), mark);
        Place::Join
    }

    async fn read(&mut self, job: &JobId) -> Option<Shadow> {
        let name = Stream::Job(job.clone()).name();
        let recorded = self
            .ledger
            .store()
            .read_stream(&name, Revision::FIRST)
            .await
            .ok()?;
        Shadow::of(job, recorded, self.earlier)
    }
}

/// What a job's commands in a chunk come to once another one joins; none if it must not join.
fn joined(mark: Mark, foretold: &Foretold, command: &JobCommand) -> Option<Mark> {
    let is_charge = matches!(command, JobCommand::Charge(_));
    match (mark, foretold) {
        (Mark::Closed, _) | (_, Foretold::Opens) => None,
        (Mark::Opens | Mark::Waits, _) if is_charge => None,
        (Mark::Appends, Foretold::Appends) => Some(Mark::Appends),
        (Mark::Opens, Foretold::Appends) => Some(Mark::Opens),
        (Mark::Appends | Mark::Opens, Foretold::IsAdmitted) => Some(Mark::Closed),
        (Mark::Appends | Mark::Opens | Mark::Waits, Foretold::Nothing(_)) => Some(Mark::Waits),
        (Mark::Waits, Foretold::Appends | Foretold::IsAdmitted) => None,
    }
}

fn command_of(recorded: &RecordedEvent) -> Option<CommandId> {
    Metadata::parse(&recorded.metadata, recorded.position)
        .ok()
        .map(|metadata| metadata.command)
}

impl Shadow {
    /// Folds a stream; none if it cannot be read.
    fn of(job: &JobId, recorded: Vec<RecordedEvent>, earlier: &mut Earlier) -> Option<Self> {
        let name = Stream::Job(job.clone()).name();
        let job = load::fold(job, &name, &recorded).ok()?;
        let last_line = earlier.last_line(job.commands.iter().map(|(id, _)| id));
        let recorded = if last_line == 0 { Vec::new() } else { recorded };
        Some(Self {
            job,
            recorded,
            last_line,
        })
    }

    /// What `command` will come to, and the state after it if it appends.
    fn foretell(&self, id: &CommandId, command: &JobCommand, now: Now) -> (Foretold, Option<Job>) {
        let (events, is_admitted) = match decide(&self.job, id, command, now) {
            Ok(Decision::Append { events, admission }) => (events, admission.is_some()),
            Ok(Decision::Noted { event: Some(event) }) => (vec![event], false),
            Ok(Decision::AlreadyApplied) => return (Foretold::Nothing(Told::AlreadyApplied), None),
            Ok(Decision::Noted { event: None }) => return (Foretold::Nothing(Told::Noted), None),
            Err(rejection) => return (Foretold::Nothing(Told::Rejected(rejection)), None),
        };
        let mut next = self.job.clone();
        for event in &events {
            let revision = Revision::new(next.events());
            if evolve(&mut next, event, revision, now.at, id).is_err() {
                // Never so: what is decided can be folded. The chunk then ends here, and the ledger says what it finds.
                return (Foretold::IsAdmitted, None);
            }
        }
        let foretold = match (is_admitted, &self.job.state) {
            (true, JobState::None) => Foretold::Opens,
            (true, _) => Foretold::IsAdmitted,
            (false, _) => Foretold::Appends,
        };
        (foretold, Some(next))
    }

    /// What a line came to that an earlier run carried out without an append: a later line of this job is stored, and it is not.
    fn told_before(
        &self,
        line: &Line,
        command: &JobCommand,
        now: Now,
        earlier: &mut Earlier,
    ) -> Option<Told> {
        let is_stored = || self.job.commands.iter().any(|(id, _)| *id == line.id);
        if line.number >= self.last_line || is_stored() {
            return None;
        }
        let (then, at) = self.before(line.number, earlier)?;
        match decide(&then, &line.id, command, Now { at, ..now }) {
            Ok(Decision::AlreadyApplied) => Some(Told::AlreadyApplied),
            Ok(Decision::Noted { .. }) => Some(Told::Noted),
            Err(rejection) => Some(Told::Rejected(rejection)),
            // The account refused it then, or it was never carried out: it comes late, and is decided on what is there now.
            Ok(Decision::Append { .. }) => None,
        }
    }

    /// The job as it was before the first stored line behind `number`, and when that one was stored.
    fn before(&self, number: u64, earlier: &mut Earlier) -> Option<(Job, recoup::Timestamp)> {
        let name = Stream::Job(self.job.id.clone()).name();
        let mut then = Job::empty(self.job.id.clone());
        for recorded in &self.recorded {
            let line = command_of(recorded).and_then(|id| earlier.line_of(&id));
            if line.is_some_and(|line| line > number) {
                return Some((then, recorded.posted_at));
            }
            load::fold_one(&mut then, &name, recorded).ok()?;
        }
        None
    }
}
