//! One run, from its request to its record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use recoup::store::sqlite::{read_page, read_position_before};
use recoup::{Day, EventStore, Position, Timestamp, Zone};
use recoup_projections::{LogReader, Projection, Projections, read_checked};
use rusqlite::Connection;
use tokio_util::sync::CancellationToken;

use super::compare::compare;
use super::repair::settle;
use super::runs::{Record, Run, Sign, Subject};
use super::shadow::{Extent, Shadow};
use super::window::{Window, scan_from, scan_until};
use super::{RebuildError, Request};

/// How often a run gives a sign of life.
const SIGN_EVERY: Duration = Duration::from_secs(1);

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
        ledger: &Connection,
        window: Window,
        (now, zone): (Timestamp, Zone),
        reader: LogReader,
    ) -> Result<Self, RebuildError> {
        let reader = reader.as_skipped_by(ledger, Projection::DailyUsage)?;
        let checkpoint = read_checked(ledger, Projection::DailyUsage, zone)?.position;
        let first = read_page(ledger, Position::START, 1)?;
        let first = first.first().map(|event| zone.day_of(event.posted_at));
        let days = window.resolve(now, zone, first);
        let (from, until) = match window {
            Window::All => (Position::START, Position::new(i64::MAX)),
            Window::Last(_) | Window::Days { .. } => {
                let from = read_position_before(ledger, scan_from(zone, days.0))?;
                let end = scan_until(zone, days.1);
                let until = if now >= end {
                    read_position_before(ledger, end)?
                } else {
                    Position::new(i64::MAX)
                };
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
    let store = projections.store();
    let (now, zone) = (store.now(), store.identity().zone);
    let (window, reader) = (request.window, projections.log_reader());
    let start = store
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
    let record = Record::begin(store, subject).await?;
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
    let zone = projections.store().identity().zone;
    let reader = start.reader.clone();
    let is_all = request.window == Window::All;
    let extent = Extent {
        days: (!is_all).then_some(start.days),
        account: request.account.clone(),
    };
    let shadow = Shadow::new(reader.clone(), extent, (start.from, start.until))?;
    let shadow = fold(projections, shadow, (record, start), control).await?;
    let events_total = u64::try_from(start.events()).unwrap_or(0);
    let told = |phase, shadow: &Shadow| {
        (control.progress)(Progress {
            phase,
            events_read: shadow.events_read,
            events_total,
        });
        let sign = Sign {
            phase,
            position: shadow.position().get(),
            events_read: i64::try_from(shadow.events_read).unwrap_or(i64::MAX),
        };
        record.sign(sign)
    };
    told("compare", &shadow).await?;
    let (shadow, compared) = projections
        .store()
        .snapshot(move |ledger| {
            let mut shadow = shadow;
            let compared = compare(ledger, &mut shadow, (&reader, zone))?;
            Ok::<_, RebuildError>((shadow, compared))
        })
        .await?;
    told("repair", &shadow).await?;
    let settled = settle(
        projections,
        shadow,
        (record, request.mode, zone),
        &control.stop,
    )
    .await?;
    record.done(compared, settled.events_read).await
}

/// Folds the log up to the checkpoint as it was when the run began, a page at a time.
async fn fold(
    projections: &Projections,
    mut shadow: Shadow,
    (record, start): (&Record, &Start),
    control: &Control,
) -> Result<Shadow, RebuildError> {
    let mut signed = Instant::now();
    let target = start.checkpoint;
    loop {
        if control.stop.is_cancelled() {
            return Err(RebuildError::Cancelled);
        }
        let (folded, is_more) = projections
            .store()
            .snapshot(move |ledger| {
                let is_more = shadow.step(ledger, target)?;
                Ok::<_, RebuildError>((shadow, is_more))
            })
            .await?;
        shadow = folded;
        if !is_more {
            return Ok(shadow);
        }
        (control.progress)(Progress {
            phase: "fold",
            events_read: shadow.events_read,
            events_total: u64::try_from(start.events()).unwrap_or(0),
        });
        if signed.elapsed() >= SIGN_EVERY {
            signed = Instant::now();
            let sign = Sign {
                phase: "fold",
                position: shadow.position().get(),
                events_read: i64::try_from(shadow.events_read).unwrap_or(i64::MAX),
            };
            record.sign(sign).await?;
        }
    }
}
