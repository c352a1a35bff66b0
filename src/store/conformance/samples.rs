//! Appends to try a store with: real events, small, with figures that are easy to add up.

use std::collections::BTreeMap;

use super::super::{Append, Appended, EventStore, Expected, Revision, StoreError};
use crate::account::{AccountEvent, Admission, Floor, Granted, Limits, LimitsSet, Posting};
use crate::clock::{BudgetMonth, Timestamp};
use crate::codec::{Event, Stream};
use crate::credits::Cost;
use crate::ids::{AccountId, CommandId, GrantId, JobId, Kind};
use crate::job::{
    Attempt, AttemptFailed, AttemptStarted, Charged, Failed, FailureClass, JobEvent, Refunded,
    RetryScheduled,
};
use crate::price::PriceSnapshot;
use crate::retry::{Mode, Policy};

pub(super) fn account(text: &str) -> AccountId {
    AccountId::new(text).expect("a literal is a valid id")
}

pub(super) fn command(text: &str) -> CommandId {
    CommandId::new(text).expect("a literal is a valid id")
}

pub(super) fn job_stream(text: &str) -> Stream {
    Stream::Job(JobId::new(text).expect("a literal is a valid id"))
}

pub(super) fn cost(amount: i64) -> Cost {
    Cost::new(amount).expect("a literal is a valid cost")
}

/// The month that jobs are charged in, unless a case says otherwise: one that no store's clock has left behind.
pub(super) fn november() -> BudgetMonth {
    BudgetMonth::parse("2126-11").expect("a literal is a valid month")
}

/// A posting of a job charged in `month`.
pub(super) fn job_posting(who: &str, amount: i64, held: i64, month: BudgetMonth) -> Posting {
    Posting {
        account: account(who),
        kind: Some(Kind::new("video").expect("a literal is a valid id")),
        amount,
        held,
        charged_at: Some(Timestamp::from_micros(0)),
        budget_month: Some(month),
    }
}

pub(super) fn account_posting(who: &str, amount: i64) -> Posting {
    Posting {
        account: account(who),
        kind: None,
        amount,
        held: 0,
        charged_at: None,
        budget_month: None,
    }
}

pub(super) fn charged(who: &str, amount: i64, month: BudgetMonth) -> Event {
    Event::Job(JobEvent::Charged(Charged {
        posting: job_posting(who, -amount, 0, month),
        price: PriceSnapshot::flat(cost(amount)),
        policy: Policy::default_for(Mode::Claimed),
    }))
}

pub(super) fn started(attempt: u32) -> Event {
    Event::Job(JobEvent::AttemptStarted(AttemptStarted {
        attempt: Attempt::new(attempt),
        worker: None,
        lease_ms: 60_000,
        hold: None,
    }))
}

/// What a first failure appends: three events. `held` of the refund stays held.
pub(super) fn failed(who: &str, amount: i64, held: i64, month: BudgetMonth) -> Vec<Event> {
    let refunded = Refunded {
        posting: job_posting(who, amount, held, month),
    };
    let attempt = Attempt::FIRST;
    let next = if held == 0 {
        JobEvent::Failed(Failed { hold: None })
    } else {
        JobEvent::RetryScheduled(RetryScheduled {
            attempt,
            delay_ms: 5_000,
            start_within_ms: 60_000,
        })
    };
    let attempt_failed = AttemptFailed {
        attempt,
        class: FailureClass::Retryable,
        reason: None,
        timer: None,
    };
    let events = [
        JobEvent::AttemptFailed(attempt_failed),
        JobEvent::Refunded(refunded),
        next,
    ];
    events.into_iter().map(Event::Job).collect()
}

/// Events on a job's stream, subject to nothing.
pub(super) fn append(job: &str, expected: Expected, events: Vec<Event>) -> Append {
    let id = command(&format!("{job} at {:?}", expected.next()));
    Append::new(&job_stream(job), expected, &id, events, None)
}

pub(super) const fn exactly(revision: u64) -> Expected {
    Expected::Exact(Revision::new(revision))
}

