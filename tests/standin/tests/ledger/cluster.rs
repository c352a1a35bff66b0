//! A cluster of three, seen through a ledger: leaders that die, and answers that are lost by the hundred.

use std::sync::Arc;
use std::time::Duration;

use recoup::job::FailureClass;
use recoup::ledger::LedgerError;
use recoup::store::StoreError;
use recoup::store::kurrentdb::Options;
use recoup::{Attempt, CommandId, JobCommand, JobId, Ledger};
use recoup_kurrentdb_standin::AppendFate;
use tokio::task::JoinSet;

use crate::world::{World, bounded, charge, figures, grant, is_committed, ledger, positions};

/// Patience that ends within a test, and is long for a leader that is chosen anew.
fn steady(world: &World) -> Options {
    Options {
        connect_within: Duration::from_secs(5),
        answer_within: Duration::from_secs(1),
        ..world.options()
    }
}

/// Carries a command out, again and again under its id, until it is told what became of it.
async fn insist(ledger: &Ledger, id: &str, job: &str, command: &JobCommand) {
    let (id, job) = (
        CommandId::new(id).expect("an id"),
        JobId::new(job).expect("an id"),
    );
    let told = async {
        loop {
            match ledger.job(id.clone(), job.clone(), command.clone()).await {
                Ok(outcome) if outcome.is_done() => return,
                Ok(outcome) => panic!("{outcome:?}"),
                Err(
                    LedgerError::OutcomeUnknown { .. }
                    | LedgerError::Store(StoreError::Unavailable { .. }),
                ) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    bounded("a command", told).await;
}

fn fail() -> JobCommand {
    JobCommand::Fail {
        attempt: Attempt::FIRST,
        class: FailureClass::Terminal,
        reason: None,
    }
}

fn succeed() -> JobCommand {
    JobCommand::Succeed {
        attempt: Attempt::FIRST,
        result: None,
    }
}

/// The leader dies while it has an append, and gossip names another one: the charge is there once, and the ledger goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_in_the_middle_of_a_charge_costs_nothing() {
    let world = World::new(3).await;
    let store = world.open_with(steady(&world)).await.expect("it opens");
    grant(&store, "a", 100).await;
    let leader = world.standin.leader().expect("one leads");
    world.standin.fail_appends([AppendFate::Held]);
    let charged = {
        let store = store.clone();
        tokio::spawn(async move {
            use recoup::EventStore as _;
            let append = charge("j", "a", 40, None);
            loop {
                match store.append(append.clone()).await {
                    Ok(recoup::store::Appended::Unknown { .. })
                    | Err(StoreError::Unavailable { .. }) => {}
                    answer => return answer,
                }
            }
        })
    };
    bounded("the append", async {
        while world.standin.held() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.standin.kill(leader).await;
    world.standin.elect((leader + 1) % 3);
    world.standin.release();
    let answer = bounded("the charge", charged).await.expect("no panic");
    assert!(
        !matches!(answer, Ok(recoup::store::Appended::Refused(_))),
        "{answer:?}"
    );
    let ledger = ledger(&store);
    insist(&ledger, "f", "j", &fail()).await;
    insist(&ledger, "s", "j", &succeed()).await;
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.reserved), (60, 0));
}

/// Two of three die: a charge is told so in time and takes nothing, and goes through when one is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_a_charge_is_told_so_and_comes_through_later() {
    let world = World::new(3).await;
    let store = world.open_with(world.hasty()).await.expect("it opens");
    grant(&store, "a", 100).await;
    let leader = world.standin.leader().expect("one leads");
    world.standin.kill(leader).await;
    world.standin.kill((leader + 1) % 3).await;
    {
        use recoup::EventStore as _;
        let refused = bounded("an answer", store.append(charge("j", "a", 40, None))).await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable { .. })),
            "{refused:?}"
        );
    }
    world.standin.revive(leader).await;
    world.standin.revive((leader + 1) % 3).await;
    world.standin.elect(leader);
    bounded("the charge", async {
        use recoup::EventStore as _;
        while !is_committed(&store.append(charge("j", "a", 40, None)).await) {}
    })
    .await;
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.reserved), (60, 0));
}

/// 32 callers, each with a lifecycle of ten jobs, most of whose answers are lost, late or wrong: every job is charged, refunded and reclaimed once, nothing is told as
/// failed that is stored, and nothing is unknown in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_lost_answers_make_no_duplicate_and_no_false_failure() {
    const CALLERS: usize = 32;
    const JOBS: usize = 11;
    let world = World::new(1).await;
    let store = world.open_with(steady(&world)).await.expect("it opens");
    let cost = 3;
    let jobs = i64::try_from(CALLERS * JOBS).expect("few");
    grant(&store, "a", jobs * cost + 5).await;
    let mut number = 0_u32;
    world.standin.script_appends(move |_| {
        number += 1;
        match number % 9 {
            1 | 4 => AppendFate::CommittedThenAborted,
            2 => AppendFate::Aborted,
            5 => AppendFate::HeldThenAborted,
            7 => AppendFate::CommittedWithoutPosition,
            _ => AppendFate::Fine,
        }
    });
    let ledger = ledger(&store);
    let terms = ledger
        .charge_of(
            crate::world::account("a"),
            recoup::Kind::new("video").expect("a kind"),
            recoup::Cost::new(cost).expect("a cost"),
            recoup::PriceSnapshot::flat(recoup::Cost::new(cost).expect("a cost")),
            None,
        )
        .expect("a charge");
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (ledger, terms) = (ledger.clone(), terms.clone());
        callers.spawn(async move {
            for job in 0..JOBS {
                let name = format!("{caller}.{job}");
                let charge = JobCommand::Charge(Box::new(terms.clone()));
                insist(&ledger, &format!("c{name}"), &name, &charge).await;
                insist(&ledger, &format!("f{name}"), &name, &fail()).await;
                insist(&ledger, &format!("s{name}"), &name, &succeed()).await;
            }
        });
    }
    bounded("32 callers", callers.join_all()).await;
    world.standin.release();
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.held, after.reserved), (5, 0, 0));
    // A grant; and for each job: charged, failed, refunded, state, delivered, reclaimed.
    assert_eq!(positions(&store).await.len(), 1 + CALLERS * JOBS * 6);
    assert_eq!(world.count("reservations"), 0);
    let month = recoup::Zone::UTC.month_of(crate::world::noon());
    assert_eq!(after.month(month).spent, jobs * cost);
    drop(Arc::new(store));
}
