//! What is shown of a place, and transactions that must not be taken for committed: these need a server, and say so where the tests are run over something else.

use std::sync::mpsc;

use sqlx::Executor as _;

use super::*;
use crate::clock::SystemClock;
use crate::sql::{Database, Transaction};
use crate::store::fresh::{Fresh, Opening, backend};

/// A ledger with a table of numbers, if the tests are run over PostgreSQL.
async fn ledger() -> Option<(Fresh, Database)> {
    if backend() != "postgres" {
        eprintln!("skipped: for RECOUP_TEST_BACKEND=postgres");
        return None;
    }
    let fresh = Fresh::new();
    let database = fresh.open(Arc::new(SystemClock)).await;
    fresh.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)");
    Some((fresh, database))
}

fn put(tx: &Transaction<'_>, number: i64) -> Result<(), StoreError> {
    let sql = "INSERT INTO numbers VALUES (?1)";
    tx.execute(sql, crate::values![number]).map(|_| ())
}

fn numbers(fresh: &Fresh) -> Vec<String> {
    let rows = fresh.table("SELECT number FROM numbers ORDER BY number");
    rows.concat()
}

/// The server carries out nothing behind a statement that failed, and answers COMMIT with a rollback.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_passes_over_a_failed_statement_is_not_committed() {
    let Some((fresh, database)) = ledger().await else {
        return;
    };
    let work = |tx: &Transaction<'_>| {
        put(tx, 1)?;
        let _ = put(tx, 1);
        Ok::<_, StoreError>(())
    };
    let answer = database.write(work).await;
    // The first error, which says why; not that of a statement behind it.
    let is_told = matches!(&answer, Err(StoreError::Damaged { why }) if why.contains("23505"));
    assert!(is_told, "{answer:?}");
    assert!(numbers(&fresh).is_empty());
    database.write(|tx| put(tx, 2)).await.expect("the next one");
    assert_eq!(numbers(&fresh), ["2"]);
}

/// Every charge waits for whoever appends: the server ends one that is silent in its transaction sooner than others.
#[cfg(feature = "kurrentdb")]
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_appends_is_not_held_for_long() {
    let Some((_fresh, database)) = ledger().await else {
        return;
    };
    let bounds = |tx: &Transaction<'_>| {
        let sql = "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout'), current_setting('lock_timeout')";
        let row = tx.row(sql, &[], |row| {
            Ok([row.get(0)?, row.get(1)?, row.get::<String>(2)?])
        });
        row.map(|row| row.expect("a query without FROM gives one row"))
    };
    let of_appends = database.write_figures(bounds).await;
    assert_eq!(of_appends, Ok(["5s", "10s", "5s"].map(str::to_owned)));
    let of_others = database.write(bounds).await;
    assert_eq!(of_others, Ok(["30s", "30s", "5s"].map(str::to_owned)));
    let of_log = Bounds::of_appends(Duration::from_secs(60));
    assert!(of_log.statements().contains("statement_timeout = 120000"));
}

/// Work may not end the transaction; if it does, what follows is not taken for stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_has_ended_before_is_not_committed() {
    let Some((fresh, database)) = ledger().await else {
        return;
    };
    let work = |tx: &Transaction<'_>| {
        put(tx, 1)?;
        tx.execute_batch("ROLLBACK")
    };
    let answer = database.write(work).await;
    assert!(
        matches!(answer, Err(StoreError::Unconfirmed { .. })),
        "{answer:?}"
    );
    assert!(numbers(&fresh).is_empty());
}

/// As the writer of appends commits: it is not only told by whoever has seen the statement fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_server_turns_into_a_rollback_is_an_error() {
    let Some((fresh, _database)) = ledger().await else {
        return;
    };
    let place = Place::parse(&fresh.url()).expect("a URL");
    let mut connection = place.connect().await.expect("it can be connected");
    let patience = Duration::from_secs(20);
    for (script, is_unknown) in [
        ("BEGIN; INSERT INTO numbers VALUES (1), (1)", false),
        ("BEGIN; INSERT INTO numbers VALUES (1); ROLLBACK", true),
    ] {
        let _ = connection.execute(script).await;
        let error = error::commit(&mut connection, patience).await;
        let error = error.expect_err(script);
        assert_eq!(
            error::is_unknown_after_commit(&error),
            is_unknown,
            "{error}"
        );
        let _ = connection.execute("ROLLBACK").await;
    }
    assert!(numbers(&fresh).is_empty());
    let script = "BEGIN; INSERT INTO numbers VALUES (1)";
    connection.execute(script).await.expect("it is begun");
    let committed = error::commit(&mut connection, patience).await;
    committed.expect("a whole one is committed");
    assert_eq!(numbers(&fresh), ["1"]);
}

