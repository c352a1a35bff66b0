//! Attempts, leases, retries, timers, admission: the numbered rules that a table of states cannot show.

use std::time::Duration;

use recoup::account::Admission;
use recoup::job::{DeadLetterCause, Decision, JobEvent, LeaseExtended, Now, Timer, Work};
use recoup::{
    Attempt, BudgetMonth, FailureClass, JobCommand, Lease, Mode, Policy, Rejection, Revision,
    Timestamp, Zone,
};

use super::life::{COST, Life, admission, events, extend, fail, start, succeed};
use crate::values::{account_id, cost, policy};

fn noted_or_same(answer: &super::life::Answer) -> bool {
    matches!(
        answer,
        Ok(Decision::AlreadyApplied | Decision::Noted { .. })
    )
}

#[test]
fn an_attempt_below_1_or_above_the_next_is_unknown_in_every_state_of_a_job() {
    let claimed = || Life::claimed().charge();
    let external = || Life::external().charge();
    let dead = || Life::with_cap(1).charge().start().fail(1);
    for mut life in [
        claimed(),
        external(),
        claimed().start(),
        claimed().start().fail(1),
        external().fail(1),
        dead(),
        claimed().start().succeed(1),
        claimed().cancel(),
        dead().discard(),
    ] {
        let highest = life.highest();
        for attempt in [0, highest + 2, u32::MAX] {
            let unknown = Err(Rejection::UnknownAttempt { attempt, highest });
            assert_eq!(
                life.send(&extend(attempt)),
                unknown,
                "{}",
                life.state_name()
            );
            assert_eq!(
                life.send(&succeed(attempt)),
                unknown,
                "{}",
                life.state_name()
            );
            for class in [
                FailureClass::Retryable,
                FailureClass::Terminal,
                FailureClass::Cancelled,
            ] {
                assert_eq!(
                    life.send(&fail(attempt, class)),
                    unknown,
                    "{}",
                    life.state_name()
                );
            }
        }
    }
}

#[test]
fn a_lease_that_has_most_of_its_time_left_is_not_renewed() {
    let running = Life::claimed().charge().start();
    let third = Duration::from_millis(running.policy.lease_ms) / 3;
    let mut early = running.clone().wait(third - Duration::from_micros(1));
    assert_eq!(early.send(&extend(1)), Ok(Decision::AlreadyApplied));
    assert_eq!(early.job.events(), running.job.events());
    let mut in_time = running.wait(third);
    let lease_ms = in_time.policy.lease_ms;
    let extended = LeaseExtended {
        attempt: Attempt::FIRST,
        lease_ms,
    };
    assert_eq!(
        events(&in_time.send(&extend(1))),
        [JobEvent::LeaseExtended(extended)]
    );
    // The next third is counted from the renewal.
    let mut again = in_time.clone().wait(third - Duration::from_micros(1));
    assert_eq!(again.send(&extend(1)), Ok(Decision::AlreadyApplied));
}

#[test]
fn a_lease_that_was_asked_for_is_the_attempts_and_no_other_ones() {
    let lease_ms = 300_000;
    let leased = JobCommand::Start {
        worker: None,
        lease: Some(Lease::from_ms(lease_ms).expect("valid")),
    };
    let running = Life::claimed().charge().apply(&leased);
    let lease = Duration::from_millis(lease_ms);
    assert_eq!(running.timer().2, running.now.at.after(lease));
    let mut early = running.clone().wait_ms(lease_ms / 3 - 1);
    assert_eq!(early.send(&extend(1)), Ok(Decision::AlreadyApplied));
    let renewed = running.wait_ms(lease_ms / 3).apply(&extend(1));
    assert_eq!(renewed.timer().2, renewed.now.at.after(lease));
    // The next attempt has what its own start asks for: nothing, so the policy's.
    let next = renewed.run_out().due().start();
    let policys = Duration::from_millis(next.policy.lease_ms);
    assert_eq!(next.timer().2, next.now.at.after(policys));
}

