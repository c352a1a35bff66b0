//! Ways out of a halt: an event skipped, a projection made anew; what is recorded of it, and what the audit says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use recoup::store::StoreError;
use recoup::store::fresh::Opening;
use recoup::{EventStore, Position, Reason};
use recoup_projections::{Projection, ProjectionError, Projections, Seen, SkipOutcome};
use tokio_util::sync::CancellationToken;

use crate::audit::texts;
use crate::world::{EXTERNAL, World, audit, follows};
use recoup::store::fresh::is_log_in_tables;

/// No wait here takes this long unless something is broken.
const BOUND: Duration = Duration::from_secs(20);

/// A ledger of four events, of which the third has an unknown type.
async fn halted() -> (World, Projections, Position) {
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    let position = world.append_unknown("job-j1", follows(0)).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    let projections = world.project().await;
    (world, projections, position)
}

fn why() -> (Reason, String) {
    (Reason::new("a trial of pausing").unwrap(), "ops".to_owned())
}

async fn skip(
    projections: &Projections,
    projection: Projection,
    position: Position,
) -> SkipOutcome {
    projections.skip(projection, position, why()).await.unwrap()
}

async fn position_of(projections: &Projections, projection: Projection) -> (i64, bool) {
    let checkpoints = projections.checkpoints().await.unwrap();
    let found = checkpoints.iter().find(|at| at.projection == projection);
    let found = found.unwrap();
    (found.position.get(), found.halted.is_some())
}

/// Waits until a projection stands somewhere.
async fn wait_for(projections: &Projections, projection: Projection, wanted: (i64, bool)) {
    let mut seen = (0, false);
    let waited = tokio::time::timeout(BOUND, async {
        while seen != wanted {
            seen = position_of(projections, projection).await;
            tokio::task::yield_now().await;
        }
    });
    assert!(
        waited.await.is_ok(),
        "{projection}: {seen:?}, wanted {wanted:?}"
    );
}

#[tokio::test]
async fn a_skip_moves_one_projection_past_one_event_and_is_named_by_the_audit() {
    if !is_log_in_tables() {
        return;
    }
    let (world, projections, position) = halted().await;
    let before = world.tables();
    let outcome = skip(&projections, Projection::Entries, position).await;
    let SkipOutcome::Skipped(skipped) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(skipped.event_id.is_some());
    assert_eq!(
        (skipped.position, skipped.last_position),
        (position, position)
    );
    projections.catch_up().await.unwrap();
    assert_eq!(
        position_of(&projections, Projection::Entries).await,
        (4, false)
    );
    assert_eq!(position_of(&projections, Projection::Jobs).await, (2, true));
    let after = world.tables();
    assert_eq!(after.of("entries").len(), 2);
    assert_eq!(after.of("daily_usage"), before.of("daily_usage"));

    let findings = texts(&audit(&world.store).await.unwrap());
    let named = "checkpoints: entries: event 3 was skipped in entries by ops: a trial of pausing;";
    assert!(
        findings.iter().any(|text| text.starts_with(named)),
        "{findings:#?}"
    );
    let claims = "checkpoints: entries: claims to have passed event 3";
    assert!(
        !findings.iter().any(|text| text.starts_with(claims)),
        "{findings:#?}"
    );
    // Of two people who skip one halt, the second skips nothing.
    let again = skip(&projections, Projection::Entries, position).await;
    assert_eq!(again, SkipOutcome::NotHalted);
}

#[tokio::test]
async fn another_event_than_the_one_in_the_way_is_not_skipped() {
    let (world, projections, position) = halted().await;
    let before = world.tables();
    let other = Position::new(position.get() + 1);
    let outcome = skip(&projections, Projection::Jobs, other).await;
    let at_other =
        matches!(&outcome, SkipOutcome::HaltedElsewhere(halt) if halt.position == position);
    assert!(at_other, "{outcome:?}");
    world.tables().assert_same(&before, "refused");
}

