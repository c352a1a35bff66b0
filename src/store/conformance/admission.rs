//! Limits inside the append, and the figures that guard it.

use super::super::{Append, Appended, EventStore, Expected, Position, Revision, StoreError};
use super::Fixture;
use super::samples::{
    Sums, account, account_posting, append, charge, charge_in, command, committed, exactly, failed,
    grant, is_committed, is_refused, job_posting, job_stream, limits, november,
};
use crate::account::{
    AccountEvent, AccountState, Adjusted, Admission, Floor, Limits, MonthState, Refusal,
};
use crate::clock::BudgetMonth;
use crate::codec::{Event, Stream};
use crate::credits::MAX_BALANCE;
use crate::ids::{AccountId, AdjustmentId, Reason};
use crate::job::{Cancelled, DeadLetterCause, DeadLettered, JobEvent};

async fn figures(store: &dyn EventStore, who: &str) -> AccountState {
    store
        .account(&account(who), november())
        .await
        .expect("readable")
}

fn month(text: &str) -> BudgetMonth {
    BudgetMonth::parse(text).expect("a literal is a valid month")
}

fn refused(refusal: Refusal) -> Result<Appended, StoreError> {
    Ok(Appended::Refused(refusal))
}

fn insufficient(available: i64, needed: i64, floor: i64) -> Result<Appended, StoreError> {
    refused(Refusal::InsufficientCredit {
        available,
        needed,
        floor,
    })
}

/// The end of a hold, in the event of the state that ends it.
fn hold_ends(job: &str, who: &str, at: u64, held: i64) -> Append {
    let hold = Some(job_posting(who, 0, -held, november()));
    let cause = DeadLetterCause::NotStarted;
    let event = Event::Job(JobEvent::DeadLettered(DeadLettered { cause, hold }));
    append(job, exactly(at), vec![event])
}

/// An account that nothing ever happened to: zeros, the default limits, no months, no position.
pub async fn an_unknown_account_has_zeros(fixture: &Fixture) {
    let store = &*fixture.store;
    assert_eq!(figures(store, "unknown").await, AccountState::default());
    assert_eq!(store.accounts(None, 10).await, Ok(Vec::new()));
    // A refusal makes no account either.
    assert!(is_refused(&store.append(charge("j", "unknown", 1)).await));
    assert_eq!(figures(store, "unknown").await, AccountState::default());
    assert_eq!(store.accounts(None, 10).await, Ok(Vec::new()));
}

/// A charge is admitted while balance − held − cost ≥ floor, to the last unit.
pub async fn a_floor_admits_exactly_what_fits(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 250)).await;
    committed(store, charge("j1", "a", 100)).await;
    committed(store, charge("j2", "a", 100)).await;
    assert_eq!(
        store.append(charge("j3", "a", 100)).await,
        insufficient(50, 100, 0)
    );
    assert_eq!(
        store.append(charge("j3", "a", 51)).await,
        insufficient(50, 51, 0)
    );
    committed(store, charge("j3", "a", 50)).await;
    assert_eq!(
        store.append(charge("j4", "a", 1)).await,
        insufficient(0, 1, 0)
    );
    assert_eq!(figures(store, "a").await.balance, 0);
}

