//! The due loop: acts on timers that have run out. One loop for all of them: jobs that nobody started, leases that nobody renewed, retries
//! that nobody took.
//!
//! It reads what has run out from a [`DueSource`] and sends [`JobCommand::Expire`](recoup::JobCommand::Expire), which names the very timer and the event that set it.
//! The source may lag, or be halted: the loop then acts on what it knows, and a stale row does no harm, as the command does nothing
//! unless that timer still runs and its time is over by the store's clock. Command ids derive from job, timer and that event's
//! revision: any number of loops, in any number of processes, do each thing once.
//!
//! What spreads a backlog of rescues: the *retries* of leases that ran out together are spread by the policy's jitter, a hash of job and
//! attempt that is in the event; the *loop* itself sends [`PAGE`] commands at a time, which share commits, and pauses [`PACE`] after
//! each page, so that others get their turn at the writer.
//!
//! Bounds: a page in memory, beside it what it remembers of the rows that the source still shows: those that are over, so as not to ask again
//! ([`sweep`]), and those in trouble. Between sweeps it waits for the next deadline, at most [`IDLE`], or for an append, at least
//! [`LINGER`]. While the store does not answer it waits up to [`MAX_PAUSE`].

mod sweep;

use std::time::Duration;

use recoup::{DueSource, Ledger, Timestamp};
use recoup_projections::{ProjectionError, Projections};
use tokio_util::sync::CancellationToken;

pub use sweep::{Heard, Sweep, Sweeper};

/// How many timers are acted on at a time.
pub const PAGE: usize = 64;

/// The pause after a page.
pub const PACE: Duration = Duration::from_millis(20);

/// The longest wait for a deadline: other processes append without telling, and clocks are set.
pub const IDLE: Duration = Duration::from_secs(1);

/// How long appends are let to gather before the source is looked at again.
pub const LINGER: Duration = Duration::from_millis(100);

/// How many rows the source may show for an append to wake the loop: a longer list is read once in [`IDLE`] and no more.
const LONG_LIST: u64 = 1_000;

/// The longest pause while the store does not answer.
pub const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Acts on timers until `stop` is cancelled. `report` hears of every page, sweep and failure, for gauges.
///
/// Nothing ends it but `stop`: what cannot be done now is tried again, more and more rarely.
pub async fn run(
    ledger: &Ledger,
    due: &dyn DueSource,
    stop: CancellationToken,
    report: impl Fn(Heard<'_>) + Send + Sync,
) {
    let mut sweeper = Sweeper::new(PACE);
    let mut appended = ledger.store().appended();
    let mut pause = IDLE;
    loop {
        // Marked as seen before the source is read: what is appended meanwhile wakes the next wait.
        appended.borrow_and_update();
        // An expiry that is on its way when this future is dropped is committed or not, whole; its id finds it again.
        let sweeping = sweeper.sweep_heard(ledger, due, &report);
        let swept = stop.run_until_cancelled(sweeping).await;
        let Some(swept) = swept else { return };
        let is_listening = match swept {
            Ok(sweep) => {
                pause = wait_for(ledger.now().over_by(), sweep.next_deadline);
                report(Heard::Swept(&sweep));
                sweep.seen <= LONG_LIST
            }
            Err(error) => {
                // Said once, until there is an answer again.
                if pause <= IDLE {
                    tracing::warn!(%error, "timers wait");
                }
                pause = longer(pause);
                report(Heard::Failed(&error));
                false
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            // While the store does not answer, or the source does not keep up, there is no news worth waking for.
            Ok(()) = appended.changed(), if is_listening => {
                let gathered = tokio::time::sleep(LINGER);
                if stop.run_until_cancelled(gathered).await.is_none() {
                    return;
                }
            }
        }
    }
}

/// The pause after one in which the store did not answer again.
fn longer(pause: Duration) -> Duration {
    pause.saturating_mul(2).clamp(IDLE, MAX_PAUSE)
}

/// How long to wait for `deadline`, from `now`.
fn wait_for(now: Timestamp, deadline: Option<Timestamp>) -> Duration {
    // Never nothing at all: a deadline that was over when the sweep began has been acted on.
    let shortest = Duration::from_millis(1);
    deadline.map_or(IDLE, |deadline| deadline.since(now).clamp(shortest, IDLE))
}

/// Why timers could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The projections could not be brought to the head.
    #[error(transparent)]
    Projections(#[from] ProjectionError),
    /// The store does not answer.
    #[error(transparent)]
    Ledger(#[from] recoup::LedgerError),
}

/// Acts on timers, and brings `projections` to the head in between, until nothing is due at the store's `now`. For simulations and tests, whose
/// clock stands still meanwhile: every timer that is set anew then runs out later than `now`.
///
/// Jobs in trouble are left where they are. Gives the sum of its sweeps.
pub async fn settle(ledger: &Ledger, projections: &Projections) -> Result<Sweep, SettleError> {
    let mut sweeper = Sweeper::new(Duration::ZERO);
    let mut total = Sweep::default();
    loop {
        projections.catch_up().await?;
        let sweep = sweeper.sweep(ledger, projections).await?;
        let is_done = sweep.expired == 0;
        total.add(sweep);
        if is_done {
            return Ok(total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_on_both_sides() {
        let now = Timestamp::from_micros(1_000_000);
        let after = |ms| Some(now.after(Duration::from_millis(ms)));
        for (deadline, wait_ms) in [
            (None, 1_000),
            (after(0), 1),
            (after(30), 30),
            (after(9_000), 1_000),
        ] {
            assert_eq!(wait_for(now, deadline), Duration::from_millis(wait_ms));
        }
        let mut pause = Duration::from_millis(1);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pause = longer(pause);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }
}
