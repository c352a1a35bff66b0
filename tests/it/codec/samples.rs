//! One event of every type, and of every variant that its bytes can take.

use recoup::account::{AccountEvent, Adjusted, Floor, Granted, Limits, LimitsSet, Posting};
use recoup::codec::Event;
use recoup::job::{
    AttemptFailed, AttemptStarted, Cancelled, Charged, Contradicted, DeadLetterCause, DeadLettered,
    Delivered, Discarded, Failed, JobEvent, LeaseExtended, Reclaimed, Redriven, Refunded,
    RetryScheduled, Signal, Timer, Voided,
};
use recoup::{
    Attempt, BudgetMonth, FailureClass, Mode, Policy, PriceLine, PriceListId, PriceSnapshot,
    Rounding, Timestamp, Unit,
};

use crate::values::{
    account_id, adjustment_id, command_id, grant_id, job_id, kind, reason, result, worker,
};

/// A sample's name and the event.
pub(super) type Sample = (&'static str, Event);

fn posting(amount: i64, held: i64) -> Posting {
    Posting {
        account: account_id("acme"),
        kind: Some(kind("video")),
        amount,
        held,
        charged_at: Some(Timestamp::from_micros(1_794_744_000_000_000)),
        budget_month: Some(BudgetMonth::parse("2026-11").expect("a month")),
    }
}

fn account_posting(amount: i64) -> Posting {
    Posting {
        account: account_id("acme"),
        kind: None,
        amount,
        held: 0,
        charged_at: None,
        budget_month: None,
    }
}

fn price(rounding: Rounding) -> PriceSnapshot {
    let line = |unit: &str, quantity, unit_price, per| PriceLine {
        unit: Unit::new(unit).expect("a unit"),
        quantity,
        unit_price,
        per,
    };
    PriceSnapshot {
        list: PriceListId::new("2026-11").expect("a price list"),
        rounding,
        lines: vec![line("in", 4808, 30, 1000), line("out", 10, 60, 1000)],
    }
}

fn charged(rounding: Rounding, mode: Mode) -> JobEvent {
    JobEvent::Charged(Charged {
        posting: posting(-145, 0),
        price: price(rounding),
        policy: Policy::default_for(mode),
    })
}

fn started(worker_id: Option<&str>, hold: Option<Posting>) -> JobEvent {
    JobEvent::AttemptStarted(AttemptStarted {
        attempt: Attempt::FIRST,
        worker: worker_id.map(worker),
        lease_ms: 60_000,
        hold,
    })
}

fn attempt_failed(class: FailureClass, text: Option<&str>, timer: Option<Timer>) -> JobEvent {
    JobEvent::AttemptFailed(AttemptFailed {
        attempt: Attempt::new(300),
        class,
        reason: text.map(reason),
        timer,
    })
}

fn attempts() -> Vec<(&'static str, JobEvent)> {
    use FailureClass::{Cancelled, Retryable, Terminal};
    vec![
        (
            "charged, half even, external",
            charged(Rounding::HalfEven, Mode::External),
        ),
        ("charged, up, claimed", charged(Rounding::Up, Mode::Claimed)),
        (
            "charged, down, claimed",
            charged(Rounding::Down, Mode::Claimed),
        ),
        ("attempt_started", started(None, None)),
        ("attempt_started, worker", started(Some("w1"), None)),
        (
            "attempt_started, worker and hold",
            started(Some("w1"), Some(posting(0, 145))),
        ),
        (
            "lease_extended",
            JobEvent::LeaseExtended(LeaseExtended {
                attempt: Attempt::new(2),
                lease_ms: 60_000,
            }),
        ),
        (
            "attempt_failed, retryable",
            attempt_failed(Retryable, None, None),
        ),
        (
            "attempt_failed, terminal, reason",
            attempt_failed(Terminal, Some("no such codec"), None),
        ),
        (
            "attempt_failed, cancelled",
            attempt_failed(Cancelled, None, None),
        ),
        (
            "attempt_failed, lease_until",
            attempt_failed(Retryable, None, Some(Timer::LeaseUntil)),
        ),
        (
            "attempt_failed, start_by",
            attempt_failed(Retryable, None, Some(Timer::StartBy)),
        ),
        (
            "attempt_failed, give_up_at",
            attempt_failed(Retryable, None, Some(Timer::GiveUpAt)),
        ),
        (
            "retry_scheduled",
            JobEvent::RetryScheduled(RetryScheduled {
                attempt: Attempt::FIRST,
                delay_ms: 5_432,
                start_within_ms: 86_400_000,
            }),
        ),
    ]
}

fn endings() -> Vec<(&'static str, JobEvent)> {
    let hold = || Some(posting(0, -145));
    let dead = |cause, hold| JobEvent::DeadLettered(DeadLettered { cause, hold });
    let cancelled = |text: Option<&str>, hold| {
        JobEvent::Cancelled(Cancelled {
            reason: text.map(reason),
            hold,
        })
    };
    let delivered = |text: Option<&str>| {
        JobEvent::Delivered(Delivered {
            attempt: Attempt::FIRST,
            result: text.map(result),
        })
    };
    let discarded = |text: Option<&str>| {
        JobEvent::Discarded(Discarded {
            reason: text.map(reason),
        })
    };
    vec![
        (
            "refunded",
            JobEvent::Refunded(Refunded {
                posting: posting(145, 0),
            }),
        ),
        (
            "refunded, held",
            JobEvent::Refunded(Refunded {
                posting: posting(145, 145),
            }),
        ),
        ("failed", JobEvent::Failed(Failed { hold: None })),
        ("failed, hold", JobEvent::Failed(Failed { hold: hold() })),
        (
            "dead_lettered, cap",
            dead(DeadLetterCause::CapReached, None),
        ),
        (
            "dead_lettered, window, hold",
            dead(DeadLetterCause::WindowClosed, hold()),
        ),
        (
            "dead_lettered, not started",
            dead(DeadLetterCause::NotStarted, None),
        ),
        ("delivered", delivered(None)),
        ("delivered, result", delivered(Some("s3://out/1"))),
        (
            "reclaimed",
            JobEvent::Reclaimed(Reclaimed {
                posting: posting(-145, 0),
            }),
        ),
        (
            "reclaimed, held",
            JobEvent::Reclaimed(Reclaimed {
                posting: posting(-145, -145),
            }),
        ),
        ("cancelled", cancelled(None, None)),
        (
            "cancelled, reason, hold",
            cancelled(Some("not wanted"), hold()),
        ),
        ("discarded", discarded(None)),
        ("discarded, reason", discarded(Some("given up"))),
    ]
}

fn others() -> Vec<(&'static str, JobEvent)> {
    let redriven = |text: Option<&str>| {
        JobEvent::Redriven(Redriven {
            base: Attempt::new(5),
            start_within_ms: 86_400_000,
            reason: text.map(reason),
            hold: posting(0, 145),
        })
    };
    vec![
        ("redriven", redriven(None)),
        ("redriven, reason", redriven(Some("fixed"))),
        (
            "contradicted, failed",
            JobEvent::Contradicted(Contradicted {
                signal: Signal::Failed,
                attempt: Attempt::FIRST,
                class: Some(FailureClass::Terminal),
                reason: Some(reason("late")),
                result: None,
            }),
        ),
        (
            "contradicted, succeeded",
            JobEvent::Contradicted(Contradicted {
                signal: Signal::Succeeded,
                attempt: Attempt::new(2),
                class: None,
                reason: None,
                result: Some(result("s3://out/2")),
            }),
        ),
        (
            "voided",
            JobEvent::Voided(Voided {
                command: command_id("c-1"),
            }),
        ),
    ]
}

fn of_accounts() -> Vec<(&'static str, AccountEvent)> {
    let adjusted = |amount, job: Option<&str>| {
        AccountEvent::Adjusted(Adjusted {
            adjustment: adjustment_id("x1"),
            posting: account_posting(amount),
            reason: reason("goodwill"),
            job: job.map(job_id),
        })
    };
    let limits = |floor, monthly_cap| {
        let limits = Limits { floor, monthly_cap };
        AccountEvent::LimitsSet(LimitsSet {
            account: account_id("acme"),
            limits,
        })
    };
    let granted = Granted {
        grant: grant_id("g1"),
        posting: account_posting(1_000),
    };
    vec![
        ("granted", AccountEvent::Granted(granted)),
        ("adjusted", adjusted(-5, None)),
        ("adjusted, job", adjusted(5, Some("video-1"))),
        ("limits_set, floor", limits(Floor::At(-100), None)),
        (
            "limits_set, no floor, cap",
            limits(Floor::None, Some(5_000)),
        ),
    ]
}

/// Every sample.
pub(super) fn all() -> Vec<Sample> {
    let jobs = attempts().into_iter().chain(endings()).chain(others());
    let jobs = jobs.map(|(name, event)| (name, Event::Job(event)));
    let accounts = of_accounts()
        .into_iter()
        .map(|(name, event)| (name, Event::Account(event)));
    jobs.chain(accounts).collect()
}
