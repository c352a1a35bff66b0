//! Figures that are behind the log, or another database's, decide nothing; and what stands in one row's way stands in nobody else's.

use std::sync::Arc;
use std::time::Duration;

use recoup::account::{Limit, Refusal};
use recoup::clock::Clock as _;
use recoup::codec::Stream;
use recoup::job::JobCommand;
use recoup::retry::Mode;
use recoup::store::fresh::Fresh;
use recoup::store::kurrentdb::{KurrentStore, Options, Recovery};
use recoup::store::{Appended, EventStore, OpenError, Revision, StoreError};
use recoup::{Cost, JobId, Kind, Ledger, Policies, Policy, PriceSnapshot, Reason};
use recoup_kurrentdb_standin::AppendFate;

use crate::world::{
    NEVER, World, account, bounded, charge, charge_by, command, figures, grant, history,
    is_committed, is_refused, ledger, open_beside, opening, positions,
};

/// A ledger whose credit is spent, beside figures that were set back to the moment before.
async fn set_back(world: &World) -> KurrentStore {
    let store = world.open_granted(100).await;
    let place = world
        .fresh
        .table("SELECT position, event_id, hour FROM followed_log");
    let [position, id, hour] = &place[0][..] else {
        panic!("{place:?}");
    };
    assert!(is_committed(
        &store.append(charge("j", "a", 100, None)).await
    ));
    store.settle_figures().await.expect("they are settled");
    world.fresh.execute(&format!(
        "UPDATE followed_log SET position = {position}, event_id = '{id}', hour = {hour};
        UPDATE account_state SET balance = 100, last_position = {position};
        DELETE FROM account_month; DELETE FROM followed_streams"
    ));
    store
}

/// A database that lost its last transactions: what they had folded counts before anything else is admitted.
#[tokio::test]
async fn figures_that_were_set_back_under_a_process_admit_nothing_twice() {
    let world = World::new(1).await;
    let store = set_back(&world).await;
    let again = store.append(charge("k", "a", 100, None)).await;
    assert!(is_refused(&again), "{again:?}");
}

/// The same for a process that opens them: it knows what the log has, if not what was folded.
#[tokio::test]
async fn figures_behind_the_log_admit_nothing_twice_at_an_opening() {
    let world = World::new(1).await;
    drop(set_back(&world).await);
    let store = world.open().await;
    let again = store.append(charge("k", "a", 100, None)).await;
    assert!(is_refused(&again), "{again:?}");
    assert_eq!(figures(&store, "a").await.balance, 0);
}

