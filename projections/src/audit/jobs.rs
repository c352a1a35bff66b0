//! Jobs: every stream folded by the ledger's own pure `evolve`, and checked at the end of each append.
//!
//! Legal means: each event may stand where it stands; at the end of an append the invariants of a job's life hold, the job's
//! entries sum up to 0 or −cost, and a live state has its timer; no command was carried out twice. A stream that breaks a rule is
//! reported once and folded no farther.
//!
//! Bound: a job that may still go on is kept as its folded state, with a hash of each command in place of the commands; one that has
//! ended for good as what its row should say. Both are a few hundred bytes, however long the stream.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use recoup::codec::Metadata;
use recoup::job::{Attempt, Job, JobEvent, Recorded, Signal, Work, evolve, invariants};
use recoup::retry::Mode;
use recoup::store::RecordedEvent;
use recoup::{AccountId, CommandId, JobId, Kind, Position, Revision, Timestamp};

use super::live_rows::{DeadLetterRecord, DueRecord};
use super::report::{Area, Report};

/// What is wrong with a stream, and which check says so.
type Wrong = (Area, String);

/// A stream, as far as it is folded.
enum Folded {
    /// Anything may still happen to it.
    Open(Box<Open>),
    /// It has ended for good: only contradictions may follow.
    Ended(Box<Ended>),
    /// It broke a rule, or cannot be read: reported, and folded no farther.
    Stopped { account: Option<AccountId> },
}

/// The last event that said something.
#[derive(Clone, Copy)]
struct Last {
    position: Position,
    posted_at: Timestamp,
}

struct Open {
    job: Job,
    /// The sum of its entries, by their own amounts.
    net: i128,
    /// Hashes of the commands so far, in order.
    commands: Vec<u64>,
    opened: Position,
    last: Last,
    /// Why its last attempt failed, as far as that is known.
    reason: Option<Box<str>>,
    /// Where and why it last became a dead letter.
    dead: Option<(Last, &'static str)>,
}

struct Ended {
    revision: Revision,
    standing: Standing,
    contradictions: Vec<(Signal, Attempt)>,
}

/// What a job's row should say.
#[derive(Clone)]
pub(super) struct Standing {
    pub(super) account: AccountId,
    pub(super) kind: Kind,
    pub(super) cost: i64,
    pub(super) state: &'static str,
    pub(super) money: &'static str,
    pub(super) attempt: u32,
    pub(super) held: i64,
    pub(super) charged_at: i64,
    pub(super) updated_at: i64,
    pub(super) opened: i64,
    pub(super) last_position: i64,
}

#[derive(Default)]
pub(super) struct Jobs {
    folded: HashMap<JobId, Folded>,
    /// One copy of each name, shared by the ended jobs that have it.
    accounts: HashSet<AccountId>,
    kinds: HashSet<Kind>,
}

impl Jobs {
    /// Folds an event of the stream of `job`; none for one of a retired type.
    pub(super) fn fold(
        &mut self,
        report: &mut Report,
        job: &JobId,
        recorded: &RecordedEvent,
        event: Option<&JobEvent>,
    ) {
        let folded = match self.folded.entry(job.clone()) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(unknown) => unknown.insert(Folded::Open(Box::new(Open::empty(job)))),
        };
        let step = match folded {
            Folded::Open(open) => open.step(recorded, event),
            Folded::Ended(ended) => ended.step(recorded, event),
            Folded::Stopped { .. } => return,
        };
        if let Err((area, why)) = step {
            let what = format!("event {}: {why}", recorded.position);
            folded.stop(report, job, (area, what));
        }
    }

    /// The append that the last event of `job` was part of has ended.
    pub(super) fn close(&mut self, report: &mut Report, job: &JobId) {
        let Some(folded) = self.folded.get_mut(job) else {
            return;
        };
        let Folded::Open(open) = folded else {
            return;
        };
        if let Err(wrong) = open.check() {
            folded.stop(report, job, wrong);
        } else if let Some(mut ended) = open.ended() {
            let standing = &mut ended.standing;
            standing.account = shared(&mut self.accounts, &standing.account);
            standing.kind = shared(&mut self.kinds, &standing.kind);
            *folded = Folded::Ended(Box::new(ended));
        }
    }

