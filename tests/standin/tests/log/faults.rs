//! Lost answers, late commits, dead leaders, restarts.

use std::time::Duration;

use recoup::store::kurrentdb::{Log, Options};
use recoup::store::{Appended, Position, Revision, StoreError};
use recoup_kurrentdb_standin::{AppendFate, Leader, ReadFate, Standin};
use tokio::task::JoinSet;

use crate::events::{
    charge, conflict, is_committed, is_stored, is_unavailable, is_unknown, name, settle, start,
};
use crate::world::{bounded, open, options, standin};

/// Patience that ends within a test.
fn hasty(standin: &Standin) -> Options {
    Options {
        connect_within: Duration::from_millis(300),
        answer_within: Duration::from_millis(300),
        ..options(standin)
    }
}

/// A port that nobody listens to: it belongs to a node that is dead.
async fn dead() -> (Standin, Leader) {
    let standin = standin(1).await;
    standin.kill(0).await;
    let leader = standin.leader_at(0);
    (standin, leader)
}

/// How often each stream of the ledger has each revision: once.
fn assert_once(standin: &Standin, streams: usize, events: usize) {
    let records = standin.records();
    let ours = records
        .iter()
        .filter(|it| it.stream.starts_with("recoup.job-"));
    let mut places: Vec<_> = ours.map(|it| (&it.stream, it.revision, it.id)).collect();
    assert_eq!(places.len(), streams * events);
    places.sort();
    for (index, (stream, revision, _)) in places.iter().enumerate() {
        assert_eq!(*revision, (index % events) as u64, "{stream}");
    }
    let mut ids: Vec<_> = places.into_iter().map(|(_, _, id)| id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), streams * events, "no event is stored twice");
}

/// 32 callers, two appends for each of three jobs, most of which are answered wrongly, late or not at all. An error means that nothing was
/// written, and what is not clear is repeated: in the end everything is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_appends_whose_answers_are_lost_none_is_missing_and_none_is_twice() {
    let standin = standin(1).await;
    let log = open(Options {
        answer_within: Duration::from_secs(2),
        ..options(&standin)
    })
    .await;
    let mut number = 0;
    standin.script_appends(move |_| {
        number += 1;
        match number % 11 {
            1 => AppendFate::CommittedThenCut,
            3 => AppendFate::CommittedThenAborted,
            5 => AppendFate::HeldThenAborted,
            7 => AppendFate::Aborted,
            8 => AppendFate::CommittedWithoutPosition,
            9 => AppendFate::NotReady,
            10 => AppendFate::Cut,
            _ => AppendFate::Fine,
        }
    });
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        let log = log.clone();
        callers.spawn(async move {
            for job in 0..3 {
                let id = format!("{caller}.{job}");
                settle(&log, charge(&id)).await;
                settle(&log, start(&id)).await;
            }
        });
    }
    bounded("32 callers", callers.join_all()).await;
    // What is written late finds its stream further on.
    assert!(standin.release() > 0);
    assert_once(&standin, 96, 3);
}

#[tokio::test]
async fn a_success_without_a_position_is_read_back() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    standin.fail_appends([AppendFate::CommittedWithoutPosition]);
    let answer = log.append(charge("j")).await;
    let stored = log
        .read_stream(&name("j"), Revision::FIRST)
        .await
        .expect("readable");
    let committed = Appended::Committed {
        position: stored[0].position,
        posted_at: stored[0].posted_at,
    };
    assert_eq!(answer, Ok(committed));
    assert!(stored[0].position > Position::START);
}

/// The server gave up waiting, and writes it later: before the repeat, or after.
#[tokio::test]
async fn what_is_written_after_its_answer_is_written_once() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    for is_before_the_repeat in [true, false] {
        let id = format!("{is_before_the_repeat}");
        standin.fail_appends([AppendFate::HeldThenAborted]);
        let answer = log.append(charge(&id)).await;
        assert!(is_unknown(&answer), "{answer:?}");
        if is_before_the_repeat {
            assert_eq!(standin.release(), 1);
            assert_eq!(log.append(charge(&id)).await, conflict(0));
        } else {
            assert!(is_committed(&log.append(charge(&id)).await));
            assert_eq!(standin.release(), 1);
        }
    }
    assert_once(&standin, 2, 1);
}