#[test]
fn a_renewal_moves_the_deadline_and_disarms_the_old_timer() {
    let running = Life::claimed().charge().start();
    let (old, first_deadline) = (running.expiry(), running.timer().2);
    let renewed = running.wait_ms(59_999).apply(&extend(1));
    assert_eq!(
        renewed.timer().2,
        first_deadline.after(Duration::from_millis(59_999))
    );
    let mut late = renewed.wait_ms(120_000);
    assert_eq!(late.send(&old), Ok(Decision::AlreadyApplied));
    assert_eq!(late.state_name(), "running");
    assert_eq!(late.run_out().state_name(), "retry_scheduled");
}

#[test]
fn an_attempt_may_renew_its_lease_until_its_end_is_told() {
    // The lease is over, and no loop has said so yet: the worker that is alive after all keeps its attempt.
    let late = Life::claimed()
        .charge()
        .start()
        .wait_ms(90_000)
        .apply(&extend(1));
    assert_eq!(late.state_name(), "running");
}

#[test]
fn a_timer_acts_only_on_the_state_that_it_was_set_for() {
    let running = Life::claimed().charge().start();
    let (timer, armed_at, _) = running.timer();
    let mut late = running.clone().at_deadline();
    for stale in [
        JobCommand::Expire {
            timer,
            armed_at: Revision::FIRST,
        },
        JobCommand::Expire {
            timer,
            armed_at: armed_at.plus(1),
        },
        JobCommand::Expire {
            timer: Timer::StartBy,
            armed_at,
        },
        JobCommand::Expire {
            timer: Timer::GiveUpAt,
            armed_at,
        },
    ] {
        assert_eq!(late.send(&stale), Ok(Decision::AlreadyApplied), "{stale:?}");
    }
    // A list that was read before the job was delivered, cancelled or started again.
    let seen = running.expiry();
    for life in [
        running.clone().succeed(1),
        running.clone().fail(1).cancel(),
        running.fail(1).due().start(),
    ] {
        let mut late = life.wait(Duration::from_hours(1));
        let before = late.job.events();
        assert_eq!(
            late.send(&seen),
            Ok(Decision::AlreadyApplied),
            "{}",
            late.state_name()
        );
        assert_eq!(late.job.events(), before);
    }
}

#[test]
fn a_timer_that_has_time_left_is_not_due() {
    for life in [
        Life::claimed().charge(),
        Life::claimed().charge().start(),
        Life::claimed().charge().start().fail(1),
        Life::with_cap(1).charge().start().fail(1).redrive(),
    ] {
        let (_, _, deadline) = life.timer();
        let mut early = life.clone();
        early.now.at = Timestamp::from_micros(deadline.as_micros() - 1);
        assert_eq!(
            early.send(&life.expiry()),
            Err(Rejection::NotDue { due_at: deadline })
        );
        assert_eq!(early.job.events(), life.job.events());
        life.run_out();
    }
}

#[test]
fn a_retry_is_not_started_before_it_is_due() {
    let scheduled = Life::claimed().charge().start().fail(1);
    let Work::RetryScheduled {
        due_at, give_up_at, ..
    } = scheduled.recorded().work
    else {
        panic!("a retry is scheduled");
    };
    let delay = due_at.since(scheduled.now.at);
    assert!(
        delay >= Duration::from_secs(5) && delay < Duration::from_secs(6),
        "{delay:?}"
    );
    let start_within = Duration::from_millis(scheduled.policy.start_within_ms);
    assert_eq!(give_up_at, due_at.after(start_within));
    let mut early = scheduled.clone();
    early.now.at = Timestamp::from_micros(due_at.as_micros() - 1);
    assert_eq!(early.send(&start()), Err(Rejection::NotDue { due_at }));
    assert_eq!(scheduled.due().start().state_name(), "running");
}

/// The delays of a life that fails as often as it may, in milliseconds, and its end.
fn delays(mut life: Life) -> (Vec<u64>, DeadLetterCause) {
    let mut delays = Vec::new();
    loop {
        life = life.start();
        let attempt = life.highest();
        let answer = life.send(&fail(attempt, FailureClass::Retryable));
        match events(&answer).last() {
            Some(JobEvent::RetryScheduled(scheduled)) => delays.push(scheduled.delay_ms),
            Some(JobEvent::DeadLettered(dead)) => return (delays, dead.cause),
            other => panic!("{other:?}"),
        }
        life = life.due();
    }
}

