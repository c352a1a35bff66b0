//! A server that follows another one.

use recoup::store::postgres::{Options, PostgresStore};
use recoup::store::{EventStore, Position, StoreError};

use crate::server::{Server, is_wanted};

/// What decides is read where it is written. A server that is made a standby, as one that a failover has left behind, answers nothing any more: neither to who opens
/// the ledger, nor to who had it open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_not_asked() {
    if !is_wanted() {
        return;
    }
    let server = Server::start();
    let store = PostgresStore::open(Options::at(&server.url)).await;
    let store = store.expect("it opens");
    let signal = server.dir().join("data/standby.signal");
    server.end_at_once();
    std::fs::write(&signal, "").expect("it can be written");
    server.recover();
    let read = store.read_all(Position::START, 1).await;
    assert!(
        matches!(read, Err(StoreError::Unavailable { .. })),
        "{read:?}"
    );
    let opened = PostgresStore::open(Options::at(&server.url)).await;
    let refused = opened.err().map(|error| error.to_string());
    let refused = refused.expect("it is refused");
    assert!(refused.contains("the server is a standby"), "{refused}");
    server.end_at_once();
    std::fs::remove_file(&signal).expect("it can be removed");
    server.recover();
    assert_eq!(store.read_all(Position::START, 1).await, Ok(Vec::new()));
}