/// No deadline is kept by anyone else: the client sends one and waits on.
#[tokio::test]
async fn silence_ends_and_leaves_it_open_whether_it_is_stored() {
    let standin = standin(1).await;
    let log = open(hasty(&standin)).await;
    standin.fail_appends([AppendFate::CommittedThenSilent, AppendFate::Held]);
    let connections = standin.requests().features;
    for (id, is_there) in [("there", true), ("not there", false)] {
        let answer = bounded("an append", log.append(charge(id))).await;
        assert!(is_unknown(&answer), "{answer:?}");
        assert_eq!(is_stored(&log, &charge(id)).await, is_there);
    }
    let connected = standin.requests().features;
    assert!(
        connected > connections,
        "nobody was answered: the client is taken for lost"
    );
}

/// One silent call among answered ones says nothing about the client that they share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_others_are_answered_on_is_kept() {
    let standin = standin(1).await;
    let log = open(Options {
        answer_within: Duration::from_secs(2),
        ..options(&standin)
    })
    .await;
    let connections = standin.requests().features;
    standin.fail_appends([AppendFate::Held]);
    let (shared, append) = (log.clone(), charge("silent"));
    let silent = tokio::spawn(async move { shared.append(append).await });
    let arrived = async {
        while standin.held() == 0 {
            tokio::task::yield_now().await;
        }
    };
    bounded("the append's arrival", arrived).await;
    assert!(is_committed(&log.append(charge("answered")).await));
    let answer = bounded("the silent append", silent)
        .await
        .expect("it does not panic");
    assert!(is_unknown(&answer), "{answer:?}");
    assert!(is_committed(&log.append(charge("after")).await));
    assert_eq!(standin.requests().features, connections);
}

#[tokio::test]
async fn a_dead_leader_is_forgotten_and_gossip_names_the_new_one() {
    let standin = standin(3).await;
    let log = open(options(&standin)).await;
    settle(&log, charge("before")).await;
    for leader in [0, 1] {
        assert_eq!(standin.leader(), Some(leader));
        standin.kill(leader).await;
        settle(&log, charge(&format!("without {leader}"))).await;
        standin.revive(leader).await;
    }
    assert_once(&standin, 3, 1);
}

/// What did not go out is nobody's riddle: it is sent to the next leader within the same call. (In a round in which the client has not noticed yet that its
/// connection is dead, it does go out, into nothing.)
#[tokio::test]
async fn an_append_that_did_not_go_out_is_sent_again() {
    let standin = standin(3).await;
    let log = open(options(&standin)).await;
    for round in 0..20 {
        let leader = standin.leader().expect("a majority lives");
        settle(&log, charge(&format!("before {round}"))).await;
        standin.kill(leader).await;
        let answer = bounded("an append", log.append(charge(&format!("after {round}")))).await;
        if is_committed(&answer) {
            return;
        }
        assert!(is_unknown(&answer), "{answer:?}");
        standin.revive(leader).await;
    }
    panic!("in no round the append was sent to the next leader");
}

/// The old leader lives, and says who leads now.
#[tokio::test]
async fn a_leader_that_resigned_is_left() {
    let standin = standin(3).await;
    let log = open(options(&standin)).await;
    for leader in [2, 1, 0] {
        standin.elect(leader);
        settle(&log, charge(&format!("with {leader}"))).await;
        assert!(log.head().await.is_ok());
    }
    assert_once(&standin, 3, 1);
}

