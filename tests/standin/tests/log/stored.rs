//! What is refused of what a server gives, its clock, and which ledger it is, as far as only a stand-in can be told to show it.

use std::sync::Arc;
use std::time::Duration;

use recoup::clock::{Clock, ManualClock, Timestamp};
use recoup::store::kurrentdb::{Log, OpenError, Options};
use recoup::store::{Appended, Expected, Position, Revision, StoreError};
use recoup_kurrentdb_standin::{AppendFate, Standin};

use crate::events::{append, charge, charge_in, is_committed, name, settle, start, started};
use crate::world::{bounded, noon, open, options, standin, ticks};

/// The crate's own field has whole seconds.
#[tokio::test]
async fn the_instant_is_the_servers_to_the_microsecond() {
    let servers = ManualClock::starting_at(Timestamp::from_micros(1_795_953_600_123_456));
    let standin = Standin::with(1, ticks(Arc::new(servers.clone()))).await;
    let ours = ManualClock::starting_at(noon());
    let log = open(Options {
        clock: Arc::new(ours),
        ..options(&standin)
    })
    .await;
    let Ok(Appended::Committed { posted_at, .. }) = log.append(charge("j")).await else {
        panic!("nothing speaks against it");
    };
    assert_eq!(posted_at, servers.now());
    let stored = log
        .read_stream(&name("j"), Revision::FIRST)
        .await
        .expect("readable");
    assert_eq!(stored[0].posted_at, servers.now());
    // This machine's clock is behind; the log's is not behind what it has seen.
    assert_eq!(log.now(), servers.now().max(noon()));
}

/// A charge that was decided in a month that the log has left is decided again.
#[tokio::test]
async fn nothing_is_charged_in_a_month_that_is_over() {
    let servers = ManualClock::starting_at(noon());
    let standin = Standin::with(1, ticks(Arc::new(servers.clone()))).await;
    let log = open(options(&standin)).await;
    assert!(is_committed(
        &log.append(charge_in("november", "2026-11")).await
    ));
    servers.advance(Duration::from_secs(2 * 86_400));
    assert!(is_committed(&log.append(charge_in("j", "2026-12")).await));
    let late = log.append(charge_in("k", "2026-11")).await;
    assert_eq!(late, Ok(Appended::Conflict { current: None }));
    // Nothing but a charge has a month to be late for.
    let after = Expected::Exact(Revision::FIRST);
    assert!(is_committed(
        &log.append(append("j", after, vec![started(1)])).await
    ));
}

#[tokio::test]
async fn an_event_that_cannot_be_placed_is_refused() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    settle(&log, charge("good")).await;
    settle(&log, charge("bad")).await;
    settle(&log, start("bad")).await;
    let all = log.read_all(Position::START, 10).await.expect("readable");
    let position = all[2].position;
    type Damage = fn(&mut recoup_kurrentdb_standin::Record);
    let damages: [(&str, Damage); 5] = [
        ("prepared elsewhere", |it| it.prepare_position -= 1),
        ("no instant", |it| it.created = None),
        ("no metadata", |it| it.metadata = "".into()),
        ("metadata of somebody else's", |it| {
            it.metadata = "{}".into()
        }),
        ("metadata that was changed", |it| {
            let text = String::from_utf8(it.metadata.to_vec()).expect("JSON");
            it.metadata = text.replacen('{', "{ ", 1).into();
        }),
    ];
    for (what, damage) in damages {
        let mut whole = None;
        standin.edit("recoup.job-bad", 1, |it| {
            whole = Some(it.clone());
            damage(it);
        });
        let is_refused = |answer: &Result<Vec<_>, StoreError>| matches!(answer, Err(StoreError::Corrupt { position: at, .. }) if *at == position);
        let read = log.read_stream(&name("bad"), Revision::FIRST).await;
        assert!(is_refused(&read), "{what}: {read:?}");
        // In the log it is refused where a page begins with it: what stands before it is given, and what stands behind it, to who skips it.
        let read = log.read_all(Position::START, 10).await;
        assert_eq!(read.as_deref(), Ok(&all[..2]), "{what}");
        let read = log.read_all(all[1].position, 10).await;
        assert!(is_refused(&read), "{what}: {read:?}");
        let read = log.read_all(position, 10).await;
        assert_eq!(read.as_deref(), Ok(&all[3..]), "{what}");
        // It fails its stream, and no other.
        let read = log.read_stream(&name("good"), Revision::FIRST).await;
        assert_eq!(read.expect("readable").len(), 1);
        standin.edit("recoup.job-bad", 1, |it| *it = whole.expect("it was kept"));
    }
    assert_eq!(log.read_all(Position::START, 10).await, Ok(all));
}

/// Servers before 22.6 tell no positions in a read of a stream.
#[tokio::test]
async fn a_server_that_tells_no_positions_is_refused() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    settle(&log, charge("j")).await;
    standin.edit("recoup.job-j", 0, |it| {
        it.commit_position = u64::MAX;
        it.prepare_position = u64::MAX;
    });
    let read = log.read_stream(&name("j"), Revision::FIRST).await;
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
}

