//! A job counts in the month that it was charged in, whenever its refund, reclaim or hold happens.

use std::time::Duration;

use recoup::{
    BudgetMonth, Command, CommandId, EventStore, FailureClass, Floor, JobCommand, Ledger, Limit,
    Mode, Timestamp,
};

use super::races::{apply, charging, on};
use crate::domain::life::{fail, start, succeed};
use crate::stores::Place;
use crate::values::{account_id, job_id, policy};
use recoup::store::fresh::is_log_in_tables;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).expect("an instant")
}

/// (spent, held) of a month, read from the store.
async fn figures(store: &dyn EventStore, month: &str) -> (i64, i64) {
    let month = BudgetMonth::parse(month).expect("a month");
    let state = store
        .account(&account_id("acme"), month)
        .await
        .expect("readable");
    (state.month(month).spent, state.month(month).held)
}

async fn capped(ledger: &Ledger, cap: i64) {
    let limit = Limit {
        account: account_id("acme"),
        floor: Some(Floor::None),
        monthly_cap: Some(Some(cap)),
    };
    apply(ledger, Command::Limit(limit)).await;
}

#[tokio::test]
async fn a_refund_and_a_reclaim_of_the_next_month_count_in_the_month_of_the_charge() {
    let place = Place::starting_at(at("2026-11-30T23:59:59.999Z"));
    let (store, ledger) = (place.store().await, place.ledger().await);
    capped(&ledger, 100).await;
    on(&ledger, "a", charging(100, policy(Mode::External, 1))).await;
    assert_eq!(figures(&*store, "2026-11").await, (100, 0));
    place.clock.set(at("2026-12-01T00:00:00Z"));
    on(&ledger, "a", fail(1, FailureClass::Retryable)).await;
    assert_eq!(
        (
            figures(&*store, "2026-11").await,
            figures(&*store, "2026-12").await
        ),
        ((0, 0), (0, 0))
    );
    // December's cap is whole: neither the refund nor the reclaim of a job of November touches it.
    on(&ledger, "b", charging(100, policy(Mode::External, 1))).await;
    on(&ledger, "a", succeed(1)).await;
    assert_eq!(
        (
            figures(&*store, "2026-11").await,
            figures(&*store, "2026-12").await
        ),
        ((100, 0), (100, 0))
    );
    let refused = ledger
        .job(
            CommandId::random(),
            job_id("c"),
            charging(1, policy(Mode::External, 1)),
        )
        .await;
    let code = refused
        .as_ref()
        .ok()
        .and_then(|outcome| outcome.rejection())
        .map(recoup::Rejection::code);
    assert_eq!(code, Some("cap_exceeded"), "{refused:?}");
}

#[tokio::test]
async fn a_hold_counts_in_the_month_of_the_charge_and_ends_there() {
    let place = Place::starting_at(at("2026-11-30T23:59:00Z"));
    let (store, ledger) = (place.store().await, place.ledger().await);
    capped(&ledger, 1_000).await;
    on(&ledger, "a", charging(100, policy(Mode::Claimed, 2))).await;
    on(&ledger, "a", start()).await;
    on(&ledger, "a", fail(1, FailureClass::Retryable)).await;
    assert_eq!(figures(&*store, "2026-11").await, (0, 100));
    place.clock.advance(Duration::from_secs(120));
    on(&ledger, "a", start()).await;
    on(&ledger, "a", fail(2, FailureClass::Retryable)).await;
    assert_eq!(
        (
            figures(&*store, "2026-11").await,
            figures(&*store, "2026-12").await
        ),
        ((0, 0), (0, 0))
    );
}

#[tokio::test]
async fn a_redrive_asks_the_cap_while_its_month_lasts_and_the_floor_alone_afterwards() {
    let place = Place::starting_at(at("2026-11-10T00:00:00Z"));
    let (store, ledger) = (place.store().await, place.ledger().await);
    capped(&ledger, 100).await;
    on(&ledger, "a", charging(100, policy(Mode::Claimed, 1))).await;
    on(&ledger, "a", start()).await;
    on(&ledger, "a", fail(1, FailureClass::Retryable)).await;
    on(&ledger, "b", charging(60, policy(Mode::External, 1))).await;
    let redriving = || JobCommand::Redrive { reason: None };
    let refused = ledger
        .job(CommandId::random(), job_id("a"), redriving())
        .await
        .expect("answered");
    assert_eq!(
        refused.rejection().map(recoup::Rejection::code),
        Some("cap_exceeded")
    );
    place.clock.set(at("2026-12-01T00:00:00Z"));
    on(&ledger, "a", redriving()).await;
    assert_eq!(
        figures(&*store, "2026-11").await,
        (60, 100),
        "the hold counts where the charge did"
    );
}

#[tokio::test]
async fn the_month_is_the_one_of_the_ledgers_zone() {
    use recoup::Zone;
    use recoup::store::fresh::Opening;
    // 2026-11-30T15:00Z is midnight in Seoul: December has begun there.
    for (instant, month) in [
        ("2026-11-30T14:59:59.999999Z", "2026-11"),
        ("2026-11-30T15:00:00Z", "2026-12"),
    ] {
        let place = Place::starting_at(at(instant));
        let zone = Zone::parse("Asia/Seoul").expect("a zone");
        let clock = std::sync::Arc::new(place.clock.clone());
        let opening = Opening {
            clock,
            zone: Some(zone),
            ..Opening::default()
        };
        let opened = place.fresh.open_with(opening).await;
        let store = std::sync::Arc::new(opened.expect("a fresh ledger opens"));
        let ledger = crate::stores::ledger(store.clone());
        capped(&ledger, 100).await;
        on(&ledger, "a", charging(100, policy(Mode::External, 1))).await;
        assert_eq!(figures(&*store, month).await, (100, 0), "{instant}");
    }
}

/// Interleaving: December's cap is used up. The clock is set back by two seconds, into November, whose cap is whole. Nobody may be
/// charged in a month that the log has left behind: not the process that was there, not one that looks anew, not one that was open
/// before December came and has seen nothing of it.
#[tokio::test]
async fn a_clock_that_is_set_back_brings_no_month_back() {
    if !is_log_in_tables() {
        return;
    }
    let place = Place::starting_at(at("2026-11-30T23:59:50Z"));
    let (here, unaware) = (place.ledger().await, place.ledger().await);
    capped(&here, 100).await;
    place.clock.set(at("2026-12-01T00:00:00.5Z"));
    on(&here, "full", charging(100, policy(Mode::External, 1))).await;
    place.clock.set(at("2026-11-30T23:59:58.5Z"));
    let charge = |ledger: Ledger, job: &'static str| async move {
        let command = charging(1, policy(Mode::External, 1));
        let (id, job) = (CommandId::random(), job_id(job));
        let mut answers = ledger
            .batch(vec![(id, Command::Job(job.clone(), command.clone()))])
            .await;
        answers.push(ledger.job(CommandId::random(), job, command).await);
        answers
    };
    for (ledger, job) in [(unaware, "a"), (here, "b"), (place.ledger().await, "c")] {
        for answer in charge(ledger, job).await {
            let code = answer
                .as_ref()
                .ok()
                .and_then(|outcome| outcome.rejection())
                .map(|no| no.code());
            assert_eq!(code, Some("cap_exceeded"), "{job}: {answer:?}");
        }
    }
    let store = place.store().await;
    assert_eq!(
        (
            figures(&*store, "2026-11").await,
            figures(&*store, "2026-12").await
        ),
        ((0, 0), (100, 0))
    );
}
