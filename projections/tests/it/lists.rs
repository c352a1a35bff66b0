//! Lists are keyset pages: every row once, in order, whatever the size of a page and the filter.

use recoup::{JobCommand, Position};
use recoup_projections::{JobFilter, JobRow, MAX_PAGE_ROWS, Order, Projections, State};

use crate::world::{EXTERNAL, World, account};
use recoup::store::fresh::is_log_in_tables;

async fn all_jobs(projections: &Projections, filter: &JobFilter, limit: u32) -> Vec<JobRow> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = projections
            .jobs(filter.clone(), after, limit)
            .await
            .unwrap();
        assert!(page.rows.len() <= usize::try_from(limit).unwrap());
        rows.extend(page.rows);
        after = page.next;
        if after.is_none() {
            return rows;
        }
    }
}

fn names(rows: &[JobRow]) -> Vec<&str> {
    rows.iter().map(|row| row.job.as_str()).collect()
}

#[tokio::test]
async fn jobs_by_account_and_state_in_both_directions() {
    let world = World::new().await;
    for payer in ["acme", "other"] {
        world.postpaid(payer).await;
    }
    for (name, payer) in [
        ("a1", "acme"),
        ("o1", "other"),
        ("a2", "acme"),
        ("a3", "acme"),
    ] {
        world.charge(name, payer, EXTERNAL, 40).await;
    }
    world
        .applied("a2", JobCommand::Cancel { reason: None })
        .await;
    world.fail("o1", 1).await;
    let projections = world.project().await;
    let acme = Some(account("acme"));
    let cases: [(Option<_>, Option<_>, &[&str]); 6] = [
        (None, None, &["a1", "o1", "a2", "a3"]),
        (acme.clone(), None, &["a1", "a2", "a3"]),
        (None, Some(State::Queued), &["a1", "a3"]),
        (None, Some(State::Failed), &["o1"]),
        (acme.clone(), Some(State::Cancelled), &["a2"]),
        (acme, Some(State::Failed), &[]),
    ];
    for (account, state, expected) in cases {
        for limit in [1, 2, 100] {
            let filter = |order| JobFilter {
                account: account.clone(),
                state,
                order,
            };
            let oldest = all_jobs(&projections, &filter(Order::OldestFirst), limit).await;
            let newest = all_jobs(&projections, &filter(Order::NewestFirst), limit).await;
            assert_eq!(names(&oldest), expected, "{state:?} by {limit}");
            let reversed: Vec<_> = expected.iter().rev().copied().collect();
            assert_eq!(
                names(&newest),
                reversed,
                "{state:?} by {limit}, newest first"
            );
        }
    }
}

#[tokio::test]
async fn a_statement_is_read_from_either_end() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.postpaid("acme").await;
    for number in 1..=5 {
        world
            .charge(&format!("j{number}"), "acme", EXTERNAL, number)
            .await;
    }
    let projections = world.project().await;
    let acme = account("acme");
    let amounts = |rows: &[recoup_projections::EntryRow]| {
        rows.iter().map(|row| row.amount).collect::<Vec<_>>()
    };
    let first = projections.entries(&acme, None, 3).await.unwrap();
    let second = projections.entries(&acme, first.next, 3).await.unwrap();
    assert_eq!(amounts(&first.rows), [-1, -2, -3]);
    assert_eq!((amounts(&second.rows), second.next), (vec![-4, -5], None));
    let latest = projections.latest_entries(&acme, None, 3).await.unwrap();
    let earlier = projections
        .latest_entries(&acme, latest.next, 3)
        .await
        .unwrap();
    assert_eq!(amounts(&latest.rows), [-5, -4, -3]);
    assert_eq!((amounts(&earlier.rows), earlier.next), (vec![-2, -1], None));
    // A page that is exactly full is the last one, and says so.
    assert_eq!(
        projections.entries(&acme, None, 5).await.unwrap().next,
        None
    );
    let beyond = projections
        .entries(&acme, Some(Position::new(1_000)), 5)
        .await;
    assert!(beyond.unwrap().rows.is_empty());
}

#[tokio::test]
async fn an_odd_limit_is_brought_into_range() {
    let world = World::new().await;
    world.postpaid("acme").await;
    world.charge("j1", "acme", EXTERNAL, 1).await;
    world.charge("j2", "acme", EXTERNAL, 1).await;
    let projections = world.project().await;
    let jobs = async |limit| {
        projections
            .jobs(JobFilter::default(), None, limit)
            .await
            .unwrap()
    };
    assert_eq!(jobs(0).await.rows.len(), 1);
    assert_eq!(jobs(u32::MAX).await.rows.len(), 2);
    const { assert!(MAX_PAGE_ROWS >= 1_000) };
}

#[tokio::test]
async fn unknown_accounts_have_empty_lists() {
    let world = World::new().await;
    let projections = world.project().await;
    let nobody = account("nobody");
    assert!(
        projections
            .entries(&nobody, None, 10)
            .await
            .unwrap()
            .rows
            .is_empty()
    );
    assert!(
        projections
            .usage(&nobody, None, None)
            .await
            .unwrap()
            .is_empty()
    );
    let filter = JobFilter {
        account: Some(nobody),
        ..JobFilter::default()
    };
    assert!(
        projections
            .jobs(filter, None, 10)
            .await
            .unwrap()
            .rows
            .is_empty()
    );
    assert!(
        projections
            .contradictions(None, 10)
            .await
            .unwrap()
            .rows
            .is_empty()
    );
}
