//! Concurrent callers, callers that go away, the wake-up signal.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::super::{Append, Appended, EventStore, Expected, Position, RecordedEvent, StoreError};
use super::samples::{
    Sums, append, charge, charged, committed, conflict, exactly, failed, grant, is_committed,
    is_refused, limits, november, started,
};
use super::{Fixture, bounded};
use crate::account::Floor;

/// How many callers race.
const CALLERS: usize = 64;

/// Sends every append from a task of its own, all at once.
async fn at_once(
    store: &Arc<dyn EventStore>,
    appends: Vec<Append>,
) -> Vec<Result<Appended, StoreError>> {
    let barrier = Arc::new(Barrier::new(appends.len()));
    let mut tasks = JoinSet::new();
    for append in appends {
        let (store, barrier) = (Arc::clone(store), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            store.append(append).await
        });
    }
    bounded("appends at once", tasks.join_all()).await
}

/// Of 64 appends that follow one revision, one is committed and 63 are in conflict with it.
pub async fn of_appends_at_one_revision_exactly_one_wins(fixture: &Fixture) {
    let first = |number| {
        let amount = i64::try_from(number).expect("small") + 1;
        append(
            "j",
            Expected::NoStream,
            vec![charged("a", amount, november())],
        )
    };
    let next = |number| {
        append(
            "j",
            exactly(0),
            vec![started(u32::try_from(number).expect("small"))],
        )
    };
    for (appends, current) in [
        ((0..CALLERS).map(first).collect(), 0),
        ((0..CALLERS).map(next).collect(), 1),
    ] {
        let answers = at_once(&fixture.store, appends).await;
        let won = answers.iter().filter(|answer| is_committed(answer)).count();
        let lost = answers
            .iter()
            .filter(|answer| **answer == conflict(Some(current)))
            .count();
        assert_eq!((won, lost), (1, CALLERS - 1), "{answers:?}");
    }
    let log = fixture.store.read_all(Position::START, 10).await;
    assert_eq!(log.expect("readable").len(), 2);
}

async fn admitted_of_fifty(fixture: &Fixture) -> usize {
    let charges = (0..50).map(|number| charge(&format!("j{number}"), "a", 100));
    let answers = at_once(&fixture.store, charges.collect()).await;
    let admitted = answers.iter().filter(|answer| is_committed(answer)).count();
    let refused = answers.iter().filter(|answer| is_refused(answer)).count();
    assert_eq!(admitted + refused, 50, "{answers:?}");
    admitted
}

/// Fifty charges of 100 at once against 2,500: twenty-five.
pub async fn concurrent_charges_never_pass_the_floor(fixture: &Fixture) {
    committed(&*fixture.store, grant("g", "a", 2_500)).await;
    assert_eq!(admitted_of_fifty(fixture).await, 25);
    assert_eq!(Sums::of(&*fixture.store).await.accounts["a"], (0, 0));
}

/// Fifty charges of 100 at once against a cap of 2,500: twenty-five.
pub async fn concurrent_charges_never_pass_the_cap(fixture: &Fixture) {
    let cap = limits("a", Expected::NoStream, Floor::None, Some(2_500));
    committed(&*fixture.store, cap).await;
    assert_eq!(admitted_of_fifty(fixture).await, 25);
    let months = Sums::of(&*fixture.store).await.months;
    assert_eq!(months[&("a".to_owned(), november())], (2_500, 0));
}

/// Streams of their own, one account: every posting counts.
pub async fn concurrent_postings_to_one_account_lose_none(fixture: &Fixture) {
    let grants = (0..CALLERS).map(|number| grant(&format!("g{number}"), "a", 1 << (number % 16)));
    let grants: Vec<_> = grants.collect();
    let mut sums = Sums::default();
    for append in &grants {
        sums.add(append);
    }
    let answers = at_once(&fixture.store, grants).await;
    assert!(answers.iter().all(is_committed), "{answers:?}");
    assert_eq!(Sums::of(&*fixture.store).await, sums);
}

