//! Many commands in one call come to what one by one comes to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use recoup::store::StoreError;
use recoup::store::memory::MemoryStore;
use recoup::store::sqlite::{Options, SqliteStore};
use recoup::{
    AccountId, Command, CommandId, EventStore, FailureClass, Floor, Grant, JobCommand, Ledger,
    LedgerError, Limit, ManualClock, Mode, Outcome, Rejection, Zone,
};

use super::plan::{Sent, commands};
use crate::domain::life::{extend, fail, start, succeed};
use crate::stores::{Place, ledger, log, tries};
use crate::values::{account_id, charge, command_id, cost, grant_id, job_id, noon, policy};

type Answers = Vec<Result<Outcome, LedgerError>>;

fn charging(amount: i64) -> JobCommand {
    JobCommand::Charge(Box::new(charge("acme", amount, policy(Mode::External, 5))))
}

fn failing() -> JobCommand {
    fail(1, FailureClass::Retryable)
}

fn on(id: &str, job: &str, command: JobCommand) -> (CommandId, Command) {
    (command_id(id), Command::Job(job_id(job), command))
}

fn grant_of(account: &AccountId, amount: i64) -> Command {
    Command::Grant(Grant {
        account: account.clone(),
        grant: grant_id("opening"),
        amount: cost(amount),
    })
}

async fn opened(place: &Place) -> Ledger {
    let ledger = place.ledger().await;
    let outcome = ledger
        .execute(command_id("opening"), grant_of(&account_id("acme"), 1_000))
        .await;
    assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
    ledger
}

async fn balance_and_held(ledger: &Ledger) -> (i64, i64) {
    let state = ledger.account(&account_id("acme")).await.expect("readable");
    (state.balance, state.held)
}

fn names(answers: &Answers) -> Vec<&'static str> {
    let name =
        |answer: &Result<Outcome, LedgerError>| answer.as_ref().map_or("error", Outcome::name);
    answers.iter().map(name).collect()
}

#[tokio::test]
async fn a_whole_life_in_one_call_keeps_its_order() {
    let place = Place::new();
    let ledger = opened(&place).await;
    let answers = ledger
        .batch(vec![
            on("1", "a", charging(40)),
            on("2", "b", charging(60)),
            on("3", "a", start()),
            on("4", "a", failing()),
            on("5", "b", failing()),
            on("4", "a", failing()),
            on("6", "a", succeed(1)),
            on("7", "a", failing()),
            on("8", "b", JobCommand::Redrive { reason: None }),
        ])
        .await;
    let expected = [
        "applied",
        "applied",
        "applied",
        "applied",
        "applied",
        "already_applied",
        "applied",
        "noted",
        "rejected",
    ];
    assert_eq!(names(&answers), expected, "{answers:?}");
    assert_eq!(balance_and_held(&ledger).await, (960, 0));
}

/// Interleaving: a job was charged. Another process, which has not seen it, gets a batch in which the job is charged (again) and fails.
/// It takes the charge for the first, and decides the failure on it; the charge is in conflict, and the failure would fit behind the
/// stored charge by its revision alone. A rerun of an import that was killed looks like this.
#[tokio::test]
async fn a_charge_again_and_a_failure_in_one_call_refund_what_was_charged() {
    // (what the second charge costs, how its answer is called)
    for (amount, name) in [(40, "already_applied"), (400, "rejected")] {
        let place = Place::new();
        let first = opened(&place).await;
        first
            .job(command_id("c"), job_id("a"), charging(40))
            .await
            .expect("applied")
            .receipt()
            .expect("a receipt");
        place.clock.advance(Duration::from_secs(1));
        let second = place.ledger().await;
        let answers = second
            .batch(vec![
                on("c2", "a", charging(amount)),
                on("f", "a", failing()),
            ])
            .await;
        assert_eq!(
            balance_and_held(&second).await,
            (1_000, 0),
            "a charge of {amount}"
        );
        let shown = place.ledger().await.show(&job_id("a")).await;
        assert!(
            shown.is_ok(),
            "a charge of {amount}: the stream is legal: {shown:?}"
        );
        assert_eq!(names(&answers), [name, "applied"], "{answers:?}");
    }
}

