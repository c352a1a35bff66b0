//! Rebuild while the ledger is used, killed in every phase, stopped, and two at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use recoup::ManualClock;
use recoup_rebuild_worker::rebuild::{
    Control, Mode, Progress, RebuildError, Window, latest, rebuild,
};
use tokio_util::sync::CancellationToken;

use crate::world::{Hands, World, at, request};
use recoup::store::fresh::is_log_in_tables;

const SPOIL: [&str; 4] = [
    "UPDATE daily_usage SET charged = charged * 3 WHERE account = 'acct-0'",
    "DELETE FROM daily_usage WHERE account = 'acct-1' AND kind = 'video'",
    "INSERT INTO daily_usage VALUES ('', '2026-11-29', 'video', 5, 0, 0, 1, 3) ON CONFLICT DO NOTHING",
    "UPDATE daily_usage SET last_position = last_position + 1 WHERE account = 'acct-3'",
];

fn spoil(world: &World) {
    for sql in SPOIL {
        world.sql(sql);
    }
}

/// Interleaving: appends and applied batches all the time, rows spoiled and repaired meanwhile, twenty times.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_are_repaired_while_the_ledger_is_used() {
    let world = Arc::new(World::new().await);
    world.days(1).await;
    world.catch_up().await;
    let stop = CancellationToken::new();
    let follower = {
        let (projections, stop) = (world.projections.clone(), stop.clone());
        tokio::spawn(async move { projections.follow(stop).await })
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let (world, is_over) = (Arc::clone(&world), Arc::clone(&is_over));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    world.usage(&format!("acct-{caller}"), "video", 7).await;
                }
            })
        })
        .collect();
    let mut different = 0;
    for round in 0..20 {
        if round % 2 == 0 {
            spoil(&world);
        }
        let mode = if round % 5 == 4 {
            Mode::Verify
        } else {
            Mode::Repair
        };
        let window = if round % 3 == 0 {
            Window::All
        } else {
            Window::default()
        };
        different += world.rebuild(mode, window).await.rows_different;
    }
    world.rebuild(Mode::Repair, Window::All).await;
    let clean = world.rebuild(Mode::Verify, Window::All).await;
    is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    stop.cancel();
    follower.await.unwrap().unwrap();
    assert!(different > 0);
    assert_eq!(clean.rows_different, 0);
    world.is_right().await;
}

/// However far the applier lags, what it has not applied yet is no difference.
#[tokio::test(flavor = "multi_thread")]
async fn fault_30_a_projector_that_lags_makes_no_false_difference() {
    let world = World::new().await;
    world.days(2).await;
    let (store, stop) = (world.store.clone(), CancellationToken::new());
    let slow = world.beside().await.with_page_events(1);
    let follower = {
        let stop = stop.clone();
        tokio::spawn(async move { slow.follow(stop).await })
    };
    let mut positions = Vec::new();
    loop {
        let run = world.rebuild(Mode::Verify, Window::All).await;
        assert_eq!(run.rows_different, 0, "at {}", run.position);
        positions.push(run.position);
        let head = recoup::EventStore::head(&store).await.unwrap().get();
        if run.position == head {
            break;
        }
    }
    stop.cancel();
    follower.await.unwrap().unwrap();
    world.is_right().await;
}

/// A repair that was computed at an older checkpoint must not undo what the applier has added since: rows are written at exactly the
/// place that the applier goes on from.
///
/// Interleaving: compare; then 50 jobs more are charged and applied; then repair.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fault_24_what_is_applied_between_compare_and_repair_is_kept() {
    let world = Arc::new(World::new().await);
    world.days(1).await;
    world.catch_up().await;
    spoil(&world);
    let (at_repair, arrived) = mpsc::channel();
    let (go, going) = mpsc::channel::<()>();
    let going = std::sync::Mutex::new(going);
    let control = Control {
        progress: Arc::new(move |progress: Progress| {
            if progress.phase == "repair" {
                at_repair.send(()).unwrap();
                going.lock().unwrap().recv().unwrap();
            }
        }),
        ..Control::default()
    };
    let running = {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            rebuild(
                &world.projections,
                &request(Mode::Repair, Window::All),
                &control,
            )
            .await
        })
    };
    tokio::task::spawn_blocking(move || arrived.recv().unwrap())
        .await
        .unwrap();
    for _ in 0..50 {
        world.usage("acct-0", "video", 11).await;
        world.usage("acct-1", "video", 11).await;
    }
    world.catch_up().await;
    go.send(()).unwrap();
    let run = running.await.unwrap().unwrap();
    assert!(run.rows_different > 0);
    assert_eq!(world.different(Mode::Verify, Window::All).await, 0);
    world.is_right().await;
}

