//! Projections, audit and rebuild over a log in KurrentDB: positions have holes, streams begin with what was ruled out, and pages are shown what the log says.

use std::sync::Arc;
use std::time::Duration;

use recoup::job::FailureClass;
use recoup::sql::Database;
use recoup::store::StoreError;
use recoup::{Attempt, EventStore, JobCommand, JobId, Ledger, Policies};
use recoup_kurrentdb_standin::AppendFate;
use recoup_projections::audit::audit;
use recoup_projections::{Projection, Projections, SkipOutcome};
use recoup_rebuild_worker::rebuild::{Control, Mode, Origin, Request, Run, Window, rebuild};

use crate::world::{World, charge, command, figures, grant, history, is_committed};

async fn run(ledger: &Ledger, id: &str, job: &str, command_on: JobCommand) {
    let job = JobId::new(job).expect("an id");
    let outcome = ledger.job(command(id), job, command_on).await;
    assert!(outcome.expect("it is answered").is_done());
}

/// Jobs that fail, come back late, and some that were ruled out before they were charged.
async fn busy(world: &World) -> Database {
    let store = world.open_with(world.hasty()).await.expect("it opens");
    grant(&store, "a", 1_000).await;
    for job in ["lost-1", "lost-2"] {
        world.standin.fail_appends([AppendFate::Cut]);
        let _ = store.append(charge(job, "a", 7, None)).await;
    }
    world.clock.advance(Duration::from_secs(61));
    assert_eq!(store.recover(Duration::from_secs(60)).await, Ok(2));
    let ledger = Ledger::new(Arc::new(store.clone()), Policies::default());
    for number in 0..12 {
        let job = format!("j{number}");
        let after = (number == 3).then_some(0);
        let name = if number == 3 { "lost-1" } else { job.as_str() };
        let append = charge(name, "a", 10 + number, after);
        assert!(is_committed(&store.append(append).await));
        let fail = JobCommand::Fail {
            attempt: Attempt::FIRST,
            class: FailureClass::Terminal,
            reason: None,
        };
        run(&ledger, &format!("f{number}"), name, fail).await;
        if number % 2 == 0 {
            let succeed = JobCommand::Succeed {
                attempt: Attempt::FIRST,
                result: None,
            };
            run(&ledger, &format!("s{number}"), name, succeed).await;
        }
        world.clock.advance(Duration::from_secs(150 * 60));
    }
    assert_eq!(history(&store, "lost-2").await, ["recoup.job.voided"]);
    assert_eq!(
        history(&store, "lost-1").await[..2],
        ["recoup.job.voided", "recoup.job.charged"]
    );
    store.into()
}

/// How many violations an audit finds, and which.
async fn violations(database: &Database) -> (u64, Vec<String>) {
    let audit = audit(database).await.expect("it is audited");
    let findings = audit.findings.iter().map(|it| format!("{it:?}"));
    (audit.violations, findings.collect())
}

/// The busy ledger with its figures and projections at the end of the log.
async fn projected(world: &World) -> (Database, Projections) {
    let database = busy(world).await;
    database.settle_figures().await.expect("they are settled");
    let projections = Projections::open(database.clone()).await;
    let projections = projections.expect("they open");
    projections.catch_up().await.expect("they catch up");
    (database, projections)
}

async fn carry_out(projections: &Projections, window: Window, mode: Mode) -> Run {
    let request = Request {
        window,
        mode,
        account: None,
        origin: Origin::Operator,
    };
    let run = rebuild(projections, &request, &Control::default()).await;
    run.expect("it is carried out")
}

fn tables(world: &World) -> Vec<Vec<Vec<String>>> {
    let tables = Projection::ALL.map(|projection| {
        let name = projection.name();
        world
            .fresh
            .table(&format!("SELECT * FROM {name} ORDER BY 1, 2, 3"))
    });
    let figures = ["account_state", "account_month"].map(|name| {
        world
            .fresh
            .table(&format!("SELECT * FROM {name} ORDER BY 1, 2"))
    });
    tables.into_iter().chain(figures).collect()
}

