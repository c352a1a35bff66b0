//! One run, from its request to its record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use recoup::sql::Transaction;
use recoup::{Day, EventStore, Position, Timestamp, Zone};
use recoup_projections::{LogReader, Projection, Projections, read_checked};
use tokio_util::sync::CancellationToken;

use super::compare::compare;
use super::repair::settle;
use super::runs::{Record, Run, Sign, Subject};
use super::shadow::{Extent, Shadow};
use super::window::{Window, scan_from, scan_until};
use super::{RebuildError, Request};

/// How often a run gives a sign of life.
pub(crate) const SIGN_EVERY: Duration = Duration::from_secs(1);

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// `fold`, `compare` or `repair`.
    pub phase: &'static str,
    /// How many events have been read.
    pub events_read: u64,
    /// How many there are to read, as estimated at the beginning.
    pub events_total: u64,
}

/// How a run is watched and stopped.
#[derive(Clone)]
pub struct Control {
    /// Cancels the run: between two pages, or two transactions.
    pub stop: CancellationToken,
    /// Told of every page.
    pub progress: Arc<dyn Fn(Progress) + Send + Sync>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Default for Control {
    fn default() -> Self {
        Self {
            stop: CancellationToken::new(),
            progress: Arc::new(|_| {}),
        }
    }
}

/// What a run begins with, all of one moment.
struct Start {
    days: (Day, Day),
    from: Position,
    until: Position,
    checkpoint: Position,
    reader: LogReader,
}

impl Start {
    fn read(
        ledger: &Transaction<'_>,
        window: Window,
        (now, zone): (Timestamp, Zone),
        reader: LogReader,
    ) -> Result<Self, RebuildError> {
        let reader = reader.as_skipped_by(ledger, Projection::DailyUsage)?;
        let checkpoint = read_checked(ledger, Projection::DailyUsage, zone)?.position;
        let first = ledger.read_page(Position::START, 1)?;
        let first = first.first().map(|event| zone.day_of(event.posted_at));
        let days = window.resolve(now, zone, first);
        let (from, until) = match window {
            Window::All => (Position::START, Position::new(i64::MAX)),
            Window::Last(_) | Window::Days { .. } => {
                let from = ledger.read_scan_begin(scan_from(zone, days.0))?;
                // A day is over once the log has left it behind, whatever a clock says: while a backfill goes on, events are posted into days long past.
                let until = ledger.read_scan_end(scan_until(zone, days.1))?;
                let until = until.unwrap_or(Position::new(i64::MAX));
                (from, until)
            }
        };
        Ok(Self {
            days,
            from,
            until,
            checkpoint,
            reader,
        })
    }

