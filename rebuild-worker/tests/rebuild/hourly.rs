//! The schedule: each hour once, each day covered, whatever the clock and the zone do.

use std::collections::BTreeSet;
use std::time::Duration;

use recoup::EventStore;
use recoup_rebuild_worker::rebuild::schedule::Schedule;
use recoup_rebuild_worker::rebuild::{Control, Run, latest};

use crate::world::{Hands, World, at};

const HOUR: Duration = Duration::from_secs(3_600);

async fn tick(schedule: &Schedule) -> Option<Run> {
    schedule.tick(&Control::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_has_one_run_whoever_looks() {
    let world = World::new().await;
    world.days(1).await;
    let (one, other) = (
        Schedule::new(world.projections.clone()),
        Schedule::new(world.beside().await),
    );
    assert!(tick(&one).await.is_some());
    assert!(tick(&one).await.is_none());
    assert!(tick(&other).await.is_none());
    world.clock.advance_by(HOUR);
    assert!(tick(&other).await.is_some());
    assert!(tick(&one).await.is_none());
    // Stepped an hour on, as by a clock that was wrong: the next hour. And back: no hour twice.
    world.clock.advance_by(HOUR);
    assert!(tick(&one).await.is_some());
    world.clock.set(at("2026-11-29T12:30:00Z"));
    assert!(tick(&one).await.is_none());
    assert!(tick(&other).await.is_none());
}

/// Of many that look at the same moment one runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_at_once_one_runs() {
    let world = World::new().await;
    world.days(1).await;
    for _ in 0..5 {
        let mut looking = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let schedule = Schedule::new(world.beside().await);
            looking.spawn(async move { tick(&schedule).await.is_some() });
        }
        let runs = looking
            .join_all()
            .await
            .into_iter()
            .filter(|ran| *ran)
            .count();
        assert_eq!(runs, 1);
        world.clock.advance_by(HOUR);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_31_after_days_down_it_reaches_back_to_its_last_good_run() {
    let world = World::with("2026-11-26T09:00:00Z", "UTC").await;
    world.days(1).await;
    world.catch_up().await;
    let schedule = Schedule::new(world.projections.clone());
    assert_eq!(tick(&schedule).await.unwrap().to, "2026-11-26");
    // Usage goes on for three days; nobody rebuilds, and each of these days is spoiled.
    for _ in 0..3 {
        world.clock.advance_by(Duration::from_secs(86_400));
        world.usage("acct-0", "video", 5).await;
    }
    world.catch_up().await;
    assert_eq!(world.sql("UPDATE daily_usage SET charged = charged + 1 WHERE account = 'acct-0' AND kind = 'video'"), 4);
    let run = tick(&schedule).await.unwrap();
    assert_eq!((&*run.from, &*run.to), ("2026-11-26", "2026-11-29"));
    assert_eq!(run.rows_different, 4);
    world.is_right().await;
    world.clock.advance_by(HOUR);
    let next = tick(&schedule).await.unwrap();
    assert_eq!((&*next.from, &*next.to), ("2026-11-28", "2026-11-29"));
}

/// A ledger that was never rebuilt is rebuilt from its first day.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_run_begins_with_the_first_day() {
    let world = World::with("2026-11-01T09:00:00Z", "Asia/Seoul").await;
    world.days(5).await;
    world.catch_up().await;
    let run = tick(&Schedule::new(world.projections.clone()))
        .await
        .unwrap();
    assert_eq!((&*run.from, &*run.to), ("2026-11-01", "2026-11-05"));
}

/// Both clock changes of New York: each hour of real time has one run, and every day is some run's today.
#[tokio::test(flavor = "multi_thread")]
async fn fault_31_clock_changes_make_no_run_twice_and_leave_no_day_out() {
    for (start, days) in [
        (
            "2026-03-07T12:00:00Z",
            ["2026-03-07", "2026-03-08", "2026-03-09"],
        ),
        (
            "2026-10-31T12:00:00Z",
            ["2026-10-31", "2026-11-01", "2026-11-02"],
        ),
    ] {
        let world = World::with(start, "America/New_York").await;
        world.days(1).await;
        let schedule = Schedule::new(world.projections.clone());
        let mut covered = BTreeSet::new();
        for hour in 0..50 {
            for minute in [0, 20, 40] {
                let run = tick(&schedule).await;
                assert_eq!(run.is_some(), minute == 0, "hour {hour}, minute {minute}");
                covered.extend(run.map(|run| run.to));
                world.clock.advance_by(Duration::from_secs(1_200));
            }
        }
        let covered: Vec<&str> = covered.iter().map(String::as_str).collect();
        assert_eq!(covered, days);
    }
}

/// An hour whose run failed is not over.
#[tokio::test(flavor = "multi_thread")]
async fn an_hour_whose_run_failed_is_tried_again() {
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    let schedule = Schedule::new(world.projections.clone());
    world.sql("UPDATE checkpoints SET definition = 'another' WHERE projection = 'daily_usage'");
    assert!(schedule.tick(&Control::default()).await.is_err());
    let zone = world.store.identity().zone;
    world.sql(&format!(
        "UPDATE checkpoints SET definition = 'version 1, zone {zone}' WHERE projection = 'daily_usage'"
    ));
    assert!(tick(&schedule).await.is_some());
    assert_eq!(
        latest(world.projections.database(), 10)
            .await
            .unwrap()
            .len(),
        1,
        "the other one did not begin"
    );
}

/// A process that died while it held the hour: another one waits out its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ran_out_is_taken_over() {
    let world = World::new().await;
    world.days(1).await;
    let lease = world
        .clock
        .now_at()
        .after(recoup_rebuild_worker::rebuild::schedule::LEASE);
    world.sql(&format!(
        "INSERT INTO rebuild_schedule VALUES (1, 0, 'dead', {})",
        lease.as_micros()
    ));
    let schedule = Schedule::new(world.projections.clone());
    assert!(tick(&schedule).await.is_none());
    world.clock.set(lease);
    assert!(tick(&schedule).await.is_some());
}

