//! What stops a projection, what does not, and how it gets past.

use recoup::codec::{Catalog, Event};
use recoup::job::{AttemptFailed, JobEvent};
use recoup::{Attempt, EventStore, FailureClass};
use recoup_projections::{Checkpoint, JobFilter, Projection, ProjectionError};

use crate::world::{EXTERNAL, PAUSED, World, account, follows};
use recoup::store::fresh::is_log_in_tables;

fn of(checkpoints: &[Checkpoint], projection: Projection) -> &Checkpoint {
    checkpoints
        .iter()
        .find(|checkpoint| checkpoint.projection == projection)
        .unwrap()
}

/// A ledger with an event of an unknown type in the middle.
async fn with_unknown() -> (World, recoup::Position) {
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    let position = world.append_unknown("job-j1", follows(0)).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    (world, position)
}

#[tokio::test]
async fn an_unknown_type_halts_every_projection_behind_what_comes_before_it() {
    if !is_log_in_tables() {
        return;
    }
    let (world, position) = with_unknown().await;
    let projections = world.projections().await;
    // Twice: the second run finds it halted, and leaves it so.
    for _ in 0..2 {
        let progress = projections.catch_up().await.unwrap();
        assert_eq!(progress.halted().count(), Projection::ALL.len());
        for (projection, halt) in progress.halted() {
            assert_eq!(halt.position, position, "{projection}");
            assert!(halt.reason.contains(PAUSED.name), "{}", halt.reason);
        }
    }
    let entries = projections
        .entries(&account("acme"), None, 10)
        .await
        .unwrap();
    assert_eq!(
        entries.rows.len(),
        1,
        "what comes before it is applied, what comes after it not"
    );
    let checkpoints = projections.checkpoints().await.unwrap();
    assert!(
        checkpoints
            .iter()
            .all(|checkpoint| checkpoint.lag_events == 2)
    );
}

#[tokio::test]
async fn an_upgrade_gets_past_it() {
    let (world, _) = with_unknown().await;
    world.project().await;
    let newer = Catalog::standard().clone().with(PAUSED, |_| {
        let failed = AttemptFailed {
            attempt: Attempt::FIRST,
            class: FailureClass::Retryable,
            reason: None,
            timer: None,
        };
        Ok(Event::Job(JobEvent::AttemptFailed(failed)))
    });
    let upgraded = world.projections().await.with_catalog(newer);
    let progress = upgraded.catch_up().await.unwrap();
    assert_eq!(progress.halted().count(), 0);
    let entries = upgraded.entries(&account("acme"), None, 10).await.unwrap();
    assert_eq!(entries.rows.len(), 2);
    let stored = upgraded.checkpoints().await.unwrap();
    assert!(
        stored
            .iter()
            .all(|at| at.halted.is_none() && at.lag_events == 0)
    );
}

#[tokio::test]
async fn a_retired_type_is_skipped_and_counted() {
    let (world, _) = with_unknown().await;
    let retired = Catalog::standard().clone().retire(PAUSED.name);
    let projections = world.projections().await.with_catalog(retired);
    for page in [1, 100] {
        let progress = projections.clone().with_page_events(page).catch_up().await;
        let progress = progress.unwrap();
        assert_eq!(progress.halted().count(), 0);
        assert!(
            progress
                .checkpoints
                .iter()
                .all(|checkpoint| checkpoint.retired == 1)
        );
    }
    let jobs = projections
        .jobs(JobFilter::default(), None, 10)
        .await
        .unwrap();
    assert_eq!(jobs.rows.len(), 2);
}

#[tokio::test]
async fn corrupt_bytes_halt_as_well() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    world.set_body(3, &[0xFF, 0xFF]);
    let projections = world.projections().await;
    let progress = projections.catch_up().await.unwrap();
    assert_eq!(progress.halted().count(), Projection::ALL.len());
    for (projection, halt) in progress.halted() {
        assert_eq!(halt.position.get(), 3, "{projection}");
        assert!(halt.reason.contains("corrupt"), "{}", halt.reason);
    }
    let entries = projections
        .entries(&account("acme"), None, 10)
        .await
        .unwrap();
    assert_eq!(entries.rows.len(), 1);
}

