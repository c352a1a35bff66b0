//! Figures that follow the log: once, in its order, and no farther than it can be read.

use std::time::Duration;

use recoup::clock::{Clock, Timestamp};
use recoup::sql::Database;
use recoup::store::kurrentdb::KurrentStore;
use recoup::store::{Appended, EventStore, Position, StoreError};
use recoup::{JobCommand, JobId};
use recoup_kurrentdb_standin::Record;
use tokio::task::JoinSet;

use crate::world::{
    World, bounded, charge, command, figures, grant, is_committed, ledger, positions,
};

/// Any number of processes fold the same log into one database: each event moves the figures once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_processes_one_folds_each_page() {
    let world = World::new(1).await;
    let stores = [world.open().await, world.open().await, world.open().await];
    grant(&stores[0], "a", 1_000).await;
    let mut running = JoinSet::new();
    for (number, store) in stores.iter().enumerate() {
        let store = store.clone();
        running.spawn(async move {
            for job in 0..20 {
                let append = charge(&format!("{number}.{job}"), "a", 1, None);
                assert!(is_committed(&store.append(append).await));
                store.settle_figures().await.expect("they are settled");
            }
        });
    }
    bounded("three processes", running.join_all()).await;
    for store in &stores {
        let after = figures(store, "a").await;
        assert_eq!((after.balance, after.reserved), (940, 0));
    }
}

/// Without its own figures a database folds the whole log: what it comes to is what was there.
#[tokio::test]
async fn figures_that_were_lost_are_folded_again() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 50).await;
    for job in 0..30 {
        assert!(is_committed(
            &store.append(charge(&format!("j{job}"), "a", 1, None)).await
        ));
    }
    let before = store.accounts(None, 10).await;
    drop(store);
    world.fresh.execute(
        "UPDATE followed_log SET position = 0, event_id = NULL, hour = 0; DELETE FROM followed_streams;
        DELETE FROM followed_hours; DELETE FROM account_state; DELETE FROM account_month",
    );
    let store = world.open().await;
    assert_eq!(store.accounts(None, 10).await, before);
}

fn newer(record: &mut Record) {
    record.event_type = "recoup.account.granted_by_a_newer_one".to_owned();
}

/// An event that cannot be read may have moved anybody's credit: no charge is decided behind it, everything else goes on, and a person's decision leads out.
#[tokio::test]
async fn figures_halt_at_what_they_cannot_read() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 10).await;
    assert!(is_committed(&store.append(charge("j", "a", 1, None)).await));
    store.settle_figures().await.expect("they are settled");
    let last = *positions(&store).await.last().expect("there are some");
    drop(store);
    // Stored by a newer version while nobody looked, as the first of an hour.
    world.clock.advance(Duration::from_secs(7_200));
    world.put_unheard_of();
    world.standin.edit("recoup.grant-a+g9", 0, newer);
    let store = world.open().await;
    let halted = store.settle_figures().await;
    let Err(StoreError::Corrupt { position, .. }) = halted else {
        panic!("{halted:?}");
    };
    assert!(position > last);
    assert_eq!(
        store.append(charge("k", "a", 1, None)).await,
        Err(halted.unwrap_err())
    );
    assert!(
        store
            .account(
                &crate::world::account("a"),
                store.identity().zone.month_of(world.clock.now())
            )
            .await
            .is_err()
    );
    let start = JobCommand::Start {
        worker: None,
        lease: None,
    };
    let started = ledger(&store)
        .job(command("s"), JobId::new("j").expect("an id"), start)
        .await;
    assert!(started.expect("it is answered").is_done());
    // What takes credit back waits for no figures that admit nothing anyway.
    let (attempt, class) = (recoup::Attempt::FIRST, recoup::job::FailureClass::Terminal);
    let reason = None;
    let ends = [
        JobCommand::Fail {
            attempt,
            class,
            reason,
        },
        JobCommand::Succeed {
            attempt,
            result: None,
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let id = command(&format!("end {number}"));
        let job = JobId::new("j").expect("an id");
        let ended = ledger(&store).job(id, job, end).await;
        assert!(ended.expect("it is answered").is_done());
    }
    assert_eq!(
        store.halted().await.expect("it is told").map(|(at, _)| at),
        Some(position)
    );
    // Not another event than that, and not twice.
    let reason = recoup::Reason::new("a person looked").expect("a reason");
    assert_eq!(store.skip_figures(last, &reason, "ops").await, Ok(false));
    assert_eq!(store.skip_figures(position, &reason, "ops").await, Ok(true));
    let hours = world
        .fresh
        .table("SELECT position FROM followed_hours ORDER BY hour DESC LIMIT 1");
    assert_eq!(hours, [[last.to_string()]], "the hour begins before it");
    assert_eq!(
        store.skip_figures(position, &reason, "ops").await,
        Ok(false)
    );
    assert!(is_committed(&store.append(charge("k", "a", 9, None)).await));
    assert_eq!(figures(&store, "a").await.balance, 0);
    assert_eq!(world.count("followed_skips"), 1);
    // The place is known again after a restart.
    drop(store);
    assert_eq!(figures(&world.open().await, "a").await.balance, 0);
}