/// Interleaving: a batch of a failure and a success is decided on a state that another process has moved on by as many events as the failure
/// appends. The failure is in conflict; the success, with its reclaim, would fit by its revision alone.
#[tokio::test]
async fn a_link_whose_chain_is_broken_is_not_appended_by_accident() {
    let place = Place::new();
    let (batching, other) = (opened(&place).await, place.ledger().await);
    let job = job_id("a");
    for outcome in [
        batching
            .job(command_id("c"), job.clone(), charging(40))
            .await,
        other.job(command_id("s"), job.clone(), start()).await,
    ] {
        assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
    }
    for id in ["e1", "e2"] {
        place.clock.advance(Duration::from_secs(30));
        let outcome = other.job(command_id(id), job.clone(), extend(1)).await;
        assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
    }
    let answers = batching
        .batch(vec![on("f", "a", failing()), on("d", "a", succeed(1))])
        .await;
    assert_eq!(balance_and_held(&batching).await, (960, 0), "{answers:?}");
    let shown = place.ledger().await.show(&job).await;
    assert!(shown.is_ok(), "the stream is legal: {shown:?}");
    assert_eq!(names(&answers), ["applied", "applied"]);
}

/// The same with a job whose retries are ours: the accident would leave a hold that nothing ends.
#[tokio::test]
async fn a_broken_chain_leaves_no_hold_behind() {
    let place = Place::new();
    let (batching, other) = (opened(&place).await, place.ledger().await);
    let job = job_id("a");
    let claimed = JobCommand::Charge(Box::new(charge("acme", 40, policy(Mode::Claimed, 5))));
    for (id, command) in [("c", claimed), ("s", start())] {
        let outcome = batching.job(command_id(id), job.clone(), command).await;
        assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
    }
    // Three events, as the terminal failure below would append: but these hold the refund for a retry.
    let outcome = other.job(command_id("f1"), job.clone(), failing()).await;
    assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
    let terminal = fail(1, FailureClass::Terminal);
    let answers = batching
        .batch(vec![on("f2", "a", terminal), on("d", "a", succeed(1))])
        .await;
    assert_eq!(balance_and_held(&batching).await, (960, 0), "{answers:?}");
    let shown = place.ledger().await.show(&job).await;
    assert!(shown.is_ok(), "the stream is legal: {shown:?}");
}

#[tokio::test]
async fn what_follows_a_refused_charge_is_decided_on_what_is_there() {
    let place = Place::new();
    let ledger = opened(&place).await;
    let answers = ledger
        .batch(vec![
            on("1", "big", charging(2_000)),
            on("2", "big", failing()),
            on("3", "small", charging(1_000)),
            on("4", "small", failing()),
            on("5", "big", charging(900)),
        ])
        .await;
    assert_eq!(
        names(&answers),
        ["rejected", "rejected", "applied", "applied", "applied"],
        "{answers:?}"
    );
    let rejection = |index: usize| {
        answers[index]
            .as_ref()
            .ok()
            .and_then(Outcome::rejection)
            .map(Rejection::code)
    };
    assert_eq!(
        (rejection(0), rejection(1)),
        (Some("insufficient_credit"), Some("no_such_job"))
    );
    assert_eq!(balance_and_held(&ledger).await, (100, 0));
}

/// Lines of an import: the limit stands before the charges that it admits, or refuses.
#[tokio::test]
async fn limits_and_grants_take_effect_in_their_order() {
    for one_call in [false, true] {
        let place = Place::new();
        let ledger = place.ledger().await;
        let account = account_id("acme");
        let limit = |id: &str, floor, monthly_cap| {
            let limit = Limit {
                account: account.clone(),
                floor: Some(floor),
                monthly_cap: Some(monthly_cap),
            };
            (command_id(id), Command::Limit(limit))
        };
        let commands = vec![
            on("1", "a", charging(10)),
            limit("2", Floor::None, None),
            on("3", "b", charging(10)),
            limit("4", Floor::None, Some(15)),
            on("5", "c", charging(10)),
            limit("6", Floor::At(0), None),
            on("7", "d", charging(10)),
            (command_id("8"), grant_of(&account, 100)),
            on("9", "e", charging(10)),
        ];
        let answers = if one_call {
            ledger.batch(commands).await
        } else {
            one_by_one(&ledger, commands).await
        };
        let expected = [
            "rejected", "applied", "applied", "applied", "rejected", "applied", "rejected",
            "applied", "applied",
        ];
        assert_eq!(names(&answers), expected, "in one call: {one_call}");
    }
}

async fn one_by_one(ledger: &Ledger, commands: Vec<(CommandId, Command)>) -> Answers {
    let mut answers = Vec::new();
    for (id, command) in commands {
        answers.push(ledger.execute(id, command).await);
    }
    answers
}

