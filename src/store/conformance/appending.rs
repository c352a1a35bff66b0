//! The guard, atomicity, order, and what is stored with an event.

use std::time::Duration;

use super::super::{Appended, Expected, Position, Revision};
use super::Fixture;
use super::samples::{
    append, charge, charged, committed, conflict, exactly, failed, grant, is_committed, november,
    started,
};
use crate::clock::{Clock, Timestamp};
use crate::codec::{Decoded, Metadata, decode};

/// `NoStream` is for the first append, and for no other.
pub async fn no_stream_is_a_guard(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(
        store,
        append("j", Expected::NoStream, vec![charged("a", 40, november())]),
    )
    .await;
    let again = append("j", Expected::NoStream, vec![charged("a", 41, november())]);
    assert_eq!(store.append(again).await, conflict(Some(0)));
    // The identical append, repeated: a store believes no event id, it checks the revision.
    let identical = append("j", Expected::NoStream, vec![charged("a", 40, november())]);
    assert_eq!(store.append(identical).await, conflict(Some(0)));
}

/// An exact revision is the last one: not an earlier, not a later one, not one of an empty stream.
pub async fn a_conflict_gives_the_current_revision(fixture: &Fixture) {
    let store = &*fixture.store;
    let on_nothing = append("j", exactly(0), vec![started(1)]);
    assert_eq!(store.append(on_nothing).await, conflict(None));
    committed(
        store,
        append("j", Expected::NoStream, vec![charged("a", 40, november())]),
    )
    .await;
    committed(store, append("j", exactly(0), vec![started(1)])).await;
    committed(
        store,
        append("j", exactly(1), failed("a", 40, 0, november())),
    )
    .await;
    for expected in [
        exactly(0),
        exactly(1),
        exactly(3),
        exactly(5),
        exactly(u64::MAX - 8),
        Expected::NoStream,
    ] {
        let late = append("j", expected, vec![started(2)]);
        assert_eq!(store.append(late).await, conflict(Some(4)), "{expected:?}");
    }
    committed(store, append("j", exactly(4), vec![started(2)])).await;
}

/// A conflict leaves no event, no position and no figure behind.
pub async fn a_conflict_writes_nothing(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 100)).await;
    committed(store, charge("j", "a", 40)).await;
    let before = (store.head().await, store.accounts(None, 10).await);
    let late = append("j", exactly(7), failed("a", 40, 40, november()));
    assert_eq!(store.append(late).await, conflict(Some(0)));
    assert_eq!((store.head().await, store.accounts(None, 10).await), before);
    let stream = append("j", exactly(0), Vec::new()).stream;
    let stored = store
        .read_stream(&stream, Revision::FIRST)
        .await
        .expect("readable");
    assert_eq!(stored.len(), 1);
}

/// Position, revision, id, type, version, instant, metadata, bytes: all of it comes back as it was given.
pub async fn an_append_is_read_back_whole(fixture: &Fixture) {
    let store = &*fixture.store;
    let first = append(
        "j/1 é",
        Expected::NoStream,
        vec![charged("a", 40, november())],
    );
    let second = append("j/1 é", exactly(0), failed("a", 40, 0, november()));
    committed(store, first.clone()).await;
    committed(store, second.clone()).await;
    let stored = store
        .read_stream(&first.stream, Revision::FIRST)
        .await
        .expect("readable");
    assert_eq!(
        store.read_all(Position::START, 10).await.as_ref(),
        Ok(&stored)
    );
    let appended = [&first, &second]
        .into_iter()
        .flat_map(|append| append.events.iter().map(move |event| (append, event)));
    for ((index, (append, new)), stored) in (0..).zip(appended).zip(&stored) {
        assert_eq!(stored.revision, Revision::new(index));
        assert_eq!(stored.stream, append.stream);
        assert_eq!(stored.id, new.id, "event ids are stored");
        assert_eq!(
            (&*stored.type_name, stored.version),
            (new.event_type.name, new.event_type.version)
        );
        let posted_at = stored.posted_at;
        assert!(fixture.may_be_posted_at(posted_at), "{posted_at:?}");
        assert_eq!(stored.metadata, append.metadata.as_bytes());
        assert_eq!(stored.data, new.data);
        assert_eq!(decode(stored), Ok(Decoded::Event(new.event.clone())));
        let metadata =
            Metadata::parse(&stored.metadata, stored.position).expect("metadata is ours");
        assert_eq!(metadata.correlation, "j/1 é");
    }
    assert_eq!(stored.len(), 4);
}

