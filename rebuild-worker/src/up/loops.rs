//! The loops of `recoup up`, all of them. To add one: a function here that spawns it, and its name in [`start`].
//!
//! Any number of these processes may run on one ledger, so that no loop may rely on being the only one of its kind.

use std::time::Duration;

use recoup_projections::{Progress, Seen};

use super::Handles;
use super::supervisor::Supervisor;
use crate::metrics;

/// How long the projector may be silent: its longest pause is 5 s, and a batch waits as long again for another process.
const PROJECTOR_SILENCE: Duration = Duration::from_secs(30);

/// Starts every loop.
pub(super) fn start(supervisor: &mut Supervisor, handles: &Handles) {
    projector(supervisor, handles);
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
