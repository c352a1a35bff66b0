//! Commands on jobs. The flags are the keys of an import line.

use recoup::job::PolicyChoice;
use recoup::retry::Mode;
use recoup::{
    AccountId, Attempt, CommandId, Cost, FailureClass, JobCommand, JobId, JobResult, Kind, Lease,
    PriceSnapshot, Reason, WorkerId,
};

use crate::cli::answer::Answer;
use crate::cli::outcome::Given;
use crate::cli::session::Session;
use crate::cli::values;

/// Which job, and under which command id.
#[derive(Debug, clap::Args)]
struct Target {
    /// Which job.
    #[arg(long, value_name = "ID")]
    job: JobId,
    /// The command's id: made once, kept over repeats. Without it one is made.
    #[arg(long, value_name = "ID")]
    command_id: Option<CommandId>,
}

impl Target {
    async fn send(self, session: &Session, command: JobCommand) -> anyhow::Result<Answer> {
        let given = Given::new(vec![("job", self.job.to_string())], self.command_id);
        let told = session
            .ledger
            .job(given.id.clone(), self.job, command)
            .await;
        given.answer(session.scale, told)
    }

    async fn try_out(self, session: &Session, command: &JobCommand) -> anyhow::Result<Answer> {
        let mut given = Given::new(vec![("job", self.job.to_string())], self.command_id);
        given.is_dry_run = true;
        let told = session.ledger.dry_run(&given.id, &self.job, command).await;
        given.answer(session.scale, told)
    }
}

fn attempt(text: &str) -> values::Parsed<Attempt> {
    text.parse()
        .map(Attempt::new)
        .map_err(|_| format!("{text:?} is not the number of an attempt"))
}

fn mode(text: &str) -> values::Parsed<Mode> {
    [Mode::External, Mode::Claimed]
        .into_iter()
        .find(|mode| mode.name() == text)
        .ok_or_else(|| format!("{text:?} is neither external nor claimed"))
}

fn class(text: &str) -> values::Parsed<FailureClass> {
    match text {
        "retryable" => Ok(FailureClass::Retryable),
        "terminal" => Ok(FailureClass::Terminal),
        "cancelled" => Ok(FailureClass::Cancelled),
        _ => Err(format!("{text:?} is not retryable, terminal or cancelled")),
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Charge {
    #[command(flatten)]
    target: Target,
    /// Who pays.
    #[arg(long, value_name = "ID")]
    account: AccountId,
    /// What sort of work, such as video.render.
    #[arg(long)]
    kind: Kind,
    /// How much, in the smallest unit.
    #[arg(long, value_parser = values::cost, allow_negative_numbers = true)]
    cost: Cost,
    /// How the cost came about, as the JSON of an import line; without it one line of the cost.
    #[arg(long, value_name = "JSON", value_parser = values::price)]
    price: Option<PriceSnapshot>,
    /// external (the service runs attempts) or claimed (workers start them through the ledger); without it the kind's.
    #[arg(long, value_parser = mode)]
    policy: Option<Mode>,
    /// Say what would happen, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

impl Charge {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        let price = self.price.unwrap_or_else(|| PriceSnapshot::flat(self.cost));
        let choice = self.policy.map(PolicyChoice::Mode);
        let charge = session
            .ledger
            .charge_of(self.account, self.kind, self.cost, price, choice)?;
        let command = JobCommand::Charge(Box::new(charge));
        if self.dry_run {
            self.target.try_out(session, &command).await
        } else {
            self.target.send(session, command).await
        }
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Start {
    #[command(flatten)]
    target: Target,
    /// Who runs the attempt.
    #[arg(long, value_name = "ID")]
    worker: Option<WorkerId>,
    /// How long it may run without a sign of life, such as 90s; without it the policy's lease.
    #[arg(long, value_name = "DURATION", value_parser = values::lease)]
    lease: Option<Lease>,
}

impl Start {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        self.target
            .send(
                session,
                JobCommand::Start {
                    worker: self.worker,
                    lease: self.lease,
                },
            )
            .await
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Extend {
    #[command(flatten)]
    target: Target,
    /// Which attempt, from 1.
    #[arg(long, value_parser = attempt)]
    attempt: Attempt,
}

impl Extend {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        self.target
            .send(
                session,
                JobCommand::Extend {
                    attempt: self.attempt,
                },
            )
            .await
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Fail {
    #[command(flatten)]
    target: Target,
    /// Which attempt, from 1.
    #[arg(long, value_parser = attempt)]
    attempt: Attempt,
    /// retryable, terminal or cancelled.
    #[arg(long, default_value = "retryable", value_parser = class)]
    class: FailureClass,
    /// What went wrong.
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
}

impl Fail {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        let Self {
            target,
            attempt,
            class,
            reason,
        } = self;
        target
            .send(
                session,
                JobCommand::Fail {
                    attempt,
                    class,
                    reason,
                },
            )
            .await
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Succeed {
    #[command(flatten)]
    target: Target,
    /// Which attempt, from 1.
    #[arg(long, value_parser = attempt)]
    attempt: Attempt,
    /// What it gave, such as the address of a file.
    #[arg(long, value_name = "TEXT")]
    result: Option<JobResult>,
}

impl Succeed {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        let Self {
            target,
            attempt,
            result,
        } = self;
        target
            .send(session, JobCommand::Succeed { attempt, result })
            .await
    }
}

/// A command with nothing but a reason.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct End {
    #[command(flatten)]
    target: Target,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
}

impl End {
    pub(super) const fn cancel(reason: Option<Reason>) -> JobCommand {
        JobCommand::Cancel { reason }
    }

    pub(super) const fn redrive(reason: Option<Reason>) -> JobCommand {
        JobCommand::Redrive { reason }
    }

    pub(super) const fn discard(reason: Option<Reason>) -> JobCommand {
        JobCommand::Discard { reason }
    }

    pub(super) async fn run(
        self,
        session: &Session,
        command: impl FnOnce(Option<Reason>) -> JobCommand,
    ) -> anyhow::Result<Answer> {
        self.target.send(session, command(self.reason)).await
    }
}
