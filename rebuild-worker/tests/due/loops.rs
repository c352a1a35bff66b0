//! The due loop itself: two at once, stale lists, poison, a source that is halted, a store that does not answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use recoup::store::StoreError;
use recoup::store::faulty::{Faults, FaultyStore};
use recoup::{
    DueSource, EventStore, Expired, FailureClass, JobId, Kind, Ledger, LedgerError, Policies,
    Timestamp,
};
use recoup_rebuild_worker::due::{self, Sweeper};
use tokio_util::sync::CancellationToken;

use crate::world::{CLAIMED, COST, EXTERNAL, OPENING, World, seconds};
use recoup::store::fresh::is_log_in_tables;

/// A list as it was at some moment, whatever has happened since.
pub(crate) struct Stale(Vec<Expired>);

impl Stale {
    /// What has run out `after` from now, as the projection knows it.
    pub(crate) async fn of(world: &World, after: Duration) -> Self {
        world.catch_up().await;
        let then = recoup::Clock::now(&world.clock).after(after);
        let rows = world.projections.expired(then, None, 1_000).await.unwrap();
        assert!(!rows.is_empty(), "something has run out");
        Self(rows)
    }
}

#[async_trait]
impl DueSource for Stale {
    async fn startable(
        &self,
        _kinds: &[Kind],
        _now: Timestamp,
        _limit: usize,
    ) -> Result<Vec<JobId>, StoreError> {
        Ok(Vec::new())
    }

    async fn expired(
        &self,
        _now: Timestamp,
        after: Option<&Expired>,
        _limit: usize,
    ) -> Result<Vec<Expired>, StoreError> {
        Ok(if after.is_none() {
            self.0.clone()
        } else {
            Vec::new()
        })
    }

    async fn next_deadline(&self, _now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }
}

/// Two loops of two processes have the same list before either of them acts. Protection: both send the same command id, and the append names its
/// revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_loops_at_once_do_each_thing_once() {
    let world = World::new().await;
    for number in 0..150 {
        world.charge(&format!("j{number}"), EXTERNAL).await;
    }
    world.catch_up().await;
    world.clock.advance(seconds(24 * 3600));
    let (one, other) = (world.beside().await, world.beside().await);
    let (mut first, mut second) = (Sweeper::new(Duration::ZERO), Sweeper::new(Duration::ZERO));
    let (first, second) = tokio::join!(
        first.sweep(&one.0, &one.1),
        second.sweep(&other.0, &other.1)
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.seen, second.seen), (150, 150));
    // A loop that lost the race finds its own command id: whichever way, it was done once.
    assert_eq!(
        first.stale + second.stale + first.expired + second.expired,
        300
    );
    for number in 0..150 {
        let events = world.events(&format!("j{number}")).await;
        assert_eq!(events, ["charged", "refunded", "failed"]);
    }
    assert_eq!(world.figures().await, (OPENING, 0));
    world.audited().await;
}

#[tokio::test]
async fn a_stale_row_changes_nothing_and_is_asked_about_once() {
    let world = World::new().await;
    world.charge("j", CLAIMED).await;
    world.claim_one().await;
    let stale = Stale::of(&world, seconds(60)).await;
    world.succeed("j", 1).await;
    world.clock.advance(seconds(3600));
    let head = world.store.head().await.unwrap();
    let mut sweeper = Sweeper::new(Duration::ZERO);
    let first = sweeper.sweep(&world.ledger, &stale).await.unwrap();
    assert_eq!((first.expired, first.stale), (0, 1));
    let again = sweeper.sweep(&world.ledger, &stale).await.unwrap();
    assert_eq!((again.seen, again.expired, again.stale), (1, 0, 0));
    assert_eq!(world.store.head().await.unwrap(), head);
}

