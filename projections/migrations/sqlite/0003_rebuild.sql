-- A rebuild compares whole days: in the order of days, whatever the number of days that are over.
CREATE INDEX daily_usage_day ON daily_usage (day);

-- Every run of a rebuild.
CREATE TABLE rebuild_runs (
    run INTEGER PRIMARY KEY AUTOINCREMENT,
    mode TEXT NOT NULL, -- verify, repair
    origin TEXT NOT NULL, -- hourly, operator
    state TEXT NOT NULL, -- running, done, failed, cancelled, abandoned
    scope TEXT NOT NULL, -- window, all
    account TEXT, -- NULL for every account
    from_day TEXT NOT NULL, -- YYYY-MM-DD, included
    to_day TEXT NOT NULL, -- YYYY-MM-DD, included
    holder TEXT, -- the process that runs it
    started_at INTEGER NOT NULL, -- microseconds since 1970, like the other instants
    updated_at INTEGER NOT NULL,
    finished_at INTEGER,
    phase TEXT NOT NULL, -- fold, compare, repair, end
    position INTEGER NOT NULL, -- of the log, that the rows were compared at
    events_read INTEGER NOT NULL,
    events_total INTEGER NOT NULL, -- as estimated when the run began
    rows_checked INTEGER NOT NULL,
    rows_different INTEGER NOT NULL,
    rows_recurring INTEGER NOT NULL, -- of those, how many the repair before had repaired too
    worst_ratio REAL, -- charged as shown / as it should be, the one farthest from 1
    duration_ms INTEGER NOT NULL,
    error TEXT -- why it failed
) STRICT;

CREATE INDEX rebuild_runs_state ON rebuild_runs (state);
CREATE INDEX rebuild_runs_hourly ON rebuild_runs (origin, state);

-- Every key that a run found different; a repair stores it in the transaction that repairs it.
CREATE TABLE rebuild_differences (
    run INTEGER NOT NULL REFERENCES rebuild_runs (run),
    relation TEXT NOT NULL, -- daily_usage, account_state, balance
    account TEXT NOT NULL,
    day TEXT NOT NULL, -- empty where the relation has no days
    kind TEXT NOT NULL, -- empty where the relation has no kinds
    before TEXT, -- the row as it was found, as JSON; NULL for none
    after TEXT, -- the row as the log has it
    is_recurring INTEGER NOT NULL,
    PRIMARY KEY (run, relation, account, day, kind)
) STRICT, WITHOUT ROWID;

-- Which hour the scheduled rebuild has had, and which process is at it.
CREATE TABLE rebuild_schedule (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    hour INTEGER NOT NULL, -- the last hour that ended well, in hours since 1970 UTC
    holder TEXT,
    lease_until INTEGER NOT NULL -- microseconds since 1970
) STRICT;
