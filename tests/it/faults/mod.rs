//! Faults that other systems of this kind were reported with, each as a test that fails without the protection.
//!
//! A test's name has the fault's number in the project's list; its comment says which interleaving it plays and what protects from it.
//! [`money`] holds 1 to 7, [`guards`] 8 to 10 and 28.

mod guards;
mod money;

use recoup::{
    Command, CommandId, FailureClass, Grant, JobCommand, Ledger, Mode, Outcome, Rejection,
};

use crate::domain::life::fail;
use crate::ledger::races::charging;
use crate::values::{account_id, cost, grant_id, job_id, policy};

fn failing() -> JobCommand {
    fail(1, FailureClass::Retryable)
}

fn external(amount: i64) -> JobCommand {
    charging(amount, policy(Mode::External, 5))
}

fn claimed(amount: i64) -> JobCommand {
    charging(amount, policy(Mode::Claimed, 2))
}

fn granting(name: &str, amount: i64) -> Command {
    let (account, grant) = (account_id("acme"), grant_id(name));
    Command::Grant(Grant {
        account,
        grant,
        amount: cost(amount),
    })
}

async fn answer(ledger: &Ledger, job: &str, command: JobCommand) -> Outcome {
    let answered = ledger.job(CommandId::random(), job_id(job), command).await;
    answered.expect("the store is available")
}

fn code(outcome: &Outcome) -> Option<&'static str> {
    outcome.rejection().map(Rejection::code)
}

async fn held(ledger: &Ledger) -> i64 {
    ledger
        .account(&account_id("acme"))
        .await
        .expect("readable")
        .held
}