#[tokio::test]
async fn who_knows_one_node_only_is_sent_to_the_leader_and_back() {
    let standin = standin(3).await;
    let log = open(Options {
        connection: standin.connection_string_of(&[1]),
        ..options(&standin)
    })
    .await;
    settle(&log, charge("with 0")).await;
    // The leader that the client was sent to dies; the node that it knows leads.
    standin.kill(0).await;
    assert_eq!(standin.leader(), Some(1));
    settle(&log, charge("with 1")).await;
    assert_once(&standin, 2, 1);
}

/// A client that follows such an answer ends for good.
#[tokio::test]
async fn a_leader_that_is_named_and_dead_does_no_harm() {
    let (_dead, leader) = dead().await;
    for nodes in [1, 3] {
        let standin = standin(nodes).await;
        let log = open(options(&standin)).await;
        standin.fail_appends([AppendFate::NotLeader(leader.clone())]);
        settle(&log, charge("j")).await;
        standin.fail_stream_reads([ReadFate::NotLeader(leader.clone())]);
        assert!(is_stored(&log, &charge("j")).await);
        assert_once(&standin, 1, 1);
    }
}

/// Without a majority nothing is said to be stored, and nothing is; with one, the log goes on by itself.
#[tokio::test]
async fn without_a_majority_the_log_is_unavailable_and_recovers() {
    let standin = standin(3).await;
    let log = open(hasty(&standin)).await;
    settle(&log, charge("before")).await;
    standin.kill(0).await;
    standin.kill(2).await;
    assert_eq!(standin.leader(), None);
    let read = bounded("a read", log.read_stream(&name("before"), Revision::FIRST)).await;
    assert!(is_unavailable(&read), "{read:?}");
    let head = bounded("the head", log.head()).await;
    assert!(is_unavailable(&head), "{head:?}");
    // The node that lives took the request and cannot say who leads: the client does not tell this from a write that broke.
    let answer = bounded("an append", log.append(charge("during"))).await;
    assert!(is_unknown(&answer) || is_unavailable(&answer), "{answer:?}");
    standin.kill(1).await;
    // Now that nobody is there, nothing goes out; the first look may still meet the connection that has just died.
    let outage = bounded("nobody to be there", async {
        loop {
            let answer = log.append(charge("during")).await;
            if !is_unknown(&answer) {
                return answer;
            }
        }
    });
    let answer = outage.await;
    assert!(is_unavailable(&answer), "{answer:?}");
    assert_once(&standin, 1, 1);
    standin.revive(1).await;
    standin.revive(2).await;
    settle(&log, charge("during")).await;
    assert_once(&standin, 2, 1);
}

