//! The hourly rebuild: a repair of yesterday and today, once in every hour, by one process.
//!
//! Hours are counted in UTC since 1970, so that a clock change of the ledger's zone makes no hour come twice or never; days are the zone's. The
//! store's clock never goes back behind the log. The last hour that ended well is stored (`rebuild_schedule`), and an hour is over
//! only when its run ended well: one that failed or died is tried again.
//!
//! Reach-back: a run begins with the last day of the last good run, if that is before yesterday; the first run of a ledger begins with its first day.
//! So no day is left out, however long nothing ran.
//!
//! The lease ([`LEASE`], renewed while the run goes on) keeps processes from doing the same work. It carries no correctness: a process that was stopped
//! past its lease and wakes up repairs nothing that is right.
//!
//! What no run of these can have written, an hour or a lease far in the future, was written by a clock that was wrong: it is not waited for. While a backfill
//! is open there is no scheduled run, as it would vouch for days that are still being filled; the first one behind it begins with the first day.

use std::time::Duration;

use recoup::sql::Transaction;
use recoup::store::StoreError;
use recoup::{Day, EventStore, Position, Timestamp, Zone, values};
use recoup_projections::Projections;
use uuid::Uuid;

use super::{Control, Mode, Origin, RebuildError, Request, Run, Window, rebuild, runs};

/// How long a process that gives no sign of life keeps the hour to itself.
pub const LEASE: Duration = Duration::from_secs(120);

/// How often the schedule is looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(15);

/// How many hours ahead of ours another machine's clock may be.
const SKEW_HOURS: i64 = 2;

/// An hour, in microseconds.
const HOUR_US: i64 = 3_600_000_000;

/// The scheduled rebuild of one process.
#[derive(Debug, Clone)]
pub struct Schedule {
    projections: Projections,
    holder: String,
}

/// An hour to be had, and the days that it takes.
struct Ticket {
    hour: i64,
    window: Window,
}

impl Schedule {
    /// The schedule over `projections`, for this process.
    #[must_use]
    pub fn new(projections: Projections) -> Self {
        Self {
            projections,
            holder: Uuid::new_v4().to_string(),
        }
    }

    /// Runs this hour's rebuild if nobody has; gives the run.
    pub async fn tick(&self, control: &Control) -> Result<Option<Run>, RebuildError> {
        let Some(ticket) = self.take().await? else {
            return Ok(None);
        };
        let request = Request {
            window: ticket.window,
            account: None,
            mode: Mode::Repair,
            origin: Origin::Hourly,
        };
        let ran = tokio::select! {
            ran = rebuild(&self.projections, &request, control) => ran,
            lost = self.keep_lease() => Err(lost),
        };
        let hour = ran.is_ok().then_some(ticket.hour);
        let released = self.release(hour).await;
        let run = ran?;
        released?;
        if run.rows_different > 0 {
            tracing::error!(
                rebuild.run = run.run,
                rows_different = run.rows_different,
                rows_recurring = run.rows_recurring,
                worst_ratio = run.worst_ratio,
                "drift: rows differed from the log"
            );
        }
        Ok(Some(run))
    }

    async fn take(&self) -> Result<Option<Ticket>, RebuildError> {
        let database = self.projections.database();
        let (now, zone) = (database.now(), database.identity().zone);
        let holder = self.holder.clone();
        let look = holder.clone();
        // A look first: it needs no write lock.
        if !database.snapshot(move |tx| is_free(tx, now, &look)).await? {
            return Ok(None);
        }
        database
            .write(move |tx| {
                if !is_free(tx, now, &holder)? {
                    return Ok(None);
                }
                let sql = "INSERT INTO rebuild_schedule (one, hour, holder, lease_until) VALUES (1, 0, ?1, ?2)
                    ON CONFLICT (one) DO UPDATE SET holder = ?1, lease_until = ?2";
                tx.execute(sql, values![holder, now.after(LEASE).as_micros()])?;
                let hour = now.as_micros().div_euclid(HOUR_US);
                let window = window(tx, now, zone)?;
                Ok(Some(Ticket { hour, window }))
            })
            .await
    }

    /// Renews the lease on and on; ends only with an error.
    async fn keep_lease(&self) -> RebuildError {
        loop {
            tokio::time::sleep(LEASE / 4).await;
            let database = self.projections.database();
            let (until, holder) = (database.now().after(LEASE), self.holder.clone());
            let renewed = database.write(move |tx| {
                let sql = "UPDATE rebuild_schedule SET lease_until = ?2 WHERE holder = ?1";
                tx.execute(sql, values![holder, until.as_micros()])
            });
            // A lease that was lost costs double work and nothing else: the run goes on.
            if let Err(error) = renewed.await {
                let error: StoreError = error;
                tracing::warn!(%error, "the lease of the hourly rebuild was not renewed");
            }
        }
    }

    async fn release(&self, hour: Option<i64>) -> Result<(), RebuildError> {
        let holder = self.holder.clone();
        let released = self.projections.database().write(move |tx| {
            let done =
                "UPDATE rebuild_schedule SET hour = ?1 WHERE one = 1 AND (hour < ?1 OR hour > ?2)";
            if let Some(hour) = hour {
                tx.execute(done, values![hour, hour.saturating_add(SKEW_HOURS)])?;
            }
            let free =
                "UPDATE rebuild_schedule SET holder = NULL, lease_until = 0 WHERE holder = ?1";
            tx.execute(free, values![holder])?;
            Ok::<_, StoreError>(())
        });
        Ok(released.await?)
    }
}

/// Whether this hour has had no run, no other process is at it, and there may be one.
fn is_free(tx: &Transaction<'_>, now: Timestamp, holder: &str) -> Result<bool, RebuildError> {
    let backfill = "SELECT 1 FROM backfill WHERE state <> 'closed'";
    if tx.row(backfill, values![], |_| Ok(()))?.is_some() {
        return Ok(false);
    }
    let sql = "SELECT hour, holder, lease_until FROM rebuild_schedule WHERE one = 1";
    let row = tx.row(sql, values![], |row| {
        Ok((
            row.get::<i64>(0)?,
            row.get::<Option<String>>(1)?,
            row.get::<i64>(2)?,
        ))
    })?;
    let Some((hour, held_by, lease_until)) = row else {
        return Ok(true);
    };
    let this_hour = now.as_micros().div_euclid(HOUR_US);
    let last_hour = this_hour.saturating_add(SKEW_HOURS);
    let last_lease = now
        .after(LEASE)
        .as_micros()
        .saturating_add(SKEW_HOURS * HOUR_US);
    let is_had = (this_hour..=last_hour).contains(&hour);
    let is_held = held_by.is_some_and(|other| other != holder)
        && lease_until > now.as_micros()
        && lease_until <= last_lease;
    if hour > last_hour || lease_until > last_lease {
        tracing::warn!(
            hour,
            this_hour,
            lease_until,
            "the schedule of rebuilds is from the future: it is not waited for"
        );
    }
    Ok(!is_had && !is_held)
}

/// Yesterday and today, and every day since the last good run's last one.
fn window(tx: &Transaction<'_>, now: Timestamp, zone: Zone) -> Result<Window, RebuildError> {
    let today = zone.day_of(now);
    let reach: Option<Day> = match runs::last_good_day(tx)? {
        Some(day) => Some(day),
        None => {
            let first = tx.read_page(Position::START, 1)?;
            first.first().map(|event| zone.day_of(event.posted_at))
        }
    };
    let from = reach
        .map_or(today, |day| day.min(today))
        .min(today.previous());
    Ok(Window::Days { from, to: today })
}