/// Figures that are behind the projections are compared, and would be repaired, where they stand: what they fold later they have once.
#[tokio::test]
async fn a_rebuild_of_everything_leaves_figures_alone_that_are_behind() {
    let world = World::new(1).await;
    let (database, projections) = projected(&world).await;
    let store = world.open().await;
    for job in ["k1", "k2"] {
        assert!(is_committed(
            &store.append(charge(job, "a", 20, None)).await
        ));
    }
    let before = figures(&store, "a").await.balance;
    // Whoever folds fails from now on.
    world
        .fresh
        .execute("ALTER TABLE followed_streams RENAME TO held_streams");
    // What gives credit back is answered before it is folded.
    let ledger = Ledger::new(Arc::new(store.clone()), Policies::default());
    for job in ["k1", "k2"] {
        let cancel = JobCommand::Cancel { reason: None };
        run(&ledger, &format!("cancel {job}"), job, cancel).await;
    }
    projections.catch_up().await.expect("they catch up");
    for mode in [Mode::Verify, Mode::Repair, Mode::Repair] {
        let run = carry_out(&projections, Window::All, mode).await;
        assert_eq!(run.rows_different, 0, "{run:?}");
    }
    // And what is wrong in them is repaired to what it was there.
    world
        .fresh
        .execute("UPDATE account_state SET balance = balance + 1 WHERE account = 'a'");
    let run = carry_out(&projections, Window::All, Mode::Repair).await;
    // The figures, and their balance beside the statement.
    assert_eq!(run.rows_different, 2, "{run:?}");
    world
        .fresh
        .execute("ALTER TABLE held_streams RENAME TO followed_streams");
    assert_eq!(figures(&store, "a").await.balance, before + 40);
    let found = violations(&database).await;
    assert_eq!(found, (0, Vec::new()));
}

/// What a person had the figures skip stands in the way of no rebuild: it makes them as they are.
#[tokio::test]
async fn a_rebuild_of_everything_leaves_out_what_figures_skipped() {
    let world = World::new(1).await;
    let (database, projections) = projected(&world).await;
    let store = world.open().await;
    let whole = figures(&store, "a").await.balance;
    world.put_unheard_of();
    let halted = store.settle_figures().await;
    let Err(StoreError::Corrupt { position, .. }) = halted else {
        panic!("{halted:?}");
    };
    let reason = || recoup::Reason::new("a person looked").expect("a reason");
    let skipped = store.skip_figures(position, &reason(), "ops").await;
    assert_eq!(skipped, Ok(true));
    projections.catch_up().await.expect("all but one event");
    let why = (reason(), "ops".to_owned());
    for projection in Projection::ALL {
        let skipped = projections.skip(projection, position, why.clone()).await;
        assert!(
            matches!(skipped, Ok(SkipOutcome::Skipped(_))),
            "{skipped:?}"
        );
    }
    grant(&store, "a", 3).await;
    database.settle_figures().await.expect("they are settled");
    projections.catch_up().await.expect("they catch up");
    let run = carry_out(&projections, Window::All, Mode::Verify).await;
    assert_eq!(run.rows_different, 0, "{run:?}");
    world
        .fresh
        .execute("UPDATE account_state SET held = 1 WHERE account = 'a'");
    let run = carry_out(&projections, Window::All, Mode::Repair).await;
    assert_eq!(run.rows_different, 1, "{run:?}");
    let after = figures(&store, "a").await;
    assert_eq!((after.balance, after.held), (whole + 3, 0));
}

#[tokio::test]
async fn pages_of_every_size_give_the_rows_of_one() {
    let world = World::new(1).await;
    let (_, projections) = projected(&world).await;
    let expected = tables(&world);
    assert!(expected.iter().take(3).all(|rows| !rows.is_empty()));
    for page in [1, 2, 7, 1_000] {
        for projection in Projection::ALL {
            let why = (None, "a test".to_owned());
            projections
                .reset(projection, why)
                .await
                .expect("it is reset");
        }
        let by_page = projections.clone().with_page_events(page);
        by_page.catch_up().await.expect("they catch up");
        assert_eq!(tables(&world), expected, "pages of {page}");
    }
}

/// A half projected ledger, a whole one, and figures that stand before, at and behind the projections: all of it agrees.
#[tokio::test]
async fn an_untouched_ledger_has_no_violation_wherever_its_tables_stand() {
    let world = World::new(1).await;
    let database = busy(&world).await;
    let violations = || violations(&database);
    assert_eq!(violations().await, (0, Vec::new()));
    database.settle_figures().await.expect("they are settled");
    assert_eq!(violations().await, (0, Vec::new()));
    let projections = Projections::open(database.clone())
        .await
        .expect("they open");
    projections.catch_up().await.expect("they catch up");
    assert_eq!(violations().await, (0, Vec::new()));
    world
        .fresh
        .execute("INSERT INTO reservations VALUES ('job-j1', 0, 'c', 'a', 5, NULL, 0)");
    let (count, findings) = violations().await;
    assert_eq!(count, 1, "{findings:?}");
    world.fresh.execute("DELETE FROM reservations");
    world
        .fresh
        .execute("UPDATE account_state SET balance = balance + 1");
    let (count, findings) = violations().await;
    assert_eq!(count, 1, "{findings:?}");
}

