//! Faults of retries and dead letters that other systems of this kind were reported with, each as a test that fails without the protection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use recoup::store::fresh::{backend, is_log_in_tables};
use recoup::{FailureClass, JobCommand, Kind, Mode, Policy, PolicyChoice, PriceSnapshot, Reason};
use recoup_projections::DeadLetterFilter;
use recoup_rebuild_worker::dead_letters::{CHUNK, Letter, Move, carry_out, select};
use recoup_rebuild_worker::due::Sweeper;
use tokio_util::sync::CancellationToken;

use crate::loops::Stale;
use crate::world::{
    CAP, CLAIMED, COST, EXTERNAL, OPENING, World, account, job, policy, seconds, worker,
};

/// The retry count never rose, so the cap never applied. Interleaving: every attempt times out, and the loop is killed after each append.
/// Protection: the failure, the count and what follows from it are one append.
#[tokio::test]
async fn fault_16_count_and_schedule_change_in_one_write() {
    let world = World::new().await;
    world.charge("j", CLAIMED).await;
    for attempt in 1..=CAP {
        assert_eq!(world.claim_one().await.attempt.get(), attempt);
        // Each time another loop, which knows nothing of the one before.
        world.pass(seconds(60)).await;
        world.clock.advance(seconds(60));
    }
    assert_eq!(world.state("j").await, "dead_lettered");
    assert_eq!(world.claim(5).await, []);
    let (_, history) = world.ledger.show(&job("j")).await.unwrap();
    let mut appends: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in &history {
        let event = one.event.as_ref().unwrap();
        let append = appends.entry(one.command.as_str()).or_default();
        append.push(event.name());
    }
    let failures: Vec<_> = appends
        .values()
        .filter(|append| append.contains(&"attempt_failed"))
        .collect();
    assert_eq!(failures.len(), usize::try_from(CAP).unwrap());
    for append in failures {
        let follows = append.last().unwrap();
        assert!(
            ["retry_scheduled", "dead_lettered"].contains(follows),
            "{append:?}"
        );
    }
    assert_eq!(world.figures().await, (OPENING, 0));
    world.audited().await;
}

/// A message that kills its process was delivered for ever. Interleaving: a worker takes whatever is due, dies of one job each time before it
/// can say anything, and has finished the others. Protection: starts are counted, in the start's own append.
#[tokio::test]
async fn fault_17_a_job_that_kills_its_worker_reaches_the_cap_and_the_others_go_on() {
    let world = World::new().await;
    world.charge("poison", CLAIMED).await;
    let (mut starts, mut delivered) = (0, BTreeSet::new());
    for round in 0..20 {
        world.charge(&format!("sound {round}"), CLAIMED).await;
        for claimed in world.claim(10).await {
            if claimed.job == job("poison") {
                starts += 1;
                continue;
            }
            let attempt = claimed.attempt.get();
            world.succeed(claimed.job.as_str(), attempt).await;
            delivered.insert(claimed.job);
        }
        world.pass(seconds(60)).await;
    }
    assert_eq!((starts, delivered.len()), (CAP, 20));
    assert_eq!(world.state("poison").await, "dead_lettered");
    let letters = world
        .projections
        .dead_letters(&DeadLetterFilter::default(), None, 10)
        .await
        .unwrap()
        .rows;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.cause, letter.attempts), ("cap_reached", CAP));
    assert_eq!(letter.reason.as_deref(), Some("lease_until ran out"));
    assert_eq!(world.figures().await, (OPENING - 20 * COST, 0));
    world.audited().await;
}

/// Rescue acted on a stale list and reopened a finished job. Interleaving: the loop reads its list; one job is delivered, another is rescued by
/// someone else and runs again, a third renews its lease; then the loop acts. Protection: the command names the timer and the event that
/// set it, and does nothing if that timer does not run any more.
#[tokio::test]
async fn fault_18_a_rescue_acts_on_the_state_that_it_saw_or_not_at_all() {
    let world = World::new().await;
    for name in ["finished", "restarted", "renewed"] {
        world.charge(name, CLAIMED).await;
    }
    world.claim(3).await;
    let stale = Stale::of(&world, seconds(60)).await;
    world.succeed("finished", 1).await;
    world.fail("restarted", 1, FailureClass::Retryable).await;
    world.clock.set(world.due_at("restarted").await);
    world.clock.advance(seconds(50));
    let extend = JobCommand::Extend {
        attempt: recoup::Attempt::FIRST,
    };
    assert!(world.send("renewed", extend).await.is_done());
    assert_eq!(world.claim_one().await.job, job("restarted"));
    // Every lease of the list is over by its own deadline, none by the one that counts.
    world.clock.advance(seconds(30));
    let swept = Sweeper::new(Duration::ZERO)
        .sweep(&world.ledger, &stale)
        .await
        .unwrap();
    assert_eq!((swept.expired, swept.stale), (0, 3));
    assert_eq!(world.state("finished").await, "delivered");
    assert_eq!(world.state("restarted").await, "running");
    assert_eq!(world.state("renewed").await, "running");
    world.audited().await;
}

const LETTERS: u32 = 1_000;

