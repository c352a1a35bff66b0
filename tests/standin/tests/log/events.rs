//! Appends to try a log with, and what a caller does who was not told how one ended.

use recoup::account::Posting;
use recoup::clock::{BudgetMonth, Timestamp};
use recoup::codec::{Event, Stream, StreamName};
use recoup::credits::Cost;
use recoup::ids::{AccountId, CommandId, JobId, Kind};
use recoup::job::{Attempt, AttemptStarted, Charged, JobEvent};
use recoup::price::PriceSnapshot;
use recoup::retry::{Mode, Policy};
use recoup::store::kurrentdb::Log;
use recoup::store::{Append, Appended, Expected, Revision, StoreError};

use crate::world::bounded;

pub(crate) fn job(id: &str) -> Stream {
    Stream::Job(JobId::new(id).expect("a literal is a valid id"))
}

fn charged(amount: i64, month: &str) -> Event {
    let cost = Cost::new(amount).expect("a literal is a valid cost");
    Event::Job(JobEvent::Charged(Charged {
        posting: Posting {
            account: AccountId::new("acme").expect("a literal is a valid id"),
            kind: Some(Kind::new("video").expect("a literal is a valid id")),
            amount: -amount,
            held: 0,
            charged_at: Some(Timestamp::from_micros(0)),
            budget_month: Some(BudgetMonth::parse(month).expect("a literal is a month")),
        },
        price: PriceSnapshot::flat(cost),
        policy: Policy::default_for(Mode::Claimed),
    }))
}

pub(crate) fn started(attempt: u32) -> Event {
    Event::Job(JobEvent::AttemptStarted(AttemptStarted {
        attempt: Attempt::new(attempt),
        worker: None,
        lease_ms: 60_000,
        hold: None,
    }))
}

/// Events on a job's stream, by a command that is named after their place.
pub(crate) fn append(id: &str, expected: Expected, events: Vec<Event>) -> Append {
    let command = format!("{id} at {}", expected.next());
    let command = CommandId::new(command).expect("a literal is a valid id");
    Append::new(&job(id), expected, &command, events, None)
}

/// A job's first event, in a month that no server's clock has left behind.
pub(crate) fn charge(id: &str) -> Append {
    charge_in(id, "2126-11")
}

/// The same in another month.
pub(crate) fn charge_in(id: &str, month: &str) -> Append {
    append(id, Expected::NoStream, vec![charged(40, month)])
}

/// Its second and third.
pub(crate) fn start(id: &str) -> Append {
    let after = Expected::Exact(Revision::FIRST);
    append(id, after, vec![started(1), started(2)])
}

pub(crate) fn conflict(current: u64) -> Result<Appended, StoreError> {
    let current = Some(Revision::new(current));
    Ok(Appended::Conflict { current })
}

pub(crate) fn is_committed(answer: &Result<Appended, StoreError>) -> bool {
    matches!(answer, Ok(Appended::Committed { .. }))
}

pub(crate) fn is_unknown(answer: &Result<Appended, StoreError>) -> bool {
    matches!(answer, Ok(Appended::Unknown { .. }))
}

pub(crate) fn is_unavailable<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unavailable { .. }))
}

/// Whether the append's events are stored, where they belong; read as long as it takes.
pub(crate) async fn is_stored(log: &Log, append: &Append) -> bool {
    let stored = bounded("a read", async {
        loop {
            match log
                .read_stream(&append.stream, append.expected.next())
                .await
            {
                Ok(stored) => return stored,
                Err(StoreError::Unavailable { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await;
    let ids = append.events.iter().map(|new| new.id);
    let there = stored.iter().map(|event| event.id);
    ids.eq(there.take(append.events.len()))
}

/// Repeats the identical append until it is clear that it is stored, as a ledger does.
pub(crate) async fn settle(log: &Log, append: Append) {
    bounded("an append to be settled", async {
        loop {
            match log.append(append.clone()).await {
                Ok(Appended::Committed { .. }) => return,
                Ok(Appended::Unknown { .. }) => {}
                Err(StoreError::Unavailable { .. }) => {
                    let is_there = is_stored(log, &append).await;
                    assert!(!is_there, "an error says that nothing was written");
                }
                Ok(Appended::Conflict { .. }) => {
                    let is_there = is_stored(log, &append).await;
                    assert!(is_there, "nobody else writes to this stream");
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
}

pub(crate) fn name(id: &str) -> StreamName {
    job(id).name()
}
