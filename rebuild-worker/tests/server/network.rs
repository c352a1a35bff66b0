//! COMMITs and their answers that the network loses or keeps for a while.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use recoup::sql::Database;
use recoup::store::faulty::{Faults, FaultyStore};
use recoup::store::fresh::Fresh;
use recoup::store::postgres::{Options, PostgresStore};
use recoup::{
    AccountId, CommandId, Cost, EventStore, Grant, GrantId, JobCommand, JobId, Kind, Ledger,
    Outcome, Policies, Position, PriceSnapshot, SystemClock,
};

use crate::load::Load;
use crate::proxy::{Fate, Proxy};
use crate::server::is_wanted;

async fn through(proxy: &Proxy) -> Database {
    let opened = PostgresStore::open(Options::at(&proxy.url)).await;
    opened.expect("it opens").into()
}

/// A fresh ledger, a store on it, and a proxy in front of another store on it.
async fn world() -> (Fresh, Database, Proxy) {
    recoup_kurrentdb_standin::keep_logs();
    let fresh = Fresh::new();
    let plain = fresh.open(Arc::new(SystemClock)).await;
    let proxy = Proxy::before(&fresh.url()).await;
    (fresh, plain, proxy)
}

pub(crate) fn acme() -> AccountId {
    AccountId::new("acme").expect("valid")
}

pub(crate) async fn granted(ledger: &Ledger, amount: i64) {
    let grant = Grant {
        account: acme(),
        grant: GrantId::new("g").expect("valid"),
        amount: Cost::new(amount).expect("valid"),
    };
    let granted = ledger.grant(CommandId::random(), grant).await;
    assert!(granted.expect("granted").is_done());
}

fn charge(ledger: &Ledger, amount: i64) -> JobCommand {
    let (kind, cost) = (
        Kind::new("k").expect("valid"),
        Cost::new(amount).expect("valid"),
    );
    let charge = ledger.charge_of(acme(), kind, cost, PriceSnapshot::flat(cost), None);
    JobCommand::Charge(Box::new(charge.expect("valid")))
}

/// Interleaving: a charge's COMMIT is on its way and its connection is lost. The repeat comes while the COMMIT is still in the network, and only then the
/// COMMIT arrives. The whole credit is in that charge: a repeat that were checked before it would be refused for want of credit, or charge twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_arrives_late_is_waited_for() {
    if !is_wanted() {
        return;
    }
    let (fresh, plain, proxy) = world().await;
    let direct = Ledger::new(plain.as_store(), Policies::default());
    granted(&direct, 40).await;
    let database = through(&proxy).await;
    let ledger = Ledger::new(database.as_store(), Policies::default());
    proxy.then([Fate::Held]);
    let command = charge(&ledger, 40);
    let job = JobId::new("j").expect("valid");
    let charging = tokio::spawn(async move { ledger.job(CommandId::random(), job, command).await });
    let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()";
    let bound = tokio::time::timeout(Duration::from_secs(20), async {
        while proxy.met() == 0 || fresh.table(waiting)[0][0] == "0" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    bound.await.expect("the repeat waits for the lock");
    assert_eq!(plain.head().await.expect("readable"), Position::new(1));
    proxy.let_go();
    let outcome = charging.await.expect("no panic").expect("it is settled");
    assert!(outcome.is_done(), "{outcome:?}");
    assert_eq!(plain.head().await.expect("readable"), Position::new(2));
    let state = direct.account(&acme()).await.expect("readable");
    assert_eq!(state.balance, 0);
}

/// Every third COMMIT of a load is lost, or its answer is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_are_lost_and_answers_that_are_lost_change_nothing() {
    if !is_wanted() {
        return;
    }
    let (_fresh, plain, proxy) = world().await;
    let database = through(&proxy).await;
    let fates = [Fate::AnswerLost, Fate::Fine, Fate::RequestLost, Fate::Fine];
    proxy.then(fates.into_iter().cycle().take(1_200));
    // Each caller has one append in a group, so these take more than a hundred commits.
    let load = Arc::new(Load::new(database.as_store(), 1_200).await);
    load.run(32).await;
    assert!(proxy.met() >= 50, "{}", proxy.met());
    load.is_right(&plain).await;
}

/// Of a load of 32 callers three in ten appends are answered by nobody, after they were committed: more than a thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_lost_answers_make_no_duplicate_and_no_false_failure() {
    recoup_kurrentdb_standin::keep_logs();
    let fresh = Fresh::new();
    let database = fresh.open(Arc::new(SystemClock)).await;
    let faults = Faults {
        lost_after: 300,
        ..Faults::default()
    };
    let faulty = Arc::new(FaultyStore::new(database.as_store(), faults, 11));
    let load = Arc::new(Load::new(faulty.clone(), 1_300).await);
    load.run(32).await;
    assert!(faulty.met() >= 1_000, "{}", faulty.met());
    let repeated = load.told.repeated.load(Ordering::Relaxed);
    assert_eq!(repeated, 0, "each was settled by the ledger itself");
    load.is_right(&database).await;
}

/// Interleaving: a transaction has taken the lower positions and not ended. A second append waits; no reader sees anything behind the first; and when the first is
/// rolled back, the second takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_are_in_the_order_of_commits_and_have_no_holes() {
    for is_kept in [true, false] {
        recoup_kurrentdb_standin::keep_logs();
        let fresh = Fresh::new();
        let clock = Arc::new(SystemClock);
        let (database, other) = (fresh.open(clock.clone()).await, fresh.open(clock).await);
        let ledger = Ledger::new(database.as_store(), Policies::default());
        granted(&ledger, 100).await;
        let (let_go, going) = std::sync::mpsc::channel::<()>();
        let (begun, beginning) = tokio::sync::oneshot::channel();
        let holder = tokio::spawn(async move {
            let held = other.write(move |tx| {
                tx.hold_log()?;
                let sql = "INSERT INTO appends SELECT position + 1, 'grant-x+x', 0, events, posted_at, metadata, body
                    FROM appends WHERE position = 1";
                tx.execute(sql, &[])?;
                begun.send(()).expect("somebody waits");
                let _ = going.recv();
                if is_kept {
                    return Ok(());
                }
                let cause = "it is rolled back".to_owned();
                Err(recoup::store::StoreError::Unavailable { cause })
            });
            held.await
        });
        beginning.await.expect("it is begun");
        let command = charge(&ledger, 40);
        let job = JobId::new("j").expect("valid");
        let second = ledger.clone();
        let mut charging =
            tokio::spawn(async move { second.job(CommandId::random(), job, command).await });
        for _ in 0..20 {
            let early = tokio::time::timeout(Duration::from_millis(10), &mut charging).await;
            assert!(early.is_err(), "it waits: {early:?}");
            let log = database.read_all(Position::START, 10).await;
            assert_eq!(log.expect("readable").len(), 1, "nothing is seen yet");
        }
        let_go.send(()).expect("somebody waits");
        assert_eq!(holder.await.expect("no panic").is_ok(), is_kept);
        let outcome: Outcome = charging.await.expect("no panic").expect("answered");
        let at = if is_kept { 3 } else { 2 };
        assert!(outcome.is_done(), "{outcome:?}");
        assert_eq!(database.head().await.expect("readable"), Position::new(at));
        let log = database
            .read_all(Position::START, 10)
            .await
            .expect("readable");
        let positions: Vec<_> = log.iter().map(|event| event.position.get()).collect();
        assert_eq!(positions, (1..=at).collect::<Vec<_>>());
    }
}
