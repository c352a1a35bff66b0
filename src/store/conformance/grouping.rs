//! Many appends in one call: an answer each, in order, and no member's refusal touches another.

use super::super::{Appended, Expected, Position, Revision};
use super::Fixture;
use super::samples::{
    Sums, append, charge, charged, committed, conflict, exactly, failed, grant, is_committed,
    is_refused, job_stream, november, started,
};

/// A call with no appends is answered with no answers.
pub async fn no_appends_are_no_answers(fixture: &Fixture) {
    let store = &*fixture.store;
    assert_eq!(store.append_many(Vec::new()).await, Vec::new());
    assert_eq!(store.head().await, Ok(Position::START));
}

/// The answers stand in the order of the appends, whatever the order is that the store takes them in.
pub async fn many_appends_are_answered_in_order(fixture: &Fixture) {
    let store = &*fixture.store;
    let one = |number: u32| {
        let job = format!("j{number}");
        let mut events = vec![charged("a", 1, november())];
        if number.is_multiple_of(3) {
            events.push(started(1));
        }
        append(&job, Expected::NoStream, events)
    };
    let appends: Vec<_> = (0..100).map(one).collect();
    let answers = store.append_many(appends.clone()).await;
    assert_eq!(answers.len(), appends.len());
    for (append, answer) in appends.iter().zip(answers) {
        let Ok(Appended::Committed {
            position,
            posted_at,
        }) = answer
        else {
            panic!("nothing speaks against it: {answer:?}");
        };
        let stored = store
            .read_stream(&append.stream, Revision::FIRST)
            .await
            .expect("readable");
        assert_eq!(stored.len(), append.events.len());
        assert_eq!(
            stored.last().map(|event| (event.position, event.posted_at)),
            Some((position, posted_at))
        );
    }
}

/// Where one transaction takes a whole call, its order is that of the log.
pub async fn the_order_of_a_call_is_the_order_of_the_log(fixture: &Fixture) {
    let store = &*fixture.store;
    let first = |number| {
        let job = format!("j{number}");
        append(&job, Expected::NoStream, vec![charged("a", 1, november())])
    };
    let answers = store.append_many((0..100).map(first).collect()).await;
    let mut last = Position::START;
    for answer in answers {
        let Ok(Appended::Committed { position, .. }) = answer else {
            panic!("nothing speaks against it: {answer:?}");
        };
        assert!(position > last);
        last = position;
    }
    assert_eq!(store.head().await, Ok(last));
}

/// Later members see the earlier ones, also on one stream.
pub async fn a_chain_on_one_stream_is_committed_in_order(fixture: &Fixture) {
    let store = &*fixture.store;
    let chain = vec![
        grant("g", "a", 100),
        charge("j", "a", 100),
        append("j", exactly(0), vec![started(1)]),
        append("j", exactly(1), failed("a", 100, 0, november())),
        charge("k", "a", 100),
        append("j", exactly(4), vec![started(2)]),
    ];
    let mut sums = Sums::default();
    for append in &chain {
        sums.add(append);
    }
    let answers = store.append_many(chain).await;
    assert!(answers.iter().all(is_committed), "{answers:?}");
    let stored = store
        .read_stream(&job_stream("j").name(), Revision::FIRST)
        .await
        .expect("readable");
    let revisions: Vec<_> = stored.iter().map(|event| event.revision.get()).collect();
    assert_eq!(revisions, [0, 1, 2, 3, 4, 5]);
    assert_eq!(Sums::of(store).await, sums);
}

/// What a limit refuses writes nothing; what stands before and behind it is written.
pub async fn a_refused_member_writes_nothing_and_fails_nobody_else(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 100)).await;
    let answers = store
        .append_many(vec![
            charge("j1", "a", 60),
            charge("j2", "a", 60),
            append("j2", exactly(0), vec![started(1)]),
            charge("j3", "poor", 1),
            charge("j4", "a", 40),
            append("j1", exactly(0), failed("a", 60, 0, november())),
        ])
        .await;
    assert!(is_committed(&answers[0]), "{answers:?}");
    assert!(is_refused(&answers[1]), "{answers:?}");
    assert_eq!(answers[2], conflict(None), "it followed what was refused");
    assert!(is_refused(&answers[3]), "{answers:?}");
    assert!(
        is_committed(&answers[4]) && is_committed(&answers[5]),
        "{answers:?}"
    );
    for (job, events) in [("j1", 4), ("j2", 0), ("j3", 0), ("j4", 1)] {
        let stored = store
            .read_stream(&job_stream(job).name(), Revision::FIRST)
            .await;
        assert_eq!(stored.expect("readable").len(), events, "{job}");
    }
    let sums = Sums::of(store).await;
    assert_eq!(
        sums.accounts.into_iter().collect::<Vec<_>>(),
        [("a".to_owned(), (60, 0))]
    );
}

