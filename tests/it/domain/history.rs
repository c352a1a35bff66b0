//! What the fold refuses to believe: histories that no sequence of decisions makes.
//!
//! A stream is bytes in a database, and databases are edited, restored and written to by other versions. Each history here breaks one
//! promise of `decide`; the fold, or the invariants at the append's end, must say so.

use recoup::job::{
    AttemptFailed, AttemptStarted, Cancelled, Contradicted, DeadLetterCause, DeadLettered,
    Delivered, Discarded, Failed, Job, JobEvent, LeaseExtended, Reclaimed, Redriven, Refunded,
    RetryScheduled, Signal, Voided, evolve, invariants,
};
use recoup::{Attempt, FailureClass, Revision};

use super::life::{COST, Life};
use crate::values::{command_id, noon};

/// The events after a life's own; none legal at their place.
struct Case {
    what: &'static str,
    life: Life,
    events: Vec<JobEvent>,
}

/// Folds `events` as one append behind `life`; what the fold or the invariants say against it.
fn refused(life: &Life, events: &[JobEvent]) -> Option<String> {
    let mut job: Job = life.job.clone();
    let id = command_id("a command of nobody's");
    for event in events {
        let revision = Revision::new(job.events());
        if let Err(illegal) = evolve(&mut job, event, revision, life.now.at, &id) {
            return Some(illegal.to_string());
        }
    }
    invariants::check(&job)
        .err()
        .map(|violation| violation.to_string())
}

fn started(attempt: u32) -> JobEvent {
    JobEvent::AttemptStarted(AttemptStarted {
        attempt: Attempt::new(attempt),
        worker: None,
        lease_ms: 60_000,
        hold: None,
    })
}

fn attempt_failed(attempt: u32) -> JobEvent {
    JobEvent::AttemptFailed(AttemptFailed {
        attempt: Attempt::new(attempt),
        class: FailureClass::Retryable,
        reason: None,
        timer: None,
    })
}

fn refunded(life: &Life, amount: i64, held: i64) -> JobEvent {
    let posting = life.recorded().terms.posting(amount, held);
    JobEvent::Refunded(Refunded { posting })
}

fn reclaimed(life: &Life, amount: i64, held: i64) -> JobEvent {
    let posting = life.recorded().terms.posting(amount, held);
    JobEvent::Reclaimed(Reclaimed { posting })
}

fn delivered(attempt: u32) -> JobEvent {
    JobEvent::Delivered(Delivered {
        attempt: Attempt::new(attempt),
        result: None,
    })
}

fn scheduled(attempt: u32) -> JobEvent {
    JobEvent::RetryScheduled(RetryScheduled {
        attempt: Attempt::new(attempt),
        delay_ms: 5_000,
        start_within_ms: 60_000,
    })
}

fn redriven(life: &Life, base: u32, held: i64) -> JobEvent {
    JobEvent::Redriven(Redriven {
        base: Attempt::new(base),
        start_within_ms: 60_000,
        reason: None,
        hold: life.recorded().terms.posting(0, held),
    })
}

fn contradicted(signal: Signal, attempt: u32) -> JobEvent {
    JobEvent::Contradicted(Contradicted {
        signal,
        attempt: Attempt::new(attempt),
        class: None,
        reason: None,
        result: None,
    })
}

fn dead(life: &Life, held: i64) -> JobEvent {
    let hold = (held != 0).then(|| life.recorded().terms.posting(0, held));
    JobEvent::DeadLettered(DeadLettered {
        cause: DeadLetterCause::CapReached,
        hold,
    })
}

const FAILED: JobEvent = JobEvent::Failed(Failed { hold: None });
const CANCELLED: JobEvent = JobEvent::Cancelled(Cancelled {
    reason: None,
    hold: None,
});
const DISCARDED: JobEvent = JobEvent::Discarded(Discarded { reason: None });