/// A client that failed to connect once answers "closed" for ever.
#[tokio::test]
async fn a_server_that_comes_back_is_found() {
    let standin = standin(1).await;
    let log = open(hasty(&standin)).await;
    settle(&log, charge("before")).await;
    for restart in 0..2 {
        standin.kill(0).await;
        let read = bounded("a read", log.read_all(Position::START, 10)).await;
        assert!(is_unavailable(&read), "{read:?}");
        standin.revive(0).await;
        settle(&log, charge(&format!("after {restart}"))).await;
    }
    assert_once(&standin, 3, 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_not_opened_and_then_is() {
    let standin = standin(1).await;
    standin.kill(0).await;
    let early = bounded("an opening", Log::open(hasty(&standin))).await;
    let early = early.expect_err("nobody is there");
    assert!(
        early.to_string().starts_with("the store is unavailable"),
        "{early}"
    );
    standin.revive(0).await;
    open(options(&standin)).await;
}

/// A read that stalls, breaks or is refused for now is asked again; what it gave is not given twice.
#[tokio::test]
async fn a_read_that_breaks_is_asked_again() {
    let standin = standin(1).await;
    let log = open(Options {
        answer_within: Duration::from_millis(300),
        ..options(&standin)
    })
    .await;
    settle(&log, charge("j")).await;
    settle(&log, start("j")).await;
    let whole = log
        .read_stream(&name("j"), Revision::FIRST)
        .await
        .expect("readable");
    assert_eq!(whole.len(), 3);
    let fates = [
        ReadFate::Stalled(0),
        ReadFate::Stalled(2),
        ReadFate::CutAfter(1),
        ReadFate::NotReady,
        ReadFate::Aborted,
        ReadFate::Slow(Duration::from_millis(1)),
    ];
    for fate in fates {
        standin.fail_stream_reads([fate.clone()]);
        let read = bounded("a stream", log.read_stream(&name("j"), Revision::FIRST)).await;
        assert_eq!(read.as_ref(), Ok(&whole), "{fate:?}");
        standin.fail_log_reads([fate.clone()]);
        let read = bounded("the log", log.read_all(Position::START, 10)).await;
        assert_eq!(read.as_ref(), Ok(&whole), "{fate:?}");
    }
}

/// "Not found" is what the client makes of a node that does not lead and cannot say who does. A job must not seem to be unknown for that.
#[tokio::test]
async fn a_node_that_does_not_lead_is_no_empty_stream() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    settle(&log, charge("j")).await;
    standin.fail_stream_reads([ReadFate::NotLeader(Leader::Unnamed)]);
    let read = log.read_stream(&name("j"), Revision::FIRST).await;
    assert_eq!(read.expect("asked again").len(), 1);
}

/// An empty page is not the end, whatever it looked at: with the filter, and without.
#[tokio::test]
async fn a_page_that_ends_early_is_not_the_end_of_the_log() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    for number in 0..6 {
        for _ in 0..7 {
            standin.put("somebody", "else", b"x");
        }
        settle(&log, charge(&format!("j{number}"))).await;
    }
    let whole = log.read_all(Position::START, 100).await.expect("readable");
    assert_eq!(whole.len(), 6);
    standin.script_log_reads(|direction| match direction {
        "forwards" => ReadFate::ShortOf(3),
        _ => ReadFate::Fine,
    });
    for (after, limit) in [(0, 100), (0, 2), (1, 3), (4, 1), (5, 9)] {
        let position = if after == 0 {
            Position::START
        } else {
            whole[after - 1].position
        };
        let rest: Vec<_> = whole[after..].iter().take(limit).cloned().collect();
        let page = bounded("a page", log.read_all(position, limit)).await;
        assert_eq!(page, Ok(rest), "{limit} after {after}");
    }
}

/// A server that shows its last event and never comes to it is not believed to have nothing more.
#[tokio::test]
async fn a_log_that_ends_before_its_end_is_unavailable() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    settle(&log, charge("j")).await;
    standin.script_log_reads(|direction| match direction {
        "forwards" => ReadFate::ShortOf(0),
        _ => ReadFate::Fine,
    });
    let page = bounded("a page", log.read_all(Position::START, 10)).await;
    assert!(
        matches!(page, Err(StoreError::Unavailable { .. })),
        "{page:?}"
    );
}

/// What another process appends is seen at the next look; between looks the server is asked nothing.
#[tokio::test]
async fn who_waits_is_woken_by_others_and_asks_nothing_between_two_looks() {
    let standin = standin(1).await;
    let rarely = Duration::from_secs(3_600);
    let idle = open(Options {
        poll_every: rarely,
        ..options(&standin)
    })
    .await;
    let waiting = open(options(&standin)).await;
    let appending = open(options(&standin)).await;
    let (mut signal, idle_signal) = (waiting.appended(), idle.appended());
    signal.borrow_and_update();
    settle(&appending, charge("j")).await;
    bounded("the signal", signal.changed())
        .await
        .expect("the log lives");
    let head = appending.head().await.expect("readable");
    assert_eq!(*signal.borrow(), head);
    assert_eq!(
        *idle_signal.borrow(),
        Position::START,
        "its look is an hour away"
    );
    // Nobody looks who waits for nothing.
    drop((signal, waiting));
    let asked = standin.requests();
    for number in 0..20 {
        settle(&appending, charge(&format!("j{number}"))).await;
    }
    assert_eq!(
        standin.requests().all,
        asked.all,
        "an append does not read the log"
    );
}
