//! Somebody changed a row. The audit says which one, what it should be and what it is.

use recoup_projections::Projection;

use crate::audit::texts;
use crate::world::{CLAIMED, EXTERNAL, World, audit};
use recoup::store::fresh::is_log_in_tables;

/// Four entries of acme, one of other, a contradiction: positions are 1 and 2 for limits, 3 for j1's charge, 4 to 6 for its failure,
/// 7 and 8 for its late success, 9 for j2's charge, 10 for the contradiction.
async fn world() -> World {
    let world = World::new().await;
    for payer in ["acme", "other"] {
        world.postpaid(payer).await;
    }
    world.charge("j1", "acme", EXTERNAL, 40).await;
    world.fail("j1", 1).await;
    world.succeed("j1", 1).await;
    world.charge("j2", "other", CLAIMED, 2).await;
    let noted = world
        .try_on("j1", crate::world::fail(1, recoup::FailureClass::Retryable))
        .await;
    assert_eq!(noted.name(), "noted");
    world.project().await;
    world
}

/// (what is done, what the audit says)
const ROWS: &[(&str, &[&str])] = &[
    (
        "UPDATE entries SET balance = 1, reason = 'x' WHERE position = 8",
        &[
            "entries: position 8: the row differs: expected balance -40, reason none, found balance 1, reason x",
        ],
    ),
    (
        "DELETE FROM entries WHERE position = 5",
        &[
            "entries: position 5: the row is missing: expected account acme, type refund, amount 40, balance 0, job j1, kind audio.transcribe, ref none, reason none, posted_at 1795953600000000, charged_at 1795953600000000",
        ],
    ),
    (
        "DELETE FROM entries WHERE position = 9",
        &[
            "entries: position 9: the row is missing: expected account other, type charge, amount -2, balance -2, job j2, kind video.render, ref none, reason none, posted_at 1795953600000000, charged_at 1795953600000000",
        ],
    ),
    (
        "INSERT INTO entries VALUES (4, 'acme', 'grant', 5, 5, NULL, NULL, 'g', NULL, 0, NULL)",
        &[
            "entries: position 4: the log has nothing for this row: found account acme, type grant, amount 5, balance 5, job none, kind none, ref g, reason none, posted_at 0, charged_at none",
        ],
    ),
    (
        "INSERT INTO entries SELECT 99, account, type, amount, balance, job, kind, ref, NULL, 0, 0 FROM entries WHERE position = 9",
        &[
            "entries: position 99: the log has nothing for this row: found account other, type charge, amount -2, balance -2, job j2, kind video.render, ref none, reason none, posted_at 0, charged_at 0",
        ],
    ),
    (
        "UPDATE daily_usage SET charged = 39 WHERE account = 'acme'",
        &[
            "daily_usage: acme, 2026-11-29, audio.transcribe: the row differs: expected charged 40, found charged 39",
        ],
    ),
    (
        "DELETE FROM daily_usage WHERE account = 'other'",
        &[
            "daily_usage: other, 2026-11-29, video.render: the row is missing: expected charged 2, refunded 0, reclaimed 0, jobs 1, last_position 9",
        ],
    ),
    (
        "UPDATE daily_usage SET day = '2026-11-28' WHERE account = 'other'",
        &[
            "daily_usage: other, 2026-11-28, video.render: the log has nothing for this row: found charged 2, refunded 0, reclaimed 0, jobs 1, last_position 9",
            "daily_usage: other, 2026-11-29, video.render: the row is missing: expected charged 2, refunded 0, reclaimed 0, jobs 1, last_position 9",
        ],
    ),
    (
        "UPDATE jobs SET state = 'failed', held = 40 WHERE job = 'j1'",
        &[
            "job_rows: job j1: the row differs: expected state delivered, held 0, found state failed, held 40",
        ],
    ),
    (
        "DELETE FROM jobs WHERE job = 'j2'",
        &[
            "job_rows: job j2: the row is missing: expected account other, kind video.render, cost 2, state queued, money charged, attempt 0, held 0, charged_at 1795953600000000, updated_at 1795953600000000, opened 9, last_position 9",
        ],
    ),
    (
        "UPDATE jobs SET job = 'j3' WHERE job = 'j2'",
        &[
            "job_rows: job j3: the log has nothing for this row: found account other, kind video.render, cost 2, state queued, money charged, attempt 0, held 0, charged_at 1795953600000000, updated_at 1795953600000000, opened 9, last_position 9",
            "job_rows: job j2: the row is missing: expected account other, kind video.render, cost 2, state queued, money charged, attempt 0, held 0, charged_at 1795953600000000, updated_at 1795953600000000, opened 9, last_position 9",
        ],
    ),
    (
        "UPDATE contradictions SET signal = 'succeeded', account = 'other'",
        &[
            "contradictions: position 10: the row differs: expected account acme, signal failed, found account other, signal succeeded",
        ],
    ),
    (
        "DELETE FROM contradictions",
        &[
            "contradictions: position 10: the row is missing: expected job j1, account acme, signal failed, attempt 1, reason none, result none, posted_at 1795953600000000",
        ],
    ),
    (
        "UPDATE due SET deadline = 1, startable_at = NULL WHERE job = 'j2'",
        &[
            "due: job j2: the row differs: expected deadline 1796040000000000, startable_at 1795953600000000, found deadline 1, startable_at none",
        ],
    ),
    (
        // A live job without a timer.
        "DELETE FROM due WHERE job = 'j2'",
        &[
            "due: job j2: the row is missing: expected account other, kind video.render, mode claimed, state queued, timer start_by, armed_at 0, deadline 1796040000000000, startable_at 1795953600000000, attempt 0, last_position 9",
        ],
    ),
    (
        // A timer of a job that has ended.
        "INSERT INTO due SELECT 'j1', account, kind, mode, state, timer, armed_at, deadline, NULL, 1, 3 FROM due",
        &[
            "due: job j1: the log has nothing for this row: found account other, kind video.render, mode claimed, state queued, timer start_by, armed_at 0, deadline 1796040000000000, startable_at none, attempt 1, last_position 3",
        ],
    ),
    (
        "INSERT INTO dead_letters VALUES (9, 'j2', 'other', 'video.render', 2, 'cap_reached', 1, NULL, 0)",
        &[
            "dead_letters: job j2: the log has nothing for this row: found position 9, account other, kind video.render, cost 2, cause cap_reached, attempts 1, reason none, dead_lettered_at 0",
        ],
    ),
    (
        "UPDATE account_state SET balance = 0, held = 40 WHERE account = 'acme'",
        &[
            "account_state: acme: the row differs: expected balance -40, held 0, found balance 0, held 40",
        ],
    ),
    (
        "UPDATE account_state SET floor = 0 WHERE account = 'acme'",
        &["account_state: acme: the row differs: expected floor none, found floor 0"],
    ),
    (
        "UPDATE account_month SET spent = 39 WHERE account = 'acme'",
        &[
            "account_state: acme: the row differs: expected month 2026-11 (spent 40, held 0, reserved 0), found month 2026-11 (spent 39, held 0, reserved 0)",
        ],
    ),
    (
        "DELETE FROM account_state WHERE account = 'other'; DELETE FROM account_month WHERE account = 'other'",
        &[
            "account_state: other: the row is missing: expected balance -2, held 0, reserved 0, floor none, monthly_cap none, last_position 9, month 2026-11 (spent 2, held 0, reserved 0)",
        ],
    ),
    (
        "INSERT INTO account_state VALUES ('ghost', 5, 0, 0, 0, NULL, 1); INSERT INTO account_month VALUES ('nobody', '2026-11', 1, 2, 3)",
        &[
            "account_state: ghost: the log has nothing for this row: found balance 5, held 0, reserved 0, floor 0, monthly_cap none, last_position 1",
            "account_state: nobody, month 2026-11: the log has nothing for this row: found spent 1, held 2, reserved 3",
        ],
    ),
    (
        "UPDATE checkpoints SET definition = 'version 0, zone UTC' WHERE projection = 'entries'; DELETE FROM entries",
        &[
            "checkpoints: entries: projection entries was made as \"version 0, zone UTC\", this build makes \"version 1, zone UTC\": run the build that made it, or make it anew with this one (project reset entries)",
        ],
    ),
    (
        "DELETE FROM checkpoints WHERE projection = 'jobs'",
        &["checkpoints: jobs: has no checkpoint: its rows are not compared"],
    ),
];

