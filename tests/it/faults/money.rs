//! Money: refunds, grants, holds, caps and prices.

use std::time::Duration;

use recoup::job::JobEvent;
use recoup::{
    Adjust, Command, CommandId, Cost, EventStore, FailureClass, Floor, JobCommand, Limit, Outcome,
    PriceLine, PriceListId, PriceSnapshot, Rejection, Rounding, Unit,
};

use super::{answer, claimed, code, external, failing, granting, held};
use crate::domain::life::{extend, fail, start, succeed};
use crate::ledger::races::{apply, at_once, balance, counts, on, two_processes};
use crate::stores::{Place, log};
use crate::values::{account_id, adjustment_id, command_id, delta, job_id, kind, reason};

/// Refunding a second time reversed the first refund. Interleaving: fail, then every command that could refund again or undo it.
/// Protection: a refusal stores nothing, and no reversal is ever picked by itself.
#[tokio::test]
async fn fault_01_a_second_refund_changes_nothing() {
    let place = Place::new();
    let [ledger, other] = two_processes(&place, 100).await;
    on(&ledger, "a", external(40)).await;
    on(&ledger, "a", failing()).await;
    let store = place.store().await;
    let before = (log(&*store).await, store.accounts(None, 10).await);
    for ledger in [&ledger, &other] {
        for (command, expected) in [
            (failing(), "already_applied"),
            (fail(1, FailureClass::Terminal), "already_applied"),
            (external(40), "job_ended"),
            (JobCommand::Redrive { reason: None }, "job_ended"),
            (JobCommand::Discard { reason: None }, "not_dead_lettered"),
            (extend(1), "lease_lost"),
        ] {
            let outcome = answer(ledger, "a", command.clone()).await;
            assert_eq!(
                code(&outcome).unwrap_or(outcome.name()),
                expected,
                "{command:?}"
            );
        }
    }
    assert_eq!((log(&*store).await, store.accounts(None, 10).await), before);
    assert_eq!(balance(&ledger).await, 100);
    // What does move the job on pays nothing out either.
    on(&ledger, "a", JobCommand::Cancel { reason: None }).await;
    assert_eq!(balance(&ledger).await, 100);
}

/// One top-up settled twice within milliseconds; two equal grants without keys both applied. Interleaving: 64 tasks, two processes, the same
/// grant, adjustment and charge. Protection: each has a stream of its own, and `NoStream` is its guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_02_every_route_that_moves_money_takes_a_key_and_one_passes() {
    let place = Place::new();
    let ledgers = two_processes(&place, 1_000).await;
    let adjusting = Command::Adjust(Adjust {
        account: account_id("acme"),
        adjustment: adjustment_id("x1"),
        amount: delta(7),
        reason: reason("goodwill"),
        job: None,
    });
    let charging = Command::Job(job_id("a"), external(40));
    for one_id in [true, false] {
        for command in [
            granting(&format!("g {one_id}"), 500),
            adjusting.clone(),
            charging.clone(),
        ] {
            let id = |number| {
                if one_id {
                    command_id("one")
                } else {
                    command_id(&format!("{number}"))
                }
            };
            let copies = (0..64)
                .map(|number| (id(number), command.clone()))
                .collect();
            let applied = at_once(&ledgers, copies).await.get("applied").copied();
            let is_new = one_id || matches!(command, Command::Grant(_));
            assert_eq!(applied, is_new.then_some(1), "{command:?}");
        }
    }
    assert_eq!(balance(&ledgers[0]).await, 1_000 + 2 * 500 + 7 - 40);
    // Two equal grants under two keys are two grants.
    apply(&ledgers[0], granting("monthly 1", 10)).await;
    apply(&ledgers[0], granting("monthly 2", 10)).await;
    // And one key with other content is told.
    let other = ledgers[1]
        .execute(CommandId::random(), granting("monthly 1", 11))
        .await
        .expect("answered");
    assert_eq!(
        other.rejection(),
        Some(&Rejection::Differs { field: "amount" })
    );
}