/// A charge is admitted while the month's spent + held + cost ≤ cap, to the last unit; each month for itself.
pub async fn a_cap_admits_exactly_what_fits(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(
        store,
        limits("a", Expected::NoStream, Floor::None, Some(250)),
    )
    .await;
    committed(store, charge("j1", "a", 100)).await;
    committed(store, charge("j2", "a", 100)).await;
    let over = |used, needed| {
        refused(Refusal::CapExceeded {
            month: november(),
            cap: 250,
            used,
            needed,
        })
    };
    assert_eq!(store.append(charge("j3", "a", 51)).await, over(200, 51));
    committed(store, charge("j3", "a", 50)).await;
    assert_eq!(store.append(charge("j4", "a", 1)).await, over(250, 1));
    committed(store, charge_in("j5", "a", 250, month("2026-12"))).await;
    // A refund makes room again, unless it is held.
    committed(
        store,
        append("j1", exactly(0), failed("a", 100, 0, november())),
    )
    .await;
    committed(
        store,
        append("j2", exactly(0), failed("a", 100, 100, november())),
    )
    .await;
    assert_eq!(store.append(charge("j4", "a", 101)).await, over(150, 101));
    committed(store, charge("j4", "a", 100)).await;
    // Where no month is asked about, the cap is not.
    let admission = Admission::Spend {
        account: account("a"),
        cost: super::samples::cost(100),
        cap_month: None,
    };
    let hold = JobEvent::Cancelled(Cancelled {
        reason: None,
        hold: Some(job_posting("a", 0, 100, november())),
    });
    let again = Append::new(
        &job_stream("j1"),
        exactly(3),
        &command("x"),
        vec![Event::Job(hold)],
        Some(admission),
    );
    assert!(is_committed(&store.append(again).await));
}

/// The floor may lie above or below zero.
pub async fn a_charge_must_leave_the_floor(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(
        store,
        limits("low", Expected::NoStream, Floor::At(-100), None),
    )
    .await;
    committed(store, charge("j1", "low", 100)).await;
    assert_eq!(
        store.append(charge("j2", "low", 1)).await,
        insufficient(-100, 1, -100)
    );
    committed(
        store,
        limits("high", Expected::NoStream, Floor::At(50), None),
    )
    .await;
    committed(store, grant("g", "high", 100)).await;
    committed(store, charge("j3", "high", 50)).await;
    assert_eq!(
        store.append(charge("j4", "high", 1)).await,
        insufficient(50, 1, 50)
    );
}

/// A refund that is held credits the balance, and admits nothing until the hold ends.
pub async fn a_hold_is_not_available(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 100)).await;
    committed(store, charge("j", "a", 100)).await;
    committed(
        store,
        append("j", exactly(0), failed("a", 100, 100, november())),
    )
    .await;
    let held = figures(store, "a").await;
    assert_eq!((held.balance, held.held, held.available()), (100, 100, 0));
    assert_eq!(
        held.month(november()),
        MonthState {
            spent: 0,
            held: 100,
            reserved: 0
        }
    );
    assert_eq!(
        store.append(charge("k", "a", 100)).await,
        insufficient(0, 100, 0)
    );
    committed(store, hold_ends("j", "a", 3, 100)).await;
    committed(store, charge("k", "a", 100)).await;
    let spent = figures(store, "a").await;
    assert_eq!(
        (spent.balance, spent.held, spent.month(november()).spent),
        (0, 0, 100)
    );
}

fn adjustment(name: &str, who: &str, amount: i64, admission: Option<Admission>) -> Append {
    let adjustment = AdjustmentId::new(name).expect("a literal is a valid id");
    let stream = Stream::Adjustment(account(who), adjustment.clone());
    let reason = Reason::new("a test").expect("a short reason");
    let posting = account_posting(who, amount);
    let event = AccountEvent::Adjusted(Adjusted {
        adjustment,
        posting,
        reason,
        job: None,
    });
    Append::new(
        &stream,
        Expected::NoStream,
        &command(name),
        vec![Event::Account(event)],
        admission,
    )
}

/// A grant or an adjustment stops at a balance of 10^18 in size.
pub async fn a_balance_out_of_range_is_refused(fixture: &Fixture) {
    let store = &*fixture.store;
    let post = |name: &str, amount| {
        let admission = Admission::Post {
            account: account("a"),
            amount,
        };
        adjustment(name, "a", amount, Some(admission))
    };
    committed(store, post("x1", MAX_BALANCE)).await;
    let out_of_range = refused(Refusal::BalanceOutOfRange {
        balance: MAX_BALANCE,
        amount: 1,
    });
    assert_eq!(store.append(post("x2", 1)).await, out_of_range);
    committed(store, post("x3", -MAX_BALANCE)).await;
    committed(store, post("x4", -MAX_BALANCE)).await;
    let head = store.head().await;
    assert!(is_refused(&store.append(post("x5", -1)).await));
    // The revision is checked before the range.
    let again = store.append(post("x4", -1)).await;
    assert_eq!(again, super::samples::conflict(Some(0)));
    assert_eq!(store.head().await, head);
}

