//! What needs no fault on command: over the stand-in, and over the server that the tests are given.

use std::sync::Arc;

use recoup::clock::Zone;
use recoup::credits::Scale;
use recoup::ids::{AccountId, CommandId, JobId, Kind};
use recoup::job::{Attempt, FailureClass, JobCommand};
use recoup::ledger::{Ledger, Policies};
use recoup::price::PriceSnapshot;
use recoup::store::kurrentdb::{Log, OpenError, Options};
use recoup::store::{Appended, Position, Revision, StoreError};
use recoup::{Cost, EventStore};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::events::{charge, charge_in, conflict, is_committed, name, settle, start};
use crate::place::{Place, on_each_server};
use crate::world::{Folded, bounded, open};

on_each_server! {
    of_two_identical_appends_one_is_committed
    the_bytes_that_were_first_are_the_answer
    the_server_is_given_what_its_tools_understand
    the_instant_is_the_servers
    a_charge_in_a_month_that_is_over_is_a_conflict
    the_first_charge_is_in_time_in_every_zone
    ledgers_share_a_server_and_see_themselves
    a_ledger_keeps_what_it_was_created_with
    of_many_who_create_a_ledger_one_does
    events_without_a_ledger_are_not_taken_over
    what_somebody_else_wrote_is_refused_and_fails_its_stream_alone
    pages_pass_over_what_others_write
    a_job_that_many_signal_is_charged_once
}

/// The answer to a repeat is a success of the server's, and a conflict here: only one sending has been stored, and its caller is to be told so once.
async fn of_two_identical_appends_one_is_committed(place: &Place) {
    let log = open(place.options()).await;
    assert!(is_committed(&log.append(charge("j")).await));
    assert_eq!(log.append(charge("j")).await, conflict(0));
    assert!(is_committed(&log.append(start("j")).await));
    assert_eq!(log.append(charge("j")).await, conflict(2));
    let events = place.events("job-j").await;
    assert_eq!(events.len(), 3, "a repeat writes nothing");
}

/// The same ids with other bytes: the server does not look at them.
async fn the_bytes_that_were_first_are_the_answer(place: &Place) {
    let log = open(place.options()).await;
    let mut other = charge("j");
    other.events[0].data.push(0);
    assert!(is_committed(&log.append(charge("j")).await));
    assert_eq!(log.append(other).await, conflict(0));
    let events = place.events("job-j").await;
    assert_eq!(events[0].data, charge("j").events[0].data);
}

async fn the_server_is_given_what_its_tools_understand(place: &Place) {
    let log = open(place.options()).await;
    let append = charge("j/1");
    settle(&log, append.clone()).await;
    let events = place.events("job-j%2F1").await;
    let [event] = &events[..] else {
        panic!("one event was appended: {events:?}");
    };
    assert_eq!(event.event_type, "recoup.job.charged");
    assert_eq!(event.metadata["content-type"], "application/octet-stream");
    assert_eq!(event.data, append.events[0].data);
    assert_eq!(event.id, append.events[0].id.get());
    let metadata: Value = serde_json::from_slice(&event.custom_metadata).expect("JSON");
    assert_eq!(metadata["$correlationId"], json!("j/1"));
    assert_eq!(metadata["$causationId"], json!("j/1 at 0"));
    assert_eq!(metadata["recoup"]["version"], json!(1));
}

/// To the microsecond: what the answer says is what is stored, and is what the server wrote into the event's metadata.
async fn the_instant_is_the_servers(place: &Place) {
    let log = open(place.options()).await;
    let answer = log.append(charge("j")).await;
    let Ok(Appended::Committed {
        position,
        posted_at,
    }) = answer
    else {
        panic!("nothing speaks against it: {answer:?}");
    };
    let stored = log.read_stream(&name("j"), Revision::FIRST).await;
    let stored = stored.expect("readable");
    assert_eq!(
        (stored[0].position, stored[0].posted_at),
        (position, posted_at)
    );
    let events = place.events("job-j").await;
    let ticks: i64 = events[0].metadata["created"].parse().expect("a number");
    assert_eq!(posted_at.as_micros(), ticks / 10);
    assert!(log.now() >= posted_at, "the clock is not behind the log");
}

