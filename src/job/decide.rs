//! The answer to a command: the state × command table of a job's life.
//!
//! One function per command, each a match over every state; the table in `tests/it/domain` reads like the specification
//! and holds every cell. No command carries an amount: refund and reclaim move the recorded cost.

use std::time::Duration;

use super::SOFT_LIMIT_EVENTS;
use super::command::{Charge, FailureClass, JobCommand, Timer};
use super::event::{
    AttemptStarted, Cancelled, Charged, Contradicted, DeadLetterCause, DeadLettered, Delivered,
    Discarded, Failed, JobEvent, LeaseExtended, Reclaimed, Redriven, Signal,
};
use super::failure::Failure;
use super::rejection::Rejection;
use super::repeat;
use super::state::{Attempt, Job, JobState, Money, Recorded, Work};
use crate::account::{Admission, Posting};
use crate::clock::{Timestamp, Zone};
use crate::ids::{CommandId, Reason, WorkerId};
use crate::retry::Lease;
use crate::store::Revision;

/// The store's clock and the ledger's zone at the moment of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The store's clock, never the caller's.
    pub at: Timestamp,
    /// The zone that months are counted in.
    pub zone: Zone,
    /// By how much the clocks may differ that stamp events: a deadline is over only that much later.
    pub clock_skew: Duration,
}

impl Now {
    /// What deadlines are over by now, whatever the clocks' skew.
    #[must_use]
    pub fn over_by(&self) -> Timestamp {
        self.at.before(self.clock_skew)
    }
}

/// What a command comes to. A refusal is a [`Rejection`] instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Append these events at the stream's revision, in one append, subject to the admission.
    Append {
        /// At least one.
        events: Vec<JobEvent>,
        /// What the account must allow, checked in the append's own step.
        admission: Option<Admission>,
    },
    /// It has happened before; append nothing.
    AlreadyApplied,
    /// It contradicts what has happened. One event keeps the contradiction, the first time.
    Noted {
        /// The event to append; none if it is on record.
        event: Option<JobEvent>,
    },
}

impl Decision {
    fn append(events: Vec<JobEvent>) -> Result<Self, Rejection> {
        Ok(Self::Append {
            events,
            admission: None,
        })
    }
}

/// Answers `command`, known by `id`, from the folded stream. Pure.
pub fn decide(
    job: &Job,
    id: &CommandId,
    command: &JobCommand,
    now: Now,
) -> Result<Decision, Rejection> {
    if let Some((_, first)) = job.commands.iter().find(|(seen, _)| seen == id) {
        repeat::compare(command, first).map_err(|field| Rejection::CommandIdReused { field })?;
        let was_noted = matches!(first, JobEvent::Contradicted(_));
        return Ok(if was_noted {
            Decision::Noted { event: None }
        } else {
            Decision::AlreadyApplied
        });
    }
    let recorded = match (&job.state, command) {
        (JobState::None | JobState::Voided, JobCommand::Charge(charge)) => {
            return Ok(first_charge(charge, now));
        }
        (JobState::None | JobState::Voided, _) => return Err(Rejection::NoSuchJob),
        (JobState::Recorded(recorded), _) => recorded,
    };
    let cell = Cell { job, recorded, now };
    if let Some(attempt) = command.attempt()
        && (attempt < Attempt::FIRST || attempt > recorded.attempt.next())
    {
        return Err(Rejection::UnknownAttempt {
            attempt: attempt.get(),
            highest: recorded.attempt.get(),
        });
    }
    let decision = match command {
        JobCommand::Charge(charge) => cell.charge_again(charge)?,
        JobCommand::Start { worker, lease } => cell.start(worker.as_ref(), *lease)?,
        JobCommand::Extend { attempt } => cell.extend(*attempt)?,
        JobCommand::Fail {
            attempt,
            class,
            reason,
        } => cell.fail(*attempt, *class, reason.as_ref())?,
        JobCommand::Succeed { attempt, result } => {
            let delivered = Delivered {
                attempt: *attempt,
                result: result.clone(),
            };
            cell.succeed(delivered)
        }
        JobCommand::Cancel { reason } => cell.cancel(reason.as_ref())?,
        JobCommand::Redrive { reason } => cell.redrive(reason.as_ref())?,
        JobCommand::Discard { reason } => cell.discard(reason.as_ref())?,
        JobCommand::Expire { timer, armed_at } => cell.expire(*timer, *armed_at)?,
    };
    cell.check_room(command, &decision)?;
    Ok(decision)
}

