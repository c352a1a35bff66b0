//! Credit for charges on their way: taken once, given back exactly when the charge can no longer be, whoever dies when.

use std::sync::Arc;
use std::time::Duration;

use recoup::account::Admission;
use recoup::clock::BudgetMonth;
use recoup::store::kurrentdb::KurrentStore;
use recoup::store::{Appended, EventStore, Revision, StoreError};
use recoup_kurrentdb_standin::AppendFate;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::world::{
    World, bounded, charge, charge_by, figures, grant, history, is_committed, is_refused,
};

const CONFLICT_AT_0: Result<Appended, StoreError> = Ok(Appended::Conflict {
    current: Some(Revision::FIRST),
});

/// Waits until the stand-in keeps an append that it was told to keep.
async fn held(world: &World, count: usize) {
    let wait = async {
        while world.standin.held() < count {
            tokio::task::yield_now().await;
        }
    };
    bounded("an append that is held", wait).await;
}

fn spawn_charge(
    store: &KurrentStore,
    append: recoup::store::Append,
) -> tokio::task::JoinHandle<Result<Appended, StoreError>> {
    let store = store.clone();
    tokio::spawn(async move { store.append(append).await })
}

/// While its append is on its way a charge's credit is nobody else's.
#[tokio::test]
async fn what_is_on_its_way_cannot_be_spent_again() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 10).await;
    world.standin.fail_appends([AppendFate::Held]);
    let first = spawn_charge(&store, charge("j", "a", 10, None));
    held(&world, 1).await;
    let on_the_way = figures(&store, "a").await;
    assert_eq!((on_the_way.balance, on_the_way.reserved), (10, 10));
    assert!(is_refused(&store.append(charge("k", "a", 1, None)).await));
    let elsewhere = world.open().await;
    assert!(is_refused(
        &elsewhere.append(charge("l", "a", 1, None)).await
    ));
    assert_eq!(world.standin.release(), 1);
    // The server answers nothing to what it kept: the caller repeats it.
    let first = bounded("the charge", first).await.expect("no panic");
    assert!(!is_refused(&first), "{first:?}");
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.reserved), (0, 0));
}

/// A process is stopped between the reservation and the append, for as long as it takes recovery to give the reservation up: its append fails when it wakes, and its
/// credit was free in between. The interleaving: reserve; void; spend by another; append.
#[tokio::test]
async fn an_append_that_arrives_after_its_reservation_was_given_up_is_refused() {
    let world = World::new(1).await;
    let stopped = world.open_with(world.hasty()).await.expect("it opens");
    grant(&stopped, "a", 10).await;
    // The append leaves the process, and reaches the server's writer an hour later.
    world.standin.fail_appends([AppendFate::HeldThenAborted]);
    let answer = stopped.append(charge("j", "a", 10, None)).await;
    assert!(matches!(answer, Ok(Appended::Unknown { .. })), "{answer:?}");
    let other = world.open().await;
    assert!(is_refused(&other.append(charge("k", "a", 10, None)).await));
    world.clock.advance(Duration::from_secs(3_600));
    assert_eq!(other.recover(Duration::from_secs(60)).await, Ok(1));
    assert!(is_committed(
        &other.append(charge("k", "a", 10, None)).await
    ));
    // It wakes.
    assert_eq!(world.standin.release(), 1);
    assert_eq!(history(&other, "j").await, ["recoup.job.voided"]);
    // Its caller repeats the append, and is told that it was not stored; decided again, it is refused.
    assert_eq!(
        stopped.append(charge("j", "a", 10, None)).await,
        CONFLICT_AT_0
    );
    assert!(is_refused(
        &stopped.append(charge("j", "a", 10, Some(0))).await
    ));
    let after = figures(&stopped, "a").await;
    assert_eq!((after.balance, after.reserved), (0, 0));
    assert_eq!(world.count("reservations"), 0);
    grant(&stopped, "a", 11).await;
    assert!(is_committed(
        &stopped.append(charge("j", "a", 10, Some(0))).await
    ));
    assert_eq!(figures(&other, "a").await.balance, 1);
}

