//! Commands on accounts. The flags are the keys of an import line.

use clap::ArgGroup;
use recoup::{
    AccountId, AdjustmentId, Command, CommandId, Cost, Delta, Floor, GrantId, JobId, Reason,
};

use crate::cli::answer::Answer;
use crate::cli::outcome::Given;
use crate::cli::session::Session;
use crate::cli::values::{self, Cap};

async fn send(session: &Session, given: &Given, command: Command) -> anyhow::Result<Answer> {
    let told = session.ledger.execute(given.id.clone(), command).await;
    given.answer(session.scale, told)
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Grant {
    /// Who gets it.
    #[arg(long, value_name = "ID")]
    account: AccountId,
    /// Names the grant within the account.
    #[arg(long, value_name = "ID")]
    grant: GrantId,
    /// How much, in the smallest unit.
    #[arg(long, value_parser = values::cost, allow_negative_numbers = true)]
    amount: Cost,
    /// The command's id: made once, kept over repeats. Without it one is made.
    #[arg(long, value_name = "ID")]
    command_id: Option<CommandId>,
}

impl Grant {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        let Self {
            account,
            grant,
            amount,
            command_id,
        } = self;
        let subject = vec![
            ("account", account.to_string()),
            ("grant", grant.to_string()),
        ];
        let given = Given::new(subject, command_id);
        send(
            session,
            &given,
            Command::Grant(recoup::Grant {
                account,
                grant,
                amount,
            }),
        )
        .await
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Adjust {
    /// Whose balance.
    #[arg(long, value_name = "ID")]
    account: AccountId,
    /// Names the adjustment within the account.
    #[arg(long, value_name = "ID")]
    adjustment: AdjustmentId,
    /// By how much, signed, in the smallest unit.
    #[arg(long, value_parser = values::delta, allow_negative_numbers = true)]
    amount: Delta,
    /// Why.
    #[arg(long, value_name = "TEXT", value_parser = values::stated_reason)]
    reason: Reason,
    /// The job that it corrects.
    #[arg(long, value_name = "ID")]
    job: Option<JobId>,
    /// The command's id: made once, kept over repeats. Without it one is made.
    #[arg(long, value_name = "ID")]
    command_id: Option<CommandId>,
}

impl Adjust {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        let Self {
            account,
            adjustment,
            amount,
            reason,
            job,
            command_id,
        } = self;
        let subject = vec![
            ("account", account.to_string()),
            ("adjustment", adjustment.to_string()),
        ];
        let given = Given::new(subject, command_id);
        let adjust = recoup::Adjust {
            account,
            adjustment,
            amount,
            reason,
            job,
        };
        send(session, &given, Command::Adjust(adjust)).await
    }
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("limits").required(true).multiple(true).args(["floor", "monthly_cap"]))]
pub(in crate::cli) struct Limit {
    /// Whose limits.
    #[arg(long, value_name = "ID")]
    account: AccountId,
    /// The lowest balance that a charge may lead to, in the smallest unit; none for postpaid.
    #[arg(long, value_name = "AMOUNT|none", value_parser = values::floor, allow_negative_numbers = true)]
    floor: Option<Floor>,
    /// The most that a month may spend and hold, in the smallest unit; none for no cap.
    #[arg(long, value_name = "AMOUNT|none", value_parser = values::cap, allow_negative_numbers = true)]
    monthly_cap: Option<Cap>,
    /// The command's id: made once, kept over repeats. Without it one is made.
    #[arg(long, value_name = "ID")]
    command_id: Option<CommandId>,
}

impl Limit {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<Answer> {
        let Self {
            account,
            floor,
            monthly_cap,
            command_id,
        } = self;
        let given = Given::new(vec![("account", account.to_string())], command_id);
        let monthly_cap = monthly_cap.map(|Cap(cap)| cap);
        send(
            session,
            &given,
            Command::Limit(recoup::Limit {
                account,
                floor,
                monthly_cap,
            }),
        )
        .await
    }
}
