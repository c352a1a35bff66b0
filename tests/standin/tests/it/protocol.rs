//! Appends and reads without faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kurrentdb::{
    CurrentRevision, DeleteStreamOptions, Error, StreamPosition, StreamState,
    TombstoneStreamOptions,
};
use recoup_kurrentdb_standin::{AppendFate, Standin};
use uuid::Uuid;

use crate::world::{all, append, bounded, client_of, log, of, stream};

const EMPTY: StreamState = StreamState::NoStream;

fn after(revision: u64) -> StreamState {
    StreamState::StreamRevision(revision)
}

fn is_conflict_at(answer: &kurrentdb::Result<kurrentdb::WriteResult>, at: Option<u64>) -> bool {
    match answer {
        Err(Error::WrongExpectedVersion { current, .. }) => match current {
            CurrentRevision::Current(current) => at == Some(*current),
            CurrentRevision::NoStream => at.is_none(),
        },
        _ => false,
    }
}

#[tokio::test]
async fn an_event_comes_back_as_it_was_sent() {
    let ticks = Arc::new(AtomicU64::new(17_000_000_000_000_123));
    let now = Arc::clone(&ticks);
    let clock = Arc::new(move || now.load(Ordering::SeqCst));
    let standin = Standin::with(1, clock).await;
    let client = client_of(&standin);
    let written = append(&client, "s", EMPTY, &[1, 2])
        .await
        .expect("nothing speaks against it");
    assert_eq!(written.next_expected_version, 1);
    let events = stream(&client, "s", 0).await.expect("it is there");
    assert_eq!(events.len(), 2);
    assert_eq!(events[1].position, written.position);
    assert_eq!(events[1].position.commit, events[1].position.prepare);
    assert_eq!(events[1].id, Uuid::from_u128(2));
    assert_eq!(events[1].revision, 1);
    assert_eq!(events[1].stream_id(), "s");
    assert_eq!(events[1].event_type, "t");
    assert!(!events[1].is_json);
    assert_eq!(&events[1].data[..], b"\x00\xff");
    assert_eq!(&events[1].custom_metadata[..], b"{\"a\":1}");
    assert_eq!(events[1].metadata["created"], "17000000000000123");
    let same = log(&client, &all().filter(of("s")))
        .await
        .expect("it is there");
    assert_eq!(same[1].position, written.position);
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    let missing = stream(&client, "s", 0).await;
    assert!(
        matches!(missing, Err(Error::ResourceNotFound)),
        "{missing:?}"
    );
    append(&client, "s", EMPTY, &[1])
        .await
        .expect("nothing speaks against it");
    assert_eq!(stream(&client, "s", 1).await.expect("it exists").len(), 0);
}

#[tokio::test]
async fn a_conflict_is_typed_and_says_where_the_stream_is() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    let early = append(&client, "s", after(3), &[1]).await;
    assert!(is_conflict_at(&early, None), "{early:?}");
    append(&client, "s", EMPTY, &[1, 2])
        .await
        .expect("nothing speaks against it");
    for (state, ids) in [
        (EMPTY, &[3][..]),
        (EMPTY, &[1, 3]),
        (after(0), &[3]),
        (after(5), &[3]),
    ] {
        let answer = append(&client, "s", state, ids).await;
        assert!(
            is_conflict_at(&answer, Some(1)),
            "{state:?} {ids:?}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn a_repeat_is_known_by_its_ids_behind_the_end_and_written_again_at_the_end() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    let first = append(&client, "s", EMPTY, &[1])
        .await
        .expect("nothing speaks against it");
    let again = append(&client, "s", EMPTY, &[1])
        .await
        .expect("the same ids");
    assert_eq!(again.position, first.position);
    assert_eq!(stream(&client, "s", 0).await.expect("it is there").len(), 1);
    append(&client, "s", after(0), &[1])
        .await
        .expect("the id is not looked at");
    assert_eq!(stream(&client, "s", 0).await.expect("it is there").len(), 2);
    standin.fail_appends([AppendFate::CommittedWithoutPosition]);
    let again = append(&client, "s", EMPTY, &[1])
        .await
        .expect("the same ids");
    assert_eq!((again.position.commit, again.next_expected_version), (0, 0));
}

#[tokio::test]
async fn the_whole_log_has_holes_and_events_of_the_server() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    for number in 0..7 {
        append(&client, &format!("ours-{number}"), EMPTY, &[number])
            .await
            .expect("new");
        standin.put("theirs", "t", b"x");
    }
    let everything = log(&client, &all()).await.expect("readable");
    assert_eq!(
        everything.len(),
        3 + 7 + 7 + 1,
        "theirs and the server's stand between ours"
    );
    let ours = log(&client, &all().filter(of("ours-")))
        .await
        .expect("readable");
    let positions: Vec<_> = ours.iter().map(|event| event.position).collect();
    assert_eq!(positions.len(), 7);
    assert!(
        positions
            .windows(2)
            .all(|pair| pair[0].commit + 1 < pair[1].commit)
    );

    // Forwards begins with the event at the position, backwards with the one before it.
    let at = |position| StreamPosition::Position(position);
    let options = all()
        .filter(of("ours-"))
        .position(at(positions[2]))
        .max_count(2);
    let page = log(&client, &options).await.expect("readable");
    assert_eq!(
        page.iter().map(|event| event.position).collect::<Vec<_>>(),
        positions[2..4]
    );
    let options = all()
        .filter(of("ours-"))
        .position(at(positions[2]))
        .backwards()
        .max_count(1);
    let page = log(&client, &options).await.expect("readable");
    assert_eq!(page[0].position, positions[1]);
    let options = all()
        .filter(of("ours-"))
        .position(StreamPosition::End)
        .max_count(1);
    let page = log(&client, &options).await.expect("readable");
    assert_eq!(page[0].position, positions[6]);

    // Beyond the end is nothing; inside an event is no place to begin.
    let beyond = kurrentdb::Position {
        commit: 1 << 60,
        prepare: 1 << 60,
    };
    let page = log(&client, &all().position(at(beyond)))
        .await
        .expect("readable");
    assert_eq!(page.len(), 0);
    let inside = kurrentdb::Position {
        commit: positions[2].commit + 1,
        prepare: positions[2].commit + 1,
    };
    let page = log(&client, &all().position(at(inside))).await;
    assert!(matches!(page, Err(Error::ServerError(_))), "{page:?}");
}