/// All events of an append are there, next to each other, or none is.
pub async fn an_append_of_many_events_is_one_step(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 100)).await;
    committed(store, charge("j", "a", 40)).await;
    let answer = store
        .append(append("j", exactly(0), failed("a", 40, 40, november())))
        .await;
    assert!(is_committed(&answer), "{answer:?}");
    let log = store.read_all(Position::START, 10).await.expect("readable");
    let revisions: Vec<_> = log.iter().map(|event| event.revision.get()).collect();
    assert_eq!(revisions, [0, 0, 1, 2, 3]);
    assert!(log.is_sorted_by(|one, next| one.position < next.position));
    let instants: Vec<_> = log[2..].iter().map(|event| event.posted_at).collect();
    assert!(
        instants.iter().all(|at| *at == instants[0]),
        "one append, one instant: {instants:?}"
    );
}

/// Positions increase by one from 1 on, whatever was refused or in conflict in between.
pub async fn positions_follow_each_other(fixture: &Fixture) {
    let store = &*fixture.store;
    for number in 0..10 {
        let job = format!("j{number}");
        committed(
            store,
            append(&job, Expected::NoStream, vec![charged("a", 1, november())]),
        )
        .await;
        let late = store
            .append(append(&job, exactly(9), vec![started(1)]))
            .await;
        assert_eq!(late, conflict(Some(0)));
        let refused = store.append(charge(&format!("r{number}"), "poor", 1)).await;
        assert!(matches!(refused, Ok(Appended::Refused(_))), "{refused:?}");
        committed(
            store,
            append(&job, exactly(0), failed("a", 1, 0, november())),
        )
        .await;
    }
    let log = store
        .read_all(Position::START, 1_000)
        .await
        .expect("readable");
    let positions: Vec<_> = log.iter().map(|event| event.position.get()).collect();
    assert_eq!(positions, (1..=40).collect::<Vec<_>>());
}

/// The store's clock decides, and an event is never earlier than the one before it, even when the clock goes back.
pub async fn posted_at_never_decreases(fixture: &Fixture) {
    let store = &*fixture.store;
    let start = fixture.clock.now();
    let hour = Duration::from_secs(3_600);
    let earlier = Timestamp::from_micros(start.as_micros() - 3_600_000_000);
    let later = start.after(hour);
    // (what the clock shows, what is recorded)
    let steps = [
        (start, start),
        (later, later),
        (earlier, later),
        (start, later),
        (later.after(hour), later.after(hour)),
    ];
    for (number, (shown, recorded)) in steps.into_iter().enumerate() {
        fixture.clock.set(shown);
        let answer = store
            .append(append(
                &format!("j{number}"),
                Expected::NoStream,
                vec![charged("a", 1, november())],
            ))
            .await;
        let Ok(Appended::Committed { posted_at, .. }) = answer else {
            panic!("nothing speaks against it: {answer:?}");
        };
        assert_eq!(posted_at, recorded, "step {number}");
        let log = store.read_all(Position::START, 10).await.expect("readable");
        assert_eq!(
            log.last().map(|event| event.posted_at),
            Some(recorded),
            "step {number}"
        );
    }
}

/// A committed append is answered with its last event's position and its instant, which are what is stored.
pub async fn the_answer_says_where_and_when(fixture: &Fixture) {
    let store = &*fixture.store;
    for (job, expected, events) in [
        ("j", Expected::NoStream, vec![charged("a", 40, november())]),
        ("k", Expected::NoStream, vec![charged("a", 40, november())]),
        ("j", exactly(0), failed("a", 40, 0, november())),
    ] {
        fixture.clock.advance(Duration::from_millis(1));
        let append = append(job, expected, events);
        let (stream, last) = (append.stream.clone(), append.last_revision());
        let answer = store.append(append).await;
        let Ok(Appended::Committed {
            position,
            posted_at,
        }) = answer
        else {
            panic!("nothing speaks against it: {answer:?}");
        };
        let stored = store
            .read_stream(&stream, Revision::FIRST)
            .await
            .expect("readable");
        let stored = stored.last().expect("not empty");
        assert_eq!(
            (stored.position, stored.revision, stored.posted_at),
            (position, last, posted_at)
        );
        assert_eq!(store.head().await, Ok(position));
    }
}

/// Zone and ledger id are the same whenever they are asked for; the clock is the store's.
pub async fn a_store_has_one_identity(fixture: &Fixture) {
    let store = &*fixture.store;
    assert_eq!(store.identity(), store.identity());
    assert_eq!(store.identity().zone, crate::clock::Zone::UTC);
    fixture.clock.advance(Duration::from_secs(7));
    assert_eq!(store.now(), fixture.clock.now());
}
