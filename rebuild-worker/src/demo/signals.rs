//! Steps of a plan into commands, with the ids that they are known by.
//!
//! A command id says job, verb, attempt and variant: a step that is sent again later has the same id, a copy from another task that
//! noticed the same thing has one of its own.

use recoup::job::Timer;
use recoup::{
    Attempt, CommandId, FailureClass, JobCommand, JobId, JobResult, Ledger, Reason, Revision,
    WorkerId,
};
use serde::Serialize;

use super::plan::{Act, JobPlan, Plan, Step};

/// What was asked for, in the order of a job's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verb {
    Charge,
    Start,
    Fail,
    Succeed,
    Cancel,
    Redrive,
    Discard,
    Expire,
}

impl Act {
    pub(super) const fn verb(self) -> Verb {
        match self {
            Self::Charge => Verb::Charge,
            Self::Start { .. } => Verb::Start,
            Self::TimeOut { .. } | Self::Refuse => Verb::Fail,
            Self::Succeed { .. } => Verb::Succeed,
            Self::Cancel => Verb::Cancel,
            Self::Redrive => Verb::Redrive,
            Self::Discard => Verb::Discard,
            Self::Expire => Verb::Expire,
        }
    }

    const fn attempt(self) -> u32 {
        match self {
            Self::Start { attempt } | Self::TimeOut { attempt } | Self::Succeed { attempt } => {
                attempt
            }
            Self::Charge
            | Self::Refuse
            | Self::Cancel
            | Self::Redrive
            | Self::Discard
            | Self::Expire => 0,
        }
    }
}

impl Verb {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Start => "start",
            Self::Fail => "fail",
            Self::Succeed => "succeed",
            Self::Cancel => "cancel",
            Self::Redrive => "redrive",
            Self::Discard => "discard",
            Self::Expire => "expire",
        }
    }
}

/// One command on its way.
#[derive(Debug)]
pub(super) struct Signal {
    pub(super) job: usize,
    pub(super) act: Act,
    pub(super) id: CommandId,
    pub(super) name: JobId,
    pub(super) command: JobCommand,
}

/// What turns steps into commands.
pub(super) struct Signals<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) plan: &'a Plan,
}

impl Signals<'_> {
    /// The commands of a step: some under one command id, some under ids of their own.
    pub(super) fn of(&self, step: Step) -> anyhow::Result<Vec<Signal>> {
        let job = &self.plan.jobs[step.job];
        let copies = 0..=u32::from(step.repeats) + u32::from(step.others);
        let send = |copy: u32| {
            let variant = u32::from(step.variant) + copy.saturating_sub(u32::from(step.repeats));
            let (verb, attempt) = (step.act.verb().name(), step.act.attempt());
            let id = CommandId::new(format!("{}.{verb}.{attempt}.{variant}", job.id))?;
            let command = self.command(job, step.act, variant)?;
            Ok(Signal {
                job: step.job,
                act: step.act,
                id,
                name: job.id.clone(),
                command,
            })
        };
        copies.map(send).collect()
    }

    fn command(&self, job: &JobPlan, act: Act, variant: u32) -> anyhow::Result<JobCommand> {
        let reason = |text: &str| Ok::<_, anyhow::Error>(Some(Reason::new(text)?));
        Ok(match act {
            Act::Charge => {
                let account = self.plan.accounts[job.account].id.clone();
                let charge = self.ledger.charge_of(
                    account,
                    job.kind.kind(),
                    job.cost,
                    job.price.clone(),
                    None,
                )?;
                JobCommand::Charge(Box::new(charge))
            }
            Act::Start { attempt } => {
                let worker =
                    (u64::from(attempt) + u64::from(variant) + job.cost.get().unsigned_abs()) % 8;
                JobCommand::Start {
                    worker: Some(WorkerId::new(format!("gpu-{worker}"))?),
                    lease: None,
                }
            }
            Act::TimeOut { attempt } => JobCommand::Fail {
                attempt: Attempt::new(attempt),
                class: FailureClass::Retryable,
                reason: reason("no answer within 30 s")?,
            },
            Act::Refuse => JobCommand::Fail {
                attempt: Attempt::FIRST,
                class: FailureClass::Terminal,
                reason: reason("the prompt is longer than the model's window")?,
            },
            Act::Succeed { attempt } => JobCommand::Succeed {
                attempt: Attempt::new(attempt),
                result: Some(JobResult::new(format!("s3://results/{}", job.id))?),
            },
            Act::Cancel => JobCommand::Cancel {
                reason: reason("closed by the customer")?,
            },
            Act::Redrive => JobCommand::Redrive {
                reason: reason("the node is back")?,
            },
            Act::Discard => JobCommand::Discard {
                reason: reason("the customer no longer waits")?,
            },
            Act::Expire => JobCommand::Expire {
                timer: Timer::StartBy,
                armed_at: Revision::FIRST,
            },
        })
    }
}