/// A clock that was wrong once left an hour, or a lease, far in the future. Protection: what no run of these can have written is not waited for, and the
/// next good run puts it right.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_from_the_future_is_not_waited_for() {
    let world = World::new().await;
    world.days(1).await;
    let schedule = Schedule::new(world.projections.clone());
    for row in ["9999999, NULL, 0", "0, 'dead', 9000000000000000000"] {
        world.sql(&format!(
            "DELETE FROM rebuild_schedule;
            INSERT INTO rebuild_schedule (one, hour, holder, lease_until) VALUES (1, {row})"
        ));
        assert!(tick(&schedule).await.is_some(), "{row}");
        assert!(tick(&schedule).await.is_none(), "{row}");
        world.clock.advance_by(HOUR);
        assert!(tick(&schedule).await.is_some(), "{row}");
    }
}

/// Interleaving: an empty ledger has its hourly run; then its past is filled from a file, as its own backfill, hour after hour; then it is closed. No
/// run may vouch for days that were filled behind it.
#[tokio::test(flavor = "multi_thread")]
async fn runs_before_the_end_of_a_backfill_vouch_for_no_day() {
    let world = World::new().await;
    let schedule = Schedule::new(world.projections.clone());
    assert_eq!(tick(&schedule).await.unwrap().position, 0);
    world.clock.set(at("2026-11-20T10:00:00Z"));
    world.days(1).await;
    world.catch_up().await;
    world.clock.set(at("2026-11-29T13:00:00Z"));
    world.sql("INSERT INTO backfill (one, sha256, state) VALUES (1, 'ab', 'open')");
    assert!(tick(&schedule).await.is_none());
    world.sql("UPDATE backfill SET state = 'closed'");
    let run = tick(&schedule).await.unwrap();
    assert_eq!((&*run.from, &*run.to), ("2026-11-20", "2026-11-29"));
    assert_eq!(run.rows_different, 0);
}
