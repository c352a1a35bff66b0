//! F(a): an attempt failed. The failure, the refund if there was none yet, and the state that follows.

use std::time::Duration;

use super::command::{FailureClass, Timer};
use super::decide::{Cell, Decision};
use super::event::{
    AttemptFailed, Cancelled, DeadLetterCause, DeadLettered, Failed, JobEvent, Refunded,
    RetryScheduled,
};
use super::state::{Attempt, Money, Work};
use crate::account::Posting;
use crate::ids::Reason;

/// A failure signal, from a caller or from a timer.
pub(super) struct Failure<'a> {
    pub(super) attempt: Attempt,
    pub(super) class: FailureClass,
    pub(super) reason: Option<&'a Reason>,
    pub(super) timer: Option<Timer>,
}

impl Cell<'_> {
    /// F(a): the failure, the refund if there was none yet, and the state that follows.
    pub(super) fn failed(&self, failure: &Failure<'_>) -> Decision {
        let job = self.recorded;
        let mut events = vec![JobEvent::AttemptFailed(AttemptFailed {
            attempt: failure.attempt,
            class: failure.class,
            reason: failure.reason.cloned(),
            timer: failure.timer,
        })];
        let retry = if failure.class == FailureClass::Retryable && !job.is_external() {
            Some(self.next_retry(failure.attempt))
        } else {
            None
        };
        let held_after = if matches!(retry, Some(Ok(_))) {
            job.terms.cost.get()
        } else {
            0
        };
        let hold = self.settle(&mut events, held_after);
        match (failure.class, retry) {
            (FailureClass::Cancelled, _) => events.push(JobEvent::Cancelled(Cancelled {
                reason: failure.reason.cloned(),
                hold,
            })),
            // A failed job that fails again under the next attempt's number stays what it is.
            (_, None) if matches!(job.work, Work::Failed) => {}
            (_, None) => events.push(JobEvent::Failed(Failed { hold })),
            (_, Some(Ok(scheduled))) => events.push(JobEvent::RetryScheduled(scheduled)),
            (_, Some(Err(cause))) => {
                events.push(JobEvent::DeadLettered(DeadLettered { cause, hold }))
            }
        }
        Decision::Append {
            events,
            admission: None,
        }
    }

    fn next_retry(&self, failed: Attempt) -> Result<RetryScheduled, DeadLetterCause> {
        let job = self.recorded;
        let policy = &job.terms.policy;
        let starts = failed.since(job.base);
        if starts >= policy.cap {
            return Err(DeadLetterCause::CapReached);
        }
        let delay = policy.delay(&self.job.id, failed, starts);
        if self.now.at.after(delay)
            > job
                .window_from
                .after(Duration::from_millis(policy.window_ms))
        {
            return Err(DeadLetterCause::WindowClosed);
        }
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Ok(RetryScheduled {
            attempt: failed,
            delay_ms,
            start_within_ms: policy.start_within_ms,
        })
    }

    /// Refunds if there was no refund yet, so that `held_after` is held. Gives the posting that the state's own event has
    /// to carry: the change of held where no refund carries it.
    pub(super) fn settle(&self, events: &mut Vec<JobEvent>, held_after: i64) -> Option<Posting> {
        let job = self.recorded;
        let change = held_after.saturating_sub(job.hold());
        match job.money {
            Money::Charged => {
                let posting = job.terms.posting(job.terms.cost.get(), held_after);
                events.push(JobEvent::Refunded(Refunded { posting }));
                None
            }
            Money::Refunded | Money::Reclaimed => {
                (change != 0).then(|| job.terms.posting(0, change))
            }
        }
    }
}