/// A failure that arrived after settlement was dropped without a trace. Interleaving: succeed, then fail, from two processes.
/// Protection: a contradiction is an event of its own, once per signal and attempt.
#[tokio::test]
async fn fault_03_a_failure_after_delivery_is_noted_and_visible() {
    let place = Place::new();
    let [ledger, other] = two_processes(&place, 100).await;
    on(&ledger, "a", external(40)).await;
    on(&ledger, "a", succeed(1)).await;
    let late = JobCommand::Fail {
        attempt: recoup::Attempt::FIRST,
        class: FailureClass::Terminal,
        reason: Some(reason("codec crashed")),
    };
    for (ledger, command) in [(&ledger, late.clone()), (&other, late), (&other, failing())] {
        let outcome = answer(ledger, "a", command).await;
        assert!(
            matches!(outcome, Outcome::Noted(_)) && !outcome.is_done(),
            "{outcome:?}"
        );
    }
    let (state, history) = ledger.show(&job_id("a")).await.expect("readable");
    let contradictions: Vec<_> = history
        .iter()
        .filter_map(|event| match &event.event {
            Some(JobEvent::Contradicted(contradicted)) => Some(contradicted),
            _ => None,
        })
        .collect();
    assert_eq!(contradictions.len(), 1);
    assert_eq!(
        contradictions[0].reason,
        Some(reason("codec crashed")),
        "people can read why"
    );
    assert_eq!(
        (
            state.recorded().map(|job| job.work.name()),
            balance(&ledger).await
        ),
        (Some("delivered"), 60)
    );
}

/// A balance of 5,000 and six holds of 1,000 at once were all accepted. Interleaving: six charges at once from two processes; then, while five
/// refunds are held for their retries, a sixth charge. Protection: admission inside the append's transaction, and holds that count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_04_open_holds_count() {
    let place = Place::new();
    let ledgers = two_processes(&place, 5_000).await;
    let charges = (0..6).map(|number| {
        (
            CommandId::random(),
            Command::Job(job_id(&format!("j{number}")), claimed(1_000)),
        )
    });
    let answers = at_once(&ledgers, charges.collect()).await;
    assert_eq!(
        answers,
        counts([("applied", 5), ("insufficient_credit", 1)])
    );
    for number in 0..6 {
        let job = format!("j{number}");
        if ledgers[0]
            .show(&job_id(&job))
            .await
            .expect("readable")
            .0
            .recorded()
            .is_some()
        {
            on(&ledgers[0], &job, start()).await;
            on(&ledgers[1], &job, failing()).await;
        }
    }
    assert_eq!(
        (balance(&ledgers[0]).await, held(&ledgers[0]).await),
        (5_000, 5_000)
    );
    let sixth = answer(&ledgers[1], "sixth", claimed(1_000)).await;
    assert_eq!(code(&sixth), Some("insufficient_credit"), "{sixth:?}");
}

/// A budget counter beside the ledger doubled or leaked reservations, so that calls were refused below the cap or the cap was never hit.
/// Interleaving: jobs that fail, retry, are delivered, cancelled, dead-lettered and recovered under a cap. Protection: one figure, folded in the
/// append's transaction, decides and is shown; every hold ends with its job.
#[tokio::test]
async fn fault_05_the_figure_that_decides_neither_doubles_nor_leaks() {
    let place = Place::new();
    let [ledger, _] = two_processes(&place, 1).await;
    let limit = Limit {
        account: account_id("acme"),
        floor: Some(Floor::None),
        monthly_cap: Some(Some(500)),
    };
    apply(&ledger, Command::Limit(limit)).await;
    for job in ["delivered", "cancelled", "dead", "recovered", "retried"] {
        on(&ledger, job, claimed(100)).await;
        on(&ledger, job, start()).await;
        on(&ledger, job, failing()).await;
    }
    let month = ledger.now().zone.month_of(ledger.now().at);
    let used = |state: recoup::AccountState| (state.month(month).spent, state.month(month).held);
    let figures = || async { used(ledger.account(&account_id("acme")).await.expect("readable")) };
    assert_eq!(figures().await, (0, 500));
    assert_eq!(
        code(&answer(&ledger, "more", claimed(1)).await),
        Some("cap_exceeded"),
        "holds count"
    );
    place.clock.advance(Duration::from_secs(60));
    on(&ledger, "delivered", succeed(1)).await;
    on(&ledger, "cancelled", JobCommand::Cancel { reason: None }).await;
    for job in ["dead", "recovered", "retried"] {
        on(&ledger, job, start()).await;
    }
    on(&ledger, "dead", fail(2, FailureClass::Retryable)).await;
    on(&ledger, "recovered", fail(2, FailureClass::Terminal)).await;
    on(&ledger, "recovered", succeed(1)).await;
    on(&ledger, "retried", succeed(2)).await;
    assert_eq!(figures().await, (300, 0), "three delivered, no hold left");
    assert_eq!(
        code(&answer(&ledger, "more", claimed(201)).await),
        Some("cap_exceeded")
    );
    on(&ledger, "more", claimed(200)).await;
    assert_eq!(figures().await, (500, 0));
}