#[test]
fn delays_double_up_to_their_limit_until_the_cap() {
    let policy = Policy {
        max_delay_ms: 30_000,
        ..policy(Mode::Claimed, 6)
    };
    let (delays, cause) = delays(Life::new(policy).charge());
    assert_eq!(cause, DeadLetterCause::CapReached);
    // Five retries after six starts; each delay with up to a fifth on top.
    let bases = [5_000, 10_000, 20_000, 30_000, 30_000];
    assert_eq!(delays.len(), bases.len());
    for (delay, base) in delays.into_iter().zip(bases) {
        assert!(
            (base..base + base / 5).contains(&delay),
            "{delay} for {base}"
        );
    }
}

#[test]
fn a_retry_that_would_be_due_after_the_window_is_a_dead_letter() {
    let wide = Life::new(policy(Mode::Claimed, 100)).charge();
    let (all, _) = delays(wide);
    // The window ends exactly where the third retry is due, and then a millisecond earlier.
    let third: u64 = all[..3].iter().sum();
    for (window_ms, retries) in [(third, 3), (third - 1, 2)] {
        let policy = Policy {
            window_ms,
            ..policy(Mode::Claimed, 100)
        };
        let (delays, cause) = delays(Life::new(policy).charge());
        assert_eq!(
            (delays.len(), cause),
            (retries, DeadLetterCause::WindowClosed)
        );
    }
}

#[test]
fn a_redrive_begins_cap_delay_and_window_anew() {
    let policy = Policy {
        window_ms: 8_000,
        ..policy(Mode::Claimed, 2)
    };
    let dead = Life::new(policy)
        .charge()
        .start()
        .fail(1)
        .due()
        .start()
        .fail(2);
    assert_eq!(dead.state_name(), "dead_lettered");
    // Long after the first window: it counts from the redrive.
    let redriven = dead.wait(Duration::from_hours(24)).redrive();
    assert_eq!(redriven.recorded().base, Attempt::new(2));
    let start_within = Duration::from_millis(policy.start_within_ms);
    assert_eq!(redriven.timer().2, redriven.now.at.after(start_within));
    let mut running = redriven.start();
    assert_eq!(running.highest(), 3);
    let answer = running.send(&fail(3, FailureClass::Retryable));
    let Some(JobEvent::RetryScheduled(scheduled)) = events(&answer).last() else {
        panic!("the first failure after a redrive is retried: {answer:?}");
    };
    assert!(
        (5_000..6_000).contains(&scheduled.delay_ms),
        "{} ms",
        scheduled.delay_ms
    );
    let dead_again = running.due().start().fail(4);
    assert_eq!(
        (dead_again.state_name(), dead_again.highest()),
        ("dead_lettered", 4)
    );
}

#[test]
fn a_crash_loop_reaches_the_cap() {
    // Nobody ever says that an attempt failed: its lease runs out.
    let mut life = Life::claimed().charge();
    for attempt in 1..=3 {
        life = life.start().run_out();
        assert_eq!(life.highest(), attempt);
        if attempt < 3 {
            life = life.due();
        }
    }
    assert_eq!(
        (life.state_name(), life.count("attempt_started")),
        ("dead_lettered", 3)
    );
}

#[test]
fn a_late_signal_of_an_older_attempt_moves_nothing_after_a_redrive() {
    let redriven = Life::with_cap(2)
        .charge()
        .start()
        .fail(1)
        .due()
        .start()
        .fail(2)
        .redrive();
    let running = redriven.clone().start();
    let retried = running.clone().fail(3);
    for mut life in [redriven, running, retried] {
        let before = (life.state_name(), life.net(), life.held(), life.highest());
        for attempt in 1..life.highest() {
            for class in [
                FailureClass::Retryable,
                FailureClass::Terminal,
                FailureClass::Cancelled,
            ] {
                let answer = life.send(&fail(attempt, class));
                assert!(noted_or_same(&answer), "{attempt} {class:?}: {answer:?}");
            }
            let lost = Err(Rejection::LeaseLost { attempt });
            assert_eq!(life.send(&extend(attempt)), lost);
        }
        assert_eq!(
            (life.state_name(), life.net(), life.held(), life.highest()),
            before
        );
    }
}