/// Interleaving: this repair has compared and is stopped; another one repairs everything; days of usage come; this one wakes up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_repair_that_was_stopped_and_wakes_up_undoes_nothing() {
    let world = Arc::new(World::new().await);
    world.days(1).await;
    world.catch_up().await;
    spoil(&world);
    let (at_repair, arrived) = mpsc::channel();
    let (go, going) = mpsc::channel::<()>();
    let going = std::sync::Mutex::new(going);
    let control = Control {
        progress: Arc::new(move |progress: Progress| {
            if progress.phase == "repair" {
                at_repair.send(()).unwrap();
                going.lock().unwrap().recv().unwrap();
            }
        }),
        ..Control::default()
    };
    let stopped = {
        let other = world.beside().await;
        tokio::spawn(async move {
            rebuild(&other, &request(Mode::Repair, Window::default()), &control).await
        })
    };
    tokio::task::spawn_blocking(move || arrived.recv().unwrap())
        .await
        .unwrap();
    let first = world.rebuild(Mode::Repair, Window::default()).await;
    assert!(first.rows_different > 0);
    world.clock.advance_by(Duration::from_secs(86_400));
    for _ in 0..20 {
        world.usage("acct-0", "video", 11).await;
    }
    world.catch_up().await;
    go.send(()).unwrap();
    let late = stopped.await.unwrap().unwrap();
    assert!(
        world.differences(&late).await.is_empty(),
        "it repaired nothing"
    );
    world.is_right().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_repairs_at_once_come_to_the_same_rows() {
    let world = Arc::new(World::new().await);
    world.days(2).await;
    world.catch_up().await;
    for _ in 0..5 {
        spoil(&world);
        let (one, other) = (world.beside().await, world.beside().await);
        let (request, control) = (request(Mode::Repair, Window::All), Control::default());
        let (one, other) = tokio::join!(
            rebuild(&one, &request, &control),
            rebuild(&other, &request, &control)
        );
        assert!(one.unwrap().rows_different > 0 || other.unwrap().rows_different > 0);
        assert_eq!(world.different(Mode::Verify, Window::All).await, 0);
    }
    world.is_right().await;
}

/// A run that dies in a phase (its task panics there, and nothing is cleaned up) leaves rows that are as they were or as they should be.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_dies_in_any_phase_can_be_run_again() {
    for phase in ["fold", "compare", "repair"] {
        let world = Arc::new(World::new().await);
        world.days(2).await;
        world.catch_up().await;
        spoil(&world);
        let control = Control {
            progress: Arc::new(move |progress: Progress| {
                assert!(progress.phase != phase, "killed");
            }),
            ..Control::default()
        };
        let dying = {
            let projections = world.beside().await;
            tokio::spawn(async move {
                rebuild(&projections, &request(Mode::Repair, Window::All), &control).await
            })
        };
        assert!(dying.await.unwrap_err().is_panic(), "{phase}");
        let run = world.rebuild(Mode::Repair, Window::All).await;
        assert!(run.rows_different > 0);
        world.is_right().await;
        // The dead run is found out, once it has given no sign of life for long enough.
        world.clock.advance_by(Duration::from_secs(3_600));
        world.rebuild(Mode::Verify, Window::default()).await;
        let states: Vec<String> = latest(world.projections.database(), 10)
            .await
            .unwrap()
            .into_iter()
            .rev()
            .map(|run| run.state)
            .collect();
        assert_eq!(states, ["abandoned", "done", "done"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_ends_as_cancelled_and_leaves_rows_alone() {
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    spoil(&world);
    let before = world.shown();
    let stop = CancellationToken::new();
    let control = Control {
        progress: {
            let stop = stop.clone();
            Arc::new(move |_| stop.cancel())
        },
        stop,
    };
    let run = rebuild(
        &world.projections,
        &request(Mode::Repair, Window::All),
        &control,
    )
    .await;
    assert!(matches!(run, Err(RebuildError::Cancelled)), "{run:?}");
    assert_eq!(world.shown(), before);
    assert_eq!(
        latest(world.projections.database(), 1).await.unwrap()[0].state,
        "cancelled"
    );
}

/// A checkpoint that was set back, by a restore or by hand: events that are in a row already are not added again.
#[tokio::test(flavor = "multi_thread")]
async fn fault_26_events_that_come_again_are_not_counted_again() {
    let world = World::new().await;
    world.days(1).await;
    let first = world.projections.clone().with_page_events(10);
    first.catch_up().await.unwrap();
    let early = recoup::EventStore::read_all(&world.store, recoup::Position::START, 7);
    let early = early.await.unwrap();
    let last = early.last().unwrap();
    world.sql(&format!(
        "UPDATE checkpoints SET position = {}, event_id = '{}' WHERE projection = 'daily_usage'",
        last.position, last.id
    ));
    world.is_right().await;
}

/// Interleaving: a day is over by the rebuild's clock, but not in the log, where a backfill goes on; events of that day are posted and applied between
/// the rebuild's beginning and its comparison. Protection: a day is over once the log has left it behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_day_that_is_still_being_filled_is_not_taken_for_over() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    let clock = ManualClock::starting_at(at("2026-12-05T00:00:00Z"));
    let later = world.beside_at(&clock).await;
    let (reached, has_reached) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(Some((reached, may_go_on)));
    let control = Control {
        progress: Arc::new(move |_| {
            if let Some((reached, may_go_on)) = gate.lock().unwrap().take() {
                reached.send(()).unwrap();
                may_go_on.recv().unwrap();
            }
        }),
        ..Control::default()
    };
    let day = recoup::Day::parse("2026-11-29").unwrap();
    let request = request(Mode::Repair, Window::days(day, day).unwrap());
    let running = tokio::spawn(async move { rebuild(&later, &request, &control).await });
    let waited =
        tokio::task::spawn_blocking(move || has_reached.recv_timeout(Duration::from_secs(20)));
    waited.await.unwrap().expect("the rebuild begins");
    for _ in 0..10 {
        world.usage("acct-0", "video", 40).await;
    }
    world.catch_up().await;
    go_on.send(()).unwrap();
    assert_eq!(running.await.unwrap().unwrap().rows_different, 0);
    world.is_right().await;
}
