//! Answers that never arrive.
//!
//! An append whose answer is lost may be stored or not. The ledger repeats the identical append and compares what is stored; the caller
//! repeats the command under its id. Neither may apply anything twice, call anything failed that happened, or take another caller's
//! append for its own.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use recoup::ledger::MAX_REPEATS;
use recoup::{
    Adjust, Command, CommandId, FailureClass, Floor, Grant, JobCommand, Ledger, LedgerError, Limit,
    Mode, Outcome, Rejection,
};

use crate::oracle::Oracle;
use crate::stores::{Fate, Place, Scripted, ledger, log};
use crate::values::{
    account_id, adjustment_id, charge, command_id, cost, delta, grant_id, job_id, policy, reason,
};

fn charging(amount: i64) -> JobCommand {
    JobCommand::Charge(Box::new(charge("acme", amount, policy(Mode::External, 5))))
}

fn failing() -> JobCommand {
    crate::domain::life::fail(1, FailureClass::Retryable)
}

fn granting(name: &str, amount: i64) -> Grant {
    Grant {
        account: account_id("acme"),
        grant: grant_id(name),
        amount: cost(amount),
    }
}

async fn granted(ledger: &Ledger, amount: i64) {
    let outcome = ledger
        .grant(CommandId::random(), granting("opening", amount))
        .await;
    assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
}

async fn balance(ledger: &Ledger) -> i64 {
    ledger
        .account(&account_id("acme"))
        .await
        .expect("readable")
        .balance
}

fn is_applied(outcome: &Result<Outcome, LedgerError>) -> bool {
    matches!(outcome, Ok(Outcome::Applied(_)))
}

fn is_already_applied(outcome: &Result<Outcome, LedgerError>) -> bool {
    matches!(outcome, Ok(Outcome::AlreadyApplied(_)))
}

/// One command of every kind, in an order in which each is applied.
fn life() -> Vec<Command> {
    let job = |command| Command::Job(job_id("video-1"), command);
    let claimed = JobCommand::Charge(Box::new(charge("acme", 40, policy(Mode::Claimed, 1))));
    let account = || account_id("acme");
    let adjusting = Adjust {
        account: account(),
        adjustment: adjustment_id("x"),
        amount: delta(-5),
        reason: reason("a correction"),
        job: None,
    };
    vec![
        Command::Limit(Limit {
            account: account(),
            floor: Some(Floor::At(-1)),
            monthly_cap: Some(Some(1_000)),
        }),
        Command::Grant(granting("opening", 100)),
        Command::Adjust(adjusting),
        job(claimed),
        job(JobCommand::Start {
            worker: None,
            lease: None,
        }),
        job(failing()),
        job(JobCommand::Redrive { reason: None }),
        job(JobCommand::Cancel { reason: None }),
        job(crate::domain::life::succeed(1)),
    ]
}

#[tokio::test]
async fn a_lost_answer_of_any_command_is_settled_by_the_ledger_itself() {
    for fates in [
        vec![Fate::AnswerLost],
        vec![Fate::NeverSent],
        vec![Fate::NeverSent, Fate::AnswerLost],
        vec![Fate::AnswerLost, Fate::NeverSent, Fate::AnswerLost],
    ] {
        let place = Place::new();
        let plain = place.store().await;
        let scripted = Scripted::new(plain.clone());
        let ledger = ledger(scripted.clone());
        let mut oracle = Oracle::default();
        for (number, command) in life().into_iter().enumerate() {
            let id = command_id(&format!("c{number}"));
            scripted.then(fates.clone());
            let outcome = ledger
                .execute(id.clone(), command.clone())
                .await
                .expect("it is settled");
            let is_last = number == 8;
            let as_expected = if is_last {
                matches!(outcome, Outcome::Noted(_))
            } else {
                matches!(outcome, Outcome::Applied(_))
            };
            assert!(as_expected, "{command:?}: {outcome:?}");
            oracle.hear(&id, &command, &outcome);
        }
        oracle.check(&*plain).await;
    }
}

