//! The embedded ledger's file: what is left of it says what it is.

use std::fs;
use std::path::Path;

use recoup::store::OpenError;
use recoup::store::StoreError;
use recoup::store::sqlite::{Options, SqliteStore};
use recoup::{CommandId, EventStore, Grant, Ledger, Position};

use crate::stores::ledger;
use crate::values::{account_id, cost, grant_id};

async fn open(path: &Path) -> Result<(SqliteStore, Ledger), OpenError> {
    let store = SqliteStore::open(Options::at(path)).await?;
    let ledger = ledger(std::sync::Arc::new(store.clone()));
    Ok((store, ledger))
}

async fn grant(ledger: &Ledger, name: &str) {
    let grant = Grant {
        account: account_id("acme"),
        grant: grant_id(name),
        amount: cost(100),
    };
    let outcome = ledger.grant(CommandId::random(), grant).await;
    assert!(outcome.is_ok_and(|outcome| outcome.is_done()), "{name}");
}

/// A process that ends in peace leaves a file that is whole by itself: whoever copies it, or loses its WAL, has all of it.
#[tokio::test]
async fn a_closed_ledger_is_whole_without_its_wal() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ledger.db");
    let (store, ledger) = open(&path).await.expect("it opens");
    grant(&ledger, "one").await;
    // Somebody else has the file open: SQLite itself copies the WAL back only for the last one to leave.
    let other = rusqlite::Connection::open(&path).expect("it opens");
    let rows = other.query_row("SELECT count(*) FROM appends", [], |row| {
        row.get::<_, i64>(0)
    });
    assert_eq!(rows, Ok(1));
    drop((store, ledger));
    let copy = folder.path().join("copy.db");
    fs::copy(&path, &copy).expect("copied");
    let (_store, ledger) = open(&copy).await.expect("the copy opens");
    let figures = ledger.account(&account_id("acme")).await.expect("readable");
    assert_eq!(figures.balance, 100);
}

/// A file whose process was killed right after it made it, and whose WAL is gone, is a ledger and not an empty file to begin anew in.
#[tokio::test]
async fn a_part_of_a_ledger_is_not_taken_for_an_empty_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ledger.db");
    let (_store, ledger) = open(&path).await.expect("it opens");
    grant(&ledger, "one").await;
    let bytes = fs::read(&path).expect("readable");
    let zone = Some(recoup::Zone::parse("Asia/Seoul").expect("a zone"));
    let whole = folder.path().join("whole.db");
    fs::write(&whole, &bytes).expect("written");
    let mut options = Options::at(&whole);
    options.zone = zone;
    let opened = SqliteStore::open(options).await.map(|_| ());
    assert!(
        matches!(opened, Err(OpenError::Differs { what: "zone", .. })),
        "it has its zone: {opened:?}"
    );
    for length in [4_096, 5_000, bytes.len() - 1] {
        let cut = folder.path().join(format!("cut-{length}.db"));
        fs::write(&cut, &bytes[..length]).expect("written");
        let opened = open(&cut).await.map(|_| ());
        assert!(
            matches!(opened, Err(OpenError::Damaged { .. })),
            "{length} bytes: {opened:?}"
        );
        assert_eq!(
            fs::read(&cut).expect("readable"),
            &bytes[..length],
            "it is left as it was"
        );
    }
}

/// A panic in somebody's work ends that work: what it wrote is gone, and the threads go on.
#[tokio::test]
async fn a_panic_in_a_transaction_ends_that_transaction() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, ledger) = open(&folder.path().join("ledger.db"))
        .await
        .expect("it opens");
    grant(&ledger, "one").await;
    let written = store.write(|connection| -> Result<(), StoreError> {
        let removed = connection.execute("DELETE FROM appends", []);
        panic!("{removed:?}");
    });
    let written = written.await;
    assert!(
        matches!(written, Err(StoreError::Unconfirmed { .. })),
        "{written:?}"
    );
    for _ in 0..8 {
        // More often than there are threads that read.
        let read = store.snapshot(|_| -> Result<(), StoreError> { panic!("a reader") });
        assert!(matches!(read.await, Err(StoreError::Unavailable { .. })));
    }
    grant(&ledger, "two").await;
    let figures = ledger.account(&account_id("acme")).await.expect("readable");
    assert_eq!(figures.balance, 200);
    assert_eq!(
        store
            .read_all(Position::START, 10)
            .await
            .map(|events| events.len()),
        Ok(2)
    );
}

/// Interleaving: four callers grant without a pause while three copies are taken, one after the other. Each copy is a ledger, and a prefix of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_is_a_prefix_of_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, ledger) = open(&folder.path().join("ledger.db"))
        .await
        .expect("it opens");
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let (ledger, is_over) = (ledger.clone(), std::sync::Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut number = 0;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    grant(&ledger, &format!("{caller}-{number}")).await;
                    number += 1;
                }
            })
        })
        .collect();
    let mut copies = Vec::new();
    for number in 0..3 {
        let file = folder.path().join(format!("copy-{number}.db"));
        let copied = store.backup(file.clone()).await.expect("it is copied");
        copies.push((file, copied.position));
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("it ends");
    }
    let whole = store.read_all(Position::START, usize::MAX).await;
    let whole = whole.expect("readable");
    for (file, position) in copies {
        assert!(
            !file.with_extension("db-wal").exists(),
            "it is whole by itself"
        );
        let (copy, ledger) = open(&file).await.expect("the copy opens");
        let events = copy.read_all(Position::START, usize::MAX).await;
        let events = events.expect("readable");
        assert_eq!(copy.head().await, Ok(position));
        assert_eq!(events[..], whole[..events.len()]);
        let figures = ledger.account(&account_id("acme")).await.expect("readable");
        assert_eq!(
            figures.balance,
            100 * i64::try_from(events.len()).expect("few")
        );
    }
    let left = fs::read_dir(folder.path()).expect("readable");
    let partial = left.filter(|entry| {
        let name = entry.as_ref().expect("readable").file_name();
        name.to_string_lossy().contains("partial")
    });
    assert_eq!(partial.count(), 0);
}