/// By stream: type, bytes, metadata and instant of every event.
async fn streams(store: &dyn EventStore) -> BTreeMap<String, Vec<(String, Vec<u8>, Vec<u8>, i64)>> {
    let mut streams: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in log(store).await {
        let stored = (
            event.type_name.to_string(),
            event.data.to_vec(),
            event.metadata.to_vec(),
            event.posted_at.as_micros(),
        );
        streams
            .entry(event.stream.as_str().to_owned())
            .or_default()
            .push(stored);
    }
    streams
}

/// One store and its clock; a new ledger on it knows nothing of what went before.
struct Side {
    store: Arc<MemoryStore>,
    clock: ManualClock,
    ledger: Ledger,
}

impl Side {
    async fn new() -> Self {
        let clock = ManualClock::starting_at(noon());
        let store = Arc::new(MemoryStore::new(Zone::UTC, Arc::new(clock.clone())));
        let ledger = ledger(store.clone());
        for account in ["rich", "poor"] {
            let id = command_id(&format!("opening of {account}"));
            let outcome = ledger
                .execute(id, grant_of(&account_id(account), 100_000))
                .await;
            assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
        }
        Self {
            store,
            clock,
            ledger,
        }
    }

    fn forget(&mut self) {
        self.ledger = ledger(self.store.clone());
    }
}

async fn compare(
    commands: Vec<Sent>,
    size: usize,
    seconds: u64,
    forgets: bool,
) -> Result<(), TestCaseError> {
    let (mut calls, mut call) = (Side::new().await, Side::new().await);
    for chunk in commands.chunks(size) {
        for side in [&mut calls, &mut call] {
            side.clock.advance(Duration::from_secs(seconds));
            if forgets {
                side.forget();
            }
        }
        let sent: Vec<_> = chunk
            .iter()
            .map(|sent| (sent.id.clone(), sent.command.clone()))
            .collect();
        let expected = one_by_one(&calls.ledger, sent.clone()).await;
        let answers = call.ledger.batch(sent).await;
        for ((sent, answer), expected) in chunk.iter().zip(answers).zip(expected) {
            prop_assert_eq!(answer, expected, "{:?}", sent);
        }
        prop_assert_eq!(streams(&*call.store).await, streams(&*calls.store).await);
    }
    let figures = |accounts: Vec<(AccountId, recoup::AccountState)>| -> Vec<_> {
        let figures = |(account, state): (AccountId, recoup::AccountState)| {
            (account, state.balance, state.held, state.months)
        };
        accounts.into_iter().map(figures).collect()
    };
    let (one, other) = (
        call.store.accounts(None, 10).await,
        calls.store.accounts(None, 10).await,
    );
    prop_assert_eq!(
        figures(one.expect("readable")),
        figures(other.expect("readable"))
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: tries(200), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_call_equals_one_by_one(
        commands in commands(1..50),
        size in 1..12_usize,
        seconds in 0..3_u64,
        forgets in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(compare(commands, size, seconds, forgets))?;
    }
}

/// The disk is full: what stands behind a charge in the same call has no answer either, above all not `no_such_job`.
#[tokio::test]
async fn what_follows_a_charge_that_has_no_answer_has_none_either() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = Options::at(folder.path().join("ledger.db"));
    options.max_pages = Some(24);
    let store = SqliteStore::open(options).await.expect("it opens");
    let ledger = ledger(Arc::new(store));
    let granted = ledger
        .execute(command_id("g"), grant_of(&account_id("acme"), 1_000_000))
        .await;
    assert!(matches!(granted, Ok(Outcome::Applied(_))), "{granted:?}");
    for number in 0..2_000 {
        let job = format!("job {number}");
        let of_job = |what: &str, command| on(&format!("{what} {number}"), &job, command);
        let answers = ledger
            .batch(vec![
                of_job("c", charging(40)),
                of_job("f", failing()),
                of_job("d", succeed(1)),
            ])
            .await;
        if answers.iter().all(Result::is_ok) {
            continue;
        }
        let full = Err(LedgerError::Store(StoreError::Full));
        assert_eq!(answers, vec![full; 3], "{job}");
        let state = ledger.show(&job_id(&job)).await.expect("readable").0;
        assert!(state.recorded().is_none(), "nothing is half applied");
        return;
    }
    panic!("24 pages hold 2,000 lifecycles");
}