/// Charges jobs with one attempt each, and has all of them fail.
async fn die(world: &World) {
    let once = Policy { cap: 1, ..policy() };
    let cost = recoup::Cost::new(1).unwrap();
    let mut commands = Vec::new();
    for number in 0..LETTERS {
        let charge = world.ledger.charge_of(
            account(),
            Kind::new(CLAIMED).unwrap(),
            cost,
            PriceSnapshot::flat(cost),
            Some(PolicyChoice::Full(once)),
        );
        let name = job(&format!("j{number:04}"));
        for command in [
            JobCommand::Charge(Box::new(charge.unwrap())),
            JobCommand::Start {
                worker: None,
                lease: None,
            },
            JobCommand::Fail {
                attempt: recoup::Attempt::FIRST,
                class: FailureClass::Retryable,
                reason: Some(Reason::new("out of memory").unwrap()),
            },
        ] {
            let command = recoup::Command::Job(name.clone(), command);
            commands.push((recoup::CommandId::random(), command));
        }
    }
    assert_eq!(once.mode, Mode::Claimed);
    for answer in world.ledger.batch(commands).await {
        assert!(answer.unwrap().is_done());
    }
    world.catch_up().await;
}

/// A worker that takes whatever is due and fails it at once, until it is stopped. Counts how many it has failed.
async fn fail_at_once(world: &World, stop: CancellationToken, failed: &AtomicUsize) {
    let (ledger, projections) = world.beside().await;
    while !stop.is_cancelled() {
        projections.catch_up().await.unwrap();
        let claimed = ledger
            .claim(&projections, &[], &worker("w"), None, 200)
            .await
            .unwrap();
        let fail = |claimed: recoup::Claimed| {
            let fail = JobCommand::Fail {
                attempt: claimed.attempt,
                class: FailureClass::Retryable,
                reason: None,
            };
            let command = recoup::Command::Job(claimed.job, fail);
            (recoup::CommandId::random(), command)
        };
        let fails: Vec<_> = claimed.into_iter().map(fail).collect();
        let count = fails.len();
        for answer in ledger.batch(fails).await {
            assert!(answer.unwrap().is_done());
        }
        failed.fetch_add(count, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}

async fn open_letters(world: &World) -> Vec<Letter> {
    world.catch_up().await;
    let all = DeadLetterFilter::default();
    select(&world.projections, &all, None).await.unwrap()
}

fn once_more() -> Reason {
    Reason::new("once more").unwrap()
}

/// How often each job was redriven.
async fn redrives(world: &World) -> BTreeSet<usize> {
    let mut counts = BTreeSet::new();
    for number in 0..LETTERS {
        let events = world.events(&format!("j{number:04}")).await;
        counts.insert(events.iter().filter(|name| **name == "redriven").count());
    }
    counts
}

/// "Retry all" ran over a changing set. Interleaving: each job that is redriven fails again at once, while the run goes on, and is a dead letter
/// again before the run has ended. Protection: the ids are selected once, as of one position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_19_a_thousand_dead_letters_that_fail_again_are_a_thousand_moved() {
    let world = World::new().await;
    die(&world).await;
    let letters = open_letters(&world).await;
    assert_eq!(letters.len(), 1_000);
    assert!(letters.is_sorted_by_key(|letter| letter.position));
    let stop = CancellationToken::new();
    let reason = once_more();
    let failed = AtomicUsize::new(0);
    let moving = async {
        let mut applied = Vec::new();
        // In two parts of one selection, so that some have failed again while the rest is to come, whoever is quicker.
        for part in letters.chunks(500) {
            let moved = carry_out(&world.ledger, part, (Move::Redrive, &reason), |_| {}).await;
            assert!(moved.rejections.is_empty() && moved.failures.is_empty());
            applied.push((moved.applied, moved.already_applied));
            while failed.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        }
        stop.cancel();
        applied
    };
    let bound = Duration::from_secs(60);
    let both = async { tokio::join!(moving, fail_at_once(&world, stop.clone(), &failed)) };
    let (applied, ()) = tokio::time::timeout(bound, both).await.expect("some fail");
    assert_eq!(applied, [(500, 0); 2]);
    assert_eq!(redrives(&world).await, BTreeSet::from([1]));
    // The same selection again: every one of them is known, whatever has become of it since.
    let again = carry_out(&world.ledger, &letters, (Move::Redrive, &reason), |_| {}).await;
    assert_eq!((again.applied, again.already_applied), (0, 1_000));
    world.audited().await;
}

/// The run is killed when part of it is done, and given again. Protection: command ids derive from the dead letter.
#[tokio::test]
async fn fault_19_a_run_that_was_interrupted_finishes_the_rest_when_it_is_given_again() {
    let world = World::new().await;
    die(&world).await;
    let letters = open_letters(&world).await;
    let reason = once_more();
    let (kill, killed) = tokio::sync::oneshot::channel();
    let mut kill = Some(kill);
    let moving = carry_out(&world.ledger, &letters, (Move::Redrive, &reason), |done| {
        if done >= 300
            && let Some(kill) = kill.take()
        {
            kill.send(()).unwrap();
        }
    });
    tokio::select! {
        biased;
        _ = killed => {}
        _ = moving => panic!("it is killed before it is done"),
    }
    let rest = open_letters(&world).await;
    assert!((1..=700).contains(&rest.len()), "{} are left", rest.len());
    let (ledger, _) = world.beside().await;
    let moved = carry_out(&ledger, &letters, (Move::Redrive, &reason), |_| {}).await;
    assert_eq!(moved.applied + moved.already_applied, 1_000);
    // What was on its way when the run was killed may have been done all the same.
    let rest = u64::try_from(rest.len()).unwrap();
    let on_its_way = u64::try_from(CHUNK).unwrap();
    assert!(moved.applied <= rest && moved.applied + on_its_way >= rest);
    assert_eq!(redrives(&world).await, BTreeSet::from([1]));
    assert_eq!(open_letters(&world).await, []);
    world.audited().await;
}

/// A whole fleet's stalled jobs came back at one instant. Interleaving: two hundred leases run out together and are rescued in one go. Protection:
/// the delay of a retry has a jitter that is a hash of job and attempt.
#[tokio::test]
async fn fault_22_a_fleet_that_stalled_together_comes_back_apart() {
    let world = World::new().await;
    for number in 0..200 {
        world.charge(&format!("j{number}"), CLAIMED).await;
    }
    assert_eq!(world.claim(200).await.len(), 200);
    let swept = world.pass(seconds(60)).await;
    assert_eq!(swept.expired, 200);
    let first_delay = Duration::from_millis(policy().first_delay_ms);
    let now = recoup::Clock::now(&world.clock);
    let mut slots: BTreeMap<u128, u32> = BTreeMap::new();
    for number in 0..200 {
        let wait = world.due_at(&format!("j{number}")).await.since(now);
        assert!(wait >= first_delay && wait < first_delay.mul_f64(1.2));
        *slots.entry(wait.as_millis() / 100).or_default() += 1;
    }
    // A fifth of five seconds is ten slots of a tenth of a second each: twenty jobs apiece, if they were spread evenly.
    assert_eq!(slots.len(), 10);
    assert!(slots.values().all(|jobs| *jobs < 40), "{slots:?}");
    // They are given as they come due, not together.
    world
        .clock
        .advance(first_delay + Duration::from_millis(500));
    let claimed = world.claim(200).await.len();
    assert!((50..150).contains(&claimed), "{claimed} in the first half");
    world.audited().await;
}

/// Rows of `due` that cannot be read stand in front of others. Protection: they are passed over, by the loop and by claims.
#[tokio::test]
async fn rows_that_cannot_be_read_keep_nobody_from_their_end() {
    let world = World::new().await;
    for number in 0..70 {
        world.charge(&format!("j{number}"), EXTERNAL).await;
    }
    world.charge("claimed", CLAIMED).await;
    world.catch_up().await;
    // No text of PostgreSQL's is not Unicode.
    let not_unicode = match backend().as_str() {
        "sqlite" => "CAST(x'ff' AS TEXT)",
        _ => "' '",
    };
    for (job, timer) in [
        ("'\n' || 'x'", "start_by"),
        ("'aaa'", "zzz"),
        (not_unicode, "start_by"),
    ] {
        let sql = format!(
            "INSERT INTO due (job, account, kind, mode, state, timer, armed_at, deadline, startable_at, attempt, last_position)
            VALUES ({job}, 'acme', '{CLAIMED}', 'claimed', 'queued', '{timer}', 0, 1, 1, 0, 1)"
        );
        world.fresh.execute(&sql);
    }
    // The sound one among them, and the job that is in none of the ledger's streams.
    let claims = world.claim(5).await;
    assert_eq!(
        claims
            .iter()
            .map(|claim| claim.job.as_str())
            .collect::<Vec<_>>(),
        ["claimed"]
    );
    world.clock.advance(seconds(24 * 3_600));
    world.catch_up().await;
    let swept = Sweeper::new(Duration::ZERO)
        .sweep(&world.ledger, &world.projections)
        .await
        .unwrap();
    assert_eq!(swept.expired, 71, "{swept:?}");
}

/// An append of one job is broken as a whole. Protection: that is the job's trouble, said once and tried again more and more rarely, and not the store's.
#[tokio::test]
async fn a_job_whose_stored_events_cannot_be_is_in_trouble_alone() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    for number in 0..100 {
        world.charge(&format!("j{number}"), EXTERNAL).await;
    }
    world.catch_up().await;
    world.mend_stream("j7", &[0]);
    // As another process reads it: nothing is remembered.
    let (ledger, projections) = world.beside().await;
    world.clock.advance(seconds(24 * 3_600));
    let mut sweeper = Sweeper::new(Duration::ZERO);
    let mut came_to = Vec::new();
    for wait in [0, 1, 5, 5, 5] {
        world.clock.advance(seconds(wait));
        let swept = sweeper.sweep(&ledger, &projections).await.unwrap();
        came_to.push((swept.expired, swept.in_trouble));
    }
    assert_eq!(came_to, [(99, 1), (0, 1), (0, 1), (0, 1), (0, 1)]);
}
