//! Tasks that a store cannot do without.

use std::time::Duration;

use tokio::time::sleep;

/// Between a panic and the next beginning.
const PAUSE: Duration = Duration::from_secs(1);

/// Carries out a task until it ends by itself, and begins it anew whenever it panics: the client does on some answers.
pub(super) fn keep_going<F>(what: &'static str, mut task: impl FnMut() -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        while let Err(died) = tokio::spawn(task()).await {
            if died.is_cancelled() {
                return;
            }
            tracing::error!(task = what, %died, "a task of the store panicked, and begins anew");
            sleep(PAUSE).await;
        }
    });
}