/// A charge was retried under its old id after it had failed for lack of funds. Interleaving: refused, then credit arrives, then the same command
/// again. The rule here: nothing was stored, so the same job may be charged, under the same id.
#[tokio::test]
async fn fault_06_a_refused_charge_may_come_again_under_its_id() {
    let place = Place::new();
    let [ledger, other] = two_processes(&place, 39).await;
    let (id, job) = (command_id("charge a"), job_id("a"));
    for _ in 0..2 {
        let refused = ledger
            .job(id.clone(), job.clone(), external(40))
            .await
            .expect("answered");
        assert_eq!(code(&refused), Some("insufficient_credit"));
        assert!(
            refused
                .rejection()
                .is_some_and(|rejection| !rejection.is_final())
        );
    }
    assert_eq!(
        code(&answer(&ledger, "a", failing()).await),
        Some("no_such_job"),
        "nothing was stored"
    );
    apply(&other, granting("top-up", 1)).await;
    let applied = ledger
        .job(id.clone(), job.clone(), external(40))
        .await
        .expect("answered");
    assert!(matches!(applied, Outcome::Applied(_)), "{applied:?}");
    let repeated = other.job(id, job, external(40)).await.expect("answered");
    assert!(
        matches!(repeated, Outcome::AlreadyApplied(_)),
        "{repeated:?}"
    );
    assert_eq!(balance(&ledger).await, 0);
}

/// Parts of a split added up to more than the whole. Interleaving: prices whose lines each end in a fraction. Protection: integers, rounded once
/// over the sum; a cost that is not the sum is refused; refund and reclaim are the recorded cost and nothing that is computed again.
#[tokio::test]
async fn fault_07_parts_add_up_to_the_whole() {
    let line = |unit: &str, quantity, unit_price, per| PriceLine {
        unit: Unit::new(unit).expect("a unit"),
        quantity,
        unit_price,
        per,
    };
    let price = |rounding| PriceSnapshot {
        list: PriceListId::new("2026-11").expect("a list"),
        rounding,
        // 33⅓ + 33⅓ + 33⅓ + ½: rounded line by line this is 99, 102 or 103.
        lines: vec![
            line("cpu", 100, 1, 3),
            line("gpu", 100, 1, 3),
            line("disk", 100, 1, 3),
            line("net", 1, 1, 2),
        ],
    };
    for (rounding, whole) in [
        (Rounding::Up, 101),
        (Rounding::Down, 100),
        (Rounding::HalfEven, 100),
    ] {
        let place = Place::new();
        let [ledger, _] = two_processes(&place, 1_000).await;
        let charge_of = |amount| {
            let cost = Cost::new(amount).expect("a cost");
            ledger.charge_of(
                account_id("acme"),
                kind("video"),
                cost,
                price(rounding),
                None,
            )
        };
        for other in [whole - 1, whole + 1, 99, 102] {
            assert!(
                charge_of(other).is_err(),
                "{other} is not what the lines come to"
            );
        }
        let charge = charge_of(whole).expect("the lines come to it");
        on(&ledger, "a", JobCommand::Charge(Box::new(charge))).await;
        assert_eq!(balance(&ledger).await, 1_000 - whole);
        on(&ledger, "a", failing()).await;
        assert_eq!(balance(&ledger).await, 1_000);
        on(&ledger, "a", succeed(1)).await;
        assert_eq!(balance(&ledger).await, 1_000 - whole);
    }
}
