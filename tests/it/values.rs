//! Short constructors of valid values, and the instant at which every test begins.

use recoup::{
    AccountId, AdjustmentId, Charge, CommandId, Cost, Delta, GrantId, JobId, JobResult, Kind, Mode,
    Policy, PriceSnapshot, Reason, Timestamp, WorkerId,
};

/// Noon of a day in the middle of a month: no test meets midnight by accident.
pub(crate) fn noon() -> Timestamp {
    Timestamp::parse("2026-11-15T12:00:00Z").expect("a valid instant")
}

pub(crate) fn job_id(text: &str) -> JobId {
    JobId::new(text).expect("a valid job id")
}

pub(crate) fn account_id(text: &str) -> AccountId {
    AccountId::new(text).expect("a valid account id")
}

pub(crate) fn command_id(text: &str) -> CommandId {
    CommandId::new(text).expect("a valid command id")
}

pub(crate) fn grant_id(text: &str) -> GrantId {
    GrantId::new(text).expect("a valid grant id")
}

pub(crate) fn adjustment_id(text: &str) -> AdjustmentId {
    AdjustmentId::new(text).expect("a valid adjustment id")
}

pub(crate) fn kind(text: &str) -> Kind {
    Kind::new(text).expect("a valid kind")
}

pub(crate) fn worker(text: &str) -> WorkerId {
    WorkerId::new(text).expect("a valid worker id")
}

pub(crate) fn reason(text: &str) -> Reason {
    Reason::new(text).expect("a valid reason")
}

pub(crate) fn result(text: &str) -> JobResult {
    JobResult::new(text).expect("a valid result")
}

pub(crate) fn cost(amount: i64) -> Cost {
    Cost::new(amount).expect("a valid cost")
}

pub(crate) fn delta(amount: i64) -> Delta {
    Delta::new(amount).expect("a valid change")
}

/// A charge of `amount` to `account`, at a price of one line, with exactly this policy.
pub(crate) fn charge(account: &str, amount: i64, policy: Policy) -> Charge {
    Charge {
        account: account_id(account),
        kind: kind("video.render"),
        cost: cost(amount),
        price: PriceSnapshot::flat(cost(amount)),
        choice: None,
        policy,
    }
}

/// The defaults of `mode`, with `cap` starts.
pub(crate) fn policy(mode: Mode, cap: u32) -> Policy {
    Policy {
        cap,
        ..Policy::default_for(mode)
    }
}