/// Two databases beside one log would each spend what there is.
#[tokio::test]
async fn a_log_has_its_figures_in_one_database() {
    let world = World::new(1).await;
    let often = Recovery {
        every: Duration::from_millis(20),
        ..NEVER
    };
    let first = world.open_recovering(world.options(), often).await;
    grant(&first, "a", 10).await;
    let other = Fresh::new();
    let clock = Arc::new(world.clock.clone());
    match open_beside(&other, world.options(), clock.clone()).await {
        Err(OpenError::Foreign { why, .. }) => assert!(why.contains("another database"), "{why}"),
        opened => panic!("{opened:?}"),
    }
    let reason = Reason::new("the first one was given up").expect("a reason");
    let moved = || {
        let opened = |identity: recoup::store::Identity| {
            other.open_with(opening(&identity, Arc::new(world.clock.clone())))
        };
        KurrentStore::move_figures(world.options(), opened, &reason, "ops")
    };
    // Sent again when it did not arrive; who kept them before is no answer to it.
    world.standin.fail_appends([AppendFate::Cut]);
    assert!(moved().await.expect("it is moved"));
    assert!(!moved().await.expect("it is known"));
    // The process that has the ledger open hears of it.
    let noticed = async {
        while first.append(charge("j", "a", 1, None)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    bounded("the process before", noticed).await;
    let refused = first.append(charge("k", "a", 1, None)).await;
    assert!(
        matches!(refused, Err(StoreError::ReadOnly { .. })),
        "{refused:?}"
    );
    let second = open_beside(&other, world.options(), clock).await;
    let second = second.expect("it opens");
    assert!(figures(&second, "a").await.balance >= 9);
    drop(first);
    let refused = world.open_with(world.options()).await;
    assert!(matches!(refused, Err(OpenError::Foreign { .. })));
}

/// Whoever keeps the figures is not guessed from what somebody else has written in the stream's name.
#[tokio::test]
async fn a_stream_that_does_not_name_the_figures_is_damaged() {
    let world = World::new(1).await;
    world.standin.put("recoup.figures", "somebody.elses", b"{}");
    let opened = world.open_with(world.options()).await.map(|_| ());
    let told = format!("{opened:?}");
    assert!(
        told.contains("Damaged") && told.contains("recoup.figures"),
        "{told}"
    );
}

/// Of many that come first with databases of their own one stays.
#[tokio::test]
async fn of_two_databases_that_come_first_one_stays() {
    let world = World::new(1).await;
    let (one, other) = (Fresh::new(), Fresh::new());
    let clock = || Arc::new(world.clock.clone());
    let (one, other) = tokio::join!(
        open_beside(&one, world.options(), clock()),
        open_beside(&other, world.options(), clock())
    );
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
}

/// A limit is in force when it is answered; where that is not known, neither is its outcome.
#[tokio::test]
async fn a_limit_that_is_not_in_the_figures_is_not_told_as_set() {
    let world = World::new(1).await;
    let store = world.open_granted(10).await;
    world
        .fresh
        .execute("ALTER TABLE followed_streams RENAME TO away");
    let limit = || {
        let limit = Limit {
            account: account("a"),
            floor: None,
            monthly_cap: Some(Some(1)),
        };
        let command_on = recoup::ledger::Command::Limit(limit);
        let ledger = ledger(&store);
        async move { ledger.execute(command("limit"), command_on).await }
    };
    let told = limit().await;
    assert!(
        matches!(told, Err(recoup::LedgerError::OutcomeUnknown { .. })),
        "{told:?}"
    );
    world
        .fresh
        .execute("ALTER TABLE away RENAME TO followed_streams");
    assert!(limit().await.expect("it is answered").is_done());
    let charged = store.append(charge("j", "a", 2, None)).await;
    assert!(
        matches!(charged, Ok(Appended::Refused(Refusal::CapExceeded { .. }))),
        "{charged:?}"
    );
}

/// Credit is taken for the next event of a stream only: for one beyond it nothing could ever give it back.
#[tokio::test]
async fn nothing_is_reserved_beyond_the_end_of_a_stream() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 10).await;
    let answer = store.append(charge("j", "a", 10, Some(5))).await;
    assert_eq!(answer, Ok(Appended::Conflict { current: None }));
    assert_eq!(figures(&store, "a").await.reserved, 0);
    assert!(is_committed(
        &store.append(charge("k", "a", 10, None)).await
    ));
    let answer = store.append(charge("k", "a", 10, Some(5))).await;
    assert_eq!(
        answer,
        Ok(Appended::Conflict {
            current: Some(Revision::FIRST)
        })
    );
}

/// Recovery gets past what it cannot end, however much there is of it, and past what a clock that was set back has made.
#[tokio::test]
async fn reservations_that_cannot_be_ended_hold_up_no_others() {
    let world = World::new(1).await;
    let store = world.open_with(world.hasty()).await.expect("it opens");
    grant(&store, "a", 10).await;
    let hour_ago = world
        .clock
        .now()
        .before(Duration::from_secs(3_600))
        .as_micros();
    for number in 0..600 {
        world.fresh.execute(&format!(
            "INSERT INTO reservations VALUES ('job-ahead{number}', 9, 'c', 'b', 5, NULL, {hour_ago})"
        ));
    }
    for (job, late) in [("j", 0), ("k", 7_200)] {
        world.clock.advance(Duration::from_secs(late));
        world.standin.fail_appends([AppendFate::Cut]);
        let answer = store.append(charge(job, "a", 4, None)).await;
        assert!(!is_committed(&answer), "{answer:?}");
    }
    assert_eq!(figures(&store, "a").await.reserved, 8);
    // `k` is of the future now, and `j` is old.
    let now = world.clock.now().as_micros() - 3_600_000_000;
    world.clock.set(recoup::Timestamp::from_micros(now));
    assert_eq!(store.recover(Duration::from_secs(60)).await, Ok(2));
    assert_eq!(figures(&store, "a").await.reserved, 0);
    assert_eq!(world.count("reservations"), 600);
}

/// What a dead caller holds is given back before anybody is refused for it, also where no process stays long.
#[tokio::test]
async fn nobody_is_refused_for_what_the_dead_hold() {
    let world = World::new(1).await;
    let old = Recovery {
        after: Duration::from_secs(30),
        ..NEVER
    };
    let store = world.open_recovering(world.hasty(), old).await;
    grant(&store, "a", 10).await;
    world.standin.fail_appends([AppendFate::Cut]);
    let answer = store.append(charge("j", "a", 10, None)).await;
    assert!(!is_committed(&answer), "{answer:?}");
    assert!(is_refused(&store.append(charge("k", "a", 1, None)).await));
    world.clock.advance(Duration::from_secs(31));
    assert!(is_committed(
        &store.append(charge("k", "a", 10, None)).await
    ));
}

