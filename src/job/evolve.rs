//! The fold of a job's stream.
//!
//! [`evolve`] asserts what [`decide`](super::decide()) promised: an event that no legal history can have at its place is an
//! [`IllegalHistory`], so that one bad stream fails itself and not the process that reads it.

use std::time::Duration;

use super::command::FailureClass;
use super::event::{
    AttemptFailed, AttemptStarted, Charged, JobEvent, LeaseExtended, Redriven, RetryScheduled,
    Signal,
};
use super::state::{Attempt, Job, JobState, Money, Recorded, Terms, Work};
use crate::account::Posting;
use crate::clock::Timestamp;
use crate::credits::Cost;
use crate::ids::CommandId;
use crate::store::Revision;

/// An event stands where no legal history has it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {revision} ({event}) cannot follow: {why}")]
pub struct IllegalHistory {
    /// The event's place in its stream.
    pub revision: Revision,
    /// Its name.
    pub event: &'static str,
    /// What is wrong.
    pub why: &'static str,
}

/// Folds one event into the stream's state.
///
/// `revision` must follow the last one; `posted_at` is when the store recorded it; `command` caused it.
pub fn evolve(
    job: &mut Job,
    event: &JobEvent,
    revision: Revision,
    posted_at: Timestamp,
    command: &CommandId,
) -> Result<(), IllegalHistory> {
    let illegal = |why| IllegalHistory {
        revision,
        event: event.name(),
        why,
    };
    if revision.get() != job.events() {
        return Err(illegal("its revision does not follow the last one"));
    }
    match (&mut job.state, event) {
        (JobState::None | JobState::Voided, JobEvent::Charged(charged)) => {
            job.state = JobState::Recorded(Box::new(
                begin(charged, revision, posted_at).map_err(illegal)?,
            ));
        }
        (state @ JobState::None, JobEvent::Voided(_)) => *state = JobState::Voided,
        (_, JobEvent::Voided(_)) => {}
        (JobState::None | JobState::Voided, _) => return Err(illegal("nothing was charged")),
        (JobState::Recorded(recorded), event) => {
            step(recorded, event, revision, posted_at).map_err(illegal)?
        }
    }
    job.revision = Some(revision);
    // The events of one command stand together: only the last command can be the same one.
    if job.commands.last().is_none_or(|(last, _)| last != command) {
        job.commands.push((command.clone(), event.clone()));
    }
    Ok(())
}

fn begin(
    charged: &Charged,
    revision: Revision,
    posted_at: Timestamp,
) -> Result<Recorded, &'static str> {
    let Charged {
        posting,
        price,
        policy,
    } = charged;
    let cost = posting
        .amount
        .checked_neg()
        .and_then(|cost| Cost::new(cost).ok())
        .ok_or("its amount is no cost")?;
    let (Some(kind), Some(charged_at), Some(budget_month)) = (
        posting.kind.clone(),
        posting.charged_at,
        posting.budget_month,
    ) else {
        return Err("its posting lacks kind, instant or month");
    };
    if posting.held != 0 {
        return Err("a charge holds nothing");
    }
    Ok(Recorded {
        terms: Terms {
            account: posting.account.clone(),
            kind,
            cost,
            price: price.clone(),
            policy: *policy,
            charged_at,
            budget_month,
        },
        work: Work::Queued {
            armed_at: revision,
            start_by: posted_at.after(Duration::from_millis(policy.start_within_ms)),
        },
        money: Money::Charged,
        attempt: Attempt::NONE,
        base: Attempt::NONE,
        window_from: posted_at,
        held: 0,
        contradictions: Vec::new(),
    })
}