/// Work panics behind what it wrote. Its connection must not come to the next work, whose commit would store that.
#[tokio::test(flavor = "multi_thread")]
async fn what_panicking_work_wrote_is_not_committed_by_the_next() {
    let Some((fresh, database)) = ledger().await else {
        return;
    };
    let work = |tx: &Transaction<'_>| -> Result<(), StoreError> {
        put(tx, 1)?;
        panic!("as a broken invariant does");
    };
    let answer = database.write(work).await;
    assert!(
        matches!(answer, Err(StoreError::Unconfirmed { .. })),
        "{answer:?}"
    );
    database.write(|tx| put(tx, 2)).await.expect("the next one");
    assert_eq!(numbers(&fresh), ["2"]);
}

/// Interleaving: a writing transaction waits for another process's, and its caller goes away. Its connection must not come to anybody in a transaction, and keep the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_whose_caller_went_away_while_it_was_begun_is_ended() {
    let Some((fresh, holder)) = ledger().await else {
        return;
    };
    let waiting = fresh.open_with(Opening {
        busy_timeout: Duration::from_secs(20),
        ..Opening::default()
    });
    let waiting = waiting.await.expect("it opens");
    let (go_on, told) = mpsc::channel::<()>();
    let (holding, is_holding) = tokio::sync::oneshot::channel();
    let held = tokio::spawn(async move {
        let work = move |tx: &Transaction<'_>| {
            put(tx, 1)?;
            let _ = holding.send(());
            let _ = told.recv_timeout(Duration::from_secs(20));
            Ok::<_, StoreError>(())
        };
        holder.write(work).await
    });
    is_holding.await.expect("it holds the lock");
    let write = {
        let waiting = waiting.clone();
        tokio::spawn(async move { waiting.write(|tx| put(tx, 2)).await })
    };
    let lock = Place::parse(&fresh.url()).expect("a URL").locks().write;
    let waits = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
        AND (classid::bigint << 32 | objid::bigint) = {lock}"
    );
    let mut looks = 0;
    while fresh.table(&waits)[0][0] == "0" {
        looks += 1;
        assert!(looks < 2_000, "nobody waits for the lock");
        tokio::task::yield_now().await;
    }
    write.abort();
    assert!(write.await.expect_err("it is gone").is_cancelled());
    go_on.send(()).expect("it waits");
    held.await.expect("it goes on").expect("and commits");
    waiting.write(|tx| put(tx, 3)).await.expect("the next one");
    assert_eq!(numbers(&fresh), ["1", "3"]);
}

#[test]
fn a_place_is_shown_without_its_password() {
    let shown = [
        (
            "postgres://u:secret@h:1/d?schema=s",
            "postgres://u@h:1/d?schema=s",
        ),
        ("postgresql://h/d", "postgresql://h/d"),
        (
            "postgres://u:se%40cret@h/d?password=secret&schema=s",
            "postgres://u@h/d?schema=s",
        ),
    ];
    for (url, expected) in shown {
        assert_eq!(without_password(url).unwrap(), expected);
    }
    let options = format!("{:?}", Options::at("postgres://u:secret@h/d"));
    assert!(!options.contains("secret"), "{options}");
}

/// A test that alters or drops tables does so on its runtime's thread. A task that has read them and is not done cannot go on until that thread is free: it is ended, or
/// both would wait for ever.
#[tokio::test]
async fn a_statement_beside_the_store_gets_past_a_task_that_was_left() {
    let Some((fresh, database)) = ledger().await else {
        return;
    };
    let (inside, entered) = tokio::sync::oneshot::channel();
    let reading = tokio::spawn(async move {
        let look = database.glance(move |tx| {
            tx.row("SELECT number FROM numbers", &[], |_| Ok(()))?;
            let _ = inside.send(());
            // Its answer comes while nobody listens.
            tx.row("SELECT 1 FROM pg_sleep(0.3)", &[], |_| Ok(()))
        });
        look.await
    });
    entered.await.expect("it reads");
    fresh.execute("ALTER TABLE numbers RENAME TO figures");
    assert!(fresh.table("SELECT number FROM figures").is_empty());
    // Told so, or done just before.
    let _ = reading.await.expect("no panic");
}