/// A reader that follows the log by its last position, while eight callers append, gets every event once and in order.
pub async fn fault_25_a_reader_passes_nothing_that_commits_late(fixture: &Fixture) {
    const WRITERS: usize = 8;
    const EACH: usize = 12;
    let barrier = Arc::new(Barrier::new(WRITERS + 1));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (store, barrier) = (Arc::clone(&fixture.store), Arc::clone(&barrier));
        writers.spawn(async move {
            barrier.wait().await;
            for number in 0..EACH {
                let job = format!("j{writer}-{number}");
                committed(
                    &*store,
                    append(&job, Expected::NoStream, vec![charged("a", 1, november())]),
                )
                .await;
                committed(
                    &*store,
                    append(&job, exactly(0), failed("a", 1, 0, november())),
                )
                .await;
            }
        });
    }
    barrier.wait().await;
    let total = WRITERS * EACH * 4;
    let mut read: Vec<RecordedEvent> = Vec::new();
    let follow = async {
        while read.len() < total {
            let after = read.last().map_or(Position::START, |last| last.position);
            let page = fixture.store.read_all(after, 7).await.expect("readable");
            read.extend(page);
            tokio::task::yield_now().await;
        }
    };
    bounded("a reader behind eight writers", follow).await;
    bounded("eight writers", writers.join_all()).await;
    assert_eq!(
        fixture.store.read_all(Position::START, total + 1).await,
        Ok(read)
    );
}

/// Polls the append `times` times and drops it, whatever became of it.
async fn begun_and_dropped(store: &dyn EventStore, append: Append, times: usize) {
    let mut future = store.append(append);
    for _ in 0..times {
        let is_ready =
            poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if is_ready {
            break;
        }
        tokio::task::yield_now().await;
    }
}

/// A caller that went away withdraws nothing and leaves nothing half done; repeating the identical append settles it.
pub async fn a_dropped_append_is_there_whole_or_not_at_all(fixture: &Fixture) {
    let store = &*fixture.store;
    let mut pending = Vec::new();
    for number in 0..40 {
        let job = format!("j{number}");
        committed(
            store,
            append(&job, Expected::NoStream, vec![charged("a", 1, november())]),
        )
        .await;
        let dropped = append(&job, exactly(0), failed("a", 1, 1, november()));
        begun_and_dropped(store, dropped.clone(), number % 4).await;
        pending.push(dropped);
    }
    for dropped in pending {
        let again = bounded("a repeated append", store.append(dropped.clone())).await;
        let stored = store
            .read_stream(&dropped.stream, dropped.expected.next())
            .await
            .expect("readable");
        let ids: Vec<_> = stored.iter().map(|event| event.id).collect();
        let expected: Vec<_> = dropped.events.iter().map(|new| new.id).collect();
        assert_eq!(ids, expected, "whole, and once");
        assert!(
            is_committed(&again) || again == conflict(Some(3)),
            "{again:?}"
        );
    }
    let sums = Sums::of(store).await;
    assert_eq!(sums.accounts["a"], (0, 40), "each refund once: {sums:?}");
}

/// Who waits for the signal is woken by an append, and finds it in the log.
pub async fn the_signal_wakes_a_waiter(fixture: &Fixture) {
    let mut signal = fixture.store.appended();
    signal.borrow_and_update();
    let store = Arc::clone(&fixture.store);
    let waiter = tokio::spawn(async move {
        signal.changed().await.expect("the store lives");
        let shown = *signal.borrow_and_update();
        (shown, store.head().await)
    });
    committed(&*fixture.store, grant("g", "a", 1)).await;
    let (shown, head) = bounded("the signal", waiter)
        .await
        .expect("it does not panic");
    assert_eq!(head, Ok(shown));
    assert!(shown > Position::START);
    // Several appends may share one signal, and who asks later is told where the log is.
    committed(&*fixture.store, charge("j", "a", 1)).await;
    let head = fixture.store.head().await.expect("readable");
    assert_eq!(*fixture.store.appended().borrow(), head);
    assert!(head > shown);
}

/// However many append at once, the signal ends at the head, and never goes back on the way.
pub async fn the_signal_shows_the_head_in_the_end(fixture: &Fixture) {
    let mut signal = fixture.store.appended();
    let (end, mut is_over) = tokio::sync::oneshot::channel();
    let watcher = tokio::spawn(async move {
        let mut last = *signal.borrow_and_update();
        let mut head = None;
        while head.is_none_or(|head| last < head) {
            tokio::select! {
                told = &mut is_over, if head.is_none() => head = told.ok(),
                changed = signal.changed() => changed.expect("the store lives"),
            }
            let shown = *signal.borrow_and_update();
            assert!(shown >= last, "the signal went back from {last} to {shown}");
            last = shown;
        }
    });
    let grants = (0..CALLERS).map(|number| grant(&format!("g{number}"), "a", 1));
    let answers = at_once(&fixture.store, grants.collect()).await;
    assert!(answers.iter().all(is_committed), "{answers:?}");
    let head = fixture.store.head().await.expect("readable");
    end.send(head).expect("the watcher waits for it");
    bounded("the watcher", watcher)
        .await
        .expect("the signal never goes back");
    assert_eq!(*fixture.store.appended().borrow(), head);
}