/// Reserved, and never sent: the credit is there again after recovery, and the charge may come again.
#[tokio::test]
async fn a_crash_behind_the_reservation_costs_nothing() {
    let world = World::new(1).await;
    let dying = world.open_with(world.hasty()).await.expect("it opens");
    grant(&dying, "a", 10).await;
    world.standin.fail_appends([AppendFate::Cut]);
    let answer = dying.append(charge("j", "a", 10, None)).await;
    assert!(!is_committed(&answer), "{answer:?}");
    drop(dying);
    let next = world.open().await;
    assert_eq!(figures(&next, "a").await.reserved, 10);
    // Not old enough: its caller may be alive.
    world.clock.advance(Duration::from_secs(59));
    assert_eq!(next.recover(Duration::from_secs(60)).await, Ok(0));
    assert_eq!(figures(&next, "a").await.reserved, 10);
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(next.recover(Duration::from_secs(60)).await, Ok(1));
    let after = figures(&next, "a").await;
    assert_eq!((after.balance, after.reserved), (10, 0));
    assert!(is_committed(
        &next.append(charge("j", "a", 10, Some(0))).await
    ));
    assert_eq!(figures(&next, "a").await.balance, 0);
}

/// Stored, and nobody was told: the reservation is closed by the event itself, and recovery finds nothing to give up.
#[tokio::test]
async fn a_crash_behind_the_append_charges_once() {
    let world = World::new(1).await;
    let dying = world.open_with(world.hasty()).await.expect("it opens");
    grant(&dying, "a", 10).await;
    world.standin.fail_appends([AppendFate::CommittedThenCut]);
    let answer = dying.append(charge("j", "a", 4, None)).await;
    assert!(!is_committed(&answer), "{answer:?}");
    drop(dying);
    world.clock.advance(Duration::from_secs(3_600));
    let next = world.open().await;
    next.recover(Duration::from_secs(60))
        .await
        .expect("it is recovered");
    assert_eq!(history(&next, "j").await, ["recoup.job.charged"]);
    let after = figures(&next, "a").await;
    assert_eq!((after.balance, after.reserved), (6, 0));
    assert_eq!(world.count("reservations"), 0);
}

/// Recovery does not know whether its own `Voided` is stored, and dies: the next one finds it, and the reservation is closed once.
#[tokio::test]
async fn a_crash_behind_the_voided_event_is_gone_on_with() {
    for fate in [AppendFate::CommittedThenCut, AppendFate::Cut] {
        let world = World::new(1).await;
        let dying = world.open_with(world.hasty()).await.expect("it opens");
        grant(&dying, "a", 10).await;
        world.standin.fail_appends([AppendFate::Cut]);
        let _ = dying.append(charge("j", "a", 10, None)).await;
        world.clock.advance(Duration::from_secs(61));
        world.standin.fail_appends([fate]);
        let _ = dying.recover(Duration::from_secs(60)).await;
        drop(dying);
        let next = world.open().await;
        next.recover(Duration::from_secs(60))
            .await
            .expect("it is recovered");
        assert_eq!(history(&next, "j").await, ["recoup.job.voided"]);
        let after = figures(&next, "a").await;
        assert_eq!((after.balance, after.reserved), (10, 0));
    }
}

/// No server, no decision: the reservation stays until it can be asked.
#[tokio::test]
async fn where_the_server_does_not_answer_nothing_is_given_up() {
    let world = World::new(1).await;
    let store = world.open_with(world.hasty()).await.expect("it opens");
    grant(&store, "a", 10).await;
    world.standin.fail_appends([AppendFate::Cut]);
    let _ = store.append(charge("j", "a", 10, None)).await;
    world.clock.advance(Duration::from_secs(3_600));
    world.standin.kill(0).await;
    let recovered = store.recover(Duration::from_secs(60)).await;
    assert!(
        matches!(recovered, Err(StoreError::Unavailable { .. })),
        "{recovered:?}"
    );
    assert_eq!(world.count("reservations"), 1);
    world.standin.revive(0).await;
    bounded("the server's return", async {
        while store.recover(Duration::from_secs(60)).await.is_err() {}
    })
    .await;
    assert_eq!(world.count("reservations"), 0);
    assert_eq!(figures(&store, "a").await.reserved, 0);
}

/// Two callers with equal charges of one job share what is reserved: one is stored, the other conflicts and releases nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_equal_charge_joins_the_reservation() {
    let world = World::new(1).await;
    let (one, other) = (world.open().await, world.open().await);
    grant(&one, "a", 10).await;
    world
        .standin
        .fail_appends([AppendFate::Held, AppendFate::Held]);
    let first = spawn_charge(&one, charge_by("c1", ("j", "a", 10), None));
    held(&world, 1).await;
    // Ten more would not be there.
    let second = spawn_charge(&other, charge_by("c2", ("j", "a", 10), None));
    held(&world, 2).await;
    assert_eq!(world.count("reservations"), 1);
    assert_eq!(figures(&one, "a").await.reserved, 10);
    world.standin.release();
    let answers = [
        first.await.expect("no panic"),
        second.await.expect("no panic"),
    ];
    assert!(!answers.iter().any(is_refused), "{answers:?}");
    assert_eq!(history(&one, "j").await, ["recoup.job.charged"]);
    let after = figures(&other, "a").await;
    assert_eq!((after.balance, after.reserved), (0, 0));
}

