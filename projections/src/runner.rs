//! The runner: reads the log a page at a time and applies each page to the projections that stand where it begins.
//!
//! Each step takes checkpoints, head and page from one snapshot, so it never acts on a place that it remembers; the page is decoded
//! once, on the reading thread. Projections that are behind come first, with pages that end where the next one stands, until
//! all go on together. Each batch is a transaction of its own ([`apply`]), which names the place that it begins at: any number
//! of runners, in any number of processes, may run at once, and each page is applied once.
//!
//! A projection that halts is left where it is for as long as this runner lives and nobody moves it; the others go on. A new
//! runner tries it again: after an upgrade it gets past. One that was skipped past its event, or made anew from the start, by whatever
//! process, is simply somewhere else at the next step, and goes on from there.
//!
//! A halt is logged by a follower, once; other callers are handed it with [`Progress`].
//!
//! Bounds: one page in memory; [`POLL`] between looks at the head, as other processes append without telling; [`LINGER`] after
//! the news of an append, so that many small appends make one batch and the writer keeps most of its time.

use std::sync::Arc;
use std::time::Duration;

use recoup::store::StoreError;
use recoup::{EventStore, Position};
use tokio_util::sync::CancellationToken;

use crate::Projections;
use crate::apply::{Applied, apply};
use crate::batch::Batch;
use crate::catalog::Projection;
use crate::checkpoint::{self, Checkpoint, Halt};
use crate::contradictions;
use crate::dead_letters;
use crate::error::{ProjectionError, damaged};

/// How long a follower waits before it looks at the head by itself.
const POLL: Duration = Duration::from_millis(200);

/// How long a follower lets appends gather.
const LINGER: Duration = Duration::from_millis(20);

/// The longest pause between tries while the store is unavailable.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The log's head when the run began: projections that are not halted are there now, or past it.
    pub head: Position,
    /// How many events this run read, each once for all projections that stood there.
    pub events_read: u64,
    /// How many events this run applied or skipped, summed over the projections.
    pub events_applied: u64,
    /// Where every projection is now.
    pub checkpoints: Vec<Checkpoint>,
}

impl Progress {
    /// The projections that an event stands in the way of.
    pub fn halted(&self) -> impl Iterator<Item = (Projection, &Halt)> {
        self.checkpoints
            .iter()
            .filter_map(|checkpoint| Some((checkpoint.projection, checkpoint.halted.as_ref()?)))
    }
}