fn step(
    job: &mut Recorded,
    event: &JobEvent,
    revision: Revision,
    posted_at: Timestamp,
) -> Result<(), &'static str> {
    let ended = matches!(
        job.work,
        Work::Delivered { .. } | Work::Cancelled | Work::Discarded
    );
    match event {
        JobEvent::Charged(_) => return Err("the job was charged before"),
        JobEvent::Contradicted(contradicted) => {
            contradict(job, contradicted.signal, contradicted.attempt)?;
        }
        JobEvent::Reclaimed(_) => {
            if !matches!(job.work, Work::Delivered { .. }) || job.money != Money::Refunded {
                return Err("only a refunded job that was delivered is reclaimed");
            }
            job.money = Money::Reclaimed;
        }
        JobEvent::Refunded(_) => {
            if job.money != Money::Charged || matches!(job.work, Work::Delivered { .. }) {
                return Err("only a charged job that was not delivered is refunded");
            }
            job.money = Money::Refunded;
        }
        _ if ended => return Err("the job has ended for good"),
        JobEvent::AttemptStarted(started) => start(job, started, revision, posted_at)?,
        JobEvent::LeaseExtended(extended) => extend(job, *extended, revision, posted_at)?,
        JobEvent::AttemptFailed(failed) => fail(job, failed)?,
        JobEvent::RetryScheduled(scheduled) => schedule(job, scheduled, revision, posted_at)?,
        JobEvent::Failed(_) => {
            if job.money != Money::Refunded
                || !matches!(job.work, Work::Failed | Work::Queued { .. })
            {
                return Err("only a refunded job fails, after its attempt or before the first");
            }
            job.work = Work::Failed;
        }
        JobEvent::DeadLettered(_) => {
            let may_be = matches!(
                job.work,
                Work::Failed | Work::Queued { .. } | Work::RetryScheduled { .. }
            );
            if job.is_external() || job.money != Money::Refunded || !may_be {
                return Err(
                    "only a claimed and refunded job that does not run becomes a dead letter",
                );
            }
            job.work = Work::DeadLettered;
        }
        JobEvent::Delivered(delivered) => {
            if delivered.attempt < Attempt::FIRST {
                return Err("attempts count from 1");
            }
            if delivered.attempt > job.attempt {
                raise(job, delivered.attempt)?;
            }
            job.work = Work::Delivered {
                attempt: delivered.attempt,
                result: delivered.result.clone(),
            };
        }
        JobEvent::Redriven(redriven) => redrive(job, redriven, revision, posted_at)?,
        JobEvent::Cancelled(_) => {
            if matches!(job.work, Work::Running { .. }) {
                return Err("a running job is not cancelled");
            }
            job.work = Work::Cancelled;
        }
        JobEvent::Discarded(_) => {
            if !matches!(job.work, Work::DeadLettered | Work::Failed) {
                return Err("only a dead letter or a failed job is discarded");
            }
            job.work = Work::Discarded;
        }
        JobEvent::Voided(_) => {}
    }
    match event.posting() {
        Some(posting) => take(job, event, posting),
        None => Ok(()),
    }
}

/// Checks a posting against the job's terms and adds its change of held.
fn take(job: &mut Recorded, event: &JobEvent, posting: &Posting) -> Result<(), &'static str> {
    let amount = match event {
        JobEvent::Refunded(_) => job.terms.cost.get(),
        JobEvent::Reclaimed(_) => job.terms.cost.debit(),
        JobEvent::Charged(_)
        | JobEvent::AttemptStarted(_)
        | JobEvent::LeaseExtended(_)
        | JobEvent::AttemptFailed(_)
        | JobEvent::RetryScheduled(_)
        | JobEvent::Failed(_)
        | JobEvent::DeadLettered(_)
        | JobEvent::Delivered(_)
        | JobEvent::Redriven(_)
        | JobEvent::Cancelled(_)
        | JobEvent::Discarded(_)
        | JobEvent::Contradicted(_)
        | JobEvent::Voided(_) => 0,
    };
    if *posting != job.terms.posting(amount, posting.held) {
        return Err("its posting is not the job's");
    }
    job.held = job
        .held
        .checked_add(posting.held)
        .ok_or("the hold leaves 64 bits")?;
    Ok(())
}

fn raise(job: &mut Recorded, attempt: Attempt) -> Result<(), &'static str> {
    if attempt == job.attempt.next() {
        job.attempt = attempt;
    } else if attempt != job.attempt {
        return Err("its attempt is neither the highest nor the next");
    }
    Ok(())
}