#[tokio::test]
async fn a_readable_event_that_was_skipped_shows_as_rows_that_differ() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    let projections = world.project().await;
    world.sql("INSERT INTO entries VALUES (2, 'x', 'grant', 1, 1, NULL, NULL, 'g', NULL, 0, NULL)");
    world.charge("j1", "acme", EXTERNAL, 40).await;
    projections.catch_up().await.unwrap();
    let outcome = skip(&projections, Projection::Entries, Position::new(2)).await;
    assert!(matches!(outcome, SkipOutcome::Skipped(_)), "{outcome:?}");
    projections.catch_up().await.unwrap();
    let findings = texts(&audit(&world.store).await.unwrap());
    let has = |start: &str| findings.iter().any(|text| text.starts_with(start));
    assert!(
        has("checkpoints: entries: event 2 was skipped"),
        "{findings:#?}"
    );
    assert!(has("entries: position 2: the row differs"), "{findings:#?}");
    // The rows are made anew: nothing is missing, and nothing is held against anybody any more.
    projections
        .reset(Projection::Entries, (None, "ops".to_owned()))
        .await
        .unwrap();
    projections.catch_up().await.unwrap();
    assert_eq!(audit(&world.store).await.unwrap().violations, 0);
}

#[tokio::test]
async fn an_append_that_is_broken_as_a_whole_is_skipped_as_one() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    // One append of three events, at 3 to 5.
    world.fail("j1", 1).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    world.set_body(3, &[0xFF, 0xFF]);
    let projections = world.project().await;
    let outcome = skip(&projections, Projection::Entries, Position::new(3)).await;
    let SkipOutcome::Skipped(skipped) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((skipped.last_position.get(), skipped.event_id), (5, None));
    // Twice: the next process finds a checkpoint at an event that it cannot read, and takes it.
    for _ in 0..2 {
        world.project().await;
        assert_eq!(
            position_of(&projections, Projection::Entries).await,
            (6, false)
        );
    }
    let findings = texts(&audit(&world.store).await.unwrap());
    let named = "checkpoints: entries: the append of events 3 to 5 was skipped";
    assert!(
        findings.iter().any(|text| text.starts_with(named)),
        "{findings:#?}"
    );
}

#[tokio::test]
async fn a_reset_makes_the_rows_of_one_projection_anew_with_this_builds_definition() {
    let world = World::new().await;
    world.busy(60, 3).await;
    let projections = world.project().await;
    let good = world.tables();
    world.sql(
        "UPDATE checkpoints SET definition = 'version 0, zone UTC' WHERE projection = 'daily_usage';
         UPDATE daily_usage SET charged = charged + 1",
    );
    let refused = projections.catch_up().await;
    assert!(matches!(
        refused,
        Err(ProjectionError::OtherDefinition { .. })
    ));
    let standing = projections.standing().await.unwrap();
    let refused: Vec<bool> = standing
        .projections
        .iter()
        .map(|stand| stand.refused.is_some())
        .collect();
    let expected = Projection::ALL.map(|projection| projection == Projection::DailyUsage);
    assert_eq!(refused, expected);

    let reset = projections
        .reset(Projection::DailyUsage, (None, "ops".to_owned()))
        .await;
    let reset = reset.unwrap();
    assert_eq!(reset.definition.as_deref(), Some("version 0, zone UTC"));
    assert_eq!(reset.rows, good.of("daily_usage").len() as u64);
    let empty = world.tables();
    assert_eq!(empty.of("daily_usage").len(), 0);
    for table in ["entries", "jobs", "contradictions"] {
        assert_eq!(empty.of(table), good.of(table), "{table}");
    }
    projections.catch_up().await.unwrap();
    let after = world.tables();
    for table in [
        "checkpoints",
        "entries",
        "daily_usage",
        "jobs",
        "contradictions",
    ] {
        assert_eq!(after.of(table), good.of(table), "{table}");
    }
    assert_eq!(after.of("projection_skips").len(), 1);
}

