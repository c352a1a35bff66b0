//! Every statement that reads rows goes by an index that is in its order: what SQLite's planner says, held fast.

use rusqlite::Connection;

use crate::catalog::MIGRATIONS;
use crate::{daily_usage, dead_letters, due, entries, jobs, queries, standing, ways_out};

/// (statement, how it is carried out)
fn expected() -> Vec<(&'static str, &'static str)> {
    let [oldest, newest] = queries::JOBS;
    let jobs_from = |statements: [&'static str; 4], place: &str| {
        let plans: [&'static str; 4] = match place {
            ">" => [
                "SEARCH jobs USING INTEGER PRIMARY KEY (rowid>?)",
                "SEARCH jobs USING INDEX jobs_account (account=? AND rowid>?)",
                "SEARCH jobs USING INDEX jobs_state (state=? AND rowid>?)",
                "SEARCH jobs USING INDEX jobs_account_state (account=? AND state=? AND rowid>?)",
            ],
            _ => [
                "SEARCH jobs USING INTEGER PRIMARY KEY (rowid<?)",
                "SEARCH jobs USING INDEX jobs_account (account=? AND rowid<?)",
                "SEARCH jobs USING INDEX jobs_state (state=? AND rowid<?)",
                "SEARCH jobs USING INDEX jobs_account_state (account=? AND state=? AND rowid<?)",
            ],
        };
        statements.into_iter().zip(plans)
    };
    let mut expected = vec![
        (
            queries::ENTRIES,
            "SEARCH entries USING INDEX entries_account (account=? AND rowid>?)",
        ),
        (
            queries::LATEST_ENTRIES,
            "SEARCH entries USING INDEX entries_account (account=? AND rowid<?)",
        ),
        (
            queries::USAGE,
            "SEARCH daily_usage USING PRIMARY KEY (account=? AND day>? AND day<?)",
        ),
        (
            queries::CONTRADICTIONS,
            "SEARCH contradictions USING INTEGER PRIMARY KEY (rowid>?)",
        ),
        (
            entries::LAST_OF,
            "SEARCH entries USING INDEX entries_account (account=?)",
        ),
        (
            daily_usage::LOAD,
            "SEARCH daily_usage USING PRIMARY KEY (account=? AND day=? AND kind=?)",
        ),
        (
            jobs::LOAD,
            "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (job=?)",
        ),
        (
            standing::DEAD_LETTERS,
            "CO-ROUTINE waiting\nSCAN dead_letters USING COVERING INDEX dead_letters_kind\nSCAN waiting",
        ),
        (
            standing::LAST_REBUILD,
            "SEARCH rebuild_runs USING INDEX rebuild_runs_hourly (origin=? AND state=?)",
        ),
        (
            standing::FIRST_DEADLINE,
            "SEARCH due USING COVERING INDEX due_deadline",
        ),
        (
            ways_out::RECORDS,
            "SEARCH projection_skips USING INDEX projection_skips_projection (projection=?)",
        ),
        (
            jobs::MOVE,
            "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
        ),
        (
            jobs::UPDATE,
            "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
        ),
    ];
    expected.extend(row_plans());
    expected.extend(crate::due::PLANS);
    expected.extend(dead_letters::LISTS);
    expected.extend(crate::audit::PLANS);
    expected.extend(jobs_from(oldest, ">"));
    expected.extend(jobs_from(newest, "<"));
    expected
}

/// Statements on rows that come and go.
fn row_plans() -> [(&'static str, &'static str); 3] {
    [
        (due::LOAD, "SEARCH due USING PRIMARY KEY (job=?)"),
        (
            dead_letters::LOAD,
            "SEARCH dead_letters USING COVERING INDEX sqlite_autoindex_dead_letters_1 (job=?)",
        ),
        (
            entries::TAKEN,
            "SEARCH entries USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        ),
    ]
}

/// (statement on many keys, two of them, how its table is searched)
fn key_plans() -> [(&'static str, &'static str, &'static str); 7] {
    let jobs = "(?1), (?2)";
    [
        (
            entries::LAST_OF_EACH,
            jobs,
            "SEARCH entries USING COVERING INDEX entries_account (account=?)\nSEARCH entries USING INDEX entries_account (account=?)",
        ),
        (
            daily_usage::LOAD_EACH,
            "(?1, ?2, ?3), (?4, ?5, ?6)",
            "SEARCH daily_usage USING PRIMARY KEY (account=? AND day=? AND kind=?)",
        ),
        (
            jobs::LOAD_EACH,
            jobs,
            "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (job=?)",
        ),
        (due::LOAD_EACH, jobs, "SEARCH due USING PRIMARY KEY (job=?)"),
        (
            due::DELETE_EACH,
            jobs,
            "SEARCH due USING PRIMARY KEY (job=?)",
        ),
        (
            dead_letters::LOAD_EACH,
            jobs,
            "SEARCH dead_letters USING COVERING INDEX sqlite_autoindex_dead_letters_1 (job=?)",
        ),
        (
            dead_letters::DELETE_EACH,
            jobs,
            "SEARCH dead_letters USING COVERING INDEX sqlite_autoindex_dead_letters_1 (job=?)",
        ),
    ]
}

/// A database with every table, and nothing in them.
fn tables() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    for migration in MIGRATIONS.sqlite {
        connection.execute_batch(migration.sql).unwrap();
    }
    connection
}

fn steps(connection: &Connection, sql: &str) -> Vec<String> {
    let explain = format!("EXPLAIN QUERY PLAN {sql}");
    let mut statement = connection.prepare(&explain).unwrap();
    // Its parameters stay unbound: a plan needs no values.
    let mut rows = statement.raw_query();
    let mut steps: Vec<String> = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        steps.push(row.get(3).unwrap());
    }
    steps
}

#[test]
fn every_statement_goes_by_an_index_in_its_order() {
    let connection = tables();
    for (sql, expected) in expected() {
        // As a rule one step: no table is scanned, and nothing is sorted.
        assert_eq!(steps(&connection, sql).join("\n"), expected, "{sql}");
    }
}

#[test]
fn every_statement_on_many_keys_searches_for_each() {
    let connection = tables();
    for (sql, keys, expected) in key_plans() {
        let steps = steps(&connection, &sql.replace(":keys", keys));
        // The keys are a list that is gone through, one by one.
        let is_of_keys = |step: &String| step.ends_with("VALUES CLAUSE");
        let is_of_rows = |step: &String| step.starts_with("SEARCH") || step.starts_with("SCAN");
        let found: Vec<String> = steps
            .into_iter()
            .filter(|step| is_of_rows(step) && !is_of_keys(step))
            .collect();
        assert_eq!(found.join("\n"), expected, "{sql}");
    }
}