/// What was not admitted, and leads a figure out of 64 bits, fails its own append and no other figure.
pub async fn a_figure_that_leaves_its_range_fails_its_own_append(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, adjustment("x6", "b", i64::MAX, None)).await;
    let before = store.accounts(None, 10).await;
    let beyond = store.append(adjustment("x7", "b", 1, None)).await;
    assert!(
        matches!(beyond, Err(StoreError::Corrupt { .. })),
        "{beyond:?}"
    );
    assert_eq!(store.accounts(None, 10).await, before);
    assert_eq!(store.head().await, Ok(Position::new(1)));
}

/// A refused append leaves no event, no position and no figure behind, and may come again.
pub async fn a_refused_append_writes_nothing(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 99)).await;
    let before = (store.head().await, store.accounts(None, 10).await);
    assert!(is_refused(&store.append(charge("j", "a", 100)).await));
    assert_eq!((store.head().await, store.accounts(None, 10).await), before);
    let stream = job_stream("j").name();
    assert_eq!(
        store.read_stream(&stream, Revision::FIRST).await,
        Ok(Vec::new())
    );
    committed(store, grant("g2", "a", 1)).await;
    committed(store, charge("j", "a", 100)).await;
}

/// A committed charge that comes again is in conflict, also when nothing is left to admit it.
pub async fn the_revision_is_checked_before_the_limits(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 100)).await;
    committed(store, charge("j", "a", 100)).await;
    let again = store.append(charge("j", "a", 100)).await;
    assert_eq!(again, super::samples::conflict(Some(0)));
    let many = store
        .append_many(vec![charge("j", "a", 100), charge("k", "a", 100)])
        .await;
    assert_eq!(many[0], super::samples::conflict(Some(0)));
    assert!(is_refused(&many[1]), "{many:?}");
}

/// `LimitsSet` takes effect with its append, for what comes after it.
pub async fn limits_that_are_set_decide(fixture: &Fixture) {
    let store = &*fixture.store;
    assert!(is_refused(&store.append(charge("j", "a", 10)).await));
    let steps = [
        (Floor::None, None),
        (Floor::At(-10), Some(20)),
        (Floor::At(0), Some(0)),
        (Floor::None, Some(i64::MAX)),
    ];
    for (number, (floor, monthly_cap)) in (0_u64..).zip(steps) {
        let expected = if number == 0 {
            Expected::NoStream
        } else {
            exactly(number - 1)
        };
        committed(store, limits("a", expected, floor, monthly_cap)).await;
        let told = figures(store, "a").await;
        assert_eq!(told.limits, Limits { floor, monthly_cap });
        assert_eq!(
            Ok(told.last_position.expect("something happened")),
            store.head().await
        );
    }
    committed(store, limits("a", exactly(3), Floor::At(-10), Some(20))).await;
    committed(store, charge("j", "a", 10)).await;
    assert!(
        is_refused(&store.append(charge("k", "a", 1)).await),
        "the floor is reached"
    );
    committed(store, limits("a", exactly(4), Floor::None, Some(20))).await;
    committed(store, charge("k", "a", 10)).await;
    assert!(
        is_refused(&store.append(charge("l", "a", 1)).await),
        "the cap is reached"
    );
}