fn first_charge(charge: &Charge, now: Now) -> Decision {
    let month = now.zone.month_of(now.at);
    let posting = Posting {
        account: charge.account.clone(),
        kind: Some(charge.kind.clone()),
        amount: charge.cost.debit(),
        held: 0,
        charged_at: Some(now.at),
        budget_month: Some(month),
    };
    let admission = Admission::Spend {
        account: charge.account.clone(),
        cost: charge.cost,
        cap_month: Some(month),
    };
    let charged = Charged {
        posting,
        price: charge.price.clone(),
        policy: charge.policy,
    };
    Decision::Append {
        events: vec![JobEvent::Charged(charged)],
        admission: Some(admission),
    }
}

/// A row of the table: the state that the columns below answer for.
pub(super) struct Cell<'a> {
    pub(super) job: &'a Job,
    pub(super) recorded: &'a Recorded,
    pub(super) now: Now,
}

impl Cell<'_> {
    fn charge_again(&self, charge: &Charge) -> Result<Decision, Rejection> {
        let terms = &self.recorded.terms;
        let stored = Charged {
            posting: terms.posting(terms.cost.debit(), 0),
            price: terms.price.clone(),
            policy: terms.policy,
        };
        repeat::compare_charge(charge, &stored).map_err(|field| Rejection::Differs { field })?;
        match self.recorded.work {
            Work::Queued { .. }
            | Work::Running { .. }
            | Work::RetryScheduled { .. }
            | Work::Delivered { .. } => Ok(Decision::AlreadyApplied),
            Work::Failed | Work::DeadLettered | Work::Cancelled | Work::Discarded => {
                Err(self.ended())
            }
        }
    }

    fn start(
        &self,
        worker: Option<&WorkerId>,
        lease: Option<Lease>,
    ) -> Result<Decision, Rejection> {
        let job = self.recorded;
        let started = |hold| {
            JobEvent::AttemptStarted(AttemptStarted {
                attempt: job.attempt.next(),
                worker: worker.cloned(),
                lease_ms: lease.map_or(job.terms.policy.lease_ms, Lease::ms),
                hold,
            })
        };
        match &job.work {
            Work::Queued { .. } => Decision::append(vec![started(None)]),
            Work::Running { .. } => Err(self.running()),
            Work::RetryScheduled { due_at, .. } if self.now.at < *due_at => {
                Err(Rejection::NotDue { due_at: *due_at })
            }
            Work::RetryScheduled { .. } => Decision::append(vec![started(None)]),
            Work::Failed if job.is_external() => {
                let hold = job.terms.posting(0, job.terms.cost.get());
                Ok(Decision::Append {
                    events: vec![started(Some(hold))],
                    admission: Some(self.admission()),
                })
            }
            Work::Delivered { attempt, .. } => Err(Rejection::AlreadyDelivered {
                attempt: attempt.get(),
            }),
            Work::Failed | Work::DeadLettered | Work::Cancelled | Work::Discarded => {
                Err(self.ended())
            }
        }
    }

    fn extend(&self, attempt: Attempt) -> Result<Decision, Rejection> {
        let lost = Err(Rejection::LeaseLost {
            attempt: attempt.get(),
        });
        match &self.recorded.work {
            Work::Running {
                leased_at,
                lease_ms,
                ..
            } if attempt == self.recorded.attempt => {
                let lease_ms = *lease_ms;
                let held_for = self.now.at.since(*leased_at);
                // A lease that has most of its time left is not worth an event.
                if held_for.saturating_mul(3) < Duration::from_millis(lease_ms) {
                    return Ok(Decision::AlreadyApplied);
                }
                Decision::append(vec![JobEvent::LeaseExtended(LeaseExtended {
                    attempt,
                    lease_ms,
                })])
            }
            Work::Running { .. }
            | Work::Queued { .. }
            | Work::RetryScheduled { .. }
            | Work::Failed
            | Work::DeadLettered
            | Work::Delivered { .. }
            | Work::Cancelled
            | Work::Discarded => lost,
        }
    }

    fn fail(
        &self,
        attempt: Attempt,
        class: FailureClass,
        reason: Option<&Reason>,
    ) -> Result<Decision, Rejection> {
        let job = self.recorded;
        let failure = Failure {
            attempt,
            class,
            reason,
            timer: None,
        };
        let is_next = attempt > job.attempt;
        match &job.work {
            Work::Running { .. } if is_next => Err(self.running()),
            Work::Running { .. } if attempt == job.attempt => Ok(self.failed(&failure)),
            Work::Running { .. } => Ok(Decision::AlreadyApplied),
            Work::Queued { .. } | Work::RetryScheduled { .. } if is_next && job.is_external() => {
                Ok(self.failed(&failure))
            }
            Work::Queued { .. } | Work::RetryScheduled { .. } if is_next => {
                Err(Rejection::NotStarted {
                    attempt: attempt.get(),
                })
            }
            Work::RetryScheduled { .. }
                if attempt == job.attempt && class != FailureClass::Retryable =>
            {
                Ok(self.failed(&failure))
            }
            Work::Queued { .. } | Work::RetryScheduled { .. } => Ok(Decision::AlreadyApplied),
            Work::Failed if is_next && job.is_external() => Ok(self.failed(&failure)),
            Work::Delivered { attempt: by, .. } if attempt == *by => Ok(self.noted(Contradicted {
                signal: Signal::Failed,
                attempt,
                class: Some(class),
                reason: reason.cloned(),
                result: None,
            })),
            Work::Delivered { .. } => Ok(Decision::AlreadyApplied),
            Work::Failed | Work::DeadLettered | Work::Cancelled | Work::Discarded if is_next => {
                Err(self.ended())
            }
            Work::Failed | Work::DeadLettered | Work::Cancelled | Work::Discarded => {
                Ok(Decision::AlreadyApplied)
            }
        }
    }

    fn succeed(&self, delivered: Delivered) -> Decision {
        let job = self.recorded;
        match &job.work {
            Work::Delivered { .. } => Decision::AlreadyApplied,
            Work::Cancelled | Work::Discarded => self.noted(Contradicted {
                signal: Signal::Succeeded,
                attempt: delivered.attempt,
                class: None,
                reason: None,
                result: delivered.result,
            }),
            Work::Queued { .. }
            | Work::Running { .. }
            | Work::RetryScheduled { .. }
            | Work::Failed
            | Work::DeadLettered => {
                let mut events = vec![JobEvent::Delivered(delivered)];
                if job.money == Money::Refunded {
                    let posting = job
                        .terms
                        .posting(job.terms.cost.debit(), 0_i64.saturating_sub(job.hold()));
                    events.push(JobEvent::Reclaimed(Reclaimed { posting }));
                }
                Decision::Append {
                    events,
                    admission: None,
                }
            }
        }
    }

    fn cancel(&self, reason: Option<&Reason>) -> Result<Decision, Rejection> {
        match &self.recorded.work {
            Work::Running { .. } => Err(self.running()),
            Work::Delivered { attempt, .. } => Err(Rejection::AlreadyDelivered {
                attempt: attempt.get(),
            }),
            Work::Cancelled => Ok(Decision::AlreadyApplied),
            Work::Discarded => Err(self.ended()),
            Work::Queued { .. }
            | Work::RetryScheduled { .. }
            | Work::Failed
            | Work::DeadLettered => {
                let mut refund = Vec::new();
                let hold = self.settle(&mut refund, 0);
                // First the event that holds the command's content: a repeat is compared with it.
                let mut events = vec![JobEvent::Cancelled(Cancelled {
                    reason: reason.cloned(),
                    hold,
                })];
                events.append(&mut refund);
                Decision::append(events)
            }
        }
    }

    fn redrive(&self, reason: Option<&Reason>) -> Result<Decision, Rejection> {
        let job = self.recorded;
        match &job.work {
            Work::Failed if job.is_external() => Err(self.ended()),
            Work::Failed | Work::DeadLettered => {
                let redriven = Redriven {
                    base: job.attempt,
                    start_within_ms: job.terms.policy.start_within_ms,
                    reason: reason.cloned(),
                    hold: job.terms.posting(0, job.terms.cost.get()),
                };
                Ok(Decision::Append {
                    events: vec![JobEvent::Redriven(redriven)],
                    admission: Some(self.admission()),
                })
            }
            Work::Delivered { attempt, .. } => Err(Rejection::AlreadyDelivered {
                attempt: attempt.get(),
            }),
            Work::Cancelled | Work::Discarded => Err(self.ended()),
            Work::Queued { .. } | Work::Running { .. } | Work::RetryScheduled { .. } => {
                Err(self.not_dead_lettered())
            }
        }
    }

    fn discard(&self, reason: Option<&Reason>) -> Result<Decision, Rejection> {
        let job = self.recorded;
        match &job.work {
            Work::Failed if job.is_external() => Err(self.not_dead_lettered()),
            Work::Failed | Work::DeadLettered => {
                Decision::append(vec![JobEvent::Discarded(Discarded {
                    reason: reason.cloned(),
                })])
            }
            Work::Discarded => Ok(Decision::AlreadyApplied),
            Work::Delivered { attempt, .. } => Err(Rejection::AlreadyDelivered {
                attempt: attempt.get(),
            }),
            Work::Queued { .. }
            | Work::Running { .. }
            | Work::RetryScheduled { .. }
            | Work::Cancelled => Err(self.not_dead_lettered()),
        }
    }

    /// A timer ran out, as a loop saw it. The loop's list may be stale: only the very timer that it saw is acted on.
    fn expire(&self, timer: Timer, armed_at: Revision) -> Result<Decision, Rejection> {
        let job = self.recorded;
        let Some((_, _, deadline)) = job
            .work
            .timer()
            .filter(|(runs, at, _)| (*runs, *at) == (timer, armed_at))
        else {
            return Ok(Decision::AlreadyApplied);
        };
        if self.now.over_by() < deadline {
            return Err(Rejection::NotDue { due_at: deadline });
        }
        if timer == Timer::LeaseUntil {
            let failure = Failure {
                attempt: job.attempt,
                class: FailureClass::Retryable,
                reason: None,
                timer: Some(timer),
            };
            return Ok(self.failed(&failure));
        }
        let mut events = Vec::new();
        let hold = self.settle(&mut events, 0);
        events.push(if job.is_external() {
            JobEvent::Failed(Failed { hold })
        } else {
            JobEvent::DeadLettered(DeadLettered {
                cause: DeadLetterCause::NotStarted,
                hold,
            })
        });
        Decision::append(events)
    }

    fn noted(&self, contradicted: Contradicted) -> Decision {
        let key = (contradicted.signal, contradicted.attempt);
        let event = (!self.recorded.contradictions.contains(&key))
            .then_some(JobEvent::Contradicted(contradicted));
        Decision::Noted { event }
    }

    /// A redrive, and a start of a failed job, is admitted like a charge; after its month has ended, by the floor alone.
    fn admission(&self) -> Admission {
        let terms = &self.recorded.terms;
        let ended = self.now.zone.month_of(self.now.at) > terms.budget_month;
        Admission::Spend {
            account: terms.account.clone(),
            cost: terms.cost,
            cap_month: (!ended).then_some(terms.budget_month),
        }
    }

    /// A long stream takes only what brings the job to an end.
    fn check_room(&self, command: &JobCommand, decision: &Decision) -> Result<(), Rejection> {
        let events = self.job.events();
        let appends = match decision {
            Decision::Append { .. } => true,
            Decision::Noted { event } => event.is_some(),
            Decision::AlreadyApplied => false,
        };
        let is_bounded = match command {
            JobCommand::Start { .. } | JobCommand::Extend { .. } | JobCommand::Redrive { .. } => {
                true
            }
            // A failed job's further failures end nothing; neither do contradictions.
            JobCommand::Fail { class, .. } if matches!(self.recorded.work, Work::Failed) => {
                *class != FailureClass::Cancelled
            }
            JobCommand::Fail { .. } | JobCommand::Succeed { .. } => {
                matches!(decision, Decision::Noted { .. })
            }
            JobCommand::Charge(_)
            | JobCommand::Cancel { .. }
            | JobCommand::Discard { .. }
            | JobCommand::Expire { .. } => false,
        };
        if appends && is_bounded && events >= SOFT_LIMIT_EVENTS {
            return Err(Rejection::StreamFull { events });
        }
        Ok(())
    }

    fn running(&self) -> Rejection {
        Rejection::AttemptRunning {
            attempt: self.recorded.attempt.get(),
        }
    }

    fn ended(&self) -> Rejection {
        Rejection::JobEnded {
            state: self.recorded.work.name(),
        }
    }

    fn not_dead_lettered(&self) -> Rejection {
        Rejection::NotDeadLettered {
            state: self.recorded.work.name(),
        }
    }
}
