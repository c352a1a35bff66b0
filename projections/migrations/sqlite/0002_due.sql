-- Every live job with the timer that ends its state. A job that ends leaves no row.
CREATE TABLE due (
    job TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    kind TEXT NOT NULL,
    mode TEXT NOT NULL, -- external, claimed
    state TEXT NOT NULL, -- queued, running, retry_scheduled
    timer TEXT NOT NULL, -- start_by, lease_until, give_up_at
    armed_at INTEGER NOT NULL, -- revision of the event that set the timer
    deadline INTEGER NOT NULL, -- when the timer runs out, microseconds since 1970
    startable_at INTEGER, -- from when a worker may start it; NULL where none may
    attempt INTEGER NOT NULL, -- the highest so far; 0 before the first
    last_position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A row of an index ends with the job: each is in the order that its list is read in.
CREATE INDEX due_deadline ON due (deadline);
CREATE INDEX due_startable ON due (startable_at) WHERE startable_at IS NOT NULL;
CREATE INDEX due_kind_startable ON due (kind, startable_at) WHERE startable_at IS NOT NULL;

-- Jobs that ran out of attempts or time, and wait for a person. One that is redriven, ended or delivered leaves no row.
CREATE TABLE dead_letters (
    position INTEGER PRIMARY KEY, -- of the event that made it one
    job TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    kind TEXT NOT NULL,
    cost INTEGER NOT NULL,
    cause TEXT NOT NULL, -- cap_reached, window_closed, not_started
    attempts INTEGER NOT NULL, -- the highest attempt
    reason TEXT, -- of the last failure
    dead_lettered_at INTEGER NOT NULL -- microseconds since 1970
) STRICT;

-- A row of an index ends with the position: each is in the order of the list.
CREATE INDEX dead_letters_account ON dead_letters (account);
CREATE INDEX dead_letters_kind ON dead_letters (kind);