    fn events(&self) -> i64 {
        let last = self.checkpoint.min(self.until);
        last.get().saturating_sub(self.from.get()).max(0)
    }
}

/// Carries out a rebuild and records it. Its exit is the record: also a run that found differences ends well.
#[tracing::instrument(skip_all, fields(rebuild.mode = request.mode.name(), rebuild.origin = request.origin.name()))]
pub async fn rebuild(
    projections: &Projections,
    request: &Request,
    control: &Control,
) -> Result<Run, RebuildError> {
    let database = projections.database();
    let (now, zone) = (database.now(), database.identity().zone);
    let (window, reader) = (request.window, projections.log_reader());
    let start = database
        .snapshot(move |ledger| Start::read(ledger, window, (now, zone), reader))
        .await?;
    let subject = Subject {
        mode: request.mode,
        origin: request.origin,
        is_all: window == Window::All,
        account: request.account.clone(),
        days: start.days,
        events_total: start.events(),
    };
    let record = Record::begin(database, subject).await?;
    match carry_out(projections, request, (&record, &start), control).await {
        Ok(run) => Ok(run),
        Err(error) => {
            record.failed(&error).await;
            Err(error)
        }
    }
}

async fn carry_out(
    projections: &Projections,
    request: &Request,
    (record, start): (&Record, &Start),
    control: &Control,
) -> Result<Run, RebuildError> {
    let zone = projections.database().identity().zone;
    let reader = start.reader.clone();
    let is_all = request.window == Window::All;
    let extent = Extent {
        days: (!is_all).then_some(start.days),
        account: request.account.clone(),
    };
    let shadow = Shadow::new(reader.clone(), extent, (start.from, start.until))?;
    let shadow = fold(projections, shadow, (record, start), control).await?;
    let events_total = u64::try_from(start.events()).unwrap_or(0);
    let watch = Watch {
        record,
        control,
        events_total,
    };
    watch.tell("compare", shadow.mark()).await;
    let stop = control.stop.clone();
    let (shadow, compared) = projections
        .database()
        .snapshot(move |ledger| {
            let mut shadow = shadow;
            let compared = compare(ledger, &mut shadow, (&reader, zone), &stop)?;
            Ok::<_, RebuildError>((shadow, compared))
        })
        .await?;
    watch.tell("repair", shadow.mark()).await;
    let subject = (record, request.mode, zone);
    let settled = settle(projections, shadow, subject, &watch).await?;
    record.done(compared, settled.events_read).await
}

/// Whoever watches a run: a callback, and the run's row.
pub(crate) struct Watch<'a> {
    record: &'a Record,
    pub(crate) control: &'a Control,
    events_total: u64,
}

impl Watch<'_> {
    /// Tells how far the run is. That a sign of life could not be written is no reason to end a run.
    pub(crate) async fn tell(&self, phase: &'static str, (position, events_read): (Position, u64)) {
        (self.control.progress)(Progress {
            phase,
            events_read,
            events_total: self.events_total,
        });
        let sign = Sign {
            phase,
            position: position.get(),
            events_read: i64::try_from(events_read).unwrap_or(i64::MAX),
        };
        if let Err(error) = self.record.sign(sign).await {
            tracing::warn!(%error, "the progress of a rebuild could not be recorded");
        }
    }
}

/// How far behind its checkpoint the fold may be when the comparison begins: what is left is folded in its snapshot.
const MAX_BEHIND_EVENTS: i64 = 20_000;

/// How often the fold goes after a checkpoint that has moved on.
const MAX_ROUNDS: u32 = 64;

/// Folds the log, a page at a time, until it is near the checkpoint.
async fn fold(
    projections: &Projections,
    mut shadow: Shadow,
    (record, start): (&Record, &Start),
    control: &Control,
) -> Result<Shadow, RebuildError> {
    let zone = projections.database().identity().zone;
    let watch = Watch {
        record,
        control,
        events_total: u64::try_from(start.events()).unwrap_or(0),
    };
    let (mut target, mut signed) = (start.checkpoint, Instant::now());
    for _ in 0..MAX_ROUNDS {
        let mut is_more = true;
        while is_more {
            if control.stop.is_cancelled() {
                return Err(RebuildError::Cancelled);
            }
            (shadow, is_more) = projections
                .database()
                .snapshot(move |ledger| {
                    let is_more = shadow.step(ledger, target)?;
                    Ok::<_, RebuildError>((shadow, is_more))
                })
                .await?;
            (control.progress)(Progress {
                phase: "fold",
                events_read: shadow.events_read,
                events_total: watch.events_total,
            });
            if signed.elapsed() >= SIGN_EVERY {
                signed = Instant::now();
                watch.tell("fold", shadow.mark()).await;
            }
        }
        let (checkpoint, distance) = projections
            .database()
            .snapshot(move |ledger| {
                let to = read_checked(ledger, Projection::DailyUsage, zone)?.position;
                Ok::<_, RebuildError>((to, ledger.most_events_between(target, to)))
            })
            .await?;
        if distance <= MAX_BEHIND_EVENTS {
            break;
        }
        target = checkpoint;
    }
    Ok(shadow)
}
