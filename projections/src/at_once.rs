//! Rows that are loaded and written at once are those that are loaded and written one by one.
//!
//! On whatever the tests are run over: what differs between the ways is in these statements and in the folds around them. Where a database is a round trip away,
//! all of them are loaded at once anyhow.

use recoup::Position;

use crate::apply::Loading;
use crate::{Projection, Projections};

#[path = "../tests/it/world.rs"]
#[expect(
    dead_code,
    reason = "made for the tests of the whole, which need more of it"
)]
mod world;

use recoup::store::fresh::is_log_in_tables;
use world::{EXTERNAL, TABLES, Tables, World};

/// Catches up `page` events at a time.
async fn at_once(world: &World, page: usize) -> Projections {
    let mut projections = world.projections().await.with_page_events(page);
    projections.loading = Loading::AtOnce;
    projections.catch_up().await.unwrap();
    projections
}

/// Puts every projection back to the start of the log.
fn forget(world: &World) {
    let sql = "UPDATE checkpoints SET position = 0, event_id = NULL, retired = 0, halted_at = NULL,
        halted_reason = NULL";
    world.sql(sql);
    for table in Projection::ALL {
        world.sql(&format!("DELETE FROM {table}"));
    }
}

#[tokio::test]
async fn any_split_of_batches_gives_the_rows_that_one_by_one_gives() {
    let world = World::new().await;
    world.busy(1_200, 1).await;
    for letter in ["l1", "l2", "l3"] {
        world.die(letter, "acme").await;
    }
    world.project().await;
    let expected = world.tables();
    let jobs = expected.of("jobs").len();
    assert!(jobs > 100, "enough for many keys: {jobs}");
    for page in [1, 3, 100, 10_000] {
        forget(&world);
        at_once(&world, page).await;
        let found = world.tables();
        found.assert_same(&expected, &format!("pages of {page}"));
    }
}

/// Rows that were repaired ahead of the checkpoint have had their events.
#[tokio::test]
async fn events_that_come_again_change_nothing() {
    let world = World::new().await;
    world.busy(300, 2).await;
    world.project().await;
    let expected = world.tables();
    // A projection whose rows come and go cannot be taken through their past again.
    for table in ["entries", "daily_usage", "jobs", "contradictions"] {
        let again = "UPDATE checkpoints SET position = 0, event_id = NULL WHERE projection";
        world.sql(&format!("{again} = '{table}'"));
        at_once(&world, 50).await;
        world.tables().assert_same(&expected, table);
    }
}

#[tokio::test]
async fn what_cannot_be_applied_halts_at_the_same_event_for_the_same_reason() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    world.project().await;
    world.die("l1", "acme").await;
    world.fail("j1", 1).await;
    world.succeed("j2", 1).await;
    world.charge("j3", "acme", EXTERNAL, 3).await;
    let head = recoup::EventStore::head(&world.store).await.unwrap();
    // A statement's row where another one is to be, and a job without its row.
    world.sql(&format!(
        "INSERT INTO entries VALUES ({head}, 'x', 'grant', 1, 1, NULL, NULL, 'g', NULL, 0, NULL);
        DELETE FROM jobs WHERE job = 'j2'; DELETE FROM due WHERE job = 'j1'"
    ));
    let copy = world.fresh.twin();
    let store = world::open(&copy, &world.clock, None).await;
    let mut projections = Projections::open(store).await.unwrap();
    world.fresh.copy_to(&copy, &TABLES);
    world.project().await;
    let expected = world.tables();
    projections.loading = Loading::AtOnce;
    let progress = projections.catch_up().await.unwrap();
    let halted: Vec<_> = progress.halted().collect();
    assert!(halted.len() >= 2, "{halted:?}");
    assert!(halted.iter().any(|(_, halt)| halt.position == head));
    assert!(
        halted
            .iter()
            .all(|(_, halt)| halt.position > Position::START)
    );
    Tables::of_ledger(&copy).assert_same(&expected, "halted");
}