async fn a_charge_in_a_month_that_is_over_is_a_conflict(place: &Place) {
    let log = open(place.options()).await;
    assert!(is_committed(&log.append(charge("seen")).await));
    let late = log.append(charge_in("late", "2001-01")).await;
    assert_eq!(late, Ok(Appended::Conflict { current: None }));
    assert!(is_committed(&log.append(charge("in time")).await));
}

/// Before anything was seen there is no month that is over, wherever midnight is.
async fn the_first_charge_is_in_time_in_every_zone(place: &Place) {
    for (number, zone) in ["America/New_York", "Pacific/Kiritimati"]
        .into_iter()
        .enumerate()
    {
        let zone = Zone::parse(zone).expect("a zone");
        let log = open(Options {
            zone: Some(zone),
            ..place.prefixed(&format!("{number}."))
        })
        .await;
        assert!(is_committed(&log.append(charge_in("j", "2026-11")).await));
    }
}

/// Only the ledger's streams are read: not the server's, not another program's, not another ledger's.
async fn ledgers_share_a_server_and_see_themselves(place: &Place) {
    let one = open(place.prefixed("a.")).await;
    let other = open(place.prefixed("a.b.")).await;
    assert_ne!(one.identity().ledger, other.identity().ledger);
    settle(&one, charge("j")).await;
    place.write("a.jobs", "t", b"x").await;
    place.write("job-j", "t", b"x").await;
    settle(&other, charge("j")).await;
    settle(&other, start("j")).await;
    for (log, events) in [(&one, 1), (&other, 3)] {
        let all = log.read_all(Position::START, 10).await.expect("readable");
        assert_eq!(all.len(), events);
    }
    assert!(one.head().await.expect("readable") < other.head().await.expect("readable"));
}

async fn a_ledger_keeps_what_it_was_created_with(place: &Place) {
    let seoul = Zone::parse("Asia/Seoul").expect("a zone");
    let two = Scale::new(2).expect("a scale");
    let with = |zone, scale| Options {
        zone,
        scale,
        ..place.options()
    };
    let log = open(with(Some(seoul), Some(two))).await;
    assert_eq!((log.identity().zone, log.identity().scale), (seoul, two));
    for (zone, scale) in [(None, None), (Some(seoul), None), (Some(seoul), Some(two))] {
        let again = open(with(zone, scale)).await;
        assert_eq!(again.identity(), log.identity());
    }
    let three = Scale::new(3).expect("a scale");
    for (options, what) in [
        (with(Some(Zone::UTC), None), "zone"),
        (with(None, Some(three)), "scale"),
    ] {
        let refused = Log::open(options).await.expect_err("it never changes");
        assert!(
            matches!(refused, OpenError::Differs { what: it, .. } if it == what),
            "{refused}"
        );
    }
    // The identity is no event of the log.
    assert_eq!(log.head().await, Ok(Position::START));
}

async fn of_many_who_create_a_ledger_one_does(place: &Place) {
    let mut openers = JoinSet::new();
    for _ in 0..8 {
        openers.spawn(open(place.options()));
    }
    let opened = bounded("eight openers", openers.join_all()).await;
    let again = open(place.options()).await;
    for log in opened {
        assert_eq!(log.identity(), again.identity());
    }
    assert_eq!(place.events("ledger").await.len(), 1);
}

async fn events_without_a_ledger_are_not_taken_over(place: &Place) {
    place.write("job-j", "recoup.job.charged", b"x").await;
    let refused = Log::open(place.options())
        .await
        .expect_err("whose are they?");
    assert!(
        matches!(refused, OpenError::Store(StoreError::Damaged { .. })),
        "{refused}"
    );
}