#[test]
fn a_late_success_recovers_from_every_end_but_a_persons() {
    for life in [
        Life::external().charge().fail(1),
        Life::external().charge().run_out(),
        Life::claimed().charge().run_out(),
        Life::claimed()
            .charge()
            .start()
            .fail_as(1, FailureClass::Terminal),
        Life::with_cap(1).charge().start().fail(1),
        Life::with_cap(1).charge().start().fail(1).redrive(),
    ] {
        let delivered = life.succeed(1);
        assert_eq!((delivered.net(), delivered.held()), (-COST, 0));
        assert_eq!(
            (delivered.count("refunded"), delivered.count("reclaimed")),
            (1, 1)
        );
    }
}

#[test]
fn a_failure_of_a_claimed_job_that_nobody_started_is_refused() {
    let mut life = Life::claimed().charge();
    let not_started = Err(Rejection::NotStarted { attempt: 1 });
    assert_eq!(life.send(&fail(1, FailureClass::Terminal)), not_started);
    assert_eq!(life.state_name(), "queued");
}

#[test]
fn a_charge_is_admitted_in_the_month_of_the_ledgers_zone() {
    // 23:30 of 30 November in New York is 1 December in UTC.
    let at = Timestamp::parse("2026-12-01T04:30:00Z").expect("an instant");
    for (zone, month) in [("UTC", "2026-12"), ("America/New_York", "2026-11")] {
        let mut life = Life::external();
        let zone = Zone::parse(zone).expect("a zone");
        life.now = Now {
            at,
            zone,
            ..life.now
        };
        let month = BudgetMonth::parse(month).expect("a month");
        let charging = life.charging();
        let answer = life.send(&charging);
        let spend = Admission::Spend {
            account: account_id("acme"),
            cost: cost(COST),
            cap_month: Some(month),
        };
        assert_eq!(admission(&answer), Some(&spend));
        let posting = events(&answer)[0]
            .posting()
            .expect("a charge moves money")
            .clone();
        assert_eq!(
            (posting.budget_month, posting.charged_at),
            (Some(month), Some(at))
        );
    }
}

#[test]
fn a_redrive_or_restart_is_admitted_in_the_month_of_the_charge_while_it_lasts() {
    let november = BudgetMonth::parse("2026-11").expect("a month");
    let in_december = Timestamp::parse("2026-12-01T00:00:00Z").expect("an instant");
    let last_of_november = Timestamp::from_micros(in_december.as_micros() - 1);
    let dead = Life::with_cap(1).charge().start().fail(1);
    let failed = Life::external().charge().fail(1);
    for (life, command) in [
        (dead, JobCommand::Redrive { reason: None }),
        (failed, start()),
    ] {
        for (at, cap_month) in [(last_of_november, Some(november)), (in_december, None)] {
            let mut life = life.clone();
            life.now.at = at;
            let answer = life.send(&command);
            let spend = Admission::Spend {
                account: account_id("acme"),
                cost: cost(COST),
                cap_month,
            };
            assert_eq!(
                admission(&answer),
                Some(&spend),
                "{} at {at}",
                command.name()
            );
            let hold = events(&answer)[0]
                .posting()
                .expect("a hold is taken")
                .clone();
            assert_eq!(
                (hold.amount, hold.held, hold.budget_month),
                (0, COST, Some(november))
            );
        }
    }
}

#[test]
fn refund_and_reclaim_count_in_the_month_of_the_charge() {
    let november = BudgetMonth::parse("2026-11").expect("a month");
    let delivered = Life::external()
        .charge()
        .wait(Duration::from_hours(24 * 30))
        .fail(1)
        .wait(Duration::from_hours(24 * 30))
        .succeed(1);
    let postings: Vec<_> = delivered.log.iter().filter_map(JobEvent::posting).collect();
    assert_eq!(postings.len(), 3);
    assert!(
        postings
            .iter()
            .all(|posting| posting.budget_month == Some(november))
    );
}
