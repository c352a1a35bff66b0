//! Loops that fail in every way, on a clock that moves only when everybody waits.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;
use crate::up::status::State;

const SILENCE: Duration = Duration::from_secs(30);

fn view(supervisor: &Supervisor, name: &str) -> LoopView {
    let views = supervisor.loops().views();
    views
        .into_iter()
        .find(|view| view.name == name)
        .expect(name)
}

/// A loop that beats once a second and has nothing else to do.
fn spawn_healthy(supervisor: &mut Supervisor) {
    supervisor.spawn("healthy", SILENCE, |stop, status| async move {
        while !stop.is_cancelled() {
            status.succeed();
            let pause = tokio::time::sleep(Duration::from_secs(1));
            stop.run_until_cancelled(pause).await;
        }
        Ok(())
    });
}

/// Fails its first `count` runs by `fail`, and runs on after them.
fn spawn_failing<R>(supervisor: &mut Supervisor, count: u32, fail: R) -> Arc<AtomicU32>
where
    R: Fn() -> Result<(), Failure> + Send + Sync + 'static,
{
    let runs = Arc::new(AtomicU32::new(0));
    let (counted, fail) = (Arc::clone(&runs), Arc::new(fail));
    supervisor.spawn("failing", SILENCE, move |stop, status| {
        let (runs, fail) = (Arc::clone(&counted), Arc::clone(&fail));
        async move {
            if runs.fetch_add(1, Ordering::SeqCst) < count {
                return fail();
            }
            status.succeed();
            stop.cancelled().await;
            Ok(())
        }
    });
    runs
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_panics_fails_or_ends_is_started_again_and_counted() {
    type Way = fn() -> Result<(), Failure>;
    let ways: [(Way, &str); 3] = [
        (|| panic!("out of luck"), "it panicked: out of luck"),
        (|| Err(anyhow::anyhow!("no answer").into()), "no answer"),
        (|| Ok(()), "it ended by itself"),
    ];
    for (fail, words) in ways {
        let mut supervisor = Supervisor::default();
        spawn_healthy(&mut supervisor);
        let runs = spawn_failing(&mut supervisor, 3, fail);
        // The first failure has happened, and its pause of at least 50 ms is not over.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let failed = view(&supervisor, "failing");
        assert_eq!((failed.state, failed.restarts), (State::Restarting, 0));
        let complaint = failed.complaint().expect("it is not to be relied upon");
        assert!(complaint.contains(words), "{complaint}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let back = view(&supervisor, "failing");
        assert_eq!((back.state, back.restarts), (State::Running, 3));
        assert_eq!((back.complaint(), back.error), (None, None));
        assert_eq!(runs.load(Ordering::SeqCst), 4);
        let other = view(&supervisor, "healthy");
        assert_eq!((other.restarts, other.complaint()), (0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn what_time_does_not_heal_stops_one_loop_until_it_is_repaired() {
    let mut supervisor = Supervisor::default();
    spawn_healthy(&mut supervisor);
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    supervisor.spawn("projector", SILENCE, move |stop, status| {
        let broken = Arc::clone(&broken);
        async move {
            if broken.load(Ordering::SeqCst) {
                return Err(Failure::Lasting(anyhow::anyhow!("rows of another build")));
            }
            status.succeed();
            stop.cancelled().await;
            Ok(())
        }
    });
    tokio::time::sleep(Duration::from_secs(600)).await;
    let stopped = view(&supervisor, "projector");
    assert_eq!(stopped.state, State::Stopped);
    let complaint = stopped.complaint().expect("it is stopped");
    assert_eq!(
        complaint,
        "loop projector is stopped: rows of another build"
    );
    // Pauses double from a second up to a minute: some fifteen looks in ten minutes, and no hot loop.
    assert!(
        (10..=30).contains(&stopped.restarts),
        "{}",
        stopped.restarts
    );
    assert_eq!(view(&supervisor, "healthy").complaint(), None);

    is_broken.store(false, Ordering::SeqCst);
    tokio::time::sleep(MAX_STOPPED_PAUSE).await;
    let repaired = view(&supervisor, "projector");
    assert_eq!((repaired.state, repaired.error), (State::Running, None));
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_is_silent_for_too_long_is_taken_for_dead() {
    let mut supervisor = Supervisor::default();
    supervisor.spawn("stuck", SILENCE, |_, status| async move {
        status.succeed();
        status.trouble("waits for the disk");
        std::future::pending().await
    });
    tokio::time::sleep(SILENCE).await;
    assert_eq!(view(&supervisor, "stuck").complaint(), None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let complaint = view(&supervisor, "stuck").complaint();
    let expected = "loop stuck gave no sign of life for 31 s: waits for the disk";
    assert_eq!(complaint.as_deref(), Some(expected));
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_what_a_loop_is_at_and_names_who_does_not_end() {
    let mut supervisor = Supervisor::default();
    spawn_healthy(&mut supervisor);
    let is_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    supervisor.spawn("slow", SILENCE, move |stop, _| {
        let done = Arc::clone(&done);
        async move {
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            done.store(true, Ordering::SeqCst);
            Ok(())
        }
    });
    supervisor.spawn("deaf", SILENCE, |_, _| std::future::pending());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begin = Instant::now();
    assert_eq!(supervisor.stop(Duration::from_secs(10)).await, ["deaf"]);
    assert_eq!(begin.elapsed(), Duration::from_secs(10));
    assert!(is_done.load(Ordering::SeqCst));
    for name in ["healthy", "slow"] {
        assert!(view(&supervisor, name).has_ended(), "{name}");
    }
}

/// The loop fails, and is told to stop while it pauses: it is not started again.
#[tokio::test(start_paused = true)]
async fn a_loop_that_pauses_ends_when_it_is_told_to() {
    let mut supervisor = Supervisor::default();
    let runs = spawn_failing(&mut supervisor, u32::MAX, || {
        Err(anyhow::anyhow!("no").into())
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = runs.load(Ordering::SeqCst);
    assert!(supervisor.stop(Duration::from_millis(1)).await.is_empty());
    assert_eq!(runs.load(Ordering::SeqCst), before);
    let ended = view(&supervisor, "failing");
    assert_eq!(
        (ended.state, ended.error.as_deref()),
        (State::Ended, Some("no"))
    );
}

#[test]
fn pauses_double_up_to_a_cap_and_no_two_need_be_alike() {
    for (is_lasting, first, max) in [
        (false, FIRST_PAUSE, MAX_PAUSE),
        (true, FIRST_STOPPED_PAUSE, MAX_STOPPED_PAUSE),
    ] {
        assert_eq!(pause(0, is_lasting, 0.0), first);
        assert_eq!(pause(1, is_lasting, 0.0), first * 2);
        assert_eq!(pause(2, is_lasting, 0.5), first * 3);
        for failures in [20, 32, u32::MAX] {
            assert_eq!(pause(failures, is_lasting, 0.0), max);
        }
    }
    assert!((0..1_000).all(|_| (0.0..1.0).contains(&jitter())));
}