#[tokio::test]
async fn a_changed_row_is_found() {
    if !is_log_in_tables() {
        return;
    }
    for (sql, expected) in ROWS {
        let world = world().await;
        world.sql(sql);
        let audit = audit(&world.store).await.unwrap();
        assert_eq!(texts(&audit), *expected, "{sql}");
        assert_eq!(audit.violations, expected.len() as u64, "{sql}");
    }
}

#[tokio::test]
async fn a_changed_dead_letter_is_found() {
    if !is_log_in_tables() {
        return;
    }
    let expected = [
        (
            "UPDATE dead_letters SET cause = 'not_started', attempts = 1",
            "dead_letters: job j: the row differs: expected cause cap_reached, attempts 2, found cause not_started, attempts 1",
        ),
        (
            "DELETE FROM dead_letters",
            "dead_letters: job j: the row is missing: expected position 9, account acme, kind video.render, cost 40, cause cap_reached, attempts 2, reason none, dead_lettered_at 1795953606000000",
        ),
    ];
    for (sql, expected) in expected {
        let world = World::new().await;
        world.postpaid("acme").await;
        world.die("j", "acme").await;
        world.project().await;
        world.sql(sql);
        assert_eq!(
            texts(&audit(&world.store).await.unwrap()),
            [expected],
            "{sql}"
        );
    }
}