    /// An event of the stream cannot be read: its fold stops there.
    pub(super) fn stop(&mut self, job: &JobId) {
        let account = self.account(job).cloned();
        self.folded.insert(job.clone(), Folded::Stopped { account });
    }

    /// Who pays for the job, where that is known.
    pub(super) fn account(&self, job: &JobId) -> Option<&AccountId> {
        match self.folded.get(job)? {
            Folded::Open(open) => Some(&open.job.recorded()?.terms.account),
            Folded::Ended(ended) => Some(&ended.standing.account),
            Folded::Stopped { account } => account.as_ref(),
        }
    }

    /// What the row of `job` should say. The outer none: it cannot be told. The inner one: there should be no row.
    pub(super) fn standing(&self, job: &JobId) -> Option<Option<Standing>> {
        self.folded.get(job).map_or(Some(None), Folded::standing)
    }

    /// Every job that should have a row.
    pub(super) fn standings(&self) -> impl Iterator<Item = (&JobId, Standing)> {
        self.folded
            .iter()
            .filter_map(|(job, folded)| Some((job, folded.standing()??)))
    }

    /// A row of `job` that only an open one has, made by `row`. The outer none: it cannot be told. The inner one: there should be no row.
    fn of_open<T>(
        &self,
        job: &JobId,
        row: impl Fn(&Open, &JobId) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.folded.get(job) {
            Some(Folded::Open(open)) => Some(row(open, job)),
            Some(Folded::Stopped { .. }) => None,
            Some(Folded::Ended(_)) | None => Some(None),
        }
    }

    fn all_open<T>(
        &self,
        row: impl Fn(&Open, &JobId) -> Option<T>,
    ) -> impl Iterator<Item = (&JobId, T)> {
        self.folded
            .iter()
            .filter_map(move |(job, folded)| match folded {
                Folded::Open(open) => Some((job, row(open, job)?)),
                Folded::Ended(_) | Folded::Stopped { .. } => None,
            })
    }

    /// What the row of `job` in `due` should be.
    pub(super) fn due(&self, job: &JobId) -> Option<Option<DueRecord>> {
        self.of_open(job, Open::due)
    }

    /// Every job that should have a row in `due`.
    pub(super) fn all_due(&self) -> impl Iterator<Item = (&JobId, DueRecord)> {
        self.all_open(Open::due)
    }

    /// What the row of `job` in `dead_letters` should be.
    pub(super) fn dead_letter(&self, job: &JobId) -> Option<Option<DeadLetterRecord>> {
        self.of_open(job, Open::dead_letter)
    }

    /// Every job that should have a row in `dead_letters`.
    pub(super) fn all_dead_letters(&self) -> impl Iterator<Item = (&JobId, DeadLetterRecord)> {
        self.all_open(Open::dead_letter)
    }

    /// Says how much was checked.
    pub(super) fn count(&self, report: &mut Report) {
        let is_live = |folded: &&Folded| match folded {
            Folded::Open(open) => open.job.recorded().is_some_and(is_live),
            Folded::Ended(_) | Folded::Stopped { .. } => false,
        };
        report.count(Area::Jobs, self.folded.len() as u64);
        let live = self.folded.values().filter(is_live).count();
        report.count(Area::Timers, live as u64);
    }
}

/// The one copy of `name`.
fn shared<T: Clone + Eq + Hash>(names: &mut HashSet<T>, name: &T) -> T {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    names.insert(name.clone());
    name.clone()
}

/// Whether an attempt runs or will be started: said here by the states, not by their timers.
fn is_live(recorded: &Recorded) -> bool {
    match recorded.work {
        Work::Queued { .. } | Work::Running { .. } | Work::RetryScheduled { .. } => true,
        Work::Failed
        | Work::DeadLettered
        | Work::Delivered { .. }
        | Work::Cancelled
        | Work::Discarded => false,
    }
}

fn hash_of(command: &CommandId) -> u64 {
    let mut hasher = DefaultHasher::new();
    command.hash(&mut hasher);
    hasher.finish()
}

