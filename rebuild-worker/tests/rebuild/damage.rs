//! Spoiled rows: all of them are found and repaired, and nothing else is touched.

use recoup::AccountId;
use recoup_projections::{Projection, SkipOutcome};
use recoup_rebuild_worker::rebuild::{Control, Mode, RebuildError, Window, rebuild};

use crate::world::{World, request};
use recoup::store::fresh::is_log_in_tables;

/// The row id order of `daily_usage` changes when a row is written again; this shows which rows were.
fn touched_rows(world: &World) -> i64 {
    let rows = world
        .fresh
        .table("SELECT count(*) FROM rebuild_differences");
    rows[0][0].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_drift_is_the_normal_state() {
    let world = World::new().await;
    world.days(3).await;
    world.catch_up().await;
    for window in [Window::default(), Window::All] {
        for mode in [Mode::Verify, Mode::Repair] {
            let run = world.rebuild(mode, window).await;
            assert_eq!((run.rows_different, run.worst_ratio), (0, Some(1.0)));
            assert!(run.rows_checked > 0);
        }
    }
    assert_eq!(touched_rows(&world), 0);
    world.is_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_were_altered_deleted_or_invented_are_found_and_repaired() {
    let world = World::new().await;
    world.days(3).await;
    world.catch_up().await;
    let spoil = [
        "UPDATE daily_usage SET charged = charged * 12 / 5 WHERE account = 'acct-0' AND kind = 'video' AND day = '2026-11-30'",
        "UPDATE daily_usage SET last_position = last_position + 1000 WHERE account = 'acct-1' AND kind = 'text' AND day = '2026-12-01'",
        "DELETE FROM daily_usage WHERE account = 'acct-2' AND kind = 'video' AND day = '2026-12-01'",
        "INSERT INTO daily_usage VALUES ('', '2026-11-30', 'video', 5, 0, 0, 1, 3)",
        "INSERT INTO daily_usage VALUES ('nobody', '2026-12-01', '', 0, 0, 0, 0, 0)",
    ];
    for sql in spoil {
        assert_eq!(world.sql(sql), 1, "{sql}");
    }
    // A day that is not in the window is not looked at.
    let outside = "UPDATE daily_usage SET jobs = 77 WHERE account = 'acct-0' AND kind = 'video' AND day = '2026-11-29'";
    assert_eq!(world.sql(outside), 1);

    let verified = world.rebuild(Mode::Verify, Window::default()).await;
    assert_eq!(verified.rows_different, 5);
    assert!(
        verified
            .worst_ratio
            .is_some_and(|ratio| (ratio - 2.4).abs() < 0.01)
    );
    let found = world.differences(&verified).await;
    let keys: Vec<(&str, Option<&str>, bool, bool)> = found
        .iter()
        .map(|found| {
            let (before, after) = (found.before.is_some(), found.after.is_some());
            (&*found.account, found.day.as_deref(), before, after)
        })
        .collect();
    let expected = [
        ("", Some("2026-11-30"), true, false),
        ("acct-0", Some("2026-11-30"), true, true),
        ("acct-1", Some("2026-12-01"), true, true),
        ("acct-2", Some("2026-12-01"), false, true),
        ("nobody", Some("2026-12-01"), true, false),
    ];
    assert_eq!(keys, expected);

    let repaired = world.rebuild(Mode::Repair, Window::default()).await;
    assert_eq!((repaired.rows_different, repaired.rows_recurring), (5, 0));
    assert_eq!(world.differences(&repaired).await.len(), 5);
    let clean = world.rebuild(Mode::Repair, Window::default()).await;
    assert_eq!(clean.rows_different, 0);
    assert_eq!(touched_rows(&world), 10, "5 shown and 5 repaired");

    let all = world.rebuild(Mode::Repair, Window::All).await;
    assert_eq!(all.rows_different, 1);
    world.is_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_figures_are_repaired_with_all_days() {
    let world = World::new().await;
    world.days(2).await;
    world.catch_up().await;
    let spoil = [
        "UPDATE account_state SET balance = balance + 7 WHERE account = 'acct-1'",
        "UPDATE account_month SET spent = 0 WHERE account = 'acct-2' AND month = '2026-11'",
        "DELETE FROM account_state WHERE account = 'acct-3'",
        "INSERT INTO account_state VALUES ('', 5, 0, 0, 0, NULL, 1)",
        "INSERT INTO account_month VALUES ('ghost', '2026-11', 1, 0, 0)",
        "UPDATE account_state SET reserved = 50 WHERE account = 'acct-4'",
    ];
    for sql in spoil {
        assert_eq!(world.sql(sql), 1, "{sql}");
    }
    // A run of some days says that a balance is not the sum of its entries, and repairs nothing there.
    let window = world.rebuild(Mode::Repair, Window::default()).await;
    let found = world.differences(&window).await;
    let balances: Vec<&str> = found.iter().map(|found| &*found.account).collect();
    assert_eq!(balances, ["acct-1", "acct-3"]);
    assert!(found.iter().all(|found| found.relation == "balance"));

    let all = world.rebuild(Mode::Repair, Window::All).await;
    let found = world.differences(&all).await;
    let figures: Vec<&str> = found
        .iter()
        .filter(|found| found.relation == "account_state")
        .map(|found| &*found.account)
        .collect();
    assert_eq!(
        figures,
        ["", "acct-1", "acct-2", "acct-3", "acct-4", "ghost"]
    );
    assert_eq!(world.different(Mode::Verify, Window::All).await, 0);
    world.is_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_account_can_be_rebuilt_alone() {
    let world = World::new().await;
    world.days(2).await;
    world.catch_up().await;
    world.sql("UPDATE daily_usage SET refunded = refunded + 1");
    world.sql("UPDATE account_state SET held = held + 1");
    for (window, different) in [(Window::default(), 4), (Window::All, 1)] {
        let mut request = request(Mode::Repair, window);
        request.account = Some(AccountId::new("acct-2").unwrap());
        let run = rebuild(&world.projections, &request, &Control::default())
            .await
            .unwrap();
        assert_eq!(run.rows_different, different);
    }
    let left = world.rebuild(Mode::Verify, Window::All).await;
    assert_eq!(
        left.rows_different,
        4 * 4 + 4,
        "those of the other accounts"
    );
    world.rebuild(Mode::Repair, Window::All).await;
    world.is_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_repaired_twice_running_is_recurring() {
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    let spoil =
        "UPDATE daily_usage SET charged = charged + 1 WHERE account = 'acct-0' AND kind = 'video'";
    for recurring in [0, 1, 1] {
        world.sql(spoil);
        world.rebuild(Mode::Verify, Window::default()).await;
        let run = world.rebuild(Mode::Repair, Window::default()).await;
        assert_eq!((run.rows_different, run.rows_recurring), (1, recurring));
    }
    // A clean repair between them, and it is a new fault.
    assert_eq!(world.different(Mode::Repair, Window::default()).await, 0);
    world.sql(spoil);
    let run = world.rebuild(Mode::Repair, Window::default()).await;
    assert_eq!((run.rows_different, run.rows_recurring), (1, 0));
    world.is_right().await;
}

/// More differences than one transaction takes.
#[tokio::test(flavor = "multi_thread")]
async fn many_differences_are_repaired_some_at_a_time() {
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    world.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
        INSERT INTO daily_usage SELECT 'ghost-' || CAST(10000 + i AS TEXT), '2026-11-29', 'video', i, 0, 0, 1, i FROM n",
    );
    world.sql("UPDATE daily_usage SET jobs = jobs + 1 WHERE account LIKE 'acct%'");
    let run = world.rebuild(Mode::Repair, Window::default()).await;
    assert_eq!(run.rows_different, 1_010);
    assert_eq!(touched_rows(&world), 1_010);
    world.is_right().await;
}

/// More rows than are read at a time, of every day and of one account: each is looked at once.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_compared_across_pages() {
    let world = World::new().await;
    world.days(2).await;
    world.catch_up().await;
    world.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4500)
        INSERT INTO daily_usage SELECT 'acct-2', '2026-11-' || CAST(29 + i % 2 AS TEXT), 'ghost-' || CAST(10000 + i AS TEXT),
            i, 0, 0, 1, i FROM n",
    );
    let whole = request(Mode::Verify, Window::All);
    let mut of_one = request(Mode::Repair, Window::default());
    of_one.account = Some(AccountId::new("acct-2").unwrap());
    // Rows of usage, account figures and balances that are right.
    for (request, right) in [(whole, 20 + 5 + 5), (of_one, 4 + 1)] {
        let control = Control::default();
        let run = rebuild(&world.projections, &request, &control).await;
        let run = run.unwrap();
        assert_eq!(run.rows_different, 4_500);
        assert_eq!(run.rows_checked, 4_500 + right);
    }
    world.is_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_another_definition_are_neither_compared_nor_repaired() {
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    let spoil = "UPDATE daily_usage SET charged = 1";
    world.sql(spoil);
    let before = world.shown();
    world.sql("UPDATE checkpoints SET definition = 'version 99, zone UTC' WHERE projection = 'daily_usage'");
    for mode in [Mode::Verify, Mode::Repair] {
        let (request, control) = (request(mode, Window::All), Control::default());
        let run = rebuild(&world.projections, &request, &control).await;
        let error = run.unwrap_err();
        assert!(matches!(error, RebuildError::Projection(_)), "{error}");
    }
    assert_eq!(world.shown(), before);
}

/// What a person had daily usage skip is in no row of it, and no difference.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_leaves_out_what_was_skipped() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    let head = recoup::EventStore::head(&world.store).await.unwrap();
    // The row is at the edge of 64 bits, so that the next charge cannot be added: the projection halts before it.
    world.sql("UPDATE daily_usage SET charged = 9223372036854775807 WHERE account = 'acct-0' AND kind = 'video'");
    world.usage("acct-0", "video", 40).await;
    world.catch_up().await;
    let skipped = world
        .projections
        .skip(
            Projection::DailyUsage,
            recoup::Position::new(head.get() + 1),
            (reason(), "ops".to_owned()),
        )
        .await
        .unwrap();
    assert!(matches!(skipped, SkipOutcome::Skipped(ref skip) if skip.position > head));
    world.catch_up().await;
    let run = world.rebuild(Mode::Repair, Window::default()).await;
    assert_eq!(run.rows_different, 1, "the spoilt row");
    let charged = world.shown()[&(
        "acct-0".to_owned(),
        "2026-11-29".to_owned(),
        "video".to_owned(),
    )]
        .0;
    let counted = world.counted()[&(
        "acct-0".to_owned(),
        "2026-11-29".to_owned(),
        "video".to_owned(),
    )]
        .0;
    assert_eq!(charged, counted - 40, "all but the skipped charge");
    assert_eq!(world.different(Mode::Verify, Window::All).await, 0);
    // Made anew, it is all there.
    world
        .projections
        .reset(Projection::DailyUsage, (None, "ops".to_owned()))
        .await
        .unwrap();
    assert_eq!(world.different(Mode::Verify, Window::All).await, 0);
    world.is_right().await;
}

fn reason() -> recoup::Reason {
    recoup::Reason::new("it is being looked at").unwrap()
}

/// What entries cannot get past is the trouble of entries: usage is compared and repaired all the same, and no balance is called wrong.
#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_entries_is_no_trouble_for_usage() {
    if !is_log_in_tables() {
        return;
    }
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    let head = recoup::EventStore::head(&world.store).await.unwrap().get();
    // A row stands where the next entry has to be: entries halt there, and daily usage goes on.
    world.sql(&format!(
        "INSERT INTO entries VALUES ({}, 'nobody', 'grant', 0, 0, NULL, NULL, NULL, NULL, 0, NULL)",
        head + 1
    ));
    world.usage("acct-0", "video", 40).await;
    world.catch_up().await;
    assert_eq!(world.different(Mode::Verify, Window::default()).await, 0);
    world.sql("UPDATE daily_usage SET jobs = jobs + 1 WHERE account = 'acct-1' AND kind = 'text'");
    assert_eq!(world.different(Mode::Repair, Window::default()).await, 1);
    // The row is taken away and the entry skipped: the statement lacks it by decision, and that is no new drift in every hour.
    let skipped = world
        .projections
        .skip(
            Projection::Entries,
            recoup::Position::new(head + 1),
            (reason(), "ops".to_owned()),
        )
        .await
        .unwrap();
    assert!(matches!(skipped, SkipOutcome::Skipped(_)));
    world.catch_up().await;
    assert_eq!(world.different(Mode::Repair, Window::default()).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_of_another_account_between_them_hides_no_recurrence() {
    let world = World::new().await;
    world.days(2).await;
    world.catch_up().await;
    let spoil = "UPDATE daily_usage SET charged = charged + 1 WHERE account = 'acct-0' AND kind = 'video' AND day = '2026-11-30'";
    world.sql(spoil);
    assert_eq!(world.recurring(Mode::Repair, Window::default()).await, 0);
    let mut of_another = request(Mode::Repair, Window::default());
    of_another.account = Some(AccountId::new("acct-1").unwrap());
    let before = recoup::Day::parse("2026-11-29").unwrap();
    let of_another_day = request(Mode::Repair, Window::days(before, before).unwrap());
    for request in [of_another, of_another_day] {
        let run = rebuild(&world.projections, &request, &Control::default()).await;
        assert_eq!(run.unwrap().rows_different, 0);
    }
    world.sql(spoil);
    assert_eq!(world.recurring(Mode::Repair, Window::default()).await, 1);
}

/// The sum of an account's entries leaves 64 bits: it is found, and keeps no other row from being repaired.
#[tokio::test(flavor = "multi_thread")]
async fn entries_that_cannot_be_summed_keep_no_usage_from_its_repair() {
    let world = World::new().await;
    world.days(1).await;
    world.catch_up().await;
    world.sql(&format!(
        "UPDATE entries SET amount = {} WHERE account = 'acct-0'",
        i64::MAX
    ));
    world.sql(
        "UPDATE daily_usage SET charged = charged + 7 WHERE account = 'acct-0' AND kind = 'text'",
    );
    let run = world.rebuild(Mode::Repair, Window::All).await;
    let found = world.differences(&run).await;
    let relations: Vec<&str> = found.iter().map(|found| &*found.relation).collect();
    assert_eq!(relations, ["balance", "daily_usage"]);
    assert_eq!(world.shown(), world.counted());
}
