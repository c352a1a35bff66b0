//! Which database belongs to which log.

use std::sync::Arc;

use recoup::clock::SystemClock;
use recoup::store::fresh::{Fresh, Opening};
use recoup::store::kurrentdb::{Options, StreamPrefix};
use recoup::store::{EventStore, OpenError, StoreError};

use crate::world::{World, charge, figures, grant, is_committed, open_beside};

fn is_foreign<T>(opened: Result<T, OpenError>, why: &str) {
    match opened.map(|_| ()) {
        Err(OpenError::Foreign { why: told, .. }) if told.contains(why) => {}
        other => panic!("{other:?} does not say {why:?}"),
    }
}

#[tokio::test]
async fn a_database_keeps_the_figures_of_one_log() {
    let world = World::new(1).await;
    drop(world.open().await);
    drop(world.open().await);
    let other_prefix = Options {
        prefix: StreamPrefix::new("other.").expect("a prefix"),
        ..world.options()
    };
    is_foreign(world.open_with(other_prefix).await, "another log");
    let elsewhere = World::new(1).await;
    let clock = Arc::new(world.clock.clone());
    is_foreign(
        open_beside(&world.fresh, elsewhere.options(), clock).await,
        "another log",
    );
}

/// Streams that were copied under another name are another ledger's still: they say so themselves.
#[tokio::test]
async fn a_copy_of_a_log_under_another_prefix_is_refused() {
    let world = World::new(1).await;
    let created = r#"{"ledger":"6f1c2f5e-0000-4000-8000-000000000001","zone":"UTC","scale":0,"prefix":"recoup."}"#;
    let of = "recoup.ledger.created";
    world.standin.put("other.ledger", of, created.as_bytes());
    let other = Options {
        prefix: StreamPrefix::new("other.").expect("a prefix"),
        ..world.options()
    };
    let opened = world.open_with(other).await.map(|_| ());
    assert!(
        matches!(&opened, Err(OpenError::Differs { what: "prefix", stored, .. }) if stored == "recoup."),
        "{opened:?}"
    );
}

/// Appends to a log of its own would change figures that follow another log.
#[tokio::test]
async fn a_database_beside_a_log_is_no_ledger_by_itself() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 10).await;
    drop(store);
    let opened = world.fresh.open_with(Opening::default()).await;
    is_foreign(opened, "beside");
    // Refused, and unharmed.
    let store = world.open().await;
    assert_eq!(figures(&store, "a").await.balance, 10);
}

#[tokio::test]
async fn a_ledger_is_no_database_beside_a_log() {
    let world = World::new(1).await;
    let fresh = Fresh::new();
    let own = fresh.open(Arc::new(SystemClock)).await;
    assert!(is_committed(&own.append(charge_without_limits()).await));
    drop(own);
    let clock = Arc::new(world.clock.clone());
    is_foreign(
        open_beside(&fresh, world.options(), clock).await,
        "a log of its own",
    );
    let again = fresh.open(Arc::new(SystemClock)).await;
    assert!(again.head().await.expect("it is read").get() > 0);
}

/// A process that opened it as a ledger before anything was in it.
#[tokio::test]
async fn a_database_beside_a_log_gets_none_of_its_own_from_a_process_that_was_there_before() {
    let world = World::new(1).await;
    let fresh = Fresh::new();
    let before = fresh.open(Arc::new(SystemClock)).await;
    let clock = Arc::new(world.clock.clone());
    let beside = open_beside(&fresh, world.options(), clock).await;
    let beside = beside.expect("it is empty");
    let answer = before.append(charge_without_limits()).await;
    assert!(
        matches!(&answer, Err(StoreError::ReadOnly { cause }) if cause.contains("no log of its own")),
        "{answer:?}"
    );
    grant(&beside, "a", 10).await;
    assert!(is_committed(
        &beside.append(charge("j", "a", 4, None)).await
    ));
    assert_eq!(figures(&beside, "a").await.balance, 6);
    let head = before.head().await.expect("it is read");
    assert_eq!(head.get(), 0);
}

fn charge_without_limits() -> recoup::store::Append {
    recoup::store::Append {
        admission: None,
        ..charge("j", "a", 1, None)
    }
}

/// A log that was put back to an older state, under the name and with the identity that the figures know.
#[tokio::test]
async fn figures_of_a_log_that_was_put_back_are_refused() {
    let world = World::new(1).await;
    let store = world.open_granted(10).await;
    drop(store);
    world
        .fresh
        .execute("UPDATE followed_log SET event_id = '00000000-0000-0000-0000-000000000001'");
    let opened = world.open_with(world.options()).await;
    assert!(
        matches!(opened, Err(OpenError::Damaged { .. })),
        "{opened:?}"
    );
}
