//! Leaders that die in the middle of an append, and writes that other nodes have or have not.

use std::sync::Arc;
use std::time::Duration;

use recoup::store::kurrentdb::{Log, Options};
use recoup::store::{Append, Appended, Revision, StoreError};
use recoup_kurrentdb_standin::{AppendFate, Standin};
use tokio::task::JoinHandle;

use crate::events::{charge, conflict, is_committed, is_stored, is_unknown, name, settle, start};
use crate::world::{bounded, open, options, standin};

async fn until_held(standin: &Standin, appends: usize) {
    bounded("the append's arrival", async {
        while standin.held() < appends {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn begin(log: &Log, append: Append) -> JoinHandle<Result<Appended, StoreError>> {
    let log = log.clone();
    tokio::spawn(async move { log.append(append).await })
}

async fn end(append: JoinHandle<Result<Appended, StoreError>>) -> Result<Appended, StoreError> {
    let ended = bounded("an append", append).await;
    ended.expect("it does not panic")
}

fn stored(standin: &Standin, id: &str) -> usize {
    let stream = format!("recoup.{}", name(id));
    let records = standin.records();
    records.iter().filter(|it| it.stream == stream).count()
}

/// The append is with the leader when that dies. The next one, which gossip names, has it, or has never had it; the caller cannot know, and its repeat finds out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_dies_in_the_middle_of_an_append() {
    for is_with_the_others in [true, false] {
        let standin = standin(3).await;
        let log = open(options(&standin)).await;
        settle(&log, charge("before")).await;
        let gossip = standin.requests().gossip;
        standin.fail_appends([AppendFate::Held]);
        let dying = begin(&log, charge("j"));
        until_held(&standin, 1).await;
        standin.kill(0).await;
        assert_eq!(standin.leader(), Some(1));
        let answer = end(dying).await;
        assert!(is_unknown(&answer), "it had gone out: {answer:?}");
        if is_with_the_others {
            assert_eq!(standin.release(), 1);
            assert!(is_stored(&log, &charge("j")).await);
            assert_eq!(log.append(charge("j")).await, conflict(0));
        } else {
            assert_eq!(standin.lose(), 1);
            assert!(!is_stored(&log, &charge("j")).await);
            settle(&log, charge("j")).await;
        }
        assert!(
            standin.requests().gossip > gossip,
            "who leads is asked anew"
        );
        settle(&log, start("j")).await;
        assert_eq!(stored(&standin, "j"), 3);
    }
}

/// Many callers at once lose their leader; each append is stored once in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_lose_their_leader_and_no_append() {
    let standin = Arc::new(standin(3).await);
    let log = open(options(&standin)).await;
    for round in 0..3 {
        standin.fail_appends(std::iter::repeat_n(AppendFate::Held, 4));
        let callers: Vec<_> = (0..16)
            .map(|caller| {
                let log = log.clone();
                tokio::spawn(
                    async move { settle(&log, charge(&format!("{round}.{caller}"))).await },
                )
            })
            .collect();
        until_held(&standin, 4).await;
        let leader = standin.leader().expect("a majority lives");
        standin.kill(leader).await;
        // Two arrive with the next leader, two never do.
        if round % 2 == 0 {
            standin.release();
        } else {
            standin.lose();
        }
        for caller in callers {
            bounded("a caller", caller).await.expect("it settles");
        }
        standin.revive(leader).await;
        for caller in 0..16 {
            assert_eq!(stored(&standin, &format!("{round}.{caller}")), 1);
        }
    }
}

/// The leader has written it and the others have not: the server answers neither the append nor its repeat, which looks like an outage and is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_of_what_is_not_replicated_yet_is_not_answered_and_then_is() {
    let standin = standin(1).await;
    let log = open(Options {
        answer_within: Duration::from_millis(300),
        ..options(&standin)
    })
    .await;
    standin.fail_appends([AppendFate::Unreplicated]);
    for _ in 0..2 {
        let answer = end(begin(&log, charge("j"))).await;
        assert!(is_unknown(&answer), "{answer:?}");
    }
    // Somebody else's append to that stream loses, and is told by a number that nobody can read yet.
    let mut other = charge("j");
    other.events[0].id = start("j").events[0].id;
    assert_eq!(log.append(other).await, conflict(0));
    let there = log.read_stream(&name("j"), Revision::FIRST).await;
    assert_eq!(there, Ok(Vec::new()));
    assert_eq!(standin.release(), 1);
    assert_eq!(log.append(charge("j")).await, conflict(0));
    assert!(is_committed(&log.append(start("j")).await));
    assert_eq!(stored(&standin, "j"), 3);
}

/// Two of three are dead. What is said is that the store is unavailable, and why; the third finds the others again by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_told_with_its_cause_and_ends_by_itself() {
    let standin = standin(3).await;
    let log = open(Options {
        connect_within: Duration::from_millis(300),
        answer_within: Duration::from_millis(300),
        ..options(&standin)
    })
    .await;
    settle(&log, charge("before")).await;
    standin.kill(1).await;
    settle(&log, charge("with two")).await;
    standin.kill(0).await;
    assert_eq!(standin.leader(), None);
    for _ in 0..3 {
        let read = bounded("a read", log.read_stream(&name("before"), Revision::FIRST)).await;
        let Err(StoreError::Unavailable { cause }) = read else {
            panic!("nobody leads: {read:?}");
        };
        assert!(!cause.is_empty());
    }
    standin.revive(1).await;
    settle(&log, charge("after")).await;
    for id in ["before", "with two", "after"] {
        assert_eq!(stored(&standin, id), 1, "{id}");
    }
}
