//! The loops of `recoup up`, all of them. To add one: a function here that spawns it, and its name in [`start`].
//!
//! Any number of these processes may run on one ledger, so that no loop may rely on being the only one of its kind.

use std::time::Duration;

use recoup_projections::{Progress, Seen};

use super::Handles;
use super::supervisor::Supervisor;
use crate::rebuild::schedule::{LOOK_EVERY, Schedule};
use crate::rebuild::{Control, RebuildError, Run};
use crate::{due, metrics};

/// How long the projector may be silent: its longest pause is 5 s, and a batch waits as long again for another process.
const PROJECTOR_SILENCE: Duration = Duration::from_secs(30);

/// How long the due loop may be silent: it sweeps about once a second, and a sweep of a backlog takes its time.
const DUE_SILENCE: Duration = Duration::from_secs(60);

/// How long the rebuild may be silent: between two runs it looks at the schedule, and in a run it tells of every page; the comparison of many
/// rows is one step.
const REBUILD_SILENCE: Duration = Duration::from_secs(300);

/// Starts every loop.
pub(super) fn start(supervisor: &mut Supervisor, handles: &Handles) {
    projector(supervisor, handles);
    act_on_timers(supervisor, handles);
    rebuild_hourly(supervisor, handles);
}

/// Acts on timers that have run out.
fn act_on_timers(supervisor: &mut Supervisor, handles: &Handles) {
    let (ledger, projections) = (handles.ledger.clone(), handles.projections.clone());
    supervisor.spawn("due", DUE_SILENCE, move |stop, status| {
        let (ledger, projections) = (ledger.clone(), projections.clone());
        async move {
            let report = |heard: due::Heard<'_>| match heard {
                due::Heard::Page(expired) => {
                    status.beat();
                    for (timer, count) in expired {
                        metrics::due_expired(timer, *count);
                    }
                }
                due::Heard::Swept(sweep) => {
                    status.succeed();
                    status.detail(format!("{} timers have run out", sweep.seen));
                }
                due::Heard::Failed(error) => status.trouble(error),
            };
            due::run(&ledger, &projections, stop, report).await;
            Ok(())
        }
    });
}

/// Rebuilds yesterday and today once in every hour.
fn rebuild_hourly(supervisor: &mut Supervisor, handles: &Handles) {
    let handles = handles.clone();
    supervisor.spawn("rebuild", REBUILD_SILENCE, move |stop, status| {
        let schedule = Schedule::new(handles.projections.clone());
        async move {
            let beating = status.clone();
            let control = Control {
                stop: stop.clone(),
                progress: std::sync::Arc::new(move |_| beating.beat()),
            };
            while !stop.is_cancelled() {
                match schedule.tick(&control).await {
                    Ok(Some(run)) => {
                        metrics::rebuild_ran(result(&run), run.rows_different.unsigned_abs());
                        status.detail(told(&run));
                    }
                    Ok(None) => {}
                    Err(RebuildError::Cancelled) => return Ok(()),
                    Err(error) => {
                        metrics::rebuild_ran("failed", 0);
                        return Err(error.into());
                    }
                }
                status.succeed();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
            Ok(())
        }
    });
}

const fn result(run: &Run) -> &'static str {
    if run.rows_different == 0 {
        "clean"
    } else {
        "drift"
    }
}

fn told(run: &Run) -> String {
    format!(
        "run {}, {} to {}: {} of {} rows differed",
        run.run, run.from, run.to, run.rows_different, run.rows_checked
    )
}

/// Keeps every projection at the head of the log.
fn projector(supervisor: &mut Supervisor, handles: &Handles) {
    let projections = handles.projections.clone();
    supervisor.spawn("projector", PROJECTOR_SILENCE, move |stop, status| {
        let projections = projections.clone();
        async move {
            let observer = |seen: Seen<'_>| match seen {
                Seen::Applied { projection, events } => {
                    status.beat();
                    metrics::events_applied(projection.name(), events);
                }
                Seen::Followed(progress) => {
                    status.succeed();
                    status.detail(detail(progress));
                }
                Seen::Failed(error) => status.trouble(error),
            };
            projections.follow_watched(stop, observer).await?;
            Ok(())
        }
    });
}

fn detail(progress: &Progress) -> String {
    let halted: Vec<String> = progress
        .halted()
        .map(|(projection, halt)| format!("{projection} is halted at {}", halt.position))
        .collect();
    match halted.as_slice() {
        [] => format!("at position {}", progress.head),
        some => some.join(", "),
    }
}
