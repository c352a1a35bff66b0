//! Every statement that reads rows goes by an index that is in its order: what SQLite's planner says, held fast.

use rusqlite::Connection;

use crate::catalog::MIGRATIONS;
use crate::{daily_usage, entries, jobs, queries, standing, ways_out};

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
            "SEARCH jobs USING COVERING INDEX jobs_state (state=?)",
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
    expected.extend(crate::audit::PLANS);
    expected.extend(jobs_from(oldest, ">"));
    expected.extend(jobs_from(newest, "<"));
    expected
}

#[test]
fn every_statement_goes_by_an_index_in_its_order() {
    let connection = Connection::open_in_memory().unwrap();
    for migration in MIGRATIONS {
        connection.execute_batch(migration.sql).unwrap();
    }
    for (sql, expected) in expected() {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        let mut statement = connection.prepare(&explain).unwrap();
        // Its parameters stay unbound: a plan needs no values.
        let mut rows = statement.raw_query();
        let mut steps: Vec<String> = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push(row.get(3).unwrap());
        }
        // One step: no table is scanned, and nothing is sorted.
        assert_eq!(steps, [expected], "{sql}");
    }
}
