-- Every live job with the timer that ends its state. A job that ends leaves no row.
CREATE TABLE due (
    job TEXT COLLATE "C" PRIMARY KEY,
    account TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    mode TEXT COLLATE "C" NOT NULL, -- external, claimed
    state TEXT COLLATE "C" NOT NULL, -- queued, running, retry_scheduled
    timer TEXT COLLATE "C" NOT NULL, -- start_by, lease_until, give_up_at
    armed_at BIGINT NOT NULL, -- revision of the event that set the timer
    deadline BIGINT NOT NULL, -- when the timer runs out, microseconds since 1970
    startable_at BIGINT, -- from when a worker may start it; NULL where none may
    attempt BIGINT NOT NULL, -- the highest so far; 0 before the first
    last_position BIGINT NOT NULL
);

-- Each in the order that its list is read in.
CREATE INDEX due_deadline ON due (deadline, job);
CREATE INDEX due_startable ON due (startable_at, job) WHERE startable_at IS NOT NULL;
CREATE INDEX due_kind_startable ON due (kind, startable_at, job) WHERE startable_at IS NOT NULL;

-- Jobs that ran out of attempts or time, and wait for a person. One that is redriven, ended or delivered leaves no row.
CREATE TABLE dead_letters (
    position BIGINT PRIMARY KEY, -- of the event that made it one
    job TEXT COLLATE "C" NOT NULL UNIQUE,
    account TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    cost BIGINT NOT NULL,
    cause TEXT COLLATE "C" NOT NULL, -- cap_reached, window_closed, not_started
    attempts BIGINT NOT NULL, -- the highest attempt
    reason TEXT COLLATE "C", -- of the last failure
    dead_lettered_at BIGINT NOT NULL -- microseconds since 1970
);

-- Each in the order of the list.
CREATE INDEX dead_letters_account ON dead_letters (account, position);
CREATE INDEX dead_letters_kind ON dead_letters (kind, position);