/// Where a scan of some days begins and ends: no event of them is outside, also where the server's clock went back.
#[tokio::test]
async fn hours_lead_to_places_in_the_log() {
    let world = World::new(1).await;
    let store = world.open().await;
    let at = |text: &str| Timestamp::parse(text).expect("a literal is an instant");
    let mut posted: Vec<(Timestamp, Position)> = Vec::new();
    for (number, text) in [
        "2026-11-29T12:10:00Z",
        "2026-11-29T12:59:59Z",
        "2026-11-29T23:59:58Z",
        "2026-11-30T00:00:01Z",
        "2026-11-29T23:59:59Z",
        "2026-11-30T00:00:02Z",
        "2026-12-02T09:00:00Z",
    ]
    .into_iter()
    .enumerate()
    {
        world.clock.set(at(text));
        grant(&store, &format!("a{number}"), 1).await;
        posted.push((at(text), *positions(&store).await.last().expect("one")));
    }
    store.settle_figures().await.expect("they are settled");
    let places = |of: &KurrentStore, instant: Timestamp| {
        let database = Database::from(of.clone());
        async move {
            let read = database.glance(move |tx| {
                Ok::<_, StoreError>((tx.read_scan_begin(instant)?, tx.read_scan_end(instant)?))
            });
            read.await.expect("it is read")
        }
    };
    for instant in [
        "2026-11-28T00:00:00Z",
        "2026-11-29T12:30:00Z",
        "2026-11-30T00:00:00Z",
        "2026-12-01T00:00:00Z",
        "2026-12-02T09:00:00Z",
        "2026-12-03T00:00:00Z",
    ] {
        let instant = at(instant);
        let (begin, end) = places(&store, instant).await;
        for (when, place) in &posted {
            if *when >= instant {
                assert!(*place > begin, "{when} is not before {instant}");
            }
            if *when < instant
                && let Some(end) = end
            {
                assert!(*place <= end, "{when} is before {instant}");
            }
        }
    }
    // It is a bound, and no lazy one.
    let (begin, _) = places(&store, at("2026-12-02T00:00:00Z")).await;
    assert_eq!(begin, posted[5].1);
    let (_, end) = places(&store, at("2026-11-29T00:00:00Z")).await;
    assert_eq!(end, Some(posted[5].1));
}

/// The figures' database is away for a while: a charge is told so, and nothing is appended that was not reserved.
#[tokio::test]
async fn nothing_is_appended_that_could_not_be_reserved() {
    let world = World::new(1).await;
    let store = world.open_granted(10).await;
    world
        .fresh
        .execute("ALTER TABLE reservations RENAME TO away");
    let charged = store.append(charge("j", "a", 1, None)).await;
    assert!(charged.is_err(), "{charged:?}");
    world
        .fresh
        .execute("ALTER TABLE away RENAME TO reservations");
    let stream = recoup::codec::Stream::Job(JobId::new("j").expect("an id")).name();
    let stored = store.read_stream(&stream, recoup::Revision::FIRST).await;
    assert_eq!(stored, Ok(Vec::new()));
    let charged = store.append(charge("j", "a", 1, None)).await;
    assert!(
        matches!(charged, Ok(Appended::Committed { .. })),
        "{charged:?}"
    );
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(figures(&store, "a").await.balance, 9);
}

