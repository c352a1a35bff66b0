//! Named loops that are started again when they end, fail or panic.
//!
//! Each loop runs in a task of its own, inside a task that supervises it. After a failure it pauses, twice as long each time up to a
//! cap, with jitter, so that processes that failed together do not come back together. A loop that ran for [`STEADY`] begins with the
//! shortest pause again. A failure that time does not heal ([`Failure::Lasting`]) shows the loop as stopped; it is still tried again,
//! at longer pauses: the repair may be made by another process, and then needs no restart of this one.
//!
//! Each failure is counted and logged once; the same one again and again is logged when it is new only.
//!
//! Bounds: a pause is at most [`MAX_PAUSE`] or [`MAX_STOPPED_PAUSE`]; [`Supervisor::stop`] waits as long as it is told to.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use recoup::store::StoreError;
use recoup_projections::ProjectionError;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::status::{LoopStatus, LoopView};
use crate::metrics;
use crate::rebuild::RebuildError;

/// The first pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause after a failure.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The first pause of a loop that is stopped.
const FIRST_STOPPED_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause of a loop that is stopped.
const MAX_STOPPED_PAUSE: Duration = Duration::from_secs(60);

/// How long a loop must have run for its earlier failures to count no more.
const STEADY: Duration = Duration::from_secs(120);

/// Why a loop came to its end.
#[derive(Debug)]
pub enum Failure {
    /// It may go better after a pause.
    Passing(anyhow::Error),
    /// Time does not heal it: somebody must do something.
    Lasting(anyhow::Error),
}

impl From<ProjectionError> for Failure {
    fn from(error: ProjectionError) -> Self {
        if error.is_transient() {
            Self::Passing(error.into())
        } else {
            Self::Lasting(error.into())
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        ProjectionError::from(error).into()
    }
}

impl From<RebuildError> for Failure {
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Projection(error) => error.into(),
            RebuildError::Store(error) => error.into(),
            RebuildError::Overflow { .. } => Self::Lasting(error.into()),
            RebuildError::Shadow(_)
            | RebuildError::ShadowFigures(_)
            | RebuildError::SetBack { .. }
            | RebuildError::TooBusy
            | RebuildError::Cancelled => Self::Passing(error.into()),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Passing(error)
    }
}

/// Loops, and the word that stops them.
#[derive(Debug, Default)]
pub struct Supervisor {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    loops: Loops,
}

/// The loops of a supervisor, to look at.
#[derive(Debug, Clone, Default)]
pub struct Loops(Arc<Mutex<Vec<Arc<LoopStatus>>>>);

impl Loops {
    /// Every loop as it is now, in the order in which they were started.
    #[must_use]
    pub fn views(&self) -> Vec<LoopView> {
        self.all().iter().map(|status| status.view()).collect()
    }

    fn all(&self) -> Vec<Arc<LoopStatus>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn add(&self, status: Arc<LoopStatus>) {
        let mut loops = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loops.push(status);
    }
}

impl Supervisor {
    /// Starts the loop `name`, which promises to beat at least every `silence`.
    ///
    /// `body` is called again for each restart. It is given the token that tells it to stop, upon which it finishes what it is at and
    /// returns; and its status, to beat on.
    pub fn spawn<B, F>(&mut self, name: &'static str, silence: Duration, body: B)
    where
        B: Fn(CancellationToken, Arc<LoopStatus>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let status = LoopStatus::new(name, silence);
        self.loops.add(Arc::clone(&status));
        metrics::declare_loop(name);
        let (body, stop) = (Arc::new(body), self.stop.clone());
        self.tasks.spawn(supervise(body, stop, status));
    }

    /// The loops, to look at; also those that are started later.
    #[must_use]
    pub fn loops(&self) -> Loops {
        self.loops.clone()
    }

    /// Tells every loop to stop and waits for them, for at most `bound`. Gives the names of those that had not ended by then, which are
    /// dropped where they are.
    pub async fn stop(&mut self, bound: Duration) -> Vec<&'static str> {
        self.stop.cancel();
        let all_ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(bound, all_ended).await.is_ok() {
            return Vec::new();
        }
        let late = self.loops.all().into_iter();
        let late = late.filter(|status| !status.view().has_ended());
        let late: Vec<_> = late.map(|status| status.name()).collect();
        self.tasks.abort_all();
        late
    }
}

async fn supervise<B, F>(body: Arc<B>, stop: CancellationToken, status: Arc<LoopStatus>)
where
    B: Fn(CancellationToken, Arc<LoopStatus>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let mut failures = 0_u32;
    let mut told = None;
    loop {
        let began = Instant::now();
        let (run, token, own) = (Arc::clone(&body), stop.clone(), Arc::clone(&status));
        // In a task of its own, for its panic to end there; dropped with this one.
        let task = tokio::spawn(async move { run(token, own).await });
        let ended = AbortOnDropHandle::new(task).await;
        let failure = match ended {
            Ok(Ok(())) if stop.is_cancelled() => return status.end(None),
            Ok(Ok(())) => Failure::Passing(anyhow::anyhow!("it ended by itself")),
            Ok(Err(failure)) => failure,
            Err(died) => Failure::Passing(anyhow::anyhow!(words_of(died))),
        };
        if began.elapsed() >= STEADY {
            (failures, told) = (0, None);
        }
        let (error, is_lasting) = match &failure {
            Failure::Passing(error) => (format!("{error:#}"), false),
            Failure::Lasting(error) => (format!("{error:#}"), true),
        };
        let pause = pause(failures, is_lasting, jitter());
        if told.as_ref() != Some(&error) {
            let (name, pause_ms) = (status.name(), pause.as_millis());
            tracing::error!(loop.name = name, error, is_lasting, pause_ms, "a loop failed");
            told = Some(error.clone());
        }
        if stop.is_cancelled() {
            return status.end(Some(error));
        }
        status.fail(is_lasting, &error);
        if stop
            .run_until_cancelled(tokio::time::sleep(pause))
            .await
            .is_none()
        {
            return status.end(Some(error));
        }
        failures = failures.saturating_add(1);
        status.restart();
        metrics::loop_restarted(status.name());
    }
}

/// What a task died of.
fn words_of(died: JoinError) -> String {
    let Ok(panic) = died.try_into_panic() else {
        return "its task was aborted".to_owned();
    };
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a text"))
}

/// The pause after `failures` earlier ones in a row: between half of the step and all of it, by `jitter` in [0, 1).
fn pause(failures: u32, is_lasting: bool, jitter: f64) -> Duration {
    let (first, max) = if is_lasting {
        (FIRST_STOPPED_PAUSE, MAX_STOPPED_PAUSE)
    } else {
        (FIRST_PAUSE, MAX_PAUSE)
    };
    let step = first
        .saturating_mul(2_u32.saturating_pow(failures))
        .min(max);
    step.mul_f64(1.0 - jitter / 2.0)
}

/// A number in [0, 1), another one in each process.
fn jitter() -> f64 {
    let bits = uuid::Uuid::new_v4().as_u128() as u32;
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests;