/// Another charge of the same job waits for what becomes of the first; while that is not known, it is told so.
#[tokio::test]
async fn another_charge_of_the_job_waits_for_the_first() {
    let world = World::new(1).await;
    let store = world.open_with(world.hasty()).await.expect("it opens");
    grant(&store, "a", 10).await;
    world.standin.fail_appends([AppendFate::Cut]);
    let _ = store.append(charge_by("c1", ("j", "a", 10), None)).await;
    let other = charge_by("c2", ("j", "a", 7), None);
    // Decided in the next month: what is reserved counts in none of its.
    let mut of_next_month = charge_by("c3", ("j", "a", 10), None);
    let Some(Admission::Spend { cap_month, .. }) = &mut of_next_month.admission else {
        panic!("{of_next_month:?}");
    };
    *cap_month = Some(BudgetMonth::parse("2027-01").expect("a month"));
    for another in [other.clone(), of_next_month] {
        let waited = store.append(another).await;
        assert!(
            matches!(waited, Err(StoreError::Unavailable { .. })),
            "{waited:?}"
        );
    }
    world.clock.advance(Duration::from_secs(61));
    assert_eq!(store.recover(Duration::from_secs(60)).await, Ok(1));
    assert_eq!(store.append(other).await, CONFLICT_AT_0);
    assert!(is_committed(
        &store.append(charge_by("c2", ("j", "a", 7), Some(0))).await
    ));
    assert_eq!(figures(&store, "a").await.balance, 3);
}

/// A caller that decided on what the stream was before: what it asks for is reserved by nobody, and it is told where the stream is.
#[tokio::test]
async fn a_job_that_is_folded_already_is_not_reserved_for() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 20).await;
    assert!(is_committed(
        &store.append(charge("j", "a", 10, None)).await
    ));
    store.settle_figures().await.expect("they are settled");
    assert_eq!(
        store.append(charge_by("late", ("j", "a", 10), None)).await,
        CONFLICT_AT_0
    );
    assert_eq!(world.count("reservations"), 0);
    // Without the credit for it, too: the revision is checked before the limits.
    assert_eq!(
        store
            .append(charge_by("later", ("j", "a", 900), None))
            .await,
        CONFLICT_AT_0
    );
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.reserved), (10, 0));
}

/// Fault 5 on two databases: of 64 callers in two processes and credit for twenty, twenty are admitted, whatever is lost on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_charges_of_two_processes_never_pass_the_floor() {
    let world = World::new(1).await;
    let stores = [world.open().await, world.open().await];
    grant(&stores[0], "a", 20).await;
    let mut number = 0;
    world.standin.script_appends(move |_| {
        number += 1;
        match number % 7 {
            2 => AppendFate::CommittedThenAborted,
            4 => AppendFate::Aborted,
            6 => AppendFate::HeldThenAborted,
            _ => AppendFate::Fine,
        }
    });
    let barrier = Arc::new(Barrier::new(64));
    let mut callers = JoinSet::new();
    for caller in 0..64 {
        let (store, barrier) = (stores[caller % 2].clone(), Arc::clone(&barrier));
        callers.spawn(async move {
            barrier.wait().await;
            let append = charge(&format!("j{caller}"), "a", 1, None);
            loop {
                match store.append(append.clone()).await {
                    Ok(Appended::Unknown { .. }) => {}
                    Ok(Appended::Committed { .. } | Appended::Conflict { .. }) => return 1,
                    Ok(Appended::Refused(_)) => return 0,
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    let admitted: i64 = bounded("64 callers", callers.join_all()).await.iter().sum();
    assert_eq!(admitted, 20);
    world.standin.release();
    for store in &stores {
        let after = figures(store, "a").await;
        assert_eq!((after.balance, after.reserved), (0, 0));
    }
    assert_eq!(world.count("reservations"), 0);
}

/// Credit that another process gave is seen by the next charge, and a limit that it set holds for it.
#[tokio::test]
async fn what_another_process_was_told_is_true_for_the_next_charge() {
    let world = World::new(1).await;
    let (one, other) = (world.open().await, world.open().await);
    for round in 0..20 {
        grant(&one, "a", round + 1).await;
        let all = charge(&format!("j{round}"), "a", round + 1, None);
        assert!(is_committed(&other.append(all).await), "{round}");
        let more = charge(&format!("k{round}"), "a", 1, None);
        assert!(is_refused(&one.append(more).await), "{round}");
    }
}