/// Rows that were altered, deleted and invented, in tables whose log is elsewhere: found, repaired, and clean afterwards.
#[tokio::test]
async fn a_rebuild_finds_and_repairs_what_differs() {
    let world = World::new(1).await;
    let (_, projections) = projected(&world).await;
    let before = tables(&world);
    for window in [Window::Last(2), Window::Last(30), Window::All] {
        let run = carry_out(&projections, window, Mode::Verify).await;
        assert_eq!(run.rows_different, 0, "{window:?}");
        assert!(run.rows_checked > 0, "{window:?}");
    }
    world.fresh.execute(
        "UPDATE daily_usage SET charged = charged * 12 / 5;
        INSERT INTO daily_usage VALUES ('ghost', '2026-11-30', 'video', 1, 0, 0, 1, 1);
        UPDATE account_state SET balance = balance - 1",
    );
    let verified = carry_out(&projections, Window::All, Mode::Verify).await;
    assert!(verified.rows_different >= 3, "{verified:?}");
    let repaired = carry_out(&projections, Window::All, Mode::Repair).await;
    assert_eq!(repaired.rows_different, verified.rows_different);
    assert_eq!(tables(&world), before);
    let again = carry_out(&projections, Window::All, Mode::Verify).await;
    assert_eq!(again.rows_different, 0);
    let audit = audit(projections.database()).await.expect("it is audited");
    assert_eq!(audit.violations, 0, "{:?}", audit.findings);
}

/// What stands beside the log and is no projection: each spoilt row is named.
#[tokio::test]
async fn an_audit_sees_what_was_changed_beside_the_log() {
    let world = World::new(1).await;
    let database = busy(&world).await;
    database.settle_figures().await.expect("they are settled");
    let violations = || violations(&database);
    assert_eq!(violations().await, (0, Vec::new()));
    let reserved = |values: &str| format!("INSERT INTO reservations VALUES ({values})");
    for (spoil, mend) in [
        (
            reserved("'job-new', 0, 'c', 'a', -5, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'job-new', 0, 'c', 'a', 0, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'job-new', 1, 'c', 'a', 5, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'job-j1', 0, 'c', 'a', 5, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'job-new', 0, 'c', 'a', 5, '2026-99', 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'job-new', 0, 'c', '', 5, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'job-new', 0, '', 'a', 5, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'grant-new', 0, 'c', 'a', 5, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            reserved("'not a stream', 0, 'c', 'a', 5, NULL, 0"),
            "DELETE FROM reservations",
        ),
        (
            "UPDATE followed_streams SET revision = revision + 1 WHERE stream = 'job-j1'"
                .to_owned(),
            "UPDATE followed_streams SET revision = revision - 1 WHERE stream = 'job-j1'",
        ),
        (
            "INSERT INTO followed_streams VALUES ('job-ghost', 0)".to_owned(),
            "DELETE FROM followed_streams WHERE stream = 'job-ghost'",
        ),
        (
            "UPDATE followed_hours SET position = position + 1 WHERE position > 0".to_owned(),
            "UPDATE followed_hours SET position = position - 1 WHERE position > 0",
        ),
        (
            "INSERT INTO followed_hours VALUES (1, 1)".to_owned(),
            "DELETE FROM followed_hours WHERE hour = 1",
        ),
        ("DELETE FROM followed_streams".to_owned(), ""),
    ] {
        world.fresh.execute(&spoil);
        let (count, findings) = violations().await;
        assert!(count > 0, "{spoil}: {findings:?}");
        if !mend.is_empty() {
            world.fresh.execute(mend);
            assert_eq!(violations().await, (0, Vec::new()), "{spoil}");
        }
    }
}

/// Without the hours a window cannot be found: then a rebuild reads all, and removes nothing that is right.
#[tokio::test]
async fn a_rebuild_without_hours_finds_nothing_wrong() {
    let world = World::new(1).await;
    let (database, projections) = projected(&world).await;
    let before = tables(&world);
    world.fresh.execute("DELETE FROM followed_hours");
    let repaired = carry_out(&projections, Window::Last(2), Mode::Repair).await;
    assert_eq!(repaired.rows_different, 0);
    assert!(repaired.rows_checked > 0);
    assert_eq!(tables(&world), before);
    let audit = audit(&database).await.expect("it is audited");
    assert!(audit.violations > 0);
}

/// A place that the log never gave is not an outage: who looks for it is told what is wrong, and where.
#[tokio::test]
async fn a_checkpoint_at_no_position_is_named() {
    let world = World::new(1).await;
    let (database, _) = projected(&world).await;
    world
        .fresh
        .execute("UPDATE checkpoints SET position = position + 1 WHERE projection = 'jobs'");
    let found = audit(&database).await.expect("it is audited");
    assert!(found.violations > 0);
    let findings = format!("{:?}", found.findings);
    assert!(findings.contains("jobs"), "{findings}");
    world
        .fresh
        .execute("UPDATE followed_log SET position = position + 1");
    let opened = world.open_with(world.options()).await;
    assert!(
        matches!(opened, Err(recoup::store::OpenError::Damaged { .. })),
        "{opened:?}"
    );
}
