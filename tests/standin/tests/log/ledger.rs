//! A ledger over the log: what its callers are told while answers are lost.

use std::sync::Arc;
use std::time::Duration;

use recoup::ids::{AccountId, CommandId, JobId, Kind};
use recoup::job::{Attempt, FailureClass, JobCommand};
use recoup::ledger::{Ledger, LedgerError, Outcome, Policies};
use recoup::price::PriceSnapshot;
use recoup::store::kurrentdb::Options;
use recoup::{Cost, EventStore};
use recoup_kurrentdb_standin::AppendFate;
use tokio::task::JoinSet;

use crate::world::{Folded, bounded, open, options, standin};

/// The same command, with the same id, until its outcome is known.
async fn told(ledger: &Ledger, id: &CommandId, job: &JobId, command: &JobCommand) -> Outcome {
    bounded("an outcome", async {
        loop {
            match ledger.job(id.clone(), job.clone(), command.clone()).await {
                Ok(outcome) => return outcome,
                Err(LedgerError::OutcomeUnknown { .. } | LedgerError::Store(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

/// Sixteen jobs are charged, fail and are delivered after all, each signal sent by two callers at once, while every other append goes wrong. Each job costs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_charged_once_whatever_becomes_of_the_answers() {
    let standin = standin(1).await;
    let log = open(Options {
        answer_within: Duration::from_secs(2),
        ..options(&standin)
    })
    .await;
    let mut number = 0;
    standin.script_appends(move |_| {
        number += 1;
        match number % 8 {
            1 => AppendFate::CommittedThenAborted,
            3 => AppendFate::HeldThenAborted,
            5 => AppendFate::CommittedThenCut,
            7 => AppendFate::Aborted,
            _ => AppendFate::Fine,
        }
    });
    let store: Arc<dyn EventStore> = Arc::new(Folded(log));
    let account = AccountId::new("acme").expect("a literal is a valid id");
    let kind = Kind::new("video").expect("a literal is a valid id");
    let cost = Cost::new(40).expect("a literal is a valid cost");
    let mut callers = JoinSet::new();
    for number in 0..16 {
        for _ in 0..2 {
            // A ledger each, as two processes have: no cache tells one what the other did.
            let ledger = Ledger::new(Arc::clone(&store), Policies::default());
            let price = PriceSnapshot::flat(cost);
            let charge = ledger.charge_of(account.clone(), kind.clone(), cost, price, None);
            let charge = JobCommand::Charge(Box::new(charge.expect("the price is the cost")));
            let fail = JobCommand::Fail {
                attempt: Attempt::FIRST,
                class: FailureClass::Retryable,
                reason: None,
            };
            let succeed = JobCommand::Succeed {
                attempt: Attempt::FIRST,
                result: None,
            };
            callers.spawn(async move {
                let job = JobId::new(format!("j{number}")).expect("a valid id");
                for (what, command) in [("charge", charge), ("fail", fail), ("succeed", succeed)] {
                    let id = CommandId::new(format!("{what} {job}")).expect("a valid id");
                    let outcome = told(&ledger, &id, &job, &command).await;
                    assert!(outcome.is_done(), "{what} {job}: {outcome:?}");
                }
            });
        }
    }
    bounded("32 callers", callers.join_all()).await;
    standin.release();
    let accounts = store.accounts(None, 10).await.expect("readable");
    let (_, figures) = accounts.into_iter().next().expect("one account");
    assert_eq!((figures.balance, figures.held), (-16 * 40, 0));
}
