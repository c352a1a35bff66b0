//! Random work: what several callers send, in which order, how often, and what gets lost.

use std::fmt;

use proptest::prelude::*;
use recoup::{
    Adjust, Attempt, Command, CommandId, FailureClass, Floor, Grant, JobCommand, Limit, Mode,
    Policy,
};

use crate::values::{
    account_id, adjustment_id, charge, command_id, cost, delta, grant_id, job_id, reason, result,
    worker,
};

/// How many callers send at once.
pub(crate) const CALLERS: usize = 8;

/// How many jobs they send about: few, so that they meet.
const JOBS: u8 = 4;

/// A command and its id.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) id: CommandId,
    pub(crate) command: Command,
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, command } = self;
        match command {
            Command::Job(job, JobCommand::Charge(_)) => write!(f, "{id}: charge {job}"),
            Command::Job(job, command) => write!(f, "{id}: {job}, {command:?}"),
            command => write!(f, "{id}: {command:?}"),
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Send(Sent),
    /// Look at a job, let its timer run out, and say so.
    RunOut(u8),
    /// Move the clock on.
    Wait {
        seconds: u64,
    },
}

/// An act, which callers do it (the same command, under the same id), and how often each repeats it.
#[derive(Clone)]
pub(crate) struct Planned {
    pub(crate) act: Act,
    pub(crate) callers: u8,
    pub(crate) repeats: u8,
}

impl fmt::Debug for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            act,
            callers,
            repeats,
        } = self;
        write!(f, "{act:?} by {callers:08b}, and again {repeats} times")
    }
}

/// Durations short enough for a test's clock to run them out, and two starts a round.
fn quick(mode: Mode) -> Policy {
    Policy {
        mode,
        cap: 2,
        first_delay_ms: 1_000,
        max_delay_ms: 2_000,
        window_ms: 20 * 24 * 3_600_000,
        start_within_ms: 60_000,
        lease_ms: 10_000,
    }
}

pub(crate) fn job_name(job: u8) -> String {
    format!("job {job}")
}

/// Jobs 0 and 1 are external, 2 and 3 claimed; 0 and 2 belong to a rich account, 1 and 3 to a poor one.
pub(crate) fn charge_of(job: u8) -> JobCommand {
    let mode = if job < JOBS / 2 {
        Mode::External
    } else {
        Mode::Claimed
    };
    let account = if job.is_multiple_of(2) {
        "rich"
    } else {
        "poor"
    };
    JobCommand::Charge(Box::new(charge(account, 40 + i64::from(job), quick(mode))))
}

fn job_command() -> impl Strategy<Value = JobCommand> {
    let class = || {
        prop_oneof![
            3 => Just(FailureClass::Retryable),
            1 => Just(FailureClass::Terminal),
            1 => Just(FailureClass::Cancelled),
        ]
    };
    let attempt =
        || prop_oneof![4 => Just(1_u32), 3 => Just(2), 1 => 0..5_u32].prop_map(Attempt::new);
    let why = || proptest::option::of(Just(reason("why")));
    prop_oneof![
        6 => proptest::option::of("w[1-3]").prop_map(|name| JobCommand::Start { worker: name.map(|name| worker(&name)), lease: None }),
        2 => attempt().prop_map(|attempt| JobCommand::Extend { attempt }),
        8 => (attempt(), class(), why()).prop_map(|(attempt, class, reason)| JobCommand::Fail { attempt, class, reason }),
        4 => (attempt(), proptest::option::of(Just(result("s3://x"))))
            .prop_map(|(attempt, result)| JobCommand::Succeed { attempt, result }),
        1 => why().prop_map(|reason| JobCommand::Cancel { reason }),
        2 => why().prop_map(|reason| JobCommand::Redrive { reason }),
        1 => why().prop_map(|reason| JobCommand::Discard { reason }),
    ]
}

