//! The server ends under load.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use recoup::sql::Database;
use recoup::store::fresh::Fresh;
use recoup::store::postgres::{Options, PostgresStore};
use recoup::{EventStore, SystemClock};
use recoup_projections::Projections;
use tokio_util::sync::CancellationToken;

use crate::load::Load;
use crate::server::{Server, is_wanted};

async fn open(url: &str) -> Database {
    let opened = PostgresStore::open(Options::at(url)).await;
    opened.expect("it opens").into()
}

/// Interleaving: the server is ended at once and recovers, five times, while 32 callers send commands and a follower applies what is appended. What
/// was on its way is answered by nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_five_times_under_load_loses_nothing_that_was_told() {
    if !is_wanted() {
        return;
    }
    let server = Arc::new(Server::start());
    let database = open(&server.url).await;
    let load = Arc::new(Load::new(database.as_store(), 3_000).await);
    let projections = Projections::open(database.clone()).await.expect("open");
    let stop = CancellationToken::new();
    let follower = {
        let (projections, stop) = (projections.clone(), stop.clone());
        tokio::spawn(async move { projections.follow(stop).await })
    };
    let running = tokio::spawn({
        let load = Arc::clone(&load);
        async move { load.run(32).await }
    });
    for round in 1..=5 {
        // Each time something has been done since: the crash is under load.
        while load.told.done.load(Ordering::Relaxed) < round * 400 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let server = Arc::clone(&server);
        let crashed = tokio::task::spawn_blocking(move || {
            server.end_at_once();
            server.recover();
        });
        crashed.await.expect("it crashes and recovers");
    }
    running.await.expect("every caller is answered in the end");
    assert!(
        load.told.repeated.load(Ordering::Relaxed) > 0,
        "it was felt"
    );
    load.is_right(&database).await;
    // The follower is where the log ends, by itself.
    let head = database.head().await.expect("readable");
    let bound = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let checkpoints = projections.checkpoints().await.expect("readable");
            if checkpoints.iter().all(|one| one.position == head) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    bound.await.expect("the follower goes on");
    stop.cancel();
    follower.await.expect("it ends").expect("in peace");
}

/// Interleaving: every session of the ledger is ended by an administrator, again and again, while callers send commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_ended_are_made_anew() {
    if !is_wanted() {
        return;
    }
    let server = Server::start();
    let database = open(&server.url).await;
    let load = Arc::new(Load::new(database.as_store(), 1_000).await);
    let running = tokio::spawn({
        let load = Arc::clone(&load);
        async move { load.run(32).await }
    });
    let end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'recoup' AND pid <> pg_backend_pid()";
    let other = Fresh::on_server(&server.url);
    for round in 1..=10 {
        while load.told.done.load(Ordering::Relaxed) < round * 80 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let _ = other.table(end_all);
    }
    running.await.expect("every caller is answered in the end");
    load.is_right(&database).await;
    drop(other);
}

/// Two processes' stores on one ledger: what one appends the other hears of, without looking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_is_heard_of_by_others() {
    if !is_wanted() {
        return;
    }
    let fresh = Fresh::new();
    let clock = Arc::new(SystemClock);
    let (one, other) = (fresh.open(clock.clone()).await, fresh.open(clock).await);
    let mut heard = other.appended();
    let load = Load::new(one.as_store(), 0).await;
    let bound = Duration::from_secs(20);
    // The first one may have come before the listener was there.
    let waited = tokio::time::timeout(bound, async {
        let mut number = 0;
        loop {
            let next = tokio::time::timeout(Duration::from_millis(200), heard.changed());
            if next.await.is_ok() {
                return;
            }
            number += 1;
            load.grant(number).await;
        }
    });
    waited.await.expect("it is heard of");
    assert!(*heard.borrow() <= one.head().await.expect("readable"));
}
