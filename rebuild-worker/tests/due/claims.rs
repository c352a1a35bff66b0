//! Claims: due work by guarded starts.

use std::collections::HashSet;

use recoup::{Attempt, FailureClass, JobCommand, Kind, Lease};

use crate::world::{CLAIMED, COST, EXTERNAL, OPENING, World, job, seconds, worker};
use recoup::store::fresh::is_log_in_tables;

/// Two workers of two processes, whose projections show them the same thirty jobs, claim at once and again until nothing is left.
/// Protection: the start names the revision that it follows, and its command id is the claimer's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_get_each_job_once() {
    let world = World::new().await;
    for number in 0..30 {
        world.charge(&format!("j{number}"), CLAIMED).await;
    }
    world.catch_up().await;
    let mut workers = tokio::task::JoinSet::new();
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    for name in ["one", "other"] {
        let (ledger, projections) = world.beside().await;
        let barrier = std::sync::Arc::clone(&barrier);
        workers.spawn(async move {
            barrier.wait().await;
            let mut mine = Vec::new();
            // The projection stands still meanwhile: every list is stale.
            for _ in 0..30 {
                let worker = worker(name);
                let claimed = ledger.claim(&projections, &[], &worker, None, 2).await;
                mine.extend(claimed.unwrap().into_iter().map(|claimed| claimed.job));
            }
            mine
        });
    }
    let claimed: Vec<_> = workers.join_all().await.into_iter().flatten().collect();
    let distinct: HashSet<_> = claimed.iter().collect();
    assert_eq!((claimed.len(), distinct.len()), (30, 30));
    world.audited().await;
}

#[tokio::test]
async fn a_claim_gives_what_waits_the_longest_of_the_kinds_that_it_names() {
    let world = World::new().await;
    for name in ["first", "second", "third"] {
        world.charge(name, CLAIMED).await;
        world.clock.advance(seconds(1));
    }
    world.charge("not mine", EXTERNAL).await;
    world.catch_up().await;
    let claim = async |kinds: &[&str], limit| {
        let kinds: Vec<Kind> = kinds.iter().map(|kind| Kind::new(kind).unwrap()).collect();
        let (due, worker) = (&world.projections, worker("w"));
        let claimed = world.ledger.claim(due, &kinds, &worker, None, limit).await;
        let claimed = claimed.unwrap();
        let names = claimed.into_iter().map(|claimed| claimed.job.to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!(claim(&["chat"], 5).await, [""; 0]);
    assert_eq!(claim(&[CLAIMED, CLAIMED], 2).await, ["first", "second"]);
    // The list is stale: what was started is skipped, and the claim looks behind it. External work is never given.
    assert_eq!(claim(&[CLAIMED, EXTERNAL], 5).await, ["third"]);
    assert_eq!(claim(&[], 0).await, [""; 0]);
}

#[tokio::test]
async fn a_retry_is_given_when_it_is_due_and_not_before() {
    let world = World::new().await;
    world.charge("j", CLAIMED).await;
    let claimed = world.claim_one().await;
    assert_eq!(
        (claimed.attempt, claimed.revision.get()),
        (Attempt::FIRST, 1)
    );
    assert_eq!(claimed.lease_until, world.clock_in(60));
    world.fail("j", 1, FailureClass::Retryable).await;
    assert_eq!(world.claim(5).await, []);
    world.clock.set(world.due_at("j").await);
    assert_eq!(world.claim_one().await.attempt, Attempt::new(2));
    assert_eq!(world.figures().await, (OPENING, COST));
}

/// The lease of a claim is the attempt's: it is what a renewal renews, and what a third of is too early.
#[tokio::test]
async fn a_claims_own_lease_holds_for_its_renewals_too() {
    let world = World::new().await;
    world.charge("j", CLAIMED).await;
    world.catch_up().await;
    let lease = Some(Lease::try_from(seconds(300)).unwrap());
    let (due, worker) = (&world.projections, worker("w"));
    let claimed = world.ledger.claim(due, &[], &worker, lease, 1).await;
    let claimed = claimed.unwrap();
    assert_eq!(claimed[0].lease_until, world.clock_in(300));
    let extend = || JobCommand::Extend {
        attempt: Attempt::FIRST,
    };
    world.clock.advance(seconds(99));
    assert_eq!(world.send("j", extend()).await.name(), "already_applied");
    world.clock.advance(seconds(1));
    let extended = world.send("j", extend()).await;
    let receipt = extended.receipt().unwrap().job.clone().unwrap();
    assert_eq!(extended.name(), "applied");
    assert_eq!(receipt.runs_out_at, Some(world.clock_in(300)));
    assert_eq!(world.pass(seconds(299)).await.expired, 0);
    assert_eq!(world.pass(seconds(1)).await.expired, 1);
    assert_eq!(world.state("j").await, "retry_scheduled");
}

#[tokio::test]
async fn a_stream_that_cannot_be_read_costs_no_other_job_its_start() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.charge("poison", CLAIMED).await;
    world.charge("sound", CLAIMED).await;
    world.catch_up().await;
    world.break_stream("poison");
    let (ledger, projections) = world.beside().await;
    let claimed = ledger.claim(&projections, &[], &worker("w"), None, 5).await;
    let claimed = claimed.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].job, job("sound"));
}
