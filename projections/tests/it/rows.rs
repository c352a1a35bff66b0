//! What stands in the rows, by the history that led to them.

use recoup::{Attempt, CommandId, FailureClass, JobCommand, JobResult, Reason};
use recoup_projections::{EntryType, JobFilter};

use crate::world::{CLAIMED, EXTERNAL, World, account, fail, succeed};

#[tokio::test]
async fn a_statement_has_every_entry_with_its_running_balance() {
    let world = World::new().await;
    world.grant("acme", "welcome", 100).await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.fail("j1", 1).await;
    world.charge("j2", "acme", CLAIMED, 60).await;
    world.succeed("j1", 1).await;
    world.adjust("acme", "fix", -3, Some("j1")).await;
    world.grant("other", "welcome", 7).await;

    let projections = world.project().await;
    let page = projections
        .entries(&account("acme"), None, 100)
        .await
        .unwrap();
    let shown: Vec<_> = page
        .rows
        .iter()
        .map(|row| {
            let job = row.job.as_ref().map(|job| job.as_str());
            (
                row.entry_type,
                row.amount,
                row.balance,
                job,
                row.reference.as_deref(),
            )
        })
        .collect();
    let expected = [
        (EntryType::Grant, 100, 100, None, Some("welcome")),
        (EntryType::Charge, -40, 60, Some("j1"), None),
        (EntryType::Refund, 40, 100, Some("j1"), None),
        (EntryType::Charge, -60, 40, Some("j2"), None),
        (EntryType::Reclaim, -40, 0, Some("j1"), None),
        (EntryType::Adjustment, -3, -3, Some("j1"), Some("fix")),
    ];
    assert_eq!(shown, expected);
    assert_eq!(page.next, None);
    let last = page.rows.last().unwrap();
    assert_eq!(last.reason.as_deref(), Some("a correction"));
    assert_eq!((last.kind.as_ref(), last.charged_at), (None, None));
    let refund = &page.rows[2];
    assert_eq!(refund.kind.as_ref().unwrap().as_str(), EXTERNAL);
    assert_eq!(refund.charged_at, Some(page.rows[1].posted_at));
    let other = projections
        .entries(&account("other"), None, 100)
        .await
        .unwrap();
    assert_eq!((other.rows.len(), other.rows[0].balance), (1, 7));
}

#[tokio::test]
async fn usage_counts_jobs_and_not_grants() {
    let world = World::new().await;
    world.grant("acme", "welcome", 100).await;
    world.adjust("acme", "fix", -3, None).await;
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.charge("j2", "acme", EXTERNAL, 5).await;
    world.charge("j3", "acme", CLAIMED, 6).await;
    world.fail("j1", 1).await;
    world.succeed("j1", 1).await;
    let projections = world.project().await;
    let usage = projections
        .usage(&account("acme"), None, None)
        .await
        .unwrap();
    let shown: Vec<_> = usage
        .iter()
        .map(|row| {
            let sums = (row.charged, row.refunded, row.reclaimed, row.net());
            (row.kind.as_str(), sums, row.jobs)
        })
        .collect();
    assert_eq!(
        shown,
        [(EXTERNAL, (45, 40, 40, 45), 2), (CLAIMED, (6, 0, 0, 6), 1)]
    );
}

#[tokio::test]
async fn a_jobs_row_goes_where_the_job_goes() {
    let world = World::new().await;
    world.postpaid("acme").await;
    let projections = world.projections().await.with_page_events(1);
    let row = async || {
        projections.catch_up().await.unwrap();
        let page = projections
            .jobs(JobFilter::default(), None, 10)
            .await
            .unwrap();
        let row = page.rows.into_iter().next().unwrap();
        (row.state, row.money, row.attempt, row.held, row.net())
    };
    let start = JobCommand::Start {
        worker: None,
        lease: None,
    };

    world.charge("j", "acme", CLAIMED, 40).await;
    assert_eq!(row().await, ("queued", "charged", 0, 0, -40));
    world.applied("j", start.clone()).await;
    assert_eq!(row().await, ("running", "charged", 1, 0, -40));
    world.fail("j", 1).await;
    assert_eq!(row().await, ("retry_scheduled", "refunded", 1, 40, 0));
    world.clock.advance(std::time::Duration::from_secs(600));
    world.applied("j", start.clone()).await;
    assert_eq!(row().await, ("running", "refunded", 2, 40, 0));
    world.fail("j", 2).await;
    assert_eq!(row().await, ("dead_lettered", "refunded", 2, 0, 0));
    world
        .applied("j", JobCommand::Redrive { reason: None })
        .await;
    assert_eq!(row().await, ("queued", "refunded", 2, 40, 0));
    world.applied("j", start).await;
    world.succeed("j", 3).await;
    assert_eq!(row().await, ("delivered", "reclaimed", 3, 0, -40));
}

#[tokio::test]
async fn a_row_is_updated_by_events_that_change_nothing_else() {
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j", "acme", CLAIMED, 40).await;
    world
        .applied(
            "j",
            JobCommand::Start {
                worker: None,
                lease: None,
            },
        )
        .await;
    world.clock.advance(std::time::Duration::from_secs(50));
    let attempt = Attempt::FIRST;
    world.applied("j", JobCommand::Extend { attempt }).await;
    let projections = world.project().await;
    let page = projections
        .jobs(JobFilter::default(), None, 10)
        .await
        .unwrap();
    let row = &page.rows[0];
    let since = row.updated_at.since(row.charged_at);
    assert_eq!((row.state, since.as_secs()), ("running", 50));
    assert!(row.opened < row.last_position);
}

#[tokio::test]
async fn contradictions_know_who_pays_and_what_was_claimed() {
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("delivered", "acme", EXTERNAL, 40).await;
    world.succeed("delivered", 1).await;
    world.charge("cancelled", "acme", EXTERNAL, 40).await;
    world
        .applied("cancelled", JobCommand::Cancel { reason: None })
        .await;
    let claims = [
        (
            "delivered",
            JobCommand::Fail {
                attempt: Attempt::FIRST,
                class: FailureClass::Terminal,
                reason: Some(Reason::new("out of memory").unwrap()),
            },
        ),
        (
            "cancelled",
            JobCommand::Succeed {
                attempt: Attempt::FIRST,
                result: Some(JobResult::new("s3://out").unwrap()),
            },
        ),
        // The same again is noted, and not recorded.
        ("cancelled", succeed(1)),
        ("delivered", fail(1, FailureClass::Retryable)),
    ];
    for (name, command) in claims {
        let job = crate::world::job(name);
        let outcome = world.ledger.job(CommandId::random(), job, command).await;
        assert_eq!(outcome.unwrap().name(), "noted");
    }
    let projections = world.project().await;
    let page = projections.contradictions(None, 10).await.unwrap();
    let shown: Vec<_> = page
        .rows
        .iter()
        .map(|row| {
            let said = (row.reason.as_deref(), row.result.as_deref());
            (
                row.job.as_str(),
                row.account.as_str(),
                row.signal,
                row.attempt,
                said,
            )
        })
        .collect();
    let expected = [
        (
            "delivered",
            "acme",
            "failed",
            1,
            (Some("out of memory"), None),
        ),
        (
            "cancelled",
            "acme",
            "succeeded",
            1,
            (None, Some("s3://out")),
        ),
    ];
    assert_eq!(shown, expected);
}
