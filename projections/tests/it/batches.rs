//! Any split of the log into batches, any number of runners and any restart give the same rows.

use recoup::EventStore;
use recoup_projections::{Projection, Projections};

use crate::world::World;

#[tokio::test]
async fn any_split_of_batches_equals_one_batch() {
    let world = World::new().await;
    world.busy(1_200, 1).await;
    let whole = world.tables_by_pages_of(10_000).await;
    let events = world.store.head().await.unwrap();
    assert!(events.get() > 400, "{events} events are enough to split");
    for table in [
        "entries",
        "daily_usage",
        "jobs",
        "contradictions",
        "due",
        "dead_letters",
    ] {
        assert!(!whole.of(table).is_empty(), "{table} has rows");
    }
    // Pages of 1 and 3 end inside appends, between a refund and the state that follows.
    for page in [1, 3, 100] {
        let split = world.tables_by_pages_of(page).await;
        split.assert_same(&whole, &format!("pages of {page}"));
    }
}

#[tokio::test]
async fn a_restart_in_between_changes_nothing() {
    let world = World::new().await;
    world.busy(150, 2).await;
    let first = world.projections().await.with_page_events(7);
    first.catch_up().await.unwrap();
    drop(first);
    world.busy(150, 3).await;
    let store = world.beside().await;
    let again = Projections::open(store).await.unwrap().with_page_events(5);
    again.catch_up().await.unwrap();
    let tables = world.tables();
    tables.assert_same(&world.tables_by_pages_of(10_000).await, "restarted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn runners_of_two_processes_apply_each_page_once() {
    let world = World::new().await;
    world.busy(400, 4).await;
    let events = world.events(usize::MAX).await as u64;
    let one = world.projections().await.with_page_events(3);
    let other = Projections::open(world.beside().await).await.unwrap();
    let other = other.with_page_events(3);
    let (one, other) = tokio::join!(one.catch_up(), other.catch_up());
    let applied = one.unwrap().events_applied + other.unwrap().events_applied;
    assert_eq!(applied, events * Projection::ALL.len() as u64);
    let tables = world.tables();
    tables.assert_same(&world.tables_by_pages_of(10_000).await, "two runners");
}

#[tokio::test]
async fn a_projection_that_is_behind_joins_the_others() {
    let world = World::new().await;
    world.busy(100, 5).await;
    world.project().await;
    world.sql(
        "DELETE FROM daily_usage;
        UPDATE checkpoints SET position = 0, event_id = NULL, retired = 0
        WHERE projection = 'daily_usage'",
    );
    world.busy(40, 6).await;
    let head = world.store.head().await.unwrap();
    let projections = world.projections().await.with_page_events(16);
    let progress = projections.catch_up().await.unwrap();
    // Behind, it reads alone; from the place of the others on, each page is read once for all.
    assert_eq!(progress.events_read, world.events(usize::MAX).await as u64);
    assert!(
        progress
            .checkpoints
            .iter()
            .all(|at| at.position == head && at.lag_events == 0)
    );
    let tables = world.tables();
    tables.assert_same(&world.tables_by_pages_of(10_000).await, "joined");
}

#[tokio::test]
async fn rows_that_are_ahead_of_their_checkpoint_are_not_counted_twice() {
    let world = World::new().await;
    world.busy(300, 11).await;
    world.project().await;
    let before = world.tables();
    // As after a repair that folded farther than the live runner had come.
    world.sql("UPDATE checkpoints SET position = 0, event_id = NULL");
    let projections = world.projections().await.with_page_events(9);
    assert_eq!(projections.catch_up().await.unwrap().halted().count(), 0);
    assert!(!before.of("contradictions").is_empty());
    world.tables().assert_same(&before, "applied again");
}

#[tokio::test]
async fn opening_again_keeps_what_is_there() {
    let world = World::new().await;
    world.busy(60, 7).await;
    world.project().await;
    let before = world.tables();
    let store = world.beside().await;
    let progress = Projections::open(store)
        .await
        .unwrap()
        .catch_up()
        .await
        .unwrap();
    assert_eq!((progress.events_read, progress.events_applied), (0, 0));
    world.tables().assert_same(&before, "opened again");
}