/// The projections stop in the middle of an append, between an attempt's failure and what follows from it, as a kill between two batches leaves
/// them. They are stopped by an event that they cannot read, which the audit can.
#[tokio::test]
async fn tables_that_jobs_leave_are_compared_inside_an_append_too() {
    if !is_log_in_tables() {
        return;
    }
    for (event, behind) in [
        ("refunded", 4),
        ("retry_scheduled", 5),
        ("dead_lettered", 8),
    ] {
        let world = World::new().await;
        world.postpaid("acme").await;
        world.die("j", "acme").await;
        let swap = |from: &str, to: &str| {
            for row in world.fresh.table("SELECT position FROM appends") {
                let position = row[0].parse().unwrap();
                let body = world.body(position);
                let mut swapped = body.clone();
                while let Some(at) = swapped
                    .windows(from.len())
                    .position(|some| some == from.as_bytes())
                {
                    swapped[at..][..to.len()].copy_from_slice(to.as_bytes());
                }
                if swapped != body {
                    world.set_body(position, &swapped);
                }
            }
        };
        let (known, unknown) = (format!("job.{event}"), format!("jox.{event}"));
        swap(&known, &unknown);
        let projections = world.projections().await;
        let progress = projections.catch_up().await.unwrap();
        swap(&unknown, &known);
        let places: Vec<_> = progress
            .checkpoints
            .iter()
            .map(|at| at.position.get())
            .collect();
        assert_eq!(places, [behind; Projection::ALL.len()], "{event}");
        for check in ["due", "dead_letters"] {
            assert_eq!(findings(&world, check).await, [""; 0], "{event}");
        }
    }
}

/// The findings of one check, by the start of each.
async fn findings(world: &World, check: &str) -> Vec<String> {
    let audit = audit(&world.store).await.unwrap();
    let of_check = audit
        .findings
        .iter()
        .filter(|finding| finding.check == check);
    of_check.map(ToString::to_string).collect()
}

