//! A stream is bounded: from 900 events on it takes only what brings the job to an end.

use recoup::job::{Decision, SOFT_LIMIT_EVENTS};
use recoup::{FailureClass, JobCommand, Rejection};

use super::life::{Life, extend, fail, start, succeed};

fn full(life: &Life) -> Rejection {
    Rejection::StreamFull {
        events: life.job.events(),
    }
}

/// Extends the running attempt until the stream has `events` events.
fn extended_to(mut life: Life, events: u64) -> Life {
    let attempt = life.highest();
    while life.job.events() < events {
        life = life.wait_ms(20_000).apply(&extend(attempt));
    }
    assert_eq!(life.job.events(), events);
    life
}

fn redrive() -> JobCommand {
    JobCommand::Redrive { reason: None }
}

#[test]
fn the_soft_limit_is_900() {
    assert_eq!(SOFT_LIMIT_EVENTS, 900);
}

#[test]
fn the_event_before_the_limit_is_still_free() {
    let mut life = extended_to(Life::claimed().charge().start(), 899).wait_ms(20_000);
    assert!(matches!(life.send(&extend(1)), Ok(Decision::Append { .. })));
    assert_eq!(life.job.events(), 900);
    let mut life = life.wait_ms(20_000);
    assert_eq!(life.send(&extend(1)), Err(full(&life)));
}

#[test]
fn a_full_running_job_takes_every_end() {
    let running = extended_to(Life::with_cap(1).charge().start(), 900);
    for (command, state) in [
        (succeed(1), "delivered"),
        (fail(1, FailureClass::Retryable), "dead_lettered"),
        (fail(1, FailureClass::Terminal), "failed"),
        (fail(1, FailureClass::Cancelled), "cancelled"),
    ] {
        let mut life = running.clone();
        let answer = life.send(&command);
        assert!(
            matches!(answer, Ok(Decision::Append { .. })),
            "{command:?}: {answer:?}"
        );
        assert_eq!(life.state_name(), state);
    }
    assert_eq!(running.run_out().state_name(), "dead_lettered");
}

#[test]
fn a_full_scheduled_retry_ends_by_its_timer_and_is_not_started() {
    let scheduled = extended_to(Life::claimed().charge().start(), 900).fail(1);
    assert_eq!(scheduled.state_name(), "retry_scheduled");
    let mut due = scheduled.clone().due();
    assert_eq!(due.send(&start()), Err(full(&due)));
    for (command, state) in [
        (succeed(1), "delivered"),
        (fail(1, FailureClass::Terminal), "failed"),
        (JobCommand::Cancel { reason: None }, "cancelled"),
    ] {
        assert_eq!(scheduled.clone().apply(&command).state_name(), state);
    }
    let dead = scheduled.run_out();
    assert_eq!(
        (dead.state_name(), dead.net(), dead.held()),
        ("dead_lettered", 0, 0)
    );
}

#[test]
fn a_full_dead_letter_is_not_redriven() {
    let mut dead = extended_to(Life::with_cap(1).charge().start(), 900).fail(1);
    assert_eq!(dead.send(&redrive()), Err(full(&dead)));
    assert_eq!(dead.clone().succeed(1).state_name(), "delivered");
    assert_eq!(dead.clone().cancel().state_name(), "cancelled");
    assert_eq!(dead.discard().state_name(), "discarded");
}

#[test]
fn a_full_failed_job_of_an_external_kind_is_not_started_again() {
    let mut failed = extended_to(Life::external().charge().start(), 900).fail(1);
    assert_eq!(failed.send(&start()), Err(full(&failed)));
    // A further failure of such a job ends nothing: it would be the one signal that grows the stream without bound.
    let again = fail(2, FailureClass::Retryable);
    assert_eq!(failed.send(&again), Err(full(&failed)));
    assert_eq!(
        failed
            .clone()
            .fail_as(2, FailureClass::Cancelled)
            .state_name(),
        "cancelled"
    );
    assert_eq!(failed.clone().succeed(2).state_name(), "delivered");
}

#[test]
fn a_full_ended_job_notes_nothing_new() {
    let mut known = extended_to(Life::claimed().charge().start(), 899).succeed(1);
    assert_eq!(known.job.events(), 900);
    let late = fail(1, FailureClass::Retryable);
    assert_eq!(known.send(&late), Err(full(&known)));
    // A contradiction that is on record is still answered as one.
    let mut noted = extended_to(Life::claimed().charge().start(), 898).succeed(1);
    assert!(matches!(
        noted.send(&late),
        Ok(Decision::Noted { event: Some(_) })
    ));
    assert_eq!(noted.job.events(), 900);
    assert_eq!(noted.send(&late), Ok(Decision::Noted { event: None }));
    let mut cancelled =
        extended_to(Life::claimed().charge().start(), 900).fail_as(1, FailureClass::Cancelled);
    assert_eq!(cancelled.send(&succeed(1)), Err(full(&cancelled)));
}

#[test]
fn a_full_stream_still_answers_what_appends_nothing() {
    let mut life = extended_to(Life::claimed().charge().start(), 900);
    let charging = life.charging();
    assert_eq!(life.send(&charging), Ok(Decision::AlreadyApplied));
    assert_eq!(
        life.send(&extend(1)),
        Ok(Decision::AlreadyApplied),
        "the lease was renewed just now"
    );
    assert_eq!(
        life.send(&start()),
        Err(Rejection::AttemptRunning { attempt: 1 })
    );
    assert_eq!(
        life.send(&redrive()),
        Err(Rejection::NotDeadLettered { state: "running" })
    );
}

#[test]
fn no_stream_grows_far_beyond_the_limit() {
    // The longest way on: a failure at the limit, its retry never started, and every contradiction refused.
    let mut life = extended_to(Life::claimed().charge().start(), 899)
        .wait_ms(20_000)
        .apply(&extend(1))
        .fail(1)
        .run_out();
    for command in [
        redrive(),
        start(),
        extend(1),
        fail(1, FailureClass::Retryable),
    ] {
        let _ = life.send(&command);
    }
    let mut life = life.discard();
    for attempt in 1..=2 {
        let _ = life.send(&succeed(attempt));
    }
    assert!(
        life.job.events() <= SOFT_LIMIT_EVENTS + 5,
        "{} events",
        life.job.events()
    );
}