#[tokio::test]
async fn poison_stops_no_other_job_and_is_not_asked_about_all_the_time() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    for name in ["a", "poison", "z"] {
        world.charge(name, EXTERNAL).await;
    }
    world.catch_up().await;
    let sound = world.break_stream("poison");
    world.clock.advance(seconds(24 * 3600));
    // A process that has not seen the stream when it could be read.
    let (ledger, projections) = world.beside().await;
    let mut sweeper = Sweeper::new(Duration::ZERO);
    let sweep = sweeper.sweep(&ledger, &projections).await.unwrap();
    assert_eq!((sweep.expired, sweep.in_trouble), (2, 1));
    // Mended: but nobody asks before the delay is over.
    world.mend_stream("poison", &sound);
    let sweep = sweeper.sweep(&ledger, &projections).await.unwrap();
    assert_eq!((sweep.expired, sweep.in_trouble), (0, 1));
    world.clock.advance(seconds(5));
    let sweep = sweeper.sweep(&ledger, &projections).await.unwrap();
    assert_eq!((sweep.expired, sweep.in_trouble), (1, 0));
    assert_eq!(world.state("poison").await, "failed");
    world.audited().await;
}

#[tokio::test]
async fn a_halted_projection_is_acted_on_as_far_as_it_has_come() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.charge("known", EXTERNAL).await;
    world.catch_up().await;
    world.charge("poison", EXTERNAL).await;
    world.charge("behind it", EXTERNAL).await;
    world.break_stream("poison");
    let (ledger, projections) = world.beside().await;
    let progress = projections.catch_up().await.unwrap();
    assert!(progress.halted().count() > 0, "{progress:?}");
    world.clock.advance(seconds(24 * 3600));
    let sweep = Sweeper::new(Duration::ZERO)
        .sweep(&ledger, &projections)
        .await
        .unwrap();
    assert_eq!((sweep.seen, sweep.expired), (1, 1));
    assert_eq!(world.state("known").await, "failed");
    assert_eq!(world.state("behind it").await, "queued");
}

/// The list is longer than a page, and every row of its first pages is stale: the loop reads on behind them.
#[tokio::test]
async fn stale_rows_in_front_hide_nothing_behind_them() {
    let world = World::new().await;
    for number in 0..200 {
        world.charge(&format!("j{number:03}"), EXTERNAL).await;
    }
    world.catch_up().await;
    for number in 0..199 {
        world.succeed(&format!("j{number:03}"), 1).await;
    }
    world.clock.advance(seconds(24 * 3600));
    let mut sweeper = Sweeper::new(Duration::ZERO);
    let sweep = sweeper.sweep(&world.ledger, &world.projections).await;
    let sweep = sweep.unwrap();
    assert_eq!((sweep.seen, sweep.expired, sweep.stale), (200, 1, 199));
}

#[tokio::test]
async fn the_loop_runs_until_it_is_stopped_and_tells_what_it_did() {
    let world = World::new().await;
    world.charge("j", EXTERNAL).await;
    world.catch_up().await;
    let stop = CancellationToken::new();
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let (ledger, projections, stopping) = (
        world.ledger.clone(),
        world.projections.clone(),
        stop.clone(),
    );
    let running = tokio::spawn(async move {
        let report = |heard: due::Heard<'_>| {
            let due::Heard::Swept(sweep) = heard else {
                return;
            };
            let _ = told.send(sweep.clone());
        };
        due::run(&ledger, &projections, stopping, report).await;
    });
    let mut sweeps = async || {
        let next = tokio::time::timeout(seconds(20), hears.recv()).await;
        next.expect("the loop goes round").expect("it runs")
    };
    let first = sweeps().await;
    assert_eq!((first.seen, first.expired), (0, 0));
    assert_eq!(first.next_deadline, Some(world.clock_in(24 * 3600)));
    world.clock.advance(seconds(24 * 3600));
    while sweeps().await.expired == 0 {}
    stop.cancel();
    running.await.unwrap();
    assert_eq!(world.events("j").await, ["charged", "refunded", "failed"]);
}

/// Says that it is unavailable, and keeps count.
struct Away(Mutex<u32>);

