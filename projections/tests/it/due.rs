//! What stands in `due` and `dead_letters`, by the history that led to it.

use std::time::Duration;

use recoup::{
    Attempt, DueSource, EventStore, FailureClass, JobCommand, Kind, Lease, Reason, Timestamp,
};
use recoup_projections::{DeadLetterFilter, DeadLetterRow, Projections};

use crate::world::{CLAIMED, EXTERNAL, World, account, at, fail, job, succeed};

fn start() -> JobCommand {
    JobCommand::Start {
        worker: None,
        lease: None,
    }
}

/// The rows of `due`, each as `timer@revision +seconds from now, startable +seconds`.
async fn due(world: &World, projections: &Projections) -> Vec<String> {
    projections.catch_up().await.unwrap();
    let now = world.store.now();
    let far = now.after(Duration::from_secs(400 * 24 * 3600));
    let rows = projections.expired(far, None, 100).await.unwrap();
    let mut shown = Vec::new();
    for row in rows {
        let (timer, armed_at) = (row.timer.name(), row.armed_at);
        let left = row.deadline.since(now).as_secs();
        shown.push(format!("{} {timer}@{armed_at} +{left}", row.job));
    }
    shown
}

async fn startable(projections: &Projections, now: Timestamp) -> Vec<String> {
    let jobs = projections.startable(&[], now, 100).await.unwrap();
    jobs.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_claimed_jobs_row_goes_where_its_timer_goes() {
    let world = World::new().await;
    world.postpaid("acme").await;
    let projections = world.projections().await.with_page_events(1);
    world.charge("j", "acme", CLAIMED, 40).await;
    assert_eq!(due(&world, &projections).await, ["j start_by@0 +86400"]);
    assert_eq!(startable(&projections, world.store.now()).await, ["j"]);

    let lease = Some(Lease::from_ms(90_000).unwrap());
    world
        .applied(
            "j",
            JobCommand::Start {
                worker: None,
                lease,
            },
        )
        .await;
    assert_eq!(due(&world, &projections).await, ["j lease_until@1 +90"]);
    assert_eq!(startable(&projections, world.store.now()).await, [""; 0]);

    world.clock.advance(Duration::from_secs(30));
    let attempt = Attempt::FIRST;
    world.applied("j", JobCommand::Extend { attempt }).await;
    assert_eq!(due(&world, &projections).await, ["j lease_until@2 +90"]);

    world.fail("j", 1).await;
    let retry = due(&world, &projections).await;
    assert!(retry[0].starts_with("j give_up_at@5 +864"), "{retry:?}");
    let now = world.store.now();
    assert_eq!(startable(&projections, now).await, [""; 0]);
    assert_eq!(
        startable(&projections, now.after(Duration::from_secs(6))).await,
        ["j"]
    );

    world.clock.advance(Duration::from_secs(6));
    world.applied("j", start()).await;
    world.fail("j", 2).await;
    assert_eq!(due(&world, &projections).await, [""; 0]);

    let redrive = JobCommand::Redrive { reason: None };
    world.applied("j", redrive).await;
    assert_eq!(due(&world, &projections).await, ["j start_by@9 +86400"]);
    assert_eq!(startable(&projections, world.store.now()).await, ["j"]);
    world.succeed("j", 2).await;
    assert_eq!(due(&world, &projections).await, [""; 0]);
}

#[tokio::test]
async fn an_external_job_has_timers_and_is_never_given_to_a_worker() {
    let world = World::new().await;
    world.postpaid("acme").await;
    let projections = world.projections().await.with_page_events(1);
    world.charge("j", "acme", EXTERNAL, 40).await;
    assert_eq!(due(&world, &projections).await, ["j start_by@0 +86400"]);
    world.fail("j", 1).await;
    assert_eq!(due(&world, &projections).await, [""; 0]);
    // A failed one comes to life again: its row is made from the start alone.
    world.applied("j", start()).await;
    assert_eq!(due(&world, &projections).await, ["j lease_until@4 +60"]);
    assert_eq!(
        startable(&projections, at("2030-01-01T00:00:00Z")).await,
        [""; 0]
    );
    let row = &world.tables().of("due")[0].clone();
    assert!(row.contains("acme") && row.contains("external"), "{row}");
    world.succeed("j", 2).await;
    assert_eq!(due(&world, &projections).await, [""; 0]);
}

#[tokio::test]
async fn lists_of_due_work_go_by_time_and_go_on_behind_a_row() {
    let world = World::new().await;
    world.postpaid("acme").await;
    for name in ["c", "a", "b"] {
        world.charge(name, "acme", CLAIMED, 1).await;
    }
    world.clock.advance(Duration::from_secs(1));
    world.charge("later", "acme", EXTERNAL, 1).await;
    let projections = world.project().await;
    let day = Duration::from_secs(24 * 3600);
    let first_deadline = at(crate::world::NOON).after(day);
    let now = first_deadline;
    let (mut found, mut last) = (Vec::new(), None);
    loop {
        let page = projections.expired(now, last.as_ref(), 2).await.unwrap();
        found.extend(page.iter().map(|row| row.job.to_string()));
        last = page.last().cloned();
        if page.len() < 2 {
            break;
        }
    }
    // Of one deadline in the order of the ids; the last one has a second left.
    assert_eq!(found, ["a", "b", "c"]);
    let next = projections.next_deadline(now).await.unwrap();
    assert_eq!(next, Some(now.after(Duration::from_secs(1))));
    let just_before = Timestamp::from_micros(first_deadline.as_micros() - 1);
    let none = projections.expired(just_before, None, 2).await.unwrap();
    assert_eq!(none, []);
    let kinds = [Kind::new(CLAIMED).unwrap(), Kind::new("chat").unwrap()];
    let some = projections.startable(&kinds, now, 2).await.unwrap();
    assert_eq!(some, [job("a"), job("b")]);
}

async fn letters(projections: &Projections, filter: &DeadLetterFilter) -> Vec<DeadLetterRow> {
    projections.catch_up().await.unwrap();
    let page = projections.dead_letters(filter, None, 100).await;
    page.unwrap().rows
}

#[tokio::test]
async fn a_dead_letter_says_whose_it_is_and_why() {
    let world = World::new().await;
    for payer in ["acme", "other"] {
        world.postpaid(payer).await;
    }
    // One runs out of attempts, one is never started, one ends as failed: that is no dead letter.
    world.charge("capped", "acme", CLAIMED, 40).await;
    for attempt in [1, 2] {
        world.applied("capped", start()).await;
        let reason = Some(Reason::new(format!("oom {attempt}")).unwrap());
        let class = FailureClass::Retryable;
        let attempt = Attempt::new(attempt);
        world
            .applied(
                "capped",
                JobCommand::Fail {
                    attempt,
                    class,
                    reason,
                },
            )
            .await;
        world.clock.advance(Duration::from_secs(10));
    }
    world.charge("waiting", "other", CLAIMED, 7).await;
    world.charge("terminal", "acme", CLAIMED, 1).await;
    world.applied("terminal", start()).await;
    world
        .applied("terminal", fail(1, FailureClass::Terminal))
        .await;
    world.clock.advance(Duration::from_secs(24 * 3600));
    let expire = world.timer("waiting").await.unwrap();
    world.applied("waiting", expire).await;
    let projections = world.projections().await.with_page_events(1);
    let all = letters(&projections, &DeadLetterFilter::default()).await;
    let shown: Vec<_> = all
        .iter()
        .map(|row| {
            let whose = (row.job.as_str(), row.account.as_str(), row.cost);
            (whose, row.cause, row.attempts, row.reason.as_deref())
        })
        .collect();
    let expected = [
        (("capped", "acme", 40), "cap_reached", 2, Some("oom 2")),
        (("waiting", "other", 7), "not_started", 0, None),
    ];
    assert_eq!(shown, expected);
    assert_eq!(projections.open_dead_letters().await.unwrap(), 2);
    let of = |filter| letters(&projections, filter);
    let acme = DeadLetterFilter {
        account: Some(account("acme")),
        kind: Some(Kind::new(CLAIMED).unwrap()),
        ..DeadLetterFilter::default()
    };
    assert_eq!(of(&acme).await, all[..1]);
    let before = DeadLetterFilter {
        before: Some(all[1].dead_lettered_at),
        ..DeadLetterFilter::default()
    };
    assert_eq!(of(&before).await, all[..1]);
    let chat = DeadLetterFilter {
        kind: Some(Kind::new("chat").unwrap()),
        ..DeadLetterFilter::default()
    };
    assert_eq!(of(&chat).await, []);
}

#[tokio::test]
async fn a_dead_letter_is_one_until_it_is_redriven_ended_or_delivered() {
    let world = World::new().await;
    world.postpaid("acme").await;
    let projections = world.projections().await;
    let all = DeadLetterFilter::default();
    for (name, end) in [
        ("redriven", JobCommand::Redrive { reason: None }),
        ("discarded", JobCommand::Discard { reason: None }),
        ("cancelled", JobCommand::Cancel { reason: None }),
        ("delivered", succeed(2)),
    ] {
        world.die(name, "acme").await;
        let rows = letters(&projections, &all).await;
        assert_eq!((rows.len(), rows[0].job.as_str()), (1, name));
        world.applied(name, end).await;
        assert_eq!(letters(&projections, &all).await, [], "{name}");
    }
    // A round of its own: the same job again, at another place.
    for attempt in [3, 4] {
        world.applied("redriven", start()).await;
        world.fail("redriven", attempt).await;
        world.clock.advance(Duration::from_secs(6));
    }
    let rows = letters(&projections, &all).await;
    assert_eq!((rows.len(), rows[0].attempts), (1, 4));
}