/// A first charge, admitted against the floor and the cap of `month`.
pub(super) fn charge_in(job: &str, who: &str, amount: i64, month: BudgetMonth) -> Append {
    let admission = Admission::Spend {
        account: account(who),
        cost: cost(amount),
        cap_month: Some(month),
    };
    let id = command(&format!("charge {job}"));
    let events = vec![charged(who, amount, month)];
    Append::new(
        &job_stream(job),
        Expected::NoStream,
        &id,
        events,
        Some(admission),
    )
}

pub(super) fn charge(job: &str, who: &str, amount: i64) -> Append {
    charge_in(job, who, amount, november())
}

pub(super) fn grant(name: &str, who: &str, amount: i64) -> Append {
    let grant = GrantId::new(name).expect("a literal is a valid id");
    let stream = Stream::Grant(account(who), grant.clone());
    let posting = account_posting(who, amount);
    let event = Event::Account(AccountEvent::Granted(Granted { grant, posting }));
    let admission = Admission::Post {
        account: account(who),
        amount,
    };
    let id = command(&format!("grant {name} to {who}"));
    Append::new(
        &stream,
        Expected::NoStream,
        &id,
        vec![event],
        Some(admission),
    )
}

pub(super) fn limits(
    who: &str,
    expected: Expected,
    floor: Floor,
    monthly_cap: Option<i64>,
) -> Append {
    let limits = Limits { floor, monthly_cap };
    let account = account(who);
    let stream = Stream::Limits(account.clone());
    let id = command(&format!("limits {:?}", expected.next()));
    let event = Event::Account(AccountEvent::LimitsSet(LimitsSet { account, limits }));
    Append::new(&stream, expected, &id, vec![event], None)
}

/// Appends what nothing may speak against.
pub(super) async fn committed(store: &dyn EventStore, append: Append) {
    let answer = store.append(append.clone()).await;
    assert!(
        is_committed(&answer),
        "{} is to be committed: {answer:?}",
        append.stream
    );
}

pub(super) fn is_committed(answer: &Result<Appended, StoreError>) -> bool {
    matches!(answer, Ok(Appended::Committed { .. }))
}

pub(super) fn is_refused(answer: &Result<Appended, StoreError>) -> bool {
    matches!(answer, Ok(Appended::Refused(_)))
}

/// A conflict with a stream whose last revision is `current`.
pub(super) fn conflict(current: Option<u64>) -> Result<Appended, StoreError> {
    let current = current.map(Revision::new);
    Ok(Appended::Conflict { current })
}

/// (balance, held) by account and (spent, held) by account and month, added up from what was appended: not the library's fold.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) accounts: BTreeMap<String, (i64, i64)>,
    pub(super) months: BTreeMap<(String, BudgetMonth), (i64, i64)>,
}

impl Sums {
    pub(super) fn add(&mut self, append: &Append) {
        for posting in append.events.iter().filter_map(|new| new.event.posting()) {
            let who = posting.account.as_str().to_owned();
            let account = self.accounts.entry(who.clone()).or_default();
            account.0 += posting.amount;
            account.1 += posting.held;
            if let Some(month) = posting.budget_month {
                let figures = self.months.entry((who, month)).or_default();
                figures.0 -= posting.amount;
                figures.1 += posting.held;
            }
        }
    }

    /// The same figures as the store tells them, page by page.
    pub(super) async fn of(store: &dyn EventStore) -> Self {
        let mut told = Self::default();
        let mut after: Option<AccountId> = None;
        loop {
            let page = store
                .accounts(after.as_ref(), 3)
                .await
                .expect("accounts are readable");
            let Some((last, _)) = page.last() else {
                return told;
            };
            after = Some(last.clone());
            for (account, state) in page {
                let who = account.as_str().to_owned();
                assert_eq!(
                    state.reserved, 0,
                    "nothing is reserved where one transaction writes both"
                );
                for (month, figures) in &state.months {
                    assert_eq!(figures.reserved, 0);
                    told.months
                        .insert((who.clone(), *month), (figures.spent, figures.held));
                }
                told.accounts.insert(who, (state.balance, state.held));
            }
        }
    }
}