/// What a follower tells whoever watches over it.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A batch was applied.
    Applied {
        /// To which projection.
        projection: Projection,
        /// How many events were applied or skipped.
        events: u64,
    },
    /// A run is over: every projection that can go on was brought to the head.
    Followed(&'a Progress),
    /// A run failed, for a while; it is tried again.
    Failed(&'a ProjectionError),
}

/// Hears what a follower has to tell; must not block.
pub(crate) type Observer<'a> = &'a (dyn Fn(Seen<'_>) + Send + Sync);

pub(crate) struct Runner<'a> {
    projections: &'a Projections,
    /// Where this runner saw a projection halt.
    halts: Vec<Parked>,
    observer: Observer<'a>,
}

/// A projection that this runner saw halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parked {
    projection: Projection,
    /// Where its checkpoint stood.
    at: Position,
    /// The event in its way.
    before: Position,
}

impl Parked {
    /// Where `checkpoint` is halted; none if it is not.
    fn of(checkpoint: &Checkpoint) -> Option<Self> {
        let halt = checkpoint.halted.as_ref()?;
        Some(Self {
            projection: checkpoint.projection,
            at: checkpoint.position,
            before: halt.position,
        })
    }
}

/// What to do next, all of one moment.
enum Next {
    /// Every projection that can go on has reached the target.
    Done(Vec<Checkpoint>),
    /// A page for the projections that stand at `from`.
    Page {
        from: Position,
        batch: Batch,
        standing: Vec<Projection>,
    },
}

impl<'a> Runner<'a> {
    /// Checks that every checkpoint counts this log, and in the way of this build.
    pub(crate) async fn start(projections: &'a Projections) -> Result<Self, ProjectionError> {
        let zone = projections.zone();
        projections
            .database
            .snapshot(move |tx| {
                for checkpoint in checkpoint::read_all(tx)? {
                    checkpoint.check_definition(zone)?;
                    checkpoint.check_event(tx)?;
                }
                Ok::<(), ProjectionError>(())
            })
            .await?;
        Ok(Self {
            projections,
            halts: Vec::new(),
            observer: &|_| {},
        })
    }

    fn watched_by(self, observer: Observer<'a>) -> Self {
        Self { observer, ..self }
    }

    /// Brings every projection that can go on to the head as it is now.
    pub(crate) async fn catch_up(&mut self) -> Result<Progress, ProjectionError> {
        let head = self.projections.database.head().await?;
        let (mut events_read, mut events_applied) = (0, 0);
        loop {
            let (from, batch, standing) = match self.next(head).await? {
                Next::Done(checkpoints) => {
                    return Ok(Progress {
                        head,
                        events_read,
                        events_applied,
                        checkpoints,
                    });
                }
                Next::Page {
                    from,
                    batch,
                    standing,
                } => (from, Arc::new(batch), standing),
            };
            events_read += batch.events.len() as u64;
            for projection in standing {
                let events = self.apply(projection, from, &batch).await?;
                events_applied += events;
                (self.observer)(Seen::Applied { projection, events });
            }
        }
    }

    async fn next(&self, target: Position) -> Result<Next, ProjectionError> {
        let projections = self.projections;
        let (halts, limit) = (self.halts.clone(), projections.page_events);
        let (catalog, zone) = (Arc::clone(&projections.catalog), projections.zone());
        let next = projections.database.snapshot(move |tx| {
            let checkpoints = checkpoint::read_all(tx)?;
            let Some((from, until)) = place(&checkpoints, &halts, target) else {
                return Ok(Next::Done(checkpoints));
            };
            let batch = Batch::read(tx, (&catalog, zone), (from, until), limit)?;
            if batch.events.is_empty() && batch.unreadable.is_none() {
                // The head is past it: to go round and round would be worse than to say so.
                let why = format_args!("no event after position {from}");
                return Err(damaged("appends", why));
            }
            let standing = checkpoints
                .iter()
                .filter(|checkpoint| checkpoint.position == from && !is_parked(checkpoint, &halts))
                .map(|checkpoint| checkpoint.projection);
            Ok::<Next, StoreError>(Next::Page {
                from,
                standing: standing.collect(),
                batch,
            })
        });
        let mut next = next.await?;
        if let Next::Page {
            batch, standing, ..
        } = &mut next
        {
            let (database, catalog) = (&projections.database, &projections.catalog);
            if standing.contains(&Projection::Contradictions) {
                batch.payers = contradictions::payers(database, catalog, batch).await?;
            }
            if standing.contains(&Projection::DeadLetters) {
                batch.fates = dead_letters::fates(database, catalog, batch).await?;
            }
        }
        Ok(next)
    }

    /// Applies a page to one projection. Gives the number of events that it applied or skipped.
    async fn apply(
        &mut self,
        projection: Projection,
        from: Position,
        batch: &Arc<Batch>,
    ) -> Result<u64, ProjectionError> {
        let (batch, zone) = (Arc::clone(batch), self.projections.zone());
        let loading = self.projections.loading;
        let applied = self
            .projections
            .database
            .write(move |tx| apply(tx, zone, (projection, loading), from, &batch))
            .await?;
        Ok(match applied {
            Applied::Moved => 0,
            Applied::StillHalted(before) => {
                self.park(projection, from, before);
                0
            }
            Applied::Advanced { to, events, halted } => {
                tracing::debug!(projection.name = %projection, position = %to, events, "a batch is applied");
                if let Some(halt) = halted {
                    self.park(projection, to, halt.position);
                }
                events
            }
        })
    }

    /// Remembers where a projection halted, in place of where it halted before.
    fn park(&mut self, projection: Projection, at: Position, before: Position) {
        self.halts.retain(|parked| parked.projection != projection);
        self.halts.push(Parked {
            projection,
            at,
            before,
        });
    }
}

/// Where the next page begins and where it ends at the latest: at the hindmost projection that can go on, and at the
/// next one. None once all of them have reached `target`.
fn place(
    checkpoints: &[Checkpoint],
    halts: &[Parked],
    target: Position,
) -> Option<(Position, Position)> {
    let going = || {
        checkpoints
            .iter()
            .filter(|checkpoint| !is_parked(checkpoint, halts))
            .map(|checkpoint| checkpoint.position)
    };
    let from = going().filter(|position| *position < target).min()?;
    let next = going().filter(|position| *position > from).min();
    Some((from, next.unwrap_or(Position::new(i64::MAX))))
}

/// Whether a projection still stands where this runner saw it halt. One that was made anew and has come to the same place is tried
/// again: its checkpoint does not say that it is halted.
fn is_parked(checkpoint: &Checkpoint, halts: &[Parked]) -> bool {
    Parked::of(checkpoint).is_some_and(|parked| halts.contains(&parked))
}

/// Keeps every projection at the head until `stop` is cancelled. Only an error that time does not heal ends it otherwise.
pub(crate) async fn follow(
    projections: &Projections,
    stop: &CancellationToken,
    observer: Observer<'_>,
) -> Result<(), ProjectionError> {
    let mut appended = projections.database.appended();
    let mut runner = None;
    let mut told = Vec::new();
    let mut pause = POLL;
    loop {
        // Marked as seen before the head is read: what is appended meanwhile wakes the next wait.
        appended.borrow_and_update();
        // A batch that is on its way when this future is dropped is committed or rolled back by the writer, whole.
        let Some(ran) = stop
            .run_until_cancelled(run(projections, &mut runner, observer))
            .await
        else {
            return Ok(());
        };
        match ran {
            Ok(progress) => {
                pause = POLL;
                tell_halts(&progress, &mut told);
                observer(Seen::Followed(&progress));
            }
            Err(error) if error.is_transient() => {
                pause = pause.saturating_mul(2).min(MAX_PAUSE);
                tracing::warn!(%error, pause_ms = pause.as_millis(), "projections fall behind");
                observer(Seen::Failed(&error));
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
            // While the store is unavailable there is no news worth waking for.
            Ok(()) = appended.changed(), if pause == POLL => tokio::time::sleep(LINGER).await,
        }
    }
}

async fn run<'a>(
    projections: &'a Projections,
    runner: &mut Option<Runner<'a>>,
    observer: Observer<'a>,
) -> Result<Progress, ProjectionError> {
    let runner = match runner {
        Some(runner) => runner,
        None => runner.insert(Runner::start(projections).await?.watched_by(observer)),
    };
    runner.catch_up().await
}

/// Logs the halts that were not logged before, and forgets those that are over.
fn tell_halts(progress: &Progress, told: &mut Vec<Parked>) {
    let halted: Vec<Parked> = progress.checkpoints.iter().filter_map(Parked::of).collect();
    for (projection, Halt { position, reason }) in progress.halted() {
        let is_told = told
            .iter()
            .any(|told| halted.contains(told) && told.projection == projection);
        if !is_told {
            tracing::error!(projection.name = %projection, %position, reason, "a projection is halted");
        }
    }
    *told = halted;
}