/// The event that a person has the figures skip closes what was reserved for it, as it would have when it was folded.
#[tokio::test]
async fn a_skipped_event_closes_its_reservation() {
    let world = World::new(1).await;
    let store = world.open_granted(10).await;
    drop(store);
    world
        .fresh
        .execute("INSERT INTO reservations VALUES ('job-u', 0, 'c', 'a', 4, NULL, 0)");
    world
        .standin
        .put("recoup.job-u", "recoup.job.unheard_of", b"?");
    world.standin.edit("recoup.job-u", 0, newer);
    let store = world.open().await;
    let Err(StoreError::Corrupt { position, .. }) = store.settle_figures().await else {
        panic!("they are not halted");
    };
    let reason = recoup::Reason::new("a person looked").expect("a reason");
    assert_eq!(store.skip_figures(position, &reason, "ops").await, Ok(true));
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.reserved), (10, 0));
}

/// The same in a process that was there before the event: it has seen nothing that its figures lack.
#[tokio::test]
async fn figures_that_come_to_a_halt_admit_no_charge() {
    let world = World::new(1).await;
    let store = world.open_granted(10).await;
    world.put_unheard_of();
    let halted = store.settle_figures().await;
    assert!(
        matches!(halted, Err(StoreError::Corrupt { .. })),
        "{halted:?}"
    );
    let answer = store.append(charge("k", "a", 1, None)).await;
    assert_eq!(answer.map(|_| ()), halted);
    assert_eq!(world.count("reservations"), 0);
}

/// What stands in front of an event that cannot be read is folded, in the same page.
#[tokio::test]
async fn figures_halt_right_before_what_they_cannot_read() {
    let of_third = |world: &World, third| {
        world.put_unheard_of();
        world.standin.edit("recoup.grant-a+g9", 0, newer);
        third
    };
    halt_right_before(of_third).await;
}

/// The same for an event that is whole, and of a type that only a newer version knows.
#[tokio::test]
async fn figures_halt_right_before_what_a_newer_version_has_stored() {
    let of_second = |world: &World, third: Position| {
        world.standin.edit("recoup.grant-c+g1", 0, newer);
        Position::new(third.get() - 1)
    };
    halt_right_before(of_second).await;
}

/// `spoil` is handed the position of the third grant, and gives one that the figures cannot get past.
async fn halt_right_before(spoil: impl FnOnce(&World, Position) -> Position) {
    let world = World::new(1).await;
    let store = world.open_granted(10).await;
    let place = world
        .fresh
        .table("SELECT position, event_id FROM followed_log");
    let before = &place[0];
    grant(&store, "b", 5).await;
    grant(&store, "c", 1).await;
    store.settle_figures().await.expect("they are settled");
    let whole = positions(&store).await;
    let third = *whole.last().expect("there are three");
    drop(store);
    // Set back to before the second grant.
    world.fresh.execute(&format!(
        "UPDATE followed_log SET position = {}, event_id = '{}'; DELETE FROM account_state WHERE account IN ('b', 'c')",
        before[0], before[1]
    ));
    let wall = spoil(&world, third);
    let store = world.open().await;
    assert!(store.settle_figures().await.is_err());
    let last = whole.iter().rfind(|at| **at <= wall);
    let place = world.fresh.table("SELECT position FROM followed_log");
    assert_eq!(place, [[last.expect("the first one is").to_string()]]);
    let halted = store.halted().await.expect("it is told");
    assert!(halted.is_some_and(|(at, _)| at > wall));
    let sql = "SELECT balance FROM account_state WHERE account = 'b'";
    assert_eq!(world.fresh.table(sql), [["5"]]);
}
