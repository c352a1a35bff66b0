-- Whose log the account figures in this database are folded from, and how far. One row.
CREATE TABLE followed_log (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    ledger TEXT COLLATE "C" NOT NULL, -- the id that the log names
    prefix TEXT COLLATE "C" NOT NULL, -- of its streams
    position BIGINT NOT NULL, -- of the last event that is folded; 0 before the first
    event_id TEXT COLLATE "C", -- of that event
    hour BIGINT NOT NULL, -- the latest hour since 1970 that an event was posted in; 0 before the first
    halted_at BIGINT, -- the event that stands in the way; NULL where none does
    halted_reason TEXT COLLATE "C",
    CHECK ((position = 0) = (event_id IS NULL)),
    CHECK ((halted_at IS NULL) = (halted_reason IS NULL))
);

-- The last event of each job's stream that is folded: no credit is taken for an append behind which the stream has gone.
CREATE TABLE followed_streams (
    stream TEXT COLLATE "C" PRIMARY KEY,
    revision BIGINT NOT NULL
);

-- Where an hour begins in the log: no event posted in this hour or later stands at the position or before it.
CREATE TABLE followed_hours (
    hour BIGINT PRIMARY KEY, -- since 1970
    position BIGINT NOT NULL
);

-- Credit that is taken for an append on its way, at most one for a stream. Closed when the event at that revision is folded, whatever it is.
CREATE TABLE reservations (
    stream TEXT COLLATE "C" PRIMARY KEY,
    revision BIGINT NOT NULL, -- that the append's first event gets
    command TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    cost BIGINT NOT NULL,
    cap_month TEXT COLLATE "C", -- YYYY-MM; NULL where no cap is checked
    made_at BIGINT NOT NULL -- microseconds since 1970
);

CREATE INDEX reservations_account ON reservations (account);
CREATE INDEX reservations_made_at ON reservations (made_at);

-- Events that a person had the figures skip. Rows are never updated and never deleted.
CREATE TABLE followed_skips (
    position BIGINT PRIMARY KEY,
    found TEXT COLLATE "C" NOT NULL, -- why it could not be folded
    reason TEXT COLLATE "C" NOT NULL,
    decided_by TEXT COLLATE "C" NOT NULL,
    decided_at BIGINT NOT NULL -- microseconds since 1970
);