#[async_trait]
impl DueSource for Away {
    async fn startable(
        &self,
        _kinds: &[Kind],
        _now: Timestamp,
        _limit: usize,
    ) -> Result<Vec<JobId>, StoreError> {
        Ok(Vec::new())
    }

    async fn expired(
        &self,
        _now: Timestamp,
        _after: Option<&Expired>,
        _limit: usize,
    ) -> Result<Vec<Expired>, StoreError> {
        *self.0.lock().unwrap() += 1;
        let cause = "a test".to_owned();
        Err(StoreError::Unavailable { cause })
    }

    async fn next_deadline(&self, _now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }
}

#[tokio::test]
async fn a_source_that_does_not_answer_is_asked_again_and_keeps_nobody_from_stopping() {
    let away = Away(Mutex::new(0));
    let ledger = recoup::Ledger::in_memory();
    let stop = CancellationToken::new();
    let running = due::run(&ledger, &away, stop.clone(), |heard| {
        assert!(
            matches!(heard, due::Heard::Failed(_)),
            "it saw nothing: {heard:?}"
        );
    });
    let stopping = async {
        while *away.0.lock().unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let both = async { tokio::join!(running, stopping) };
    tokio::time::timeout(seconds(20), both)
        .await
        .expect("it stops");
}

/// The disk of the ledger is slow, its answers get lost, whole stretches are unavailable. Protection: the ids derive from the timer, so that what
/// has no answer is asked again; what is unavailable waits, and longer for nobody than it has to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_and_outages_leave_each_thing_done_once() {
    let world = World::new().await;
    for number in 0..150 {
        world.charge(&format!("j{number}"), EXTERNAL).await;
    }
    world.catch_up().await;
    world.clock.advance(seconds(24 * 3600));
    let ledger_with = |faults| {
        let faulty = FaultyStore::new(Arc::new(world.store.clone()), faults, 7);
        Ledger::new(Arc::new(faulty), Policies::default())
    };
    let mut sweeper = Sweeper::new(Duration::ZERO);
    let away = ledger_with(Faults {
        unavailable: 1_000,
        ..Faults::default()
    });
    // Nobody has an answer: the sweep ends with its first page.
    let swept = sweeper.sweep(&away, &world.projections).await;
    assert!(matches!(swept, Err(LedgerError::Store(_))), "{swept:?}");
    let ledger = ledger_with(Faults {
        lost_after: 150,
        lost_before: 150,
        unavailable: 300,
    });
    let mut expired = 0;
    for sweep in 0.. {
        assert!(sweep < 40, "{expired} are done");
        world.clock.advance(seconds(5));
        world.catch_up().await;
        if let Ok(sweep) = sweeper.sweep(&ledger, &world.projections).await {
            expired += sweep.expired + sweep.stale;
            if sweep.seen == 0 {
                break;
            }
        }
    }
    for number in 0..150 {
        let events = world.events(&format!("j{number}")).await;
        assert_eq!(events, ["charged", "refunded", "failed"]);
    }
    assert_eq!(world.figures().await, (OPENING, 0));
    world.audited().await;
}

#[tokio::test]
async fn settling_ends_when_nothing_is_due_any_more() {
    let world = World::new().await;
    world.charge("queued", CLAIMED).await;
    world.charge("running", CLAIMED).await;
    world.claim(2).await;
    world.fail("queued", 1, FailureClass::Retryable).await;
    assert_eq!(world.figures().await, (OPENING - COST, COST));
    // The lease runs out, then the retry that follows from it, and the one that was there.
    let sweep = world.pass(seconds(60)).await;
    assert_eq!((sweep.expired, sweep.in_trouble), (1, 0));
    let sweep = world.pass(seconds(48 * 3600)).await;
    assert_eq!(sweep.expired, 2);
    assert_eq!(sweep.next_deadline, None);
    assert_eq!(world.figures().await, (OPENING, 0));
    world.audited().await;
}
