//! What must be true of a job between two appends, whatever led to it.
//!
//! [`evolve`](super::evolve) checks each event against the one before; this checks the state that a whole append leaves.

use super::state::{Job, JobState, Money, Recorded, Work};

/// A stream that breaks a rule of a job's life.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An ended job that was not delivered must have net 0.
    #[error("the job ended as {state}, and is still charged")]
    EndedCharged {
        /// In which state it ended.
        state: &'static str,
    },
    /// A delivered job must have net −cost.
    #[error("the job was delivered, and its refund was not taken back")]
    DeliveredRefunded,
    /// What is held must be what the state calls for.
    #[error("the job holds {held}, not {expected}")]
    Held {
        /// The sum of the stream's changes of held.
        held: i64,
        /// What the state calls for.
        expected: i64,
    },
    /// Starts since the charge or the last redrive must stay within the policy's cap.
    #[error("{starts} starts since the last redrive, cap {cap}")]
    Starts {
        /// How many there were.
        starts: u32,
        /// The policy's cap.
        cap: u32,
    },
}

/// Checks a stream at the end of an append.
pub fn check(job: &Job) -> Result<(), Violation> {
    match &job.state {
        JobState::None | JobState::Voided => Ok(()),
        JobState::Recorded(recorded) => check_recorded(recorded),
    }
}

fn check_recorded(job: &Recorded) -> Result<(), Violation> {
    match (&job.work, job.money) {
        (Work::Delivered { .. }, Money::Refunded) => return Err(Violation::DeliveredRefunded),
        (
            Work::Failed | Work::DeadLettered | Work::Cancelled | Work::Discarded,
            Money::Charged | Money::Reclaimed,
        ) => {
            return Err(Violation::EndedCharged {
                state: job.work.name(),
            });
        }
        (Work::Delivered { .. }, Money::Charged | Money::Reclaimed)
        | (
            Work::Failed | Work::DeadLettered | Work::Cancelled | Work::Discarded,
            Money::Refunded,
        )
        | (Work::Queued { .. } | Work::Running { .. } | Work::RetryScheduled { .. }, _) => {}
    }
    if job.held != job.hold() {
        return Err(Violation::Held {
            held: job.held,
            expected: job.hold(),
        });
    }
    let starts = job.attempt.since(job.base);
    let cap = job.terms.policy.cap;
    // A signal may name an attempt that nobody started through the ledger: one above the cap is then possible, in an ended state only.
    if !job.is_external() && job.work.is_live() && starts > cap {
        return Err(Violation::Starts { starts, cap });
    }
    Ok(())
}
