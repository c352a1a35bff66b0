//! COMMITs of the database beside a log that the network loses, or whose answers it loses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use recoup::sql::Database;
use recoup::store::StoreError;
use recoup::store::fresh::Fresh;
use recoup::store::kurrentdb::{self, KurrentStore, Recovery};
use recoup::store::postgres::{self, PostgresStore};
use recoup::{EventStore, Ledger, Policies};
use recoup_kurrentdb_standin::Standin;

use crate::load::Load;
use crate::network::{acme, granted};
use crate::proxy::{Fate, Proxy};
use crate::server::is_wanted;

/// As a process has it that reaches the log at `log` and the database at `db`.
async fn opened(log: &Standin, db: &str) -> Database {
    let options = kurrentdb::Options {
        poll_every: Duration::from_millis(20),
        ..kurrentdb::Options::at(log.connection_string())
    };
    let opened = KurrentStore::open(options, Recovery::default(), |identity| async move {
        let options = postgres::Options {
            zone: Some(identity.zone),
            scale: Some(identity.scale),
            is_beside_a_log: true,
            ..postgres::Options::at(db)
        };
        Ok(PostgresStore::open(options).await?.into())
    });
    opened.await.expect("it opens").into()
}

/// Every second COMMIT is lost, or its answer is: of reservations, and of what is folded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_beside_a_log_that_are_lost_leave_nothing_unknown() {
    if !is_wanted() {
        return;
    }
    let (log, fresh) = (Standin::start().await, Fresh::new());
    let plain = opened(&log, &fresh.url()).await;
    let proxy = Proxy::before(&fresh.url()).await;
    let lossy = opened(&log, &proxy.url).await;
    let fates = [Fate::AnswerLost, Fate::Fine, Fate::RequestLost, Fate::Fine];
    proxy.then(fates.into_iter().cycle().take(2_000));
    let load = Arc::new(Load::new(lossy.as_store(), 1_000).await);
    load.run(32).await;
    assert!(proxy.met() >= 50, "{}", proxy.met());
    // What a COMMIT beside a log leaves open is no append: that was sent after it or is on the log before it.
    assert_eq!(load.told.unknown.load(Ordering::Relaxed), 0);
    load.is_right(&plain).await;
}

/// Whoever reads wrote nothing that could be unknown: what is folded on the way is folded again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_whose_fold_is_lost_is_told_to_try_again() {
    if !is_wanted() {
        return;
    }
    let (log, fresh) = (Standin::start().await, Fresh::new());
    let proxy = Proxy::before(&fresh.url()).await;
    let lossy = opened(&log, &proxy.url).await;
    proxy.then([Fate::RequestLost; 200]);
    let ledger = Ledger::new(lossy.as_store(), Policies::default());
    granted(&ledger, 40).await;
    let month = lossy.identity().zone.month_of(lossy.now());
    let read = lossy.account(&acme(), month).await;
    assert!(
        matches!(read, Err(StoreError::Unavailable { .. })),
        "{read:?}"
    );
}
