//! Given/when/then: one job's stream with a simulated clock.
//!
//! *Given* is a chain of steps, each of which must be applied: `Life::claimed().charge().start().fail(1)`. *When* is
//! [`Life::decide`] or [`Life::send`]. *Then* is the answer, or the folded state. Every applied append is folded by `evolve`, event by
//! event, and checked against the job's invariants.

use std::time::Duration;

use recoup::account::Admission;
use recoup::job::{
    Decision, Job, JobEvent, JobState, Now, Recorded, Timer, Voided, Work, decide, evolve,
    invariants,
};
use recoup::{
    Attempt, CommandId, FailureClass, JobCommand, Mode, Policy, Rejection, Revision, Timestamp,
    Zone,
};

use crate::values::{charge, command_id, job_id, noon, policy};

/// What the job of every test here costs: `c` in the table.
pub(crate) const COST: i64 = 40;

/// An answer, with its events already folded where there are any.
pub(crate) type Answer = Result<Decision, Rejection>;

/// One stream, the policy its job is charged with, and the store's clock.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) job: Job,
    pub(crate) now: Now,
    pub(crate) policy: Policy,
    /// Every event, in order.
    pub(crate) log: Vec<JobEvent>,
    commands: u32,
}

impl Life {
    /// An empty stream of a job that will be charged with `policy`.
    pub(crate) fn new(policy: Policy) -> Self {
        let now = Now {
            at: noon(),
            zone: Zone::UTC,
            clock_skew: std::time::Duration::ZERO,
        };
        Self {
            job: Job::empty(job_id("video-1")),
            now,
            policy,
            log: Vec::new(),
            commands: 0,
        }
    }

    pub(crate) fn external() -> Self {
        Self::new(policy(Mode::External, 5))
    }

    /// Three starts at the most.
    pub(crate) fn claimed() -> Self {
        Self::new(policy(Mode::Claimed, 3))
    }

    pub(crate) fn with_cap(cap: u32) -> Self {
        Self::new(policy(Mode::Claimed, cap))
    }

    /// A command id that this stream has not seen.
    pub(crate) fn fresh_id(&mut self) -> CommandId {
        self.commands += 1;
        command_id(&format!("c{}", self.commands))
    }

    /// The charge that this life begins with.
    pub(crate) fn charging(&self) -> JobCommand {
        JobCommand::Charge(Box::new(charge("acme", COST, self.policy)))
    }

    pub(crate) fn decide(&self, id: &CommandId, command: &JobCommand) -> Answer {
        decide(&self.job, id, command, self.now)
    }

    /// Decides and folds.
    pub(crate) fn send_as(&mut self, id: &CommandId, command: &JobCommand) -> Answer {
        let answer = self.decide(id, command);
        match &answer {
            Ok(Decision::Append { events, .. }) => self.fold(id, events),
            Ok(Decision::Noted { event: Some(event) }) => {
                self.fold(id, std::slice::from_ref(event))
            }
            Ok(Decision::AlreadyApplied | Decision::Noted { event: None }) | Err(_) => {}
        }
        answer
    }

    pub(crate) fn send(&mut self, command: &JobCommand) -> Answer {
        let id = self.fresh_id();
        self.send_as(&id, command)
    }

    fn fold(&mut self, id: &CommandId, events: &[JobEvent]) {
        assert!(!events.is_empty(), "an append has at least one event");
        for event in events {
            let revision = Revision::new(self.job.events());
            let folded = evolve(&mut self.job, event, revision, self.now.at, id);
            folded.unwrap_or_else(|illegal| panic!("{illegal}, in {:?}", self.log));
            self.log.push(event.clone());
        }
        let checked = invariants::check(&self.job);
        checked.unwrap_or_else(|violation| panic!("{violation}, after {:?}", self.log));
    }

    /// Sends a command that must be applied.
    pub(crate) fn apply(mut self, command: &JobCommand) -> Self {
        let answer = self.send(command);
        assert!(
            matches!(answer, Ok(Decision::Append { .. })),
            "{} is to be applied, and is {answer:?} in {:?}",
            command.name(),
            self.job.state
        );
        self
    }

    pub(crate) fn charge(self) -> Self {
        let charging = self.charging();
        self.apply(&charging)
    }

    pub(crate) fn start(self) -> Self {
        self.apply(&start())
    }

    pub(crate) fn fail(self, attempt: u32) -> Self {
        self.apply(&fail(attempt, FailureClass::Retryable))
    }

    pub(crate) fn fail_as(self, attempt: u32, class: FailureClass) -> Self {
        self.apply(&fail(attempt, class))
    }

