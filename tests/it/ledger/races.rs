//! Many callers, one outcome.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use recoup::{
    Command, CommandId, FailureClass, Floor, Grant, JobCommand, JobId, Ledger, Limit, Mode,
    Outcome, Policy,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::domain::life::{fail, start, succeed};
use crate::stores::Place;
use crate::values::{account_id, charge, command_id, cost, grant_id, job_id, policy, worker};

/// How many tasks send at once.
const TASKS: usize = 64;

/// Sends a command from each of many tasks at once, by turns through `ledgers`, and gives how often each answer was given.
pub(crate) async fn at_once(
    ledgers: &[Ledger],
    commands: Vec<(CommandId, Command)>,
) -> BTreeMap<&'static str, usize> {
    let barrier = Arc::new(Barrier::new(commands.len()));
    let mut tasks = JoinSet::new();
    for ((id, command), ledger) in commands.into_iter().zip(ledgers.iter().cycle().cloned()) {
        let barrier = Arc::clone(&barrier);
        tasks.spawn(async move {
            barrier.wait().await;
            ledger.execute(id, command).await
        });
    }
    let answers = tokio::time::timeout(Duration::from_secs(60), tasks.join_all())
        .await
        .expect("an answer each");
    let mut counts = BTreeMap::new();
    for answer in answers {
        let outcome = answer.expect("the store is available");
        let name = outcome
            .rejection()
            .map_or(outcome.name(), recoup::Rejection::code);
        *counts.entry(name).or_default() += 1;
    }
    counts
}