fn hole(found: Revision, expected: u64) -> Wrong {
    let what = format!("revision {found} stands where revision {expected} should");
    (Area::Streams, what)
}

impl Folded {
    fn stop(&mut self, report: &mut Report, job: &JobId, (area, what): Wrong) {
        let account = match self {
            Self::Open(open) => open.job.recorded().map(|job| job.terms.account.clone()),
            Self::Ended(ended) => Some(ended.standing.account.clone()),
            Self::Stopped { account } => account.clone(),
        };
        *self = Self::Stopped { account };
        report.wrong(area, format_args!("job {job}"), what);
    }

    fn standing(&self) -> Option<Option<Standing>> {
        match self {
            Self::Open(open) => Some(open.standing()),
            Self::Ended(ended) => Some(Some(ended.standing.clone())),
            Self::Stopped { .. } => None,
        }
    }
}

impl Open {
    fn empty(job: &JobId) -> Self {
        Self {
            job: Job::empty(job.clone()),
            net: 0,
            commands: Vec::new(),
            opened: Position::START,
            last: Last {
                position: Position::START,
                posted_at: Timestamp::from_micros(0),
            },
            reason: None,
            dead: None,
        }
    }

    fn step(&mut self, recorded: &RecordedEvent, event: Option<&JobEvent>) -> Result<(), Wrong> {
        if recorded.revision.get() != self.job.events() {
            return Err(hole(recorded.revision, self.job.events()));
        }
        let Some(event) = event else {
            self.job.revision = Some(recorded.revision);
            return Ok(());
        };
        let illegal = |why: String| (Area::Jobs, why);
        let (position, posted_at) = (recorded.position, recorded.posted_at);
        let metadata = Metadata::parse(&recorded.metadata, position)
            .map_err(|error| illegal(error.to_string()))?;
        let command = &metadata.command;
        evolve(&mut self.job, event, recorded.revision, posted_at, command)
            .map_err(|error| illegal(error.to_string()))?;
        self.job.commands = Vec::new();
        self.note(command).map_err(illegal)?;
        if let JobEvent::Charged(charged) = event {
            self.opened = position;
            let terms = self.job.recorded().map(|job| job.terms.cost);
            if let Some(error) = terms.and_then(|cost| charged.price.check(cost).err()) {
                return Err(illegal(format!("its price: {error}")));
            }
        }
        let amount = event.posting().map_or(0, |posting| posting.amount);
        self.net = self.net.saturating_add(i128::from(amount));
        self.last = Last {
            position,
            posted_at,
        };
        match event {
            JobEvent::AttemptFailed(failed) => {
                let timer = failed
                    .timer
                    .map(|timer| format!("{} ran out", timer.name()));
                let said = failed.reason.as_ref().map(ToString::to_string);
                self.reason = said.or(timer).map(String::into_boxed_str);
            }
            JobEvent::DeadLettered(dead) => self.dead = Some((self.last, dead.cause.name())),
            _ => {}
        }
        Ok(())
    }

    /// The events of one command stand together: one that comes again was carried out twice.
    fn note(&mut self, command: &CommandId) -> Result<(), String> {
        let hash = hash_of(command);
        if self.commands.last() == Some(&hash) {
            return Ok(());
        }
        if self.commands.contains(&hash) {
            return Err(format!("command {command} was carried out twice"));
        }
        self.commands.push(hash);
        Ok(())
    }

    /// Checks the state that an append leaves.
    fn check(&self) -> Result<(), Wrong> {
        let Some(recorded) = self.job.recorded() else {
            return Ok(());
        };
        invariants::check(&self.job).map_err(|violation| (Area::Jobs, violation.to_string()))?;
        let (net, cost) = (self.net, recorded.terms.cost);
        if net != i128::from(recorded.net()) || (net != 0 && net != i128::from(cost.debit())) {
            let what = format!("its entries sum up to {net}, at a cost of {cost}");
            return Err((Area::Jobs, what));
        }
        let armed_at = recorded.work.timer().map(|(_, armed_at, _)| armed_at);
        let is_armed = armed_at.is_some_and(|armed_at| armed_at.get() < self.job.events());
        if is_live(recorded) != is_armed {
            let (state, armed) = (recorded.work.name(), if is_armed { "a" } else { "no" });
            return Err((Area::Timers, format!("it is {state} and has {armed} timer")));
        }
        Ok(())
    }

