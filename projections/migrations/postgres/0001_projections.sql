-- How far each projection is. A batch's rows and its checkpoint are written in one transaction.
CREATE TABLE checkpoints (
    projection TEXT COLLATE "C" PRIMARY KEY,
    position BIGINT NOT NULL, -- of the last event that was applied or skipped; 0 before the first
    event_id TEXT COLLATE "C", -- of that event
    definition TEXT COLLATE "C" NOT NULL, -- what the rows were made by: code version and zone
    retired BIGINT NOT NULL, -- events of retired types that were skipped
    halted_at BIGINT, -- the event that stands in the way; NULL where none does
    halted_reason TEXT COLLATE "C",
    CHECK ((position = 0) = (event_id IS NULL)),
    CHECK ((halted_at IS NULL) = (halted_reason IS NULL))
);

-- The statement: one row for every event that moves money, in the order of the log.
CREATE TABLE entries (
    position BIGINT PRIMARY KEY,
    account TEXT COLLATE "C" NOT NULL,
    type TEXT COLLATE "C" NOT NULL, -- charge, refund, reclaim, grant, adjustment
    amount BIGINT NOT NULL, -- signed
    balance BIGINT NOT NULL, -- of the account, after this entry
    job TEXT COLLATE "C",
    kind TEXT COLLATE "C",
    ref TEXT COLLATE "C", -- id of the grant or the adjustment
    reason TEXT COLLATE "C",
    posted_at BIGINT NOT NULL, -- microseconds since 1970
    charged_at BIGINT -- of the job
);

-- In the order of an account's statement.
CREATE INDEX entries_account ON entries (account, position);

-- Sums by the day that an entry was posted on, in the ledger's zone. All of them positive.
CREATE TABLE daily_usage (
    account TEXT COLLATE "C" NOT NULL,
    day TEXT COLLATE "C" NOT NULL, -- YYYY-MM-DD
    kind TEXT COLLATE "C" NOT NULL,
    charged BIGINT NOT NULL,
    refunded BIGINT NOT NULL,
    reclaimed BIGINT NOT NULL,
    jobs BIGINT NOT NULL, -- charges
    last_position BIGINT NOT NULL,
    PRIMARY KEY (account, day, kind)
);

-- Where each job stands. Every index ends in the order in which jobs were charged.
CREATE TABLE jobs (
    opened BIGINT PRIMARY KEY, -- position of the charge
    job TEXT COLLATE "C" NOT NULL UNIQUE,
    account TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    cost BIGINT NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    money TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL, -- the highest so far; 0 before the first
    held BIGINT NOT NULL,
    charged_at BIGINT NOT NULL, -- microseconds since 1970
    updated_at BIGINT NOT NULL,
    last_position BIGINT NOT NULL
);

CREATE INDEX jobs_account ON jobs (account, opened);
CREATE INDEX jobs_state ON jobs (state, opened);
CREATE INDEX jobs_account_state ON jobs (account, state, opened);

-- Signals that contradicted what had happened.
CREATE TABLE contradictions (
    position BIGINT PRIMARY KEY,
    job TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    signal TEXT COLLATE "C" NOT NULL, -- failed, succeeded
    attempt BIGINT NOT NULL,
    reason TEXT COLLATE "C", -- of a claimed failure
    result TEXT COLLATE "C", -- of a claimed success
    posted_at BIGINT NOT NULL -- microseconds since 1970
);
