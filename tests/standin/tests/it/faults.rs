//! What goes wrong on command, and what the client makes of it.

use std::time::Duration;

use kurrentdb::{Error, StreamState};
use recoup_kurrentdb_standin::{AppendFate, Leader, ReadFate, Standin};

use crate::world::{all, append, bounded, client_of, log, of, stream};

const EMPTY: StreamState = StreamState::NoStream;

async fn stored(standin: &Standin) -> usize {
    let records = standin.records();
    records.iter().filter(|record| record.stream == "s").count()
}

/// What is to happen, what the client says, how many events are stored.
type Case = (AppendFate, fn(&Error) -> bool, usize);

#[tokio::test]
async fn an_append_ends_as_its_fate_says() {
    let cases: [Case; 8] = [
        (AppendFate::CommittedThenCut, is_lost, 1),
        (AppendFate::Cut, is_lost, 0),
        (AppendFate::CommittedThenAborted, is_aborted, 1),
        (AppendFate::Aborted, is_aborted, 0),
        (AppendFate::HeldThenAborted, is_aborted, 0),
        (
            AppendFate::NotReady,
            |error| matches!(error, Error::ServerError(_)),
            0,
        ),
        (
            AppendFate::NotLeader(Leader::Unnamed),
            |error| matches!(error, Error::ResourceNotFound),
            0,
        ),
        (
            AppendFate::NotLeader(Leader::At {
                host: "127.0.0.1".to_owned(),
                port: 1,
            }),
            |error| matches!(error, Error::NotLeaderException(leader) if leader.port == 1),
            0,
        ),
    ];
    for (fate, is_expected, events) in cases {
        let standin = Standin::start().await;
        let client = client_of(&standin);
        standin.fail_appends([fate.clone()]);
        let error = append(&client, "s", EMPTY, &[1])
            .await
            .expect_err("it has no answer");
        assert!(is_expected(&error), "{fate:?}: {error:?}");
        assert_eq!(stored(&standin).await, events, "{fate:?}");
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::ServerError(_)) || matches!(error, Error::Grpc { .. })
}

fn is_aborted(error: &Error) -> bool {
    matches!(error, Error::Grpc { message, .. } if message.starts_with("Operation timed out"))
}

#[tokio::test]
async fn silence_lasts_until_the_caller_gives_up() {
    for fate in [AppendFate::CommittedThenSilent, AppendFate::Held] {
        let standin = Standin::start().await;
        let client = client_of(&standin);
        standin.fail_appends([fate.clone()]);
        let pending = tokio::time::timeout(
            Duration::from_millis(300),
            append(&client, "s", EMPTY, &[1]),
        );
        assert!(pending.await.is_err(), "{fate:?} is not answered");
    }
}

#[tokio::test]
async fn what_is_held_is_written_late_and_only_where_it_fits() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    standin.fail_appends([AppendFate::HeldThenAborted, AppendFate::HeldThenAborted]);
    append(&client, "s", EMPTY, &[1])
        .await
        .expect_err("it is held");
    append(&client, "t", EMPTY, &[2])
        .await
        .expect_err("it is held");
    append(&client, "t", EMPTY, &[3])
        .await
        .expect("nothing is written yet");
    assert_eq!(
        (standin.held(), standin.release(), standin.held()),
        (2, 2, 0)
    );
    assert_eq!(
        stream(&client, "s", 0)
            .await
            .expect("it is written now")
            .len(),
        1
    );
    assert_eq!(stream(&client, "t", 0).await.expect("it is there").len(), 1);
}

#[tokio::test]
async fn a_script_sees_the_stream() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    standin.script_appends(|stream| {
        if stream.starts_with('b') {
            AppendFate::Aborted
        } else {
            AppendFate::Fine
        }
    });
    append(&client, "a", EMPTY, &[1]).await.expect("fine");
    append(&client, "b", EMPTY, &[1])
        .await
        .expect_err("aborted");
    append(&client, "c", EMPTY, &[1]).await.expect("fine");
}

#[tokio::test]
async fn a_read_ends_as_its_fate_says() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    append(&client, "s", EMPTY, &[1, 2, 3]).await.expect("new");
    standin.fail_stream_reads([ReadFate::Slow(Duration::from_millis(1)), ReadFate::Aborted]);
    assert_eq!(stream(&client, "s", 0).await.expect("late").len(), 3);
    standin.fail_stream_reads([ReadFate::ShortOf(2)]);
    stream(&client, "s", 0).await.expect_err("aborted");
    let short = stream(&client, "s", 0).await;
    assert_eq!(short.expect("it ends cleanly").len(), 2);
    standin.fail_log_reads([
        ReadFate::ShortOf(3),
        ReadFate::ShortOf(5),
        ReadFate::NotReady,
    ]);
    let ours = all().filter(of("s"));
    assert_eq!(
        log(&client, &ours).await.expect("it ends cleanly").len(),
        0,
        "an empty page is not the end"
    );
    assert_eq!(log(&client, &ours).await.expect("it ends cleanly").len(), 2);
    log(&client, &ours).await.expect_err("not ready");
    standin.fail_stream_reads([ReadFate::CutAfter(1)]);
    stream(&client, "s", 0)
        .await
        .expect_err("the connection is cut");
}

#[tokio::test]
async fn a_stalled_read_gives_some_events_and_no_end() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    append(&client, "s", EMPTY, &[1, 2, 3]).await.expect("new");
    standin.fail_stream_reads([ReadFate::Stalled(2)]);
    let mut read = bounded(
        "a read",
        client.read_stream("s", &kurrentdb::ReadStreamOptions::default()),
    )
    .await
    .expect("it begins");
    for _ in 0..2 {
        let next = bounded("an event", read.next()).await.expect("readable");
        assert!(next.is_some());
    }
    let third = tokio::time::timeout(Duration::from_millis(300), read.next());
    assert!(third.await.is_err(), "there is neither a third nor an end");
}

#[tokio::test]
async fn a_node_that_was_restarted_has_its_log() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    append(&client, "s", EMPTY, &[1]).await.expect("new");
    standin.kill(0).await;
    append(&client, "s", EMPTY, &[1])
        .await
        .expect_err("nobody is there");
    standin.revive(0).await;
    let client = client_of(&standin);
    assert_eq!(stream(&client, "s", 0).await.expect("it is there").len(), 1);
}

#[tokio::test]
async fn a_cut_ends_connections_and_not_the_node() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    append(&client, "s", EMPTY, &[1]).await.expect("new");
    standin.fail_appends([AppendFate::Held]);
    let waiting = tokio::spawn(async move {
        let answer = append(&client, "s", StreamState::StreamRevision(0), &[2]).await;
        (client, answer)
    });
    let arrived = async {
        while standin.held() == 0 {
            tokio::task::yield_now().await;
        }
    };
    bounded("the append's arrival", arrived).await;
    standin.cut(0);
    let (client, answer) = bounded("the cut", waiting)
        .await
        .expect("it does not panic");
    assert!(is_lost(&answer.expect_err("it is cut")));
    assert_eq!(
        stream(&client, "s", 0)
            .await
            .expect("the next connection is welcome")
            .len(),
        1
    );
}