#[tokio::test]
async fn a_cluster_is_found_by_gossip_and_a_follower_names_the_leader() {
    let standin = Standin::cluster(3).await;
    standin.elect(2);
    let client = client_of(&standin);
    append(&client, "s", EMPTY, &[1])
        .await
        .expect("gossip names the leader");
    assert!(standin.requests().gossip > 0);
    // Who knows a follower only is sent on to the leader.
    let client = crate::world::client(&standin.connection_string_of(&[0]));
    let refused = append(&client, "s", after(0), &[2]).await;
    assert!(
        matches!(refused, Err(Error::NotLeaderException(_))),
        "{refused:?}"
    );
    append(&client, "s", after(0), &[2])
        .await
        .expect("the client went where it was sent");
}

#[tokio::test]
async fn two_of_three_die_and_nobody_leads_until_one_is_back() {
    let standin = Standin::cluster(3).await;
    let client = client_of(&standin);
    append(&client, "s", EMPTY, &[1]).await.expect("new");
    standin.kill(1).await;
    assert_eq!(standin.leader(), Some(0));
    standin.kill(2).await;
    assert_eq!(standin.leader(), None);
    let refused = append(&client, "s", after(0), &[2]).await;
    assert!(matches!(refused, Err(Error::ServerError(_))), "{refused:?}");
    standin.revive(2).await;
    assert_eq!(standin.leader(), Some(0));
    standin.kill(0).await;
    assert_eq!(standin.leader(), None);
    standin.revive(1).await;
    assert_eq!(standin.leader(), Some(1));
    let client = client_of(&standin);
    append(&client, "s", after(0), &[2])
        .await
        .expect("the log outlived its nodes");
}

#[tokio::test]
async fn a_deleted_stream_is_not_found_and_one_with_a_tombstone_is_gone() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    append(&client, "s", EMPTY, &[1, 2]).await.expect("new");
    let early = DeleteStreamOptions::default().stream_state(after(0));
    let early = bounded("a deletion", client.delete_stream("s", &early)).await;
    assert!(matches!(early, Err(Error::Grpc { .. })), "{early:?}");
    let exists = DeleteStreamOptions::default().stream_state(StreamState::StreamExists);
    let deleted = bounded("a deletion", client.delete_stream("s", &exists)).await;
    deleted.expect("it is there");
    let missing = stream(&client, "s", 0).await;
    assert!(
        matches!(missing, Err(Error::ResourceNotFound)),
        "{missing:?}"
    );
    // Its events stay in the log until a scavenge, and its numbers go on.
    let ours = log(&client, &all().filter(of("s")))
        .await
        .expect("readable");
    assert_eq!(ours.len(), 2);
    let anew = append(&client, "s", EMPTY, &[3]).await.expect("as new");
    assert_eq!(anew.next_expected_version, 2);
    assert_eq!(stream(&client, "s", 0).await.expect("there").len(), 1);
    let tombstone = TombstoneStreamOptions::default().stream_state(StreamState::Any);
    let gone = bounded("a deletion", client.tombstone_stream("s", &tombstone)).await;
    gone.expect("it is there");
    let gone = stream(&client, "s", 0).await;
    assert!(matches!(gone, Err(Error::ResourceDeleted)), "{gone:?}");
    let gone = append(&client, "s", StreamState::Any, &[4]).await;
    assert!(matches!(gone, Err(Error::ResourceDeleted)), "{gone:?}");
    assert_eq!(standin.requests().deletions, 3);
}
