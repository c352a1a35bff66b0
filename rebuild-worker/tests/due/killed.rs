//! Whoever was at work is killed, and says nothing more: each job ends refunded, or is retried, within its timer and one look of the loop.
//!
//! A kill is played by saying nothing more. Protection: every live state has a timer, which is in the stream and not in the process.

use std::time::Duration;

use recoup::{FailureClass, JobCommand};

use crate::world::{CLAIMED, COST, EXTERNAL, OPENING, World, seconds};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// (how far it got, kind, how long its timer runs, the state after it, what is held then)
const KILLED: &[(&str, &str, Duration, &str, i64)] = &[
    ("charged", EXTERNAL, DAY, "failed", 0),
    ("charged", CLAIMED, DAY, "dead_lettered", 0),
    ("started", EXTERNAL, Duration::from_secs(60), "failed", 0),
    (
        "started",
        CLAIMED,
        Duration::from_secs(60),
        "retry_scheduled",
        COST,
    ),
    (
        "failed",
        CLAIMED,
        Duration::from_secs(24 * 3600 + 6),
        "dead_lettered",
        0,
    ),
    ("redriven", CLAIMED, DAY, "dead_lettered", 0),
];

/// Leaves a job as a service leaves it that is killed right then.
async fn get_as_far(world: &World, far: &str, kind: &str) {
    world.charge("j", kind).await;
    let start = || JobCommand::Start {
        worker: None,
        lease: None,
    };
    match far {
        "charged" => {}
        "started" => assert!(world.send("j", start()).await.is_done()),
        "failed" => {
            world.send("j", start()).await.receipt().unwrap();
            world.fail("j", 1, FailureClass::Retryable).await;
        }
        "redriven" => {
            world.pass(DAY).await;
            let redrive = JobCommand::Redrive { reason: None };
            assert!(world.send("j", redrive).await.is_done());
        }
        other => panic!("{other}"),
    }
    world.catch_up().await;
}

#[tokio::test]
async fn killed_services_leave_nobody_paying_and_a_late_success_reclaims_once() {
    for &(far, kind, timer, state, held) in KILLED {
        let case = format!("{kind} {far}");
        let world = World::new().await;
        get_as_far(&world, far, kind).await;
        let early = world.pass(timer - Duration::from_micros(1)).await;
        let due = world.state("j").await;
        if far != "failed" {
            // A failed attempt's retry has a timer of its own, which runs out on the way there.
            assert_eq!(early.expired, 0, "{case}: acted on before its time, {due}");
        }
        world.pass(Duration::from_micros(1)).await;
        assert_eq!(world.state("j").await, state, "{case}");
        assert_eq!(world.figures().await, (OPENING, held), "{case}");
        world.audited().await;
        // It had finished after all, and says so more than once.
        for _ in 0..3 {
            world.succeed("j", 1).await;
        }
        world.pass(DAY).await;
        assert_eq!(world.state("j").await, "delivered", "{case}");
        assert_eq!(world.figures().await, (OPENING - COST, 0), "{case}");
        let events = world.events("j").await;
        let reclaims = events.iter().filter(|name| **name == "reclaimed").count();
        assert_eq!(reclaims, 1, "{case}: {events:?}");
        world.audited().await;
    }
}

#[tokio::test]
async fn a_killed_worker_costs_a_lease_and_its_job_is_done_by_another() {
    let world = World::new().await;
    world.charge("j", CLAIMED).await;
    let lost = world.claim_one().await;
    world.pass(seconds(60)).await;
    world.clock.set(world.due_at("j").await);
    let again = world.claim_one().await;
    assert_eq!((lost.attempt.get(), again.attempt.get()), (1, 2));
    world.succeed("j", 2).await;
    assert_eq!(world.figures().await, (OPENING - COST, 0));
    world.audited().await;
}