#[tokio::test]
async fn an_append_that_was_cut_out_leaves_holes() {
    if !is_log_in_tables() {
        return;
    }
    let world = world().await;
    world.sql("DELETE FROM appends WHERE position = 4");
    assert_eq!(
        findings(&world, "positions").await,
        ["positions: position 4: another event comes next: expected 4, found 7"]
    );
    assert_eq!(
        findings(&world, "streams").await,
        ["streams: job j1: event 7: revision 4 stands where revision 1 should"]
    );
}

#[tokio::test]
async fn a_stream_that_no_legal_history_has_is_found_once() {
    if !is_log_in_tables() {
        return;
    }
    let world = world().await;
    // The failure's three events are put in place of the success: its attempt has failed before, and a second refund would follow.
    world.sql(
        "UPDATE appends SET events = 3, body = (SELECT body FROM appends WHERE position = 4)
        WHERE position = 7; DELETE FROM appends WHERE position > 7",
    );
    let jobs = findings(&world, "jobs").await;
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    assert!(
        jobs[0].contains("event 7: event 4 (attempt_failed) cannot follow"),
        "{jobs:#?}"
    );
}

/// The late success's append, cut in two appends of one event each: the delivery, and the reclaim.
fn cut_success(world: &World) -> [String; 2] {
    let body = world.body(7);
    let text = b"recoup.job.reclaimed";
    let at = body.windows(text.len()).position(|some| some == text);
    // A body begins with its number of events; an event with its id of 16 bytes and the length of its type's name.
    let (first, second) = body[1..].split_at(at.unwrap() - 18);
    [first, second].map(|event| world.fresh.literal(&[&[1], event].concat()))
}

const DELIVERED_REFUNDED: &str =
    "jobs: job j1: the job was delivered, and its refund was not taken back";

#[tokio::test]
async fn half_an_append_is_no_whole_job() {
    if !is_log_in_tables() {
        return;
    }
    let world = world().await;
    let [delivered, _] = cut_success(&world);
    world.sql(&format!(
        "UPDATE appends SET events = 1, body = {delivered} WHERE position = 7"
    ));
    world.sql("DELETE FROM appends WHERE position > 7");
    assert_eq!(findings(&world, "jobs").await, [DELIVERED_REFUNDED]);
}

#[tokio::test]
async fn a_job_is_whole_after_each_append_and_not_only_in_the_end() {
    if !is_log_in_tables() {
        return;
    }
    let world = world().await;
    let [delivered, reclaimed] = cut_success(&world);
    world.sql(&format!(
        "UPDATE appends SET events = 1, body = {delivered} WHERE position = 7"
    ));
    // The other half follows at once, by another command: all is well again, and was not in between.
    let metadata = r#"{"$correlationId":"j1","$causationId":"another"}"#;
    world.sql(&format!(
        "INSERT INTO appends SELECT 8, stream, revision + 1, 1, posted_at, '{metadata}', {reclaimed}
        FROM appends WHERE position = 7"
    ));
    assert_eq!(findings(&world, "jobs").await, [DELIVERED_REFUNDED]);
}

#[tokio::test]
async fn time_that_runs_back_is_found() {
    if !is_log_in_tables() {
        return;
    }
    let world = world().await;
    world.sql("UPDATE appends SET posted_at = 0 WHERE position = 9");
    assert_eq!(
        findings(&world, "positions").await,
        ["positions: event 9: posted at 1970-01-01T00:00:00.000000Z, before the event before it"]
    );
}

#[tokio::test]
async fn a_command_that_was_carried_out_twice_is_found() {
    if !is_log_in_tables() {
        return;
    }
    let world = world().await;
    world.sql(
        "UPDATE appends SET metadata = (SELECT metadata FROM appends WHERE position = 3)
        WHERE position = 7",
    );
    let jobs = findings(&world, "jobs").await;
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    assert!(jobs[0].ends_with("was carried out twice"), "{jobs:#?}");
}