fn money() -> Vec<Case> {
    let external = Life::external().charge();
    let failed = external.clone().fail(1);
    let reclaimed_life = failed.clone().succeed(1);
    let case = |what, life: &Life, events| Case {
        what,
        life: life.clone(),
        events,
    };
    let mut foreign = external.recorded().terms.clone();
    foreign.account = crate::values::account_id("another");
    let foreign = JobEvent::Refunded(Refunded {
        posting: foreign.posting(COST, 0),
    });
    vec![
        case("a second charge", &external, vec![external.log[0].clone()]),
        case("a second refund", &failed, vec![refunded(&failed, COST, 0)]),
        case(
            "a refund of a delivered job",
            &external.clone().succeed(1),
            vec![refunded(&external, COST, 0)],
        ),
        case(
            "a refund of another amount",
            &external,
            vec![attempt_failed(1), refunded(&external, COST + 1, 0), FAILED],
        ),
        case(
            "a refund to another account",
            &external,
            vec![attempt_failed(1), foreign, FAILED],
        ),
        case(
            "a refund that is held for ever",
            &external,
            vec![attempt_failed(1), refunded(&external, COST, COST), FAILED],
        ),
        case(
            "an end that keeps the charge",
            &external,
            vec![attempt_failed(1), FAILED],
        ),
        case(
            "a cancelled job that keeps the charge",
            &external,
            vec![CANCELLED],
        ),
        case(
            "a reclaim without a refund",
            &external,
            vec![delivered(1), reclaimed(&external, -COST, 0)],
        ),
        case(
            "a delivery that keeps the refund",
            &failed,
            vec![delivered(1)],
        ),
        case(
            "a second reclaim",
            &reclaimed_life,
            vec![reclaimed(&reclaimed_life, -COST, 0)],
        ),
        case(
            "a reclaim before the delivery",
            &failed,
            vec![reclaimed(&failed, -COST, 0)],
        ),
        case("a restart without its hold", &failed, vec![started(2)]),
        case(
            "a reclaim of another amount",
            &failed,
            vec![delivered(1), reclaimed(&failed, -COST - 1, 0)],
        ),
    ]
}

fn order() -> Vec<Case> {
    let claimed = Life::claimed().charge();
    let running = claimed.clone().start();
    let retry = running.clone().fail(1);
    let dead_letter = Life::with_cap(1).charge().start().fail(1);
    let ended = running.clone().succeed(1);
    let case = |what, life: &Life, events| Case {
        what,
        life: life.clone(),
        events,
    };
    let extended = JobEvent::LeaseExtended(LeaseExtended {
        attempt: Attempt::FIRST,
        lease_ms: 60_000,
    });
    vec![
        case("a start while an attempt runs", &running, vec![started(2)]),
        case("a start that skips a number", &claimed, vec![started(2)]),
        case("a start of a dead letter", &dead_letter, vec![started(2)]),
        case(
            "a start beyond the cap",
            &Life::with_cap(1).charge().start(),
            vec![
                attempt_failed(1),
                refunded(&running, COST, COST),
                scheduled(1),
                started(2),
            ],
        ),
        case(
            "a renewal where nothing runs",
            &claimed,
            vec![extended.clone()],
        ),
        case(
            "a renewal of an attempt that is over",
            &retry.clone().due().start(),
            vec![extended],
        ),
        case(
            "a failure that skips a number",
            &claimed,
            vec![attempt_failed(2), refunded(&claimed, COST, 0), FAILED],
        ),
        case(
            "a redrive of a job that runs",
            &running,
            vec![redriven(&running, 1, COST)],
        ),
        case(
            "a redrive from another attempt",
            &dead_letter,
            vec![redriven(&dead_letter, 0, COST)],
        ),
        case(
            "a redrive without its hold",
            &dead_letter,
            vec![redriven(&dead_letter, 1, 0)],
        ),
        case("a discard of a job that runs", &running, vec![DISCARDED]),
        case("a start after the delivery", &ended, vec![started(2)]),
        case("a cancel after the delivery", &ended, vec![CANCELLED]),
        case("a second delivery", &ended, vec![delivered(1)]),
        case(
            "a contradiction of nothing",
            &running,
            vec![contradicted(Signal::Failed, 1)],
        ),
        case(
            "a dead letter that keeps its hold",
            &retry,
            vec![dead(&retry, 0)],
        ),
        case(
            "events before the charge",
            &Life::claimed(),
            vec![started(1)],
        ),
    ]
}