#[tokio::test]
async fn a_lost_commit_is_unknown_and_its_repeat_is_already_applied_though_nothing_is_left() {
    let place = Place::new();
    let scripted = Scripted::new(place.store().await);
    let ledger = ledger(scripted.clone());
    granted(&ledger, 40).await;
    let tries = usize::try_from(MAX_REPEATS).expect("few") + 1;
    scripted.then(vec![Fate::AnswerLost; tries]);
    let (id, job) = (command_id("c"), job_id("video-1"));
    let outcome = ledger.job(id.clone(), job.clone(), charging(40)).await;
    assert!(
        matches!(outcome, Err(LedgerError::OutcomeUnknown { .. })),
        "{outcome:?}"
    );
    assert_eq!(balance(&ledger).await, 0);
    // Limits are checked last: the committed charge is found before anybody asks whether there is credit for it.
    for other in [ledger.clone(), place.ledger().await] {
        let repeated = other.job(id.clone(), job.clone(), charging(40)).await;
        assert!(is_already_applied(&repeated), "{repeated:?}");
        let batched = other
            .batch(vec![(id.clone(), Command::Job(job.clone(), charging(40)))])
            .await;
        assert!(is_already_applied(&batched[0]), "{batched:?}");
        assert_eq!(balance(&other).await, 0);
    }
}

#[tokio::test]
async fn an_append_that_never_arrived_is_unknown_and_its_repeat_applies_it() {
    let place = Place::new();
    let scripted = Scripted::new(place.store().await);
    let ledger = ledger(scripted.clone());
    granted(&ledger, 40).await;
    let tries = usize::try_from(MAX_REPEATS).expect("few") + 1;
    scripted.then(vec![Fate::NeverSent; tries]);
    let (id, job) = (command_id("c"), job_id("video-1"));
    let outcome = ledger.job(id.clone(), job.clone(), charging(40)).await;
    assert!(
        matches!(outcome, Err(LedgerError::OutcomeUnknown { .. })),
        "{outcome:?}"
    );
    assert_eq!(balance(&ledger).await, 40);
    assert!(is_applied(&ledger.job(id, job, charging(40)).await));
    assert_eq!(balance(&ledger).await, 0);
}

#[tokio::test]
async fn a_lost_batch_is_settled_member_by_member() {
    for fate in [Fate::AnswerLost, Fate::NeverSent] {
        let place = Place::new();
        let plain = place.store().await;
        let scripted = Scripted::new(plain.clone());
        let ledger = ledger(scripted.clone());
        granted(&ledger, 1_000).await;
        let job = |number: u32| job_id(&format!("video-{number}"));
        let of_job = |number: u32| {
            let command = |name: &str, command| {
                (
                    command_id(&format!("{name} {number}")),
                    Command::Job(job(number), command),
                )
            };
            [
                command("charge", charging(40)),
                command("fail", failing()),
                command("succeed", crate::domain::life::succeed(1)),
            ]
        };
        let commands: Vec<_> = (0..5).flat_map(of_job).collect();
        scripted.then([fate]);
        let answers = ledger.batch(commands.clone()).await;
        assert!(answers.iter().all(is_applied), "{fate:?}: {answers:?}");
        assert_eq!(log(&*plain).await.len(), 1 + 5 * 6);
        assert_eq!(balance(&ledger).await, 1_000 - 5 * 40);
        let again = ledger.batch(commands).await;
        assert!(again.iter().all(is_already_applied), "{fate:?}: {again:?}");
    }
}

/// Interleaving: a batch of a charge and its failure is committed, and the answer of the commit is lost; so is every answer to the repeats of the
/// charge. The failure was in the same commit: it is as unknown as the charge, and "surely nothing was written" would be a lie.
#[tokio::test]
async fn nothing_of_a_lost_batch_is_called_unwritten() {
    let place = Place::new();
    let plain = place.store().await;
    let scripted = Scripted::new(plain.clone());
    let ledger = ledger(scripted.clone());
    granted(&ledger, 100).await;
    let tries = usize::try_from(MAX_REPEATS).expect("few") + 1;
    scripted.then(vec![Fate::AnswerLost; tries]);
    let job = |id: &str, command| (command_id(id), Command::Job(job_id("video-1"), command));
    let commands = vec![job("c", charging(40)), job("f", failing())];
    let answers = ledger.batch(commands.clone()).await;
    assert_eq!(log(&*plain).await.len(), 5, "both were stored");
    for answer in &answers {
        let is_unknown = matches!(answer, Err(LedgerError::OutcomeUnknown { .. }));
        assert!(is_unknown, "{answers:?}");
    }
    let again = ledger.batch(commands).await;
    assert!(again.iter().all(is_already_applied), "{again:?}");
}

