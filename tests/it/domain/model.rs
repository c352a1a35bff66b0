//! A tiny model of one job: the table again, as a few lines over numbers, sharing nothing with the code but the commands.
//!
//! The walk holds every reachable state of the code against it. Where both are wrong in the same way the table is left, which a
//! person can read.

use std::collections::BTreeSet;

use recoup::{FailureClass, JobCommand, Mode};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum At {
    None,
    Voided,
    Queued,
    Running,
    RetryScheduled,
    Failed,
    DeadLettered,
    Delivered,
    Cancelled,
    Discarded,
}

/// The model's state: also the key by which the walk knows that it has been somewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Model {
    pub(crate) at: At,
    pub(crate) n: u32,
    pub(crate) base: u32,
    pub(crate) refunded: bool,
    pub(crate) reclaimed: bool,
    pub(crate) by: u32,
    /// (is it a claimed failure, of which attempt)
    pub(crate) noted: BTreeSet<(bool, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Says {
    Applied(Model),
    Same,
    Noted(Model),
    No(&'static str),
}

impl Model {
    pub(crate) const fn new() -> Self {
        Self {
            at: At::None,
            n: 0,
            base: 0,
            refunded: false,
            reclaimed: false,
            by: 0,
            noted: BTreeSet::new(),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        matches!(self.at, At::Queued | At::Running | At::RetryScheduled)
    }

    /// In costs.
    pub(crate) fn net(&self) -> i64 {
        match (self.at, self.refunded, self.reclaimed) {
            (At::None | At::Voided, _, _) | (_, true, false) => 0,
            (_, false, _) | (_, true, true) => -1,
        }
    }

    /// In costs.
    pub(crate) fn held(&self) -> i64 {
        i64::from(self.refunded && self.is_live())
    }

    fn to(&self, at: At) -> Self {
        Self { at, ..self.clone() }
    }

    fn note(&self, is_failure: bool, attempt: u32) -> Says {
        let mut next = self.clone();
        next.noted.insert((is_failure, attempt));
        Says::Noted(next)
    }

    /// `is_due`: whether the state's own timer (of a retry: its delay) is over.
    pub(crate) fn step(&self, command: &JobCommand, mode: Mode, cap: u32, is_due: bool) -> Says {
        let external = mode == Mode::External;
        match (command, self.at) {
            (JobCommand::Charge(_), At::None | At::Voided) => {
                return Says::Applied(self.to(At::Queued));
            }
            (_, At::None | At::Voided) => return Says::No("no_such_job"),
            _ => {}
        }
        if let Some(attempt) = command.attempt().map(recoup::Attempt::get)
            && (attempt < 1 || attempt > self.n + 1)
        {
            return Says::No("unknown_attempt");
        }
        match command {
            JobCommand::Charge(_) => match self.at {
                At::Failed | At::DeadLettered | At::Cancelled | At::Discarded => {
                    Says::No("job_ended")
                }
                _ => Says::Same,
            },
            JobCommand::Start { .. } => self.start(external, is_due),
            JobCommand::Extend { attempt } => match self.at {
                At::Running if attempt.get() == self.n => Says::Applied(self.clone()),
                _ => Says::No("lease_lost"),
            },
            JobCommand::Fail { attempt, class, .. } => {
                self.fail(attempt.get(), *class, external, cap)
            }
            JobCommand::Succeed { attempt, .. } => self.succeed(attempt.get()),
            JobCommand::Cancel { .. } => match self.at {
                At::Running => Says::No("attempt_running"),
                At::Delivered => Says::No("already_delivered"),
                At::Cancelled => Says::Same,
                At::Discarded => Says::No("job_ended"),
                _ => Says::Applied(Self {
                    refunded: true,
                    ..self.to(At::Cancelled)
                }),
            },
            JobCommand::Redrive { .. } => match self.at {
                At::DeadLettered => Says::Applied(Self {
                    base: self.n,
                    ..self.to(At::Queued)
                }),
                At::Failed if !external => Says::Applied(Self {
                    base: self.n,
                    ..self.to(At::Queued)
                }),
                At::Delivered => Says::No("already_delivered"),
                At::Failed | At::Cancelled | At::Discarded => Says::No("job_ended"),
                _ => Says::No("not_dead_lettered"),
            },
            JobCommand::Discard { .. } => match self.at {
                At::DeadLettered => Says::Applied(self.to(At::Discarded)),
                At::Failed if !external => Says::Applied(self.to(At::Discarded)),
                At::Discarded => Says::Same,
                At::Delivered => Says::No("already_delivered"),
                _ => Says::No("not_dead_lettered"),
            },
            JobCommand::Expire { .. } if !self.is_live() => Says::Same,
            JobCommand::Expire { .. } if !is_due => Says::No("not_due"),
            JobCommand::Expire { .. } => match self.at {
                At::Running => self.fail(self.n, FailureClass::Retryable, external, cap),
                _ if external => Says::Applied(Self {
                    refunded: true,
                    ..self.to(At::Failed)
                }),
                _ => Says::Applied(Self {
                    refunded: true,
                    ..self.to(At::DeadLettered)
                }),
            },
        }
    }

    fn start(&self, external: bool, is_due: bool) -> Says {
        match self.at {
            At::RetryScheduled if !is_due => Says::No("not_due"),
            At::Queued | At::RetryScheduled => Says::Applied(Self {
                n: self.n + 1,
                ..self.to(At::Running)
            }),
            At::Failed if external => Says::Applied(Self {
                n: self.n + 1,
                ..self.to(At::Running)
            }),
            At::Running => Says::No("attempt_running"),
            At::Delivered => Says::No("already_delivered"),
            _ => Says::No("job_ended"),
        }
    }

    fn fail(&self, attempt: u32, class: FailureClass, external: bool, cap: u32) -> Says {
        let is_next = attempt > self.n;
        let failed = |n: u32| {
            let at = match class {
                FailureClass::Cancelled => At::Cancelled,
                FailureClass::Terminal => At::Failed,
                FailureClass::Retryable if external => At::Failed,
                FailureClass::Retryable if n - self.base < cap => At::RetryScheduled,
                FailureClass::Retryable => At::DeadLettered,
            };
            Says::Applied(Self {
                n,
                refunded: true,
                ..self.to(at)
            })
        };
        match self.at {
            At::Running if is_next => Says::No("attempt_running"),
            At::Running if attempt == self.n => failed(attempt),
            At::Queued | At::RetryScheduled | At::Failed if is_next && external => failed(attempt),
            At::Queued | At::RetryScheduled if is_next => Says::No("not_started"),
            At::RetryScheduled if attempt == self.n && class != FailureClass::Retryable => {
                failed(attempt)
            }
            At::Delivered if attempt == self.by => self.note(true, attempt),
            At::Delivered => Says::Same,
            _ if is_next => Says::No("job_ended"),
            _ => Says::Same,
        }
    }

    fn succeed(&self, attempt: u32) -> Says {
        match self.at {
            At::Delivered => Says::Same,
            At::Cancelled | At::Discarded => self.note(false, attempt),
            _ => Says::Applied(Self {
                n: self.n.max(attempt),
                by: attempt,
                reclaimed: self.refunded,
                ..self.to(At::Delivered)
            }),
        }
    }
}
