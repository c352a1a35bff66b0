-- How far each projection is. A batch's rows and its checkpoint are written in one transaction.
CREATE TABLE checkpoints (
    projection TEXT PRIMARY KEY,
    position INTEGER NOT NULL, -- of the last event that was applied or skipped; 0 before the first
    event_id TEXT, -- of that event
    definition TEXT NOT NULL, -- what the rows were made by: code version and zone
    retired INTEGER NOT NULL, -- events of retired types that were skipped
    halted_at INTEGER, -- the event that stands in the way; NULL where none does
    halted_reason TEXT,
    CHECK ((position = 0) = (event_id IS NULL)),
    CHECK ((halted_at IS NULL) = (halted_reason IS NULL))
) STRICT, WITHOUT ROWID;

-- The statement: one row for every event that moves money, in the order of the log.
CREATE TABLE entries (
    position INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    type TEXT NOT NULL, -- charge, refund, reclaim, grant, adjustment
    amount INTEGER NOT NULL, -- signed
    balance INTEGER NOT NULL, -- of the account, after this entry
    job TEXT,
    kind TEXT,
    ref TEXT, -- id of the grant or the adjustment
    reason TEXT,
    posted_at INTEGER NOT NULL, -- microseconds since 1970
    charged_at INTEGER -- of the job
) STRICT;

-- A row of an index ends with the position: this one is in the order of an account's statement.
CREATE INDEX entries_account ON entries (account);

-- Sums by the day that an entry was posted on, in the ledger's zone. All of them positive.
CREATE TABLE daily_usage (
    account TEXT NOT NULL,
    day TEXT NOT NULL, -- YYYY-MM-DD
    kind TEXT NOT NULL,
    charged INTEGER NOT NULL,
    refunded INTEGER NOT NULL,
    reclaimed INTEGER NOT NULL,
    jobs INTEGER NOT NULL, -- charges
    last_position INTEGER NOT NULL,
    PRIMARY KEY (account, day, kind)
) STRICT, WITHOUT ROWID;

-- Where each job stands. Rows, and with them every index, are in the order in which jobs were charged.
CREATE TABLE jobs (
    opened INTEGER PRIMARY KEY, -- position of the charge
    job TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    kind TEXT NOT NULL,
    cost INTEGER NOT NULL,
    state TEXT NOT NULL,
    money TEXT NOT NULL,
    attempt INTEGER NOT NULL, -- the highest so far; 0 before the first
    held INTEGER NOT NULL,
    charged_at INTEGER NOT NULL, -- microseconds since 1970
    updated_at INTEGER NOT NULL,
    last_position INTEGER NOT NULL
) STRICT;

CREATE INDEX jobs_account ON jobs (account);
CREATE INDEX jobs_state ON jobs (state);
CREATE INDEX jobs_account_state ON jobs (account, state);

-- Signals that contradicted what had happened.
CREATE TABLE contradictions (
    position INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    account TEXT NOT NULL,
    signal TEXT NOT NULL, -- failed, succeeded
    attempt INTEGER NOT NULL,
    reason TEXT, -- of a claimed failure
    result TEXT, -- of a claimed success
    posted_at INTEGER NOT NULL -- microseconds since 1970
) STRICT;
