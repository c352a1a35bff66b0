//! Following the head: what this process appends, and what others append without telling.

use std::time::Duration;

use recoup_projections::{ProjectionError, Projections};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::world::{EXTERNAL, World, account};

/// No wait here takes this long unless something is broken.
const BOUND: Duration = Duration::from_secs(20);

fn follow(
    projections: &Projections,
) -> (CancellationToken, JoinHandle<Result<(), ProjectionError>>) {
    let (stop, projections) = (CancellationToken::new(), projections.clone());
    let token = stop.clone();
    (
        stop,
        tokio::spawn(async move { projections.follow(token).await }),
    )
}

/// Waits until the account's statement has `count` entries.
async fn wait_for_entries(projections: &Projections, count: usize) {
    let mut seen = 0;
    let acme = account("acme");
    let waited = tokio::time::timeout(BOUND, async {
        while seen < count {
            seen = projections
                .entries(&acme, None, 100)
                .await
                .unwrap()
                .rows
                .len();
            tokio::task::yield_now().await;
        }
    });
    if waited.await.is_err() {
        panic!("{seen} of {count} entries after {BOUND:?}");
    }
}

async fn stopped(stop: CancellationToken, following: JoinHandle<Result<(), ProjectionError>>) {
    stop.cancel();
    let ended = tokio::time::timeout(BOUND, following).await;
    ended
        .expect("it stops when it is told to")
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follows_appends_of_this_process_and_of_others() {
    let world = World::new().await;
    world.grant("acme", "g1", 1_000).await;
    let projections = world.projections().await;
    let (stop, following) = follow(&projections);
    wait_for_entries(&projections, 1).await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    wait_for_entries(&projections, 2).await;

    // A follower over another opening of the file hears nothing of this process's appends: it finds them by itself.
    let beside = Projections::open(world.beside().await).await.unwrap();
    stopped(stop, following).await;
    let (stop, following) = follow(&beside);
    world.charge("j2", "acme", EXTERNAL, 40).await;
    wait_for_entries(&projections, 3).await;
    stopped(stop, following).await;
}

#[tokio::test]
async fn stops_at_once_when_it_was_stopped_before() {
    let world = World::new().await;
    let projections = world.projections().await;
    let (stop, following) = follow(&projections);
    stopped(stop, following).await;
}

#[tokio::test]
async fn ends_with_an_error_that_time_does_not_heal() {
    let world = World::new().await;
    world.project().await;
    world.sql("UPDATE checkpoints SET definition = 'version 0, zone UTC'");
    let projections = world.projections().await;
    let (_stop, following) = follow(&projections);
    let ended = tokio::time::timeout(BOUND, following)
        .await
        .unwrap()
        .unwrap();
    assert!(
        matches!(ended, Err(ProjectionError::OtherDefinition { .. })),
        "{ended:?}"
    );
}
