//! Streams, pages of the log, the head.

use super::super::{EventStore, Expected, Position, RecordedEvent, Revision};
use super::Fixture;
use super::samples::{append, charged, committed, exactly, failed, job_stream, november, started};

/// Nine events in five appends of one, three and one event, on two streams by turns.
async fn fill(store: &dyn EventStore) -> Vec<RecordedEvent> {
    committed(
        store,
        append("j", Expected::NoStream, vec![charged("a", 40, november())]),
    )
    .await;
    committed(
        store,
        append("j", exactly(0), failed("a", 40, 0, november())),
    )
    .await;
    committed(
        store,
        append("k", Expected::NoStream, vec![charged("b", 2, november())]),
    )
    .await;
    committed(
        store,
        append("k", exactly(0), failed("b", 2, 2, november())),
    )
    .await;
    committed(store, append("j", exactly(3), vec![started(2)])).await;
    let log = store
        .read_all(Position::START, 100)
        .await
        .expect("readable");
    assert_eq!(log.len(), 9);
    log
}

/// An empty log, a stream that nobody wrote to, a page behind the head.
pub async fn what_is_not_there_is_empty(fixture: &Fixture) {
    let store = &*fixture.store;
    let unknown = job_stream("unknown").name();
    assert_eq!(store.head().await, Ok(Position::START));
    assert_eq!(store.read_all(Position::START, 10).await, Ok(Vec::new()));
    assert_eq!(
        store.read_stream(&unknown, Revision::FIRST).await,
        Ok(Vec::new())
    );
    assert_eq!(
        store
            .read_streams(vec![unknown.clone(), unknown.clone()])
            .await,
        Ok(vec![Vec::new(); 2])
    );
    assert_eq!(store.read_streams(Vec::new()).await, Ok(Vec::new()));
    let log = fill(store).await;
    assert_eq!(
        store.read_stream(&unknown, Revision::FIRST).await,
        Ok(Vec::new())
    );
    let last = log[8].position.get();
    for after in [last, last + 1, i64::MAX] {
        assert_eq!(
            store.read_all(Position::new(after), 10).await,
            Ok(Vec::new()),
            "after {after}"
        );
    }
}

/// From any revision to the end, also from inside an append, and beyond the end.
pub async fn a_stream_is_read_from_any_revision(fixture: &Fixture) {
    let store = &*fixture.store;
    let log = fill(store).await;
    let stream = job_stream("j").name();
    let whole: Vec<_> = log
        .into_iter()
        .filter(|event| event.stream == stream)
        .collect();
    assert_eq!(whole.len(), 5);
    for from in 0..8 {
        let rest = whole
            .iter()
            .filter(|event| event.revision.get() >= from)
            .cloned();
        let rest: Vec<_> = rest.collect();
        assert_eq!(
            store.read_stream(&stream, Revision::new(from)).await,
            Ok(rest),
            "from {from}"
        );
    }
}

/// Each stream whole, in the order asked for; one that is asked for twice comes twice.
pub async fn many_streams_are_read_in_the_order_asked_for(fixture: &Fixture) {
    let store = &*fixture.store;
    fill(store).await;
    let names = ["k", "unknown", "j", "k"].map(|job| job_stream(job).name());
    let streams = store.read_streams(names.to_vec()).await.expect("readable");
    assert_eq!(
        streams.iter().map(Vec::len).collect::<Vec<_>>(),
        [4, 0, 5, 4]
    );
    for (name, events) in names.iter().zip(streams) {
        assert_eq!(store.read_stream(name, Revision::FIRST).await, Ok(events));
    }
}

/// Pages of 1, 2, … events, each after the last one's last: together the whole log, once, in order.
pub async fn pages_of_every_size_give_the_whole_log(fixture: &Fixture) {
    let store = &*fixture.store;
    let log = fill(store).await;
    for size in 1..=log.len() + 1 {
        let mut read: Vec<RecordedEvent> = Vec::new();
        loop {
            let after = read.last().map_or(Position::START, |last| last.position);
            let page = store.read_all(after, size).await.expect("readable");
            assert!(page.len() <= size, "a page of {size} has {}", page.len());
            if page.is_empty() {
                break;
            }
            read.extend(page);
        }
        assert_eq!(read, log, "pages of {size}");
    }
    assert_eq!(
        store.read_all(Position::START, 0).await,
        Ok(Vec::new()),
        "a page of nothing"
    );
}

/// Any part of the log, from after any position, of any length.
pub async fn a_page_may_begin_and_end_inside_an_append(fixture: &Fixture) {
    let store = &*fixture.store;
    let log = fill(store).await;
    for after in 0..log.len() {
        for limit in 1..=log.len() {
            let expected: Vec<_> = log.iter().skip(after).take(limit).cloned().collect();
            let before = after.checked_sub(1).map(|before| log[before].position);
            let position = before.unwrap_or(Position::START);
            let page = store.read_all(position, limit).await;
            assert_eq!(page, Ok(expected), "{limit} after {after}");
        }
    }
}

/// The head is the position of the last event, after every append.
pub async fn the_head_is_the_last_position(fixture: &Fixture) {
    let store = &*fixture.store;
    let (mut head, mut events) = (Position::START, 0);
    for number in 0..3 {
        let job = format!("j{number}");
        for (expected, appended) in [
            (Expected::NoStream, vec![charged("a", 1, november())]),
            (exactly(0), failed("a", 1, 0, november())),
        ] {
            events += appended.len();
            committed(store, append(&job, expected, appended)).await;
            let log = store
                .read_all(Position::START, 100)
                .await
                .expect("readable");
            let last = log.last().expect("not empty").position;
            assert_eq!((log.len(), store.head().await), (events, Ok(last)));
            assert!(last > head);
            head = last;
        }
    }
}