    pub(crate) fn succeed(self, attempt: u32) -> Self {
        self.apply(&succeed(attempt))
    }

    pub(crate) fn cancel(self) -> Self {
        self.apply(&JobCommand::Cancel { reason: None })
    }

    pub(crate) fn redrive(self) -> Self {
        self.apply(&JobCommand::Redrive { reason: None })
    }

    pub(crate) fn discard(self) -> Self {
        self.apply(&JobCommand::Discard { reason: None })
    }

    /// Rules out a charge that never arrived, as a recovery does.
    pub(crate) fn void(mut self) -> Self {
        let id = self.fresh_id();
        let command = command_id("a charge that never arrived");
        self.fold(&id, &[JobEvent::Voided(Voided { command })]);
        self
    }

    /// Lets the state's own timer run out, and tells.
    pub(crate) fn run_out(self) -> Self {
        let mut life = self.at_deadline();
        let expire = life.expiry();
        life = life.apply(&expire);
        life
    }

    /// Moves the clock to the moment at which the state's timer runs out.
    pub(crate) fn at_deadline(mut self) -> Self {
        self.now.at = self.timer().2;
        self
    }

    pub(crate) fn wait(mut self, duration: Duration) -> Self {
        self.now.at = self.now.at.after(duration);
        self
    }

    pub(crate) fn wait_ms(self, milliseconds: u64) -> Self {
        self.wait(Duration::from_millis(milliseconds))
    }

    /// Moves the clock to the moment at which the scheduled retry is due.
    pub(crate) fn due(mut self) -> Self {
        let Work::RetryScheduled { due_at, .. } = self.recorded().work else {
            panic!("no retry is scheduled in {:?}", self.job.state);
        };
        self.now.at = self.now.at.max(due_at);
        self
    }

    pub(crate) fn recorded(&self) -> &Recorded {
        self.job.recorded().expect("the job was charged")
    }

    pub(crate) fn timer(&self) -> (Timer, Revision, Timestamp) {
        self.recorded()
            .work
            .timer()
            .expect("a live state has a timer")
    }

    /// What a loop sends that saw the state's timer.
    pub(crate) fn expiry(&self) -> JobCommand {
        let (timer, armed_at, _) = self.timer();
        JobCommand::Expire { timer, armed_at }
    }

    /// The highest attempt so far; 0 where nothing was charged.
    pub(crate) fn highest(&self) -> u32 {
        match &self.job.state {
            JobState::Recorded(recorded) => recorded.attempt.get(),
            JobState::None | JobState::Voided => 0,
        }
    }

    pub(crate) fn state_name(&self) -> &'static str {
        match &self.job.state {
            JobState::None => "none",
            JobState::Voided => "voided",
            JobState::Recorded(recorded) => recorded.work.name(),
        }
    }

    /// The sum of the stream's entries, straight from its events.
    pub(crate) fn net(&self) -> i64 {
        let postings = self.log.iter().filter_map(JobEvent::posting);
        postings.map(|posting| posting.amount).sum()
    }

    /// The sum of the stream's changes of held, straight from its events.
    pub(crate) fn held(&self) -> i64 {
        let postings = self.log.iter().filter_map(JobEvent::posting);
        postings.map(|posting| posting.held).sum()
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.log.iter().filter(|event| event.name() == name).count()
    }
}

pub(crate) fn start() -> JobCommand {
    JobCommand::Start {
        worker: None,
        lease: None,
    }
}

pub(crate) fn extend(attempt: u32) -> JobCommand {
    JobCommand::Extend {
        attempt: Attempt::new(attempt),
    }
}

pub(crate) fn fail(attempt: u32, class: FailureClass) -> JobCommand {
    JobCommand::Fail {
        attempt: Attempt::new(attempt),
        class,
        reason: None,
    }
}

pub(crate) fn succeed(attempt: u32) -> JobCommand {
    JobCommand::Succeed {
        attempt: Attempt::new(attempt),
        result: None,
    }
}

/// The events of an answer that appends.
pub(crate) fn events(answer: &Answer) -> &[JobEvent] {
    match answer {
        Ok(Decision::Append { events, .. }) => events,
        other => panic!("an append was expected, not {other:?}"),
    }
}

/// What an answer that appends is subject to.
pub(crate) fn admission(answer: &Answer) -> Option<&Admission> {
    match answer {
        Ok(Decision::Append { admission, .. }) => admission.as_ref(),
        other => panic!("an append was expected, not {other:?}"),
    }
}