/// Weaker than the others in what they break: state and money stay consistent, and still no decision makes them.
fn state() -> Vec<Case> {
    let external = Life::external().charge();
    let claimed = Life::claimed().charge();
    let running = claimed.clone().start();
    let ended = running.clone().succeed(1);
    let noted = contradicted(Signal::Failed, 1);
    let case = |what, life: &Life, events| Case {
        what,
        life: life.clone(),
        events,
    };
    vec![
        case(
            "a failure that ends no attempt",
            &running,
            vec![attempt_failed(1)],
        ),
        case(
            "a retry of a job that was not refunded",
            &running,
            vec![attempt_failed(1), scheduled(1)],
        ),
        case(
            "a retry of an external kind",
            &external,
            vec![
                attempt_failed(1),
                refunded(&external, COST, COST),
                scheduled(1),
            ],
        ),
        case(
            "a dead letter of an external kind",
            &external,
            vec![
                attempt_failed(1),
                refunded(&external, COST, 0),
                dead(&external, 0),
            ],
        ),
        case(
            "a redrive of an external kind",
            &external.clone().fail(1),
            vec![redriven(&external, 1, COST)],
        ),
        case("a failure of attempt 0", &claimed, vec![attempt_failed(0)]),
        case(
            "a failure of a dead letter",
            &claimed,
            vec![
                refunded(&claimed, COST, 0),
                dead(&claimed, 0),
                attempt_failed(1),
            ],
        ),
        case(
            "a dead letter that runs",
            &running,
            vec![refunded(&running, COST, 0), dead(&running, 0)],
        ),
        case("a delivery by attempt 0", &claimed, vec![delivered(0)]),
        case(
            "a contradiction that stands twice",
            &ended,
            vec![noted.clone(), noted],
        ),
        case(
            "a contradiction by what agrees",
            &ended,
            vec![contradicted(Signal::Succeeded, 1)],
        ),
    ]
}

fn all_refused(cases: Vec<Case>) {
    let believed: Vec<_> = cases
        .into_iter()
        .filter(|case| refused(&case.life, &case.events).is_none())
        .map(|case| case.what)
        .collect();
    assert!(believed.is_empty(), "the fold believes: {believed:#?}");
}

#[test]
fn histories_that_move_money_wrongly_are_refused() {
    all_refused(money());
}

#[test]
fn histories_out_of_order_are_refused() {
    all_refused(order());
}

#[test]
fn histories_that_no_decision_makes_are_refused() {
    all_refused(state());
}

#[test]
fn a_gap_or_a_repeat_in_the_revisions_is_refused() {
    let life = Life::claimed().charge();
    for revision in [0, 2, 3] {
        let mut job = life.job.clone();
        let folded = evolve(
            &mut job,
            &started(1),
            Revision::new(revision),
            noon(),
            &command_id("x"),
        );
        folded.expect_err("revision 1 is next");
    }
}

#[test]
fn a_voided_event_changes_no_job_and_opens_none() {
    let voided = JobEvent::Voided(Voided {
        command: command_id("lost"),
    });
    let life = Life::claimed().charge().start();
    let mut job = life.job.clone();
    evolve(
        &mut job,
        &voided,
        Revision::new(2),
        life.now.at,
        &command_id("recovery"),
    )
    .expect("it is legal anywhere");
    assert_eq!(job.state, life.job.state);
    let charged = Life::claimed().void().charge();
    assert_eq!(
        (charged.state_name(), charged.job.revision),
        ("queued", Some(Revision::new(1)))
    );
}

#[test]
fn replaying_a_stream_gives_the_state_that_folding_it_led_to() {
    let life = Life::with_cap(2)
        .charge()
        .start()
        .fail(1)
        .due()
        .start()
        .fail(2)
        .redrive()
        .start()
        .succeed(2);
    let mut job = Job::empty(life.job.id.clone());
    for (revision, event) in (0..).zip(&life.log) {
        evolve(
            &mut job,
            event,
            Revision::new(revision),
            life.now.at,
            &command_id("any"),
        )
        .expect("legal");
    }
    let (replayed, kept) = (job.recorded().expect("charged"), life.recorded());
    assert_eq!(
        (&replayed.work, replayed.money, replayed.held),
        (&kept.work, kept.money, kept.held)
    );
}