async fn what_somebody_else_wrote_is_refused_and_fails_its_stream_alone(place: &Place) {
    let log = open(place.options()).await;
    settle(&log, charge("good")).await;
    place.write("job-bad", "recoup.job.charged", b"x").await;
    let read = log.read_stream(&name("bad"), Revision::FIRST).await;
    let Err(StoreError::Corrupt { position, .. }) = read else {
        panic!("it has no metadata of ours: {read:?}");
    };
    assert_eq!(log.head().await, Ok(position));
    let before = log.read_all(Position::START, 10).await.expect("readable");
    assert_eq!(before.len(), 1, "what stands before it is given");
    let there = log.read_all(before[0].position, 10).await;
    assert!(
        matches!(there, Err(StoreError::Corrupt { position: at, .. }) if at == position),
        "{there:?}"
    );
    settle(&log, start("good")).await;
    let behind = log.read_all(position, 10).await.expect("readable");
    assert_eq!(behind.len(), 2, "who skips it is given what stands behind");
}

async fn pages_pass_over_what_others_write(place: &Place) {
    let log = open(place.options()).await;
    for number in 0..6 {
        for _ in 0..3 {
            place.write("somebody", "else", b"x").await;
        }
        settle(&log, charge(&format!("j{number}"))).await;
    }
    place.write("somebody", "else", b"x").await;
    let whole = log.read_all(Position::START, 100).await.expect("readable");
    let streams: Vec<_> = whole.iter().map(|event| event.stream.clone()).collect();
    let expected: Vec<_> = (0..6).map(|number| name(&format!("j{number}"))).collect();
    assert_eq!(streams, expected);
    for size in 1..8 {
        let (mut paged, mut after) = (Vec::new(), Position::START);
        loop {
            let page = log.read_all(after, size).await.expect("readable");
            let Some(last) = page.last() else { break };
            after = last.position;
            paged.extend(page);
        }
        assert_eq!(paged, whole, "pages of {size}");
    }
}

/// Eight jobs are charged, fail and are delivered after all, each signal sent by four ledgers at once: each costs once.
async fn a_job_that_many_signal_is_charged_once(place: &Place) {
    let log = open(place.options()).await;
    let store: Arc<dyn EventStore> = Arc::new(Folded(log));
    let account = AccountId::new("acme").expect("a literal is a valid id");
    let kind = Kind::new("video").expect("a literal is a valid id");
    let cost = Cost::new(40).expect("a literal is a valid cost");
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        // A ledger each, as processes have: no cache tells one what the others did.
        let ledger = Ledger::new(Arc::clone(&store), Policies::default());
        let price = PriceSnapshot::flat(cost);
        let charge = ledger.charge_of(account.clone(), kind.clone(), cost, price, None);
        let commands = [
            JobCommand::Charge(Box::new(charge.expect("the price is the cost"))),
            JobCommand::Fail {
                attempt: Attempt::FIRST,
                class: FailureClass::Retryable,
                reason: None,
            },
            JobCommand::Succeed {
                attempt: Attempt::FIRST,
                result: None,
            },
        ];
        callers.spawn(async move {
            let job = JobId::new(format!("j{}", caller % 8)).expect("a valid id");
            for (step, command) in commands.into_iter().enumerate() {
                let id = CommandId::new(format!("{step} {job}")).expect("a valid id");
                let outcome = ledger.job(id, job.clone(), command).await;
                let outcome = outcome.expect("nothing is lost");
                assert!(outcome.is_done(), "{step} {job}: {outcome:?}");
            }
        });
    }
    bounded("32 callers", callers.join_all()).await;
    let accounts = store.accounts(None, 10).await.expect("readable");
    let (_, figures) = accounts.into_iter().next().expect("one account");
    assert_eq!((figures.balance, figures.held), (-8 * 40, 0));
}