/// Balance, held and every month of every account, against a sum that shares nothing with the library's fold.
pub async fn figures_equal_an_independent_sum(fixture: &Fixture) {
    let store = &*fixture.store;
    let mut sums = Sums::default();
    let months = ["2026-11", "2026-12", "2027-01"].map(month);
    // A linear congruential generator (Knuth's MMIX constants): the same appends on every store.
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut all = Vec::new();
    for number in 0..60 {
        let who = format!("a{}", draw(4));
        let in_month = months[usize::try_from(draw(3)).expect("small")];
        let amount = i64::try_from(draw(1_000)).expect("small") + 1;
        let job = format!("j{number}");
        all.push(grant(&format!("g{number}"), &who, amount * 2));
        all.push(charge_in(&job, &who, amount, in_month));
        if draw(3) > 0 {
            let held = if draw(2) == 0 { amount } else { 0 };
            all.push(append(
                &job,
                exactly(0),
                failed(&who, amount, held, in_month),
            ));
        }
    }
    for append in all {
        sums.add(&append);
        committed(store, append).await;
    }
    assert_eq!(Sums::of(store).await, sums);
    for ((who, in_month), (spent, held)) in &sums.months {
        let told = store
            .account(&account(who), *in_month)
            .await
            .expect("readable");
        assert_eq!(
            told.month(*in_month),
            MonthState {
                spent: *spent,
                held: *held,
                reserved: 0
            }
        );
        assert_eq!((told.balance, told.held), sums.accounts[who], "{who}");
    }
}

/// Only the month that was asked for is there; one that nothing happened in has zeros.
pub async fn an_account_gives_the_month_that_was_asked_for(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 100)).await;
    committed(store, charge_in("j1", "a", 30, month("2026-11"))).await;
    committed(store, charge_in("j2", "a", 40, month("2026-12"))).await;
    for (asked, spent) in [
        ("2026-11", Some(30)),
        ("2026-12", Some(40)),
        ("2026-10", None),
        ("2025-11", None),
    ] {
        let told = store
            .account(&account("a"), month(asked))
            .await
            .expect("readable");
        let months: Vec<_> = told
            .months
            .iter()
            .map(|(month, figures)| (*month, figures.spent))
            .collect();
        assert_eq!(
            months,
            spent
                .map(|spent| (month(asked), spent))
                .into_iter()
                .collect::<Vec<_>>(),
            "{asked}"
        );
        assert_eq!(told.balance, 30);
    }
}

/// Pages of every size give every account once, in the order of the bytes of their ids, with all of their months.
pub async fn accounts_are_paged_in_byte_order(fixture: &Fixture) {
    let store = &*fixture.store;
    let mut names = [
        "b", "B", "a", "a+b", "a b", "a%", "é", "日本", "Z", "0", "aa", "a~",
    ];
    for (number, name) in names.iter().enumerate() {
        committed(store, grant(&format!("g{number}"), name, 100)).await;
        committed(
            store,
            charge_in(&format!("j{number}"), name, 1, month("2026-11")),
        )
        .await;
        committed(
            store,
            charge_in(&format!("k{number}"), name, 1, month("2026-12")),
        )
        .await;
    }
    names.sort_unstable_by_key(|name| name.as_bytes());
    for size in 1..=names.len() + 1 {
        let mut read: Vec<(AccountId, AccountState)> = Vec::new();
        loop {
            let after = read.last().map(|(last, _)| last);
            let page = store.accounts(after, size).await.expect("readable");
            assert!(page.len() <= size);
            if page.is_empty() {
                break;
            }
            read.extend(page);
        }
        let order: Vec<_> = read.iter().map(|(account, _)| account.as_str()).collect();
        assert_eq!(order, names, "pages of {size}");
        assert!(
            read.iter()
                .all(|(_, state)| state.balance == 98 && state.months.len() == 2)
        );
    }
    let behind = account("b~");
    let rest = store.accounts(Some(&behind), 10).await.expect("readable");
    assert_eq!(
        rest.len(),
        2,
        "an account that is not there is a place to go on from: {rest:?}"
    );
}
