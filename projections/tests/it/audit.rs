//! The audit of ledgers that nobody has touched, and of events that cannot be read.

use recoup::store::Expected;
use recoup::{EventStore, JobCommand};
use recoup_projections::Projection;
use recoup_projections::audit::Audit;

use crate::world::{CLAIMED, EXTERNAL, World, audit, follows};
use recoup::store::fresh::is_log_in_tables;

pub(crate) fn texts(audit: &Audit) -> Vec<String> {
    audit.findings.iter().map(ToString::to_string).collect()
}

fn checked(audit: &Audit, name: &str) -> u64 {
    let check = audit.checks.iter().find(|check| check.name == name);
    check.unwrap().checked
}

#[tokio::test]
async fn an_untouched_ledger_has_no_violation() {
    let world = World::new().await;
    world.busy(600, 20).await;
    // Never projected, half projected, wholly projected: each table is compared where it is.
    assert_eq!(texts(&audit(&world.store).await.unwrap()), [""; 0]);
    world.project().await;
    world.busy(200, 21).await;
    world.die("given up", "acme").await;
    assert_eq!(texts(&audit(&world.store).await.unwrap()), [""; 0]);
    world.project().await;
    let audit = audit(&world.store).await.unwrap();
    assert_eq!(texts(&audit), [""; 0]);
    assert_eq!(audit.violations, 0);
    assert_eq!(audit.position, world.store.head().await.unwrap());
    assert_eq!(audit.events, world.events(usize::MAX).await as u64);
    for check in &audit.checks {
        assert!(check.checked > 0, "{} looked at something", check.name);
    }
}

#[tokio::test]
async fn an_empty_ledger_has_no_violation() {
    let world = World::new().await;
    assert_eq!(audit(&world.store).await.unwrap().violations, 0);
    world.project().await;
    let audit = audit(&world.store).await.unwrap();
    assert_eq!((audit.violations, audit.events), (0, 0));
}

#[tokio::test]
async fn live_jobs_have_timers() {
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("queued", "acme", CLAIMED, 1).await;
    world.charge("running", "acme", CLAIMED, 1).await;
    world
        .applied(
            "running",
            JobCommand::Start {
                worker: None,
                lease: None,
            },
        )
        .await;
    world.charge("failed", "acme", EXTERNAL, 1).await;
    world.fail("failed", 1).await;
    let audit = audit(&world.store).await.unwrap();
    assert_eq!(texts(&audit), [""; 0]);
    assert_eq!((checked(&audit, "jobs"), checked(&audit, "timers")), (3, 2));
}

#[tokio::test]
async fn an_unreadable_event_stops_the_fold_of_its_stream_and_account_only() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    for payer in ["acme", "other"] {
        world.postpaid(payer).await;
    }
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.charge("j2", "other", EXTERNAL, 40).await;
    let position = world.append_unknown("job-j1", follows(0)).await;
    world.fail("j2", 1).await;
    // Of another account, behind it: still compared.
    world.sql("UPDATE account_state SET balance = 7 WHERE account = 'other'");
    world.sql("UPDATE account_state SET balance = 7 WHERE account = 'acme'");
    let audit = audit(&world.store).await.unwrap();
    let texts = texts(&audit);
    assert_eq!(texts.len(), 2, "{texts:#?}");
    assert!(
        texts[0].starts_with(&format!(
            "events: stream job-j1: event {position} has the type"
        )),
        "{texts:#?}"
    );
    assert!(
        texts[0].ends_with("the fold of the stream and of account acme stops there"),
        "{texts:#?}"
    );
    assert_eq!(
        texts[1],
        "account_state: other: the row differs: expected balance 0, found balance 7"
    );
}

#[tokio::test]
async fn halted_projections_are_compared_where_they_stand_and_said_to_be_halted() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.append_unknown("job-j1", follows(0)).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    world.project().await;
    world.sql("UPDATE entries SET amount = -41");
    let texts = texts(&audit(&world.store).await.unwrap());
    let halted = texts
        .iter()
        .filter(|text| text.contains("halted before event 3"));
    let projections = Projection::ALL.len();
    assert_eq!(halted.count(), projections, "{texts:#?}");
    assert_eq!(texts.len(), projections + 2, "{texts:#?}");
    let row = "entries: position 2: the row differs: expected amount -40, found amount -41";
    assert!(texts.iter().any(|text| text == row), "{texts:#?}");
}

#[tokio::test]
async fn an_older_build_does_not_judge_what_it_cannot_read() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.append_unknown("job-new", Expected::NoStream).await;
    world.charge("j2", "acme", EXTERNAL, 2).await;
    let catalog = recoup::codec::Catalog::standard().clone();
    let newer = catalog.retire(crate::world::PAUSED.name);
    let projections = world.projections().await.with_catalog(newer);
    projections.catch_up().await.unwrap();
    let texts = texts(&audit(&world.store).await.unwrap());
    assert!(
        texts[0].contains("of every account, as nobody can tell whose it is"),
        "{texts:#?}"
    );
    let passed = texts
        .iter()
        .filter(|text| text.contains("claims to have passed event 3"));
    let projections = Projection::ALL.len();
    let found = (passed.count(), texts.len());
    assert_eq!(found, (projections, projections + 1), "{texts:#?}");
}

#[tokio::test]
async fn a_broken_append_ends_the_reading_and_says_so() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    for number in 0..20 {
        world
            .charge(&format!("j{number}"), "acme", EXTERNAL, 1)
            .await;
    }
    world.project().await;
    world.set_body(15, &[0]);
    let audit = audit(&world.store).await.unwrap();
    let texts = texts(&audit);
    assert_eq!(audit.events, 14);
    assert!(texts[0].starts_with("events: event 15: "), "{texts:#?}");
    assert!(
        texts[0].ends_with("the log is not read any farther"),
        "{texts:#?}"
    );
}