pub(crate) fn counts<const N: usize>(
    expected: [(&'static str, usize); N],
) -> BTreeMap<&'static str, usize> {
    BTreeMap::from(expected)
}

/// Two ledgers with a store and a cache of their own on one ledger, and `amount` in the account.
pub(crate) async fn two_processes(place: &Place, amount: i64) -> [Ledger; 2] {
    let ledgers = [place.ledger().await, place.ledger().await];
    let grant = Grant {
        account: account_id("acme"),
        grant: grant_id("opening"),
        amount: cost(amount),
    };
    apply(&ledgers[0], Command::Grant(grant)).await;
    ledgers
}

pub(crate) async fn apply(ledger: &Ledger, command: Command) {
    let outcome = ledger.execute(CommandId::random(), command.clone()).await;
    assert!(
        matches!(outcome, Ok(Outcome::Applied(_))),
        "{command:?}: {outcome:?}"
    );
}

pub(crate) async fn on(ledger: &Ledger, job: &str, command: JobCommand) {
    apply(ledger, Command::Job(job_id(job), command)).await;
}

pub(crate) fn charging(amount: i64, policy: Policy) -> JobCommand {
    JobCommand::Charge(Box::new(charge("acme", amount, policy)))
}

pub(crate) async fn balance(ledger: &Ledger) -> i64 {
    ledger
        .account(&account_id("acme"))
        .await
        .expect("readable")
        .balance
}

async fn entries(ledger: &Ledger, job: &str) -> Vec<(&'static str, i64)> {
    let (_, history) = ledger.show(&job_id(job)).await.expect("readable");
    let events = history.iter().filter_map(|event| event.event.as_ref());
    let entries = events.filter_map(|event| Some((event.name(), event.posting()?.amount)));
    entries.filter(|(_, amount)| *amount != 0).collect()
}

/// The same command from every task: under one id (a request that was repeated), or each under its own (a signal that was sent often).
fn copies(job: &str, command: &JobCommand, one_id: bool) -> Vec<(CommandId, Command)> {
    let id = |number| {
        if one_id {
            command_id(&format!("{} {job}", command.name()))
        } else {
            command_id(&format!("{number}"))
        }
    };
    (0..TASKS)
        .map(|number| (id(number), Command::Job(job_id(job), command.clone())))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_equal_failures_one_refunds_and_of_64_successes_one_reclaims() {
    let place = Place::new();
    let ledgers = two_processes(&place, 1_000).await;
    let one = counts([("already_applied", TASKS - 1), ("applied", 1)]);
    for (job, one_id, mode) in [
        ("a", false, Mode::External),
        ("b", true, Mode::External),
        ("c", false, Mode::Claimed),
    ] {
        on(&ledgers[0], job, charging(40, policy(mode, 1))).await;
        if mode == Mode::Claimed {
            on(&ledgers[0], job, start()).await;
        }
        let failing = fail(1, FailureClass::Retryable);
        assert_eq!(
            at_once(&ledgers, copies(job, &failing, one_id)).await,
            one,
            "{job} fails"
        );
        assert_eq!(
            entries(&ledgers[0], job).await,
            [("charged", -40), ("refunded", 40)]
        );
        let succeeding = succeed(1);
        let mut successes = copies(job, &succeeding, one_id);
        for (number, (id, _)) in successes.iter_mut().enumerate() {
            if !one_id {
                *id = command_id(&format!("success {number}"));
            }
        }
        assert_eq!(at_once(&ledgers, successes).await, one, "{job} succeeds");
        assert_eq!(
            entries(&ledgers[1], job).await,
            [("charged", -40), ("refunded", 40), ("reclaimed", -40)]
        );
    }
    assert_eq!(balance(&ledgers[0]).await, 1_000 - 3 * 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_and_successes_at_once_end_in_one_delivery() {
    let place = Place::new();
    let ledgers = two_processes(&place, 1_000).await;
    for round in 0..6 {
        let job = format!("job {round}");
        on(&ledgers[0], &job, charging(40, policy(Mode::External, 1))).await;
        let command = |number: usize| {
            if number.is_multiple_of(2) {
                fail(1, FailureClass::Retryable)
            } else {
                succeed(1)
            }
        };
        let signals = (0..TASKS).map(|number| {
            (
                CommandId::random(),
                Command::Job(job_id(&job), command(number)),
            )
        });
        at_once(&ledgers, signals.collect()).await;
        let entries = entries(&ledgers[0], &job).await;
        let never_refunded = entries == [("charged", -40)];
        let recovered = entries == [("charged", -40), ("refunded", 40), ("reclaimed", -40)];
        assert!(never_refunded || recovered, "{entries:?}");
    }
    assert_eq!(balance(&ledgers[1]).await, 1_000 - 6 * 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_workers_one_starts_the_attempt() {
    let place = Place::new();
    let ledgers = two_processes(&place, 1_000).await;
    on(&ledgers[0], "a", charging(40, policy(Mode::Claimed, 3))).await;
    let start = |number| JobCommand::Start {
        worker: Some(worker(&format!("w{number}"))),
        lease: None,
    };
    let starts = (0..TASKS).map(|number| {
        (
            CommandId::random(),
            Command::Job(job_id("a"), start(number)),
        )
    });
    let answers = at_once(&ledgers, starts.collect()).await;
    assert_eq!(
        answers,
        counts([("applied", 1), ("attempt_running", TASKS - 1)])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_charges_of_100_against_2500_are_25() {
    let charges = || {
        let job = |number: usize| job_id(&format!("job {number}"));
        let charge = |number| Command::Job(job(number), charging(100, policy(Mode::External, 1)));
        (0..50)
            .map(|number| (CommandId::random(), charge(number)))
            .collect::<Vec<_>>()
    };
    let place = Place::new();
    let ledgers = two_processes(&place, 2_500).await;
    let answers = at_once(&ledgers, charges()).await;
    assert_eq!(
        answers,
        counts([("applied", 25), ("insufficient_credit", 25)])
    );
    assert_eq!(balance(&ledgers[0]).await, 0);

    let place = Place::new();
    let ledgers = two_processes(&place, 1).await;
    let limit = Limit {
        account: account_id("acme"),
        floor: Some(Floor::None),
        monthly_cap: Some(Some(2_500)),
    };
    apply(&ledgers[0], Command::Limit(limit)).await;
    let answers = at_once(&ledgers, charges()).await;
    assert_eq!(answers, counts([("applied", 25), ("cap_exceeded", 25)]));
}

/// How many of the jobs run, or will be run without anybody asking.
async fn live(ledger: &Ledger, jobs: &[JobId]) -> usize {
    let mut live = 0;
    for job in jobs {
        let (state, _) = ledger.show(job).await.expect("readable");
        live += usize::from(state.recorded().is_some_and(|job| job.work.is_live()));
    }
    live
}

/// An outage in which every job fails once: 50 jobs of 100 against 100 credits. A refund that freed its credit at once would let every
/// one of them be charged, and all of them be retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_does_not_spend_the_same_credit_fifty_times() {
    let place = Place::new();
    let ledgers = two_processes(&place, 100).await;
    let jobs: Vec<_> = (0..50)
        .map(|number| job_id(&format!("job {number}")))
        .collect();
    let claimed = policy(Mode::Claimed, 2);
    let charges = jobs.iter().map(|job| {
        (
            CommandId::random(),
            Command::Job(job.clone(), charging(100, claimed)),
        )
    });
    let first_charges: Vec<_> = charges.collect();
    let answers = at_once(&ledgers, first_charges.clone()).await;
    assert_eq!(
        answers,
        counts([("applied", 1), ("insufficient_credit", 49)])
    );
    let mut ended = 0;
    let mut delivered = false;
    for round in 0..4 {
        assert_eq!(live(&ledgers[0], &jobs).await, 1, "round {round}");
        let (running, _) = find_live(&ledgers[0], &jobs).await;
        // The first attempt fails; its refund is held, so nobody else gets in.
        on(&ledgers[0], running.as_str(), start()).await;
        on(
            &ledgers[0],
            running.as_str(),
            fail(1, FailureClass::Retryable),
        )
        .await;
        let state = ledgers[1]
            .account(&account_id("acme"))
            .await
            .expect("readable");
        assert_eq!(
            (state.balance, state.held, state.available()),
            (100, 100, 0)
        );
        let others: Vec<_> = first_charges
            .iter()
            .filter(|(_, command)| !names(command, &running))
            .cloned()
            .collect();
        let answers = at_once(&ledgers, others.clone()).await;
        assert_eq!(answers.get("applied"), None, "round {round}: {answers:?}");
        // The retry fails in the first rounds: a dead letter, which ends the hold and lets one other in. It succeeds in the last.
        place.clock.advance(Duration::from_secs(10));
        on(&ledgers[1], running.as_str(), start()).await;
        if round < 3 {
            on(
                &ledgers[1],
                running.as_str(),
                fail(2, FailureClass::Retryable),
            )
            .await;
            ended += 1;
            let answers = at_once(&ledgers, others).await;
            assert_eq!(
                answers.get("applied"),
                Some(&1),
                "round {round}: {answers:?}"
            );
        } else {
            on(&ledgers[1], running.as_str(), succeed(2)).await;
            delivered = true;
        }
        assert!(
            balance(&ledgers[0]).await >= 0,
            "a retry takes no balance below 0"
        );
    }
    assert!(delivered && ended == 3);
    assert_eq!(
        (balance(&ledgers[0]).await, live(&ledgers[0], &jobs).await),
        (0, 0)
    );
}

fn names(command: &Command, job: &JobId) -> bool {
    matches!(command, Command::Job(named, _) if named == job)
}

async fn find_live(ledger: &Ledger, jobs: &[JobId]) -> (JobId, usize) {
    for (index, job) in jobs.iter().enumerate() {
        let (state, _) = ledger.show(job).await.expect("readable");
        if state.recorded().is_some_and(|job| job.work.is_live()) {
            return (job.clone(), index);
        }
    }
    panic!("no job is live");
}

/// Interleaving: a process keeps a job's state from when it started it; another process moves the job on. Whatever the first answers without
/// appending, it must have looked: on the state that it kept each of these would be told something else.
#[tokio::test]
async fn an_answer_that_appends_nothing_is_given_on_a_freshly_read_stream() {
    let place = Place::new();
    let [keeping, other] = two_processes(&place, 1_000).await;
    let cancelling = || JobCommand::Cancel { reason: None };
    // (what the other process does, what is asked then, the answer on what is there)
    let cases = [
        ("a", succeed(1), cancelling(), "already_delivered"),
        ("b", succeed(1), start(), "already_delivered"),
        (
            "c",
            fail(1, FailureClass::Cancelled),
            cancelling(),
            "already_applied",
        ),
        (
            "d",
            fail(1, FailureClass::Cancelled),
            charging(40, policy(Mode::Claimed, 3)),
            "job_ended",
        ),
        ("e", fail(1, FailureClass::Terminal), start(), "job_ended"),
        ("f", fail(1, FailureClass::Retryable), start(), "not_due"),
    ];
    for (job, meanwhile, asked, expected) in cases {
        on(&keeping, job, charging(40, policy(Mode::Claimed, 3))).await;
        on(&keeping, job, start()).await;
        on(&other, job, meanwhile).await;
        let answer = keeping
            .job(CommandId::random(), job_id(job), asked.clone())
            .await;
        let outcome = answer.expect("the store is available");
        let name = outcome
            .rejection()
            .map_or(outcome.name(), recoup::Rejection::code);
        assert_eq!(name, expected, "{job}: {asked:?}");
    }
}