/// A command that decides otherwise than before finds what it reserved itself: that sending is ruled out, and it decides once more.
#[tokio::test]
async fn a_command_does_not_wait_for_its_own_reservation() {
    let world = World::new(1).await;
    let store = world
        .open_with(Options {
            answer_within: Duration::from_millis(400),
            ..world.options()
        })
        .await
        .expect("it opens");
    grant(&store, "a", 10).await;
    world.standin.fail_appends([AppendFate::Cut]);
    let answer = store.append(charge_by("c", ("j", "a", 5), None)).await;
    assert!(!is_committed(&answer), "{answer:?}");
    let answer = store.append(charge_by("c", ("j", "a", 6), None)).await;
    assert_eq!(
        answer,
        Ok(Appended::Conflict {
            current: Some(Revision::FIRST)
        })
    );
    assert_eq!(history(&store, "j").await, ["recoup.job.voided"]);
    let answer = store.append(charge_by("c", ("j", "a", 6), Some(0))).await;
    assert!(is_committed(&answer), "{answer:?}");
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.reserved), (4, 0));
}

/// Many are reserved for in one transaction: a row that cannot be read fails its own account.
#[tokio::test]
async fn a_row_that_cannot_be_read_fails_its_account_only() {
    let world = World::new(1).await;
    let store = world.open().await;
    for name in ["a", "b"] {
        grant(&store, name, 10).await;
    }
    world
        .fresh
        .execute("INSERT INTO reservations VALUES ('job-x', 0, 'c', 'b', 1, '2026-99', 0)");
    let appends = (0..8).map(|number| {
        let of = if number % 2 == 0 { "a" } else { "b" };
        let store = store.clone();
        async move {
            let answer = store
                .append(charge(&format!("j{number}"), of, 1, None))
                .await;
            (of, answer)
        }
    });
    let mut running = tokio::task::JoinSet::new();
    for append in appends {
        running.spawn(append);
    }
    for (of, answer) in running.join_all().await {
        match of {
            "a" => assert!(is_committed(&answer), "{answer:?}"),
            _ => assert!(
                matches!(answer, Err(StoreError::Damaged { .. })),
                "{answer:?}"
            ),
        }
    }
}

/// Of many appends to one account, and nobody who answers, one waits; the others need not find out for themselves.
#[tokio::test]
async fn a_call_waits_for_silence_once() {
    let world = World::new(1).await;
    let store = world.open_with(world.hasty()).await.expect("it opens");
    grant(&store, "a", 1_000).await;
    world.standin.kill(0).await;
    let appends = (0..1_000).map(|number| charge(&format!("j{number}"), "a", 1, None));
    let answers = bounded("the call", store.append_many(appends.collect())).await;
    assert_eq!(answers.len(), 1_000);
    for answer in answers {
        assert!(
            matches!(answer, Err(StoreError::Unavailable { .. })),
            "{answer:?}"
        );
    }
}

/// A row that has what is only folded now would have it twice.
#[tokio::test]
async fn figures_that_are_ahead_of_their_place_are_not_folded_onto() {
    let world = World::new(1).await;
    let store = world.open_granted(1_000).await;
    drop(store);
    world
        .fresh
        .execute("UPDATE followed_log SET position = 0, event_id = NULL, hour = 0; DELETE FROM followed_hours");
    let store = world.open().await;
    let answer = store.append(charge("j", "a", 1_500, None)).await;
    let Err(StoreError::Damaged { why }) = answer else {
        panic!("{answer:?}");
    };
    assert!(why.contains("account_state: account a"), "{why}");
    assert_eq!(history(&store, "j").await, [] as [String; 0]);
    // As they were made, they are right again.
    world.fresh.execute("DELETE FROM account_state");
    assert_eq!(figures(&store, "a").await.balance, 1_000);
}

/// An event of no name is one that a person had the figures skip, and no other.
#[tokio::test]
async fn figures_at_an_event_of_no_name_are_refused() {
    let world = World::new(1).await;
    let store = world.open_granted(10).await;
    drop(store);
    world.fresh.execute(
        "UPDATE followed_log SET position = 9000000000000000000, event_id = '00000000-0000-0000-0000-000000000000'",
    );
    let opened = world.open_with(world.options()).await.map(|_| ());
    assert!(
        matches!(&opened, Err(OpenError::Damaged { .. })),
        "{opened:?}"
    );
}

/// A row whose cost is none gives nobody credit.
#[tokio::test]
async fn a_reservation_of_less_than_nothing_fails_its_account() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 10).await;
    grant(&store, "b", 10).await;
    world.fresh.execute(
        "INSERT INTO reservations (stream, revision, command, account, cost, made_at)
        VALUES ('job-x', 0, 'c', 'a', -90, 0)",
    );
    let answer = store.append(charge("j", "a", 50, None)).await;
    assert!(
        matches!(&answer, Err(StoreError::Damaged { why }) if why.contains("reservations")),
        "{answer:?}"
    );
    assert!(is_committed(
        &store.append(charge("k", "b", 10, None)).await
    ));
}