/// A follower sees the halt at 2 and parks there; the projection is reset; pages of one event bring the follower back to 2, where the
/// checkpoint does not say that it is halted. It must try the event again there, and say so again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_goes_on_after_a_reset_and_after_a_skip_by_another() {
    if !is_log_in_tables() {
        return;
    }
    let (world, other, position) = halted().await;
    let following = world.projections().await.with_page_events(1);
    let stop = CancellationToken::new();
    let token = stop.clone();
    let rounds = AtomicU64::new(0);
    let follow = following.follow_watched(token, |seen| {
        if let Seen::Followed(_) = seen {
            rounds.fetch_add(1, Ordering::SeqCst);
        }
    });
    let people = async {
        // The follower has parked all projections by itself.
        while rounds.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        other
            .reset(Projection::Entries, (None, "ops".to_owned()))
            .await
            .unwrap();
        wait_for(&other, Projection::Entries, (2, true)).await;
        let skipped = skip(&other, Projection::Entries, position).await;
        assert!(matches!(skipped, SkipOutcome::Skipped(_)), "{skipped:?}");
        wait_for(&other, Projection::Entries, (4, false)).await;
        stop.cancel();
    };
    let (followed, ()) = tokio::join!(follow, people);
    followed.unwrap();
}

/// The follower's batch meets a write lock that another process holds, and fails; then the lock is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_could_not_be_written_once_is_written_later() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.project().await;
    world.grant("acme", "g1", 5).await;
    let opening = Opening {
        clock: Arc::new(world.clock.clone()),
        busy_timeout: Duration::from_millis(20),
        ..Opening::default()
    };
    let store = world.fresh.open_with(opening).await.unwrap();
    let projections = Projections::open(store).await.unwrap();
    let (let_go, going) = std::sync::mpsc::channel::<()>();
    let (begun, beginning) = tokio::sync::oneshot::channel();
    let holder = world.beside().await;
    let holder = tokio::spawn(async move {
        let held = holder.write(move |_| {
            begun.send(()).unwrap();
            // Until it is told to, or whoever tells it is gone.
            let _ = going.recv();
            Ok::<_, StoreError>(())
        });
        held.await
    });
    beginning.await.unwrap();
    let stop = CancellationToken::new();
    let failures = AtomicU64::new(0);
    let follow = projections.follow_watched(stop.clone(), |seen| {
        if let Seen::Failed(error) = seen {
            assert!(error.is_transient(), "{error}");
            failures.fetch_add(1, Ordering::SeqCst);
        }
    });
    let others = async {
        let failed = tokio::time::timeout(BOUND, async {
            while failures.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        });
        failed.await.unwrap();
        assert_eq!(
            position_of(&projections, Projection::Entries).await,
            (0, false)
        );
        let_go.send(()).unwrap();
        holder.await.unwrap().unwrap();
        wait_for(&projections, Projection::Entries, (1, false)).await;
        stop.cancel();
    };
    let (followed, ()) = tokio::join!(follow, others);
    followed.unwrap();
}

/// Nobody runs a projector: what waits, and since when, is measured against the log itself.
#[tokio::test]
async fn lag_grows_with_the_head_while_nobody_applies() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    let projections = world.project().await;
    let mut since = None;
    for n in 0..3_u32 {
        world.clock.advance(Duration::from_secs(60));
        world.charge(&format!("j{n}"), "acme", EXTERNAL, 1).await;
        let standing = projections.standing().await.unwrap();
        assert_eq!(standing.head, world.store.head().await.unwrap());
        for stand in &standing.projections {
            assert_eq!(stand.checkpoint.lag_events, u64::from(n) + 1);
            let oldest = *since.get_or_insert(stand.waiting_since.unwrap());
            assert_eq!(stand.waiting_since, Some(oldest));
        }
    }
    let waited = world.store.now().since(since.unwrap());
    assert_eq!(waited, Duration::from_secs(120));
    projections.catch_up().await.unwrap();
    let standing = projections.standing().await.unwrap();
    assert!(
        standing
            .projections
            .iter()
            .all(|stand| stand.waiting_since.is_none())
    );
}