    fn standing(&self) -> Option<Standing> {
        let recorded = self.job.recorded()?;
        Some(Standing {
            account: recorded.terms.account.clone(),
            kind: recorded.terms.kind.clone(),
            cost: recorded.terms.cost.get(),
            state: recorded.work.name(),
            money: recorded.money.name(),
            attempt: recorded.attempt.get(),
            held: recorded.held,
            charged_at: recorded.terms.charged_at.as_micros(),
            updated_at: self.last.posted_at.as_micros(),
            opened: self.opened.get(),
            last_position: self.last.position.get(),
        })
    }

    /// The row of `due`, if an attempt runs or will be started.
    fn due(&self, job: &JobId) -> Option<DueRecord> {
        let recorded = self.job.recorded()?;
        let terms = &recorded.terms;
        let (timer, armed_at, deadline) = recorded.work.timer()?;
        let startable_at = match recorded.work {
            Work::Queued { .. } => Some(recorded.window_from),
            Work::RetryScheduled { due_at, .. } => Some(due_at),
            _ => None,
        };
        let startable_at = startable_at.filter(|_| terms.policy.mode == Mode::Claimed);
        Some(DueRecord {
            job: job.to_string(),
            account: terms.account.to_string(),
            kind: terms.kind.to_string(),
            mode: terms.policy.mode.name().to_owned(),
            state: recorded.work.name().to_owned(),
            timer: timer.name().to_owned(),
            armed_at: i64::try_from(armed_at.get()).unwrap_or(i64::MAX),
            deadline: deadline.as_micros(),
            startable_at: startable_at.map(Timestamp::as_micros),
            attempt: recorded.attempt.get().into(),
            last_position: self.last.position.get(),
        })
    }

    /// The row of `dead_letters`, if it is one.
    fn dead_letter(&self, job: &JobId) -> Option<DeadLetterRecord> {
        let recorded = self.job.recorded()?;
        let (at, cause) = self.dead.filter(|_| recorded.work == Work::DeadLettered)?;
        Some(DeadLetterRecord {
            position: at.position.get(),
            job: job.to_string(),
            account: recorded.terms.account.to_string(),
            kind: recorded.terms.kind.to_string(),
            cost: recorded.terms.cost.get(),
            cause: cause.to_owned(),
            attempts: recorded.attempt.get().into(),
            reason: self.reason.as_deref().map(str::to_owned),
            dead_lettered_at: at.posted_at.as_micros(),
        })
    }

    /// What is kept of it, if it has ended for good.
    fn ended(&self) -> Option<Ended> {
        let recorded = self.job.recorded()?;
        let is_ended = matches!(
            recorded.work,
            Work::Delivered { .. } | Work::Cancelled | Work::Discarded
        );
        Some(Ended {
            revision: self.job.revision.filter(|_| is_ended)?,
            standing: self.standing()?,
            contradictions: recorded.contradictions.clone(),
        })
    }
}

impl Ended {
    fn step(&mut self, recorded: &RecordedEvent, event: Option<&JobEvent>) -> Result<(), Wrong> {
        let next = self.revision.plus(1);
        if recorded.revision != next {
            return Err(hole(recorded.revision, next.get()));
        }
        self.revision = next;
        match event {
            None => return Ok(()),
            Some(JobEvent::Voided(_)) => {}
            Some(JobEvent::Contradicted(said)) => {
                let key = (said.signal, said.attempt);
                if self.contradictions.contains(&key) {
                    let what = "the same contradiction is on record twice".to_owned();
                    return Err((Area::Jobs, what));
                }
                self.contradictions.push(key);
            }
            Some(event) => {
                let what = format!("{} cannot follow: the job has ended for good", event.name());
                return Err((Area::Jobs, what));
            }
        }
        self.standing.updated_at = recorded.posted_at.as_micros();
        self.standing.last_position = recorded.position.get();
        Ok(())
    }
}