#[tokio::test]
async fn one_projection_halts_and_the_others_go_on() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    world.project().await;
    world.sql("DELETE FROM jobs WHERE job = 'j1'");
    world.succeed("j2", 1).await;
    world.succeed("j1", 1).await;
    world.charge("j3", "acme", EXTERNAL, 3).await;
    let head = world.store.head().await.unwrap();
    let progress = world.project().await.checkpoints().await.unwrap();
    let jobs = of(&progress, Projection::Jobs);
    let halt = jobs.halted.as_ref().unwrap();
    assert!(
        halt.reason.contains("job j1, delivered: it has no row"),
        "{}",
        halt.reason
    );
    // j2's end came before it and is kept.
    assert_eq!(jobs.position.get() + 1, halt.position.get());
    let rows = world.tables();
    assert!(
        rows.of("jobs")[0].contains("delivered"),
        "{:?}",
        rows.of("jobs")
    );
    for projection in [
        Projection::Entries,
        Projection::DailyUsage,
        Projection::Contradictions,
    ] {
        assert_eq!(of(&progress, projection).position, head, "{projection}");
    }
}

#[tokio::test]
async fn a_row_where_none_can_be_halts_the_statement() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    world.project().await;
    world.sql("INSERT INTO entries VALUES (2, 'x', 'grant', 1, 1, NULL, NULL, 'g', NULL, 0, NULL)");
    world.charge("j1", "acme", EXTERNAL, 40).await;
    let checkpoints = world.project().await.checkpoints().await.unwrap();
    let entries = of(&checkpoints, Projection::Entries);
    assert_eq!(
        (
            entries.position.get(),
            entries.halted.as_ref().unwrap().position.get()
        ),
        (1, 2)
    );
    assert_eq!(of(&checkpoints, Projection::Jobs).position.get(), 2);
}

#[tokio::test]
async fn a_sum_that_leaves_64_bits_halts_before_it() {
    let world = World::new().await;
    world.grant("acme", "welcome", 100).await;
    world.project().await;
    world.sql(&format!("UPDATE entries SET balance = {}", i64::MAX));
    world.grant("acme", "more", 1).await;
    let checkpoints = world.project().await.checkpoints().await.unwrap();
    let halt = of(&checkpoints, Projection::Entries)
        .halted
        .as_ref()
        .unwrap();
    assert!(halt.reason.contains("64 bits"), "{}", halt.reason);
}

#[tokio::test]
async fn rows_of_another_definition_are_neither_added_to_nor_repaired() {
    let world = World::new().await;
    world.busy(30, 8).await;
    world.project().await;
    world.sql(
        "UPDATE checkpoints SET definition = 'version 0, zone UTC' WHERE projection = 'entries'",
    );
    world.busy(10, 9).await;
    let before = world.tables();
    let projections = world.projections().await;
    let error = projections.catch_up().await.unwrap_err();
    assert!(
        matches!(
            &error,
            ProjectionError::OtherDefinition {
                projection: Projection::Entries,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("version 0, zone UTC"), "{error}");
    world.tables().assert_same(&before, "refused");
}

#[tokio::test]
async fn a_checkpoint_of_another_log_is_refused_by_name() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.busy(30, 10).await;
    world.project().await;
    let other = uuid::Uuid::new_v4();
    world.sql(&format!(
        "UPDATE checkpoints SET event_id = '{other}' WHERE projection = 'jobs'"
    ));
    let before = world.tables();
    let error = world.projections().await.catch_up().await.unwrap_err();
    assert!(
        matches!(
            &error,
            ProjectionError::OtherLog {
                projection: Projection::Jobs,
                found: Some(_),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains(&other.to_string()), "{error}");
    // A log that ends before the checkpoint is another one too.
    world.sql("DELETE FROM appends WHERE position > 5");
    let error = world.projections().await.catch_up().await.unwrap_err();
    assert!(
        matches!(&error, ProjectionError::OtherLog { found: None, .. }),
        "{error}"
    );
    world.tables().assert_same(&before, "refused");
}