/// A member in conflict is told where its stream is, and fails nobody else.
pub async fn a_conflict_in_the_middle_fails_nobody_else(fixture: &Fixture) {
    let store = &*fixture.store;
    let first = |job: &str| append(job, Expected::NoStream, vec![charged("a", 1, november())]);
    committed(store, first("k")).await;
    let answers = store
        .append_many(vec![
            first("j"),
            first("k"),
            append("k", exactly(0), failed("a", 1, 0, november())),
            first("j"),
            append("k", exactly(0), vec![started(1)]),
            first("l"),
        ])
        .await;
    assert!(is_committed(&answers[0]), "{answers:?}");
    assert_eq!(answers[1], conflict(Some(0)));
    assert_eq!(
        answers[3],
        conflict(Some(0)),
        "the same append twice in one call"
    );
    assert!(is_committed(&answers[5]), "{answers:?}");
    let log = store
        .read_all(Position::START, 100)
        .await
        .expect("readable");
    assert_eq!(log.len(), 3);
    assert!(log.is_sorted_by(|one, next| one.position < next.position));
}

/// Behind the first link of a stream's chain that is not committed nothing of the chain is tried, though its revision would fit what stands
/// there: nobody has decided on that. Another call's append to the stream is another chain.
pub async fn nothing_behind_a_broken_link_is_tried(fixture: &Fixture) {
    let store = &*fixture.store;
    let first = |job: &str| append(job, Expected::NoStream, vec![charged("a", 1, november())]);
    committed(store, first("j")).await;
    committed(store, first("k")).await;
    let end = || append("j", exactly(0), failed("a", 1, 0, november()));
    let answers = store
        .append_many(vec![
            first("j"),
            end(),
            append("k", exactly(0), vec![started(1)]),
            append("j", exactly(0), vec![started(1)]),
        ])
        .await;
    for behind in [0, 1, 3] {
        assert_eq!(answers[behind], conflict(Some(0)), "{answers:?}");
    }
    assert!(is_committed(&answers[2]), "{answers:?}");
    let log = store.read_all(Position::START, 10).await;
    assert_eq!(log.expect("readable").len(), 3);
    // The chain was the call's: in the next one the same append fits.
    let answers = store.append_many(vec![end()]).await;
    assert!(is_committed(&answers[0]), "{answers:?}");
}

/// What a limit refuses breaks a chain as a conflict does, and that of no other stream.
pub async fn nothing_behind_a_refused_link_is_tried(fixture: &Fixture) {
    let store = &*fixture.store;
    let first = |job: &str| append(job, Expected::NoStream, vec![charged("a", 1, november())]);
    let answers = store
        .append_many(vec![
            charge("poor", "poor", 1),
            append("poor", Expected::NoStream, vec![started(1)]),
            first("j"),
        ])
        .await;
    assert!(is_refused(&answers[0]), "{answers:?}");
    assert_eq!(answers[1], conflict(None), "{answers:?}");
    let Ok(Appended::Committed { position, .. }) = answers[2] else {
        panic!("{answers:?}");
    };
    assert_eq!(store.head().await, Ok(position));
}

/// Fifty charges in one call are admitted like fifty calls: each against what the ones before it have left.
pub async fn members_share_the_figures_in_order(fixture: &Fixture) {
    let store = &*fixture.store;
    committed(store, grant("g", "a", 2_500)).await;
    let charges = (0..50).map(|number| charge(&format!("j{number}"), "a", 100));
    let answers = store.append_many(charges.collect()).await;
    assert!(answers[..25].iter().all(is_committed), "{answers:?}");
    assert!(answers[25..].iter().all(is_refused), "{answers:?}");
    // A grant in the middle of a call admits what stands behind it.
    let answers = store
        .append_many(vec![
            charge("k1", "a", 7),
            grant("g2", "a", 7),
            charge("k2", "a", 7),
        ])
        .await;
    assert!(is_refused(&answers[0]), "{answers:?}");
    assert!(
        is_committed(&answers[1]) && is_committed(&answers[2]),
        "{answers:?}"
    );
}