/// The first one's creation arrives and is held; the second one finds nothing and creates; then the first one's is written, too late.
#[tokio::test]
async fn of_two_who_create_a_ledger_one_does() {
    let standin = standin(1).await;
    standin.fail_appends([AppendFate::Held]);
    let hasty = Options {
        answer_within: Duration::from_millis(300),
        ..options(&standin)
    };
    let first = tokio::spawn(open(hasty));
    let arrived = async {
        while standin.held() == 0 {
            tokio::task::yield_now().await;
        }
    };
    bounded("the first creation", arrived).await;
    let second = open(options(&standin)).await;
    assert_eq!(standin.release(), 1);
    let first = bounded("the first to open", first).await;
    let first = first.expect("it does not panic");
    assert_eq!(first.identity(), second.identity());
}

#[tokio::test]
async fn a_creation_whose_answer_is_lost_is_tried_again() {
    for fate in [AppendFate::Aborted, AppendFate::CommittedThenAborted] {
        let standin = standin(1).await;
        standin.fail_appends([fate.clone(), fate]);
        let log = open(options(&standin)).await;
        let again = open(options(&standin)).await;
        assert_eq!(log.identity(), again.identity());
    }
}

#[tokio::test]
async fn a_connection_that_cannot_work_is_refused() {
    let standin = standin(1).await;
    let with = |more: &str| Options {
        connection: format!("{}{more}", standin.connection_string()),
        ..options(&standin)
    };
    for more in [
        "&nodePreference=follower",
        "&maxDiscoverAttempts=1",
        "&tls=maybe",
    ] {
        let refused = Log::open(with(more)).await.expect_err(more);
        assert!(
            matches!(refused, OpenError::Connection { .. }),
            "{more}: {refused}"
        );
    }
    let secret = Options {
        connection: "kurrentdb://admin:secret@127.0.0.1:99999?tls=false".to_owned(),
        ..options(&standin)
    };
    let refused = Log::open(secret).await.expect_err("no such port");
    assert!(
        !format!("{refused} {refused:?}").contains("secret"),
        "{refused}"
    );
    let esdb = standin
        .connection_string()
        .replace("kurrentdb://", "esdb://");
    open(Options {
        connection: esdb,
        ..options(&standin)
    })
    .await;
}

/// Both found no ledger; the second one's creation is answered first, and the first one's with a conflict.
#[tokio::test]
async fn who_comes_second_with_a_creation_opens_what_the_first_made() {
    let standin = standin(1).await;
    standin.fail_appends([AppendFate::Delayed]);
    let late = tokio::spawn(open(options(&standin)));
    let arrived = async {
        while standin.held() == 0 {
            tokio::task::yield_now().await;
        }
    };
    bounded("the late creation", arrived).await;
    let early = open(options(&standin)).await;
    assert_eq!(standin.release(), 1);
    let late = bounded("the late one to open", late).await;
    let late = late.expect("it does not panic");
    assert_eq!(late.identity(), early.identity());
    let again = open(options(&standin)).await;
    assert_eq!(again.identity(), early.identity());
}

/// What no repeat would change is said at once, and nothing is written.
#[tokio::test]
async fn a_refusal_is_told_and_not_tried_again() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    let appends = standin.requests().appends;
    standin.fail_appends([AppendFate::Denied]);
    let denied = log.append(charge("j")).await;
    assert!(
        matches!(denied, Err(StoreError::ReadOnly { .. })),
        "{denied:?}"
    );
    let mut large = charge("j");
    large.events[0].data = vec![0; 1_100_000];
    let refused = log.append(large).await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { cause }) if cause.contains("Maximum")),
        "{refused:?}"
    );
    assert_eq!(standin.requests().appends, appends + 2);
    let there = log.read_stream(&name("j"), Revision::FIRST).await;
    assert_eq!(there, Ok(Vec::new()));
}

/// A stream with a tombstone is damage, and said to be; the other streams are as they were.
#[tokio::test]
async fn a_stream_that_was_deleted_for_good_is_damage() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    settle(&log, charge("good")).await;
    settle(&log, charge("gone")).await;
    let client = kurrentdb::Client::new(standin.connection_string().parse().expect("its own"));
    let client = client.expect("no files are needed");
    let any = kurrentdb::TombstoneStreamOptions::default();
    let gone = bounded("it", client.tombstone_stream("recoup.job-gone", &any)).await;
    gone.expect("it is there");
    let is_damage = |error: &StoreError| matches!(error, StoreError::Damaged { .. });
    let read = log.read_stream(&name("gone"), Revision::FIRST).await;
    assert!(read.as_ref().is_err_and(is_damage), "{read:?}");
    let answer = log.append(start("gone")).await;
    assert!(answer.as_ref().is_err_and(is_damage), "{answer:?}");
    assert!(is_committed(&log.append(start("good")).await));
}

/// The client's subscription spins when its stream ends cleanly. Whatever is done with a log, it opens none.
#[tokio::test]
async fn a_log_opens_no_subscription() {
    let standin = standin(1).await;
    let (waiting, appending) = (open(options(&standin)).await, open(options(&standin)).await);
    let mut signal = waiting.appended();
    signal.borrow_and_update();
    settle(&appending, charge("j")).await;
    bounded("the signal", signal.changed())
        .await
        .expect("the log lives");
    settle(&waiting, start("j")).await;
    let all = waiting.read_all(Position::START, 10).await;
    assert_eq!(all.expect("readable").len(), 3);
    assert!(standin.requests().all > 0);
    assert_eq!(standin.requests().subscriptions, 0);
}