fn account_command() -> impl Strategy<Value = Command> {
    let account = || proptest::sample::select(vec!["rich", "poor"]).prop_map(account_id);
    let grant = (account(), 0..4_u8, 1..60_i64).prop_map(|(account, name, amount)| {
        let grant = grant_id(&format!("g{name}"));
        Command::Grant(Grant {
            account,
            grant,
            amount: cost(amount),
        })
    });
    let adjust = (account(), 0..4_u8, 1..30_i64, any::<bool>()).prop_map(
        |(account, name, size, is_debit)| {
            Command::Adjust(Adjust {
                account,
                adjustment: adjustment_id(&format!("x{name}")),
                amount: delta(if is_debit { -size } else { size }),
                reason: reason("a correction"),
                job: None,
            })
        },
    );
    let limit = (0..3_u8, 50..200_i64).prop_map(|(which, size)| {
        let floor = (which != 1).then_some(Floor::At(-size));
        let monthly_cap = (which != 0).then_some(Some(size));
        Command::Limit(Limit {
            account: account_id("poor"),
            floor,
            monthly_cap,
        })
    });
    prop_oneof![3 => grant, 2 => adjust, 1 => limit]
}

fn sent(number: u32, command: Command) -> Sent {
    Sent {
        id: command_id(&format!("command {number}")),
        command,
    }
}

fn act() -> impl Strategy<Value = Act> {
    let of_job = (0..JOBS, job_command())
        .prop_map(|(job, command)| Command::Job(job_id(&job_name(job)), command));
    let charging = (0..JOBS).prop_map(|job| Command::Job(job_id(&job_name(job)), charge_of(job)));
    // The number comes with the place in the plan.
    let sending = |command| Act::Send(sent(0, command));
    prop_oneof![
        14 => of_job.prop_map(sending),
        6 => charging.prop_map(sending),
        2 => account_command().prop_map(sending),
        2 => (0..JOBS).prop_map(Act::RunOut),
        2 => (1..5_u64).prop_map(|seconds| Act::Wait { seconds }),
    ]
}

fn planned() -> impl Strategy<Value = Planned> {
    // One to three callers each; one in four acts is repeated by whoever does it.
    let callers = proptest::collection::vec(0..CALLERS, 1..4).prop_map(|callers| {
        callers
            .into_iter()
            .fold(0_u8, |mask, caller| mask | 1 << caller)
    });
    let repeats = prop_oneof![3 => Just(0_u8), 1 => 1..3_u8];
    (act(), callers, repeats).prop_map(|(act, callers, repeats)| Planned {
        act,
        callers,
        repeats,
    })
}

/// Commands for one ledger, under few ids, so that some are repeated and some are reused. No limits: an account's order is not a job's.
pub(crate) fn commands(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Sent>> {
    let of_job = (0..JOBS, job_command())
        .prop_map(|(job, command)| Command::Job(job_id(&job_name(job)), command));
    let charging = (0..JOBS).prop_map(|job| Command::Job(job_id(&job_name(job)), charge_of(job)));
    let of_account =
        account_command().prop_filter("no limits", |command| !matches!(command, Command::Limit(_)));
    let command = prop_oneof![8 => of_job, 4 => charging, 1 => of_account];
    let number = prop_oneof![1 => 0..20_u32, 4 => 20..1_000_000_u32];
    let sent = (number, command).prop_map(|(number, command)| sent(number, command));
    proptest::collection::vec(sent, count)
}

/// A plan for all callers.
pub(crate) fn plan(acts: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Planned>> {
    proptest::collection::vec(planned(), acts).prop_map(|mut plan| {
        // An id is for one command: were it drawn, two of a long plan would meet in one sooner or later.
        for (number, planned) in (1..).zip(&mut plan) {
            if let Act::Send(sent) = &mut planned.act {
                sent.id = command_id(&format!("command {number}"));
            }
        }
        plan
    })
}

/// What one caller does, in order.
pub(crate) fn of_caller(plan: &[Planned], caller: usize) -> Vec<Planned> {
    let does = |planned: &&Planned| planned.callers & (1 << caller) != 0;
    plan.iter().filter(does).cloned().collect()
}