/// Interleaving: caller A charges. Caller B sends the same charge under the same id (the service repeated its request), a second
/// later by the clock; B's append is lost before it arrives. B repeats it, finds a conflict, and finds events with the ids of its own: the
/// charge is there. What stands there is A's, charged a second earlier, and B must go on from that.
#[tokio::test]
async fn a_twins_append_is_not_taken_for_ones_own() {
    for fate in [Fate::NeverSent, Fate::AnswerLost] {
        let place = Place::new();
        let scripted = Scripted::new(place.store().await);
        let (a, b) = (place.ledger().await, ledger(scripted.clone()));
        granted(&a, 100).await;
        let (id, job) = (command_id("c"), job_id("video-1"));
        assert!(is_applied(
            &a.job(id.clone(), job.clone(), charging(40)).await
        ));
        place.clock.advance(Duration::from_secs(1));
        scripted.then([fate]);
        let twin = b
            .job(id, job.clone(), charging(40))
            .await
            .expect("it is settled");
        assert!(twin.is_done(), "{twin:?}");
        let failed = b.job(command_id("f"), job.clone(), failing()).await;
        assert!(is_applied(&failed), "{failed:?}");
        let fresh = place.ledger().await;
        let shown = fresh.show(&job).await;
        assert!(
            shown.is_ok(),
            "{fate:?}: what B appended behind it is legal: {shown:?}"
        );
        assert_eq!(balance(&fresh).await, 100);
    }
}

/// The same, and B's charge costs something else: one id for two commands. B is told so, and refunds what was charged.
#[tokio::test]
async fn an_id_reused_for_another_charge_is_told_though_its_answer_was_lost() {
    for fate in [Fate::Fine, Fate::NeverSent, Fate::AnswerLost] {
        let place = Place::new();
        let scripted = Scripted::new(place.store().await);
        let (a, b) = (place.ledger().await, ledger(scripted.clone()));
        granted(&a, 1_000).await;
        let (id, job) = (command_id("c"), job_id("video-1"));
        assert!(is_applied(
            &a.job(id.clone(), job.clone(), charging(40)).await
        ));
        scripted.then([fate]);
        let other = b
            .job(id, job.clone(), charging(400))
            .await
            .expect("it is settled");
        let failed = b.job(command_id("f"), job.clone(), failing()).await;
        assert!(is_applied(&failed), "{failed:?}");
        assert_eq!(
            balance(&a).await,
            1_000,
            "{fate:?}: the refund is what was charged"
        );
        let reused = Rejection::CommandIdReused { field: "cost" };
        assert_eq!(other.rejection(), Some(&reused), "{fate:?}: {other:?}");
    }
}

#[tokio::test]
async fn an_id_reused_for_another_grant_is_told_though_its_answer_was_lost() {
    for fate in [Fate::Fine, Fate::NeverSent, Fate::AnswerLost] {
        let place = Place::new();
        let scripted = Scripted::new(place.store().await);
        let (a, b) = (place.ledger().await, ledger(scripted.clone()));
        let id = command_id("g");
        assert!(is_applied(
            &a.grant(id.clone(), granting("welcome", 100)).await
        ));
        scripted.then([fate]);
        let other = b
            .grant(id, granting("welcome", 900))
            .await
            .expect("it is settled");
        let reused = Rejection::CommandIdReused { field: "amount" };
        assert_eq!(other.rejection(), Some(&reused), "{fate:?}: {other:?}");
        assert_eq!(balance(&a).await, 100);
    }
}

/// Polls a future a few times and drops it, as a caller does that is cancelled.
async fn begun_and_dropped<T>(future: impl Future<Output = T>, polls: u32) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let is_ready =
            poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if is_ready {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_caller_went_away_is_repeated_safely() {
    let place = Place::new();
    let ledger = place.ledger().await;
    granted(&ledger, 10_000).await;
    for number in 0..40 {
        let job = job_id(&format!("video-{number}"));
        for (name, command) in [("charge", charging(40)), ("fail", failing())] {
            let id = command_id(&format!("{name} {number}"));
            begun_and_dropped(
                ledger.job(id.clone(), job.clone(), command.clone()),
                number % 5,
            )
            .await;
            let repeated = ledger.job(id, job.clone(), command).await;
            assert!(
                repeated.as_ref().is_ok_and(Outcome::is_done),
                "{name} {number}: {repeated:?}"
            );
        }
        let (state, history) = ledger.show(&job).await.expect("readable");
        assert_eq!(
            (state.recorded().map(|job| job.net()), history.len()),
            (Some(0), 4),
            "{number}"
        );
    }
    assert_eq!(balance(&ledger).await, 10_000);
}