/// A stream that was deleted is said to be so, and waited for by nobody.
#[tokio::test]
async fn a_deleted_job_is_damaged_and_not_charged_again() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 10).await;
    assert!(is_committed(&store.append(charge("j", "a", 4, None)).await));
    store.settle_figures().await.expect("they are settled");
    let settings = world.standin.connection_string().parse();
    let client = kurrentdb::Client::new(settings.expect("a connection string")).expect("a client");
    let options = kurrentdb::DeleteStreamOptions::default();
    let deleted = client.delete_stream("recoup.job-j", &options).await;
    deleted.expect("it is deleted");
    let answer = store.append(charge("j", "a", 4, None)).await;
    match answer {
        Err(StoreError::Damaged { why }) => assert!(why.contains("job-j"), "{why}"),
        answer => panic!("{answer:?}"),
    }
    assert_eq!(figures(&store, "a").await.balance, 6);
}

/// An append whose caller goes away between its steps is carried to its end.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_half_done() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 10).await;
    world.standin.fail_appends([AppendFate::Held]);
    {
        let append = store.append(charge("j", "a", 4, None));
        tokio::pin!(append);
        let sent = async {
            while world.standin.held() < 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            answer = &mut append => panic!("{answer:?}"),
            () = bounded("the append", sent) => {}
        }
    }
    // Its own task goes on, and so the page of accounts shows what it has reserved.
    let page = store.accounts(None, 10).await.expect("they are read");
    assert_eq!(page[0].1.reserved, 4);
    assert_eq!(world.standin.release(), 1);
    let arrived = async {
        while positions(&store).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    bounded("the append", arrived).await;
    assert_eq!(figures(&store, "a").await.balance, 6);
}

/// A caller that is dropped before its append is sent: the append is sent.
#[tokio::test]
async fn a_caller_that_goes_away_at_once_leaves_no_reservation() {
    let world = World::new(1).await;
    let store = world.open().await;
    grant(&store, "a", 1_000).await;
    for number in 0..50_u64 {
        let append = store.append(charge(&format!("j{number}"), "a", 1, None));
        let _ = tokio::time::timeout(Duration::from_micros(number * 100), append).await;
    }
    let ended = async {
        while figures(&store, "a").await.reserved > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    bounded("the appends", ended).await;
    assert_eq!(world.count("reservations"), 0);
    // And nothing of them had to be ruled out.
    for number in 0..50 {
        let name = format!("j{number}");
        let stream = Stream::Job(JobId::new(&name).expect("an id")).name();
        let stored = store.read_stream(&stream, Revision::FIRST).await;
        assert!(stored.expect("it is read").len() <= 1);
    }
}

/// The clocks of the nodes, and of the machines that ask them, are not one: a deadline is over only when it is over by all of them.
#[tokio::test]
async fn a_deadline_allows_for_clocks_that_differ() {
    let world = World::new(1).await;
    let store = world.open().await;
    assert_eq!(store.clock_skew(), Duration::from_secs(5));
    grant(&store, "a", 10).await;
    let kind = Kind::new("claimed").expect("a kind");
    let policies = Policies::default().with(kind.clone(), Policy::default_for(Mode::Claimed));
    let ledger = Ledger::new(Arc::new(store.clone()), policies);
    let cost = Cost::new(4).expect("a cost");
    let charge = ledger.charge_of(account("a"), kind, cost, PriceSnapshot::flat(cost), None);
    let charge = JobCommand::Charge(Box::new(charge.expect("a policy")));
    let job = || JobId::new("j").expect("an id");
    let charged = ledger.job(command("c"), job(), charge).await;
    assert!(charged.expect("it is answered").is_done());
    let (state, _) = ledger.show(&job()).await.expect("it is read");
    let recorded = state.recorded().expect("it is there");
    let (timer, armed_at, deadline) = recorded.work.timer().expect("a timer runs");
    let expire = |id: &str| {
        let ledger = ledger.clone();
        let id = command(id);
        async move {
            let expire = JobCommand::Expire { timer, armed_at };
            let outcome = ledger.job(id, job(), expire).await;
            outcome.expect("it is answered").name().to_owned()
        }
    };
    let micro = Duration::from_micros(1);
    world
        .clock
        .set(deadline.after(Duration::from_secs(5)).before(micro));
    assert_eq!(expire("e1").await, "rejected");
    world.clock.advance(micro);
    assert_eq!(expire("e2").await, "applied");
}