fn fail(job: &mut Recorded, failed: &AttemptFailed) -> Result<(), &'static str> {
    let (is_current, is_next) = (
        failed.attempt == job.attempt,
        failed.attempt == job.attempt.next(),
    );
    let may_fail = match &job.work {
        Work::Running { .. } => is_current,
        Work::Queued { .. } => is_next && job.is_external(),
        Work::RetryScheduled { .. } => is_current && failed.class != FailureClass::Retryable,
        Work::Failed => is_next && job.is_external() && job.money == Money::Refunded,
        Work::DeadLettered | Work::Delivered { .. } | Work::Cancelled | Work::Discarded => false,
    };
    if !may_fail {
        return Err("that attempt cannot fail here");
    }
    job.attempt = failed.attempt;
    // The event behind it says what follows. An append that ends here leaves a job that ended unsettled, which the
    // invariants refuse, unless it had failed before.
    job.work = Work::Failed;
    Ok(())
}

fn start(
    job: &mut Recorded,
    started: &AttemptStarted,
    revision: Revision,
    posted_at: Timestamp,
) -> Result<(), &'static str> {
    if matches!(job.work, Work::Running { .. } | Work::DeadLettered)
        || started.attempt != job.attempt.next()
    {
        return Err("that attempt cannot start here");
    }
    job.attempt = started.attempt;
    job.work = Work::Running {
        worker: started.worker.clone(),
        armed_at: revision,
        leased_at: posted_at,
        lease_ms: started.lease_ms,
        lease_until: posted_at.after(Duration::from_millis(started.lease_ms)),
    };
    Ok(())
}

fn extend(
    job: &mut Recorded,
    extended: LeaseExtended,
    revision: Revision,
    posted_at: Timestamp,
) -> Result<(), &'static str> {
    let Work::Running {
        armed_at,
        leased_at,
        lease_ms,
        lease_until,
        ..
    } = &mut job.work
    else {
        return Err("no attempt runs");
    };
    if extended.attempt != job.attempt {
        return Err("another attempt runs");
    }
    *armed_at = revision;
    *leased_at = posted_at;
    *lease_ms = extended.lease_ms;
    *lease_until = posted_at.after(Duration::from_millis(extended.lease_ms));
    Ok(())
}

fn contradict(job: &mut Recorded, signal: Signal, attempt: Attempt) -> Result<(), &'static str> {
    let contradicts = match (&job.work, signal) {
        (Work::Delivered { attempt: by, .. }, Signal::Failed) => attempt == *by,
        (Work::Cancelled | Work::Discarded, Signal::Succeeded) => true,
        (
            Work::Delivered { .. }
            | Work::Cancelled
            | Work::Discarded
            | Work::Queued { .. }
            | Work::Running { .. }
            | Work::RetryScheduled { .. }
            | Work::Failed
            | Work::DeadLettered,
            Signal::Failed | Signal::Succeeded,
        ) => false,
    };
    if !contradicts {
        return Err("nothing was there to contradict");
    }
    if job.contradictions.contains(&(signal, attempt)) {
        return Err("the contradiction is on record");
    }
    job.contradictions.push((signal, attempt));
    Ok(())
}

fn schedule(
    job: &mut Recorded,
    scheduled: &RetryScheduled,
    revision: Revision,
    posted_at: Timestamp,
) -> Result<(), &'static str> {
    let has_failed = matches!(job.work, Work::Failed) && scheduled.attempt == job.attempt;
    if job.is_external() || job.money != Money::Refunded || !has_failed {
        return Err("only a claimed job whose attempt failed and was refunded is retried");
    }
    let due_at = posted_at.after(Duration::from_millis(scheduled.delay_ms));
    let give_up_at = due_at.after(Duration::from_millis(scheduled.start_within_ms));
    job.work = Work::RetryScheduled {
        armed_at: revision,
        due_at,
        give_up_at,
    };
    Ok(())
}

fn redrive(
    job: &mut Recorded,
    redriven: &Redriven,
    revision: Revision,
    posted_at: Timestamp,
) -> Result<(), &'static str> {
    if !matches!(job.work, Work::DeadLettered | Work::Failed) || redriven.base != job.attempt {
        return Err("only a dead letter or a failed job is redriven, from its highest attempt");
    }
    if job.is_external() {
        return Err("a job of an external kind is not redriven");
    }
    job.base = redriven.base;
    job.window_from = posted_at;
    job.work = Work::Queued {
        armed_at: revision,
        start_by: posted_at.after(Duration::from_millis(redriven.start_within_ms)),
    };
    Ok(())
}
