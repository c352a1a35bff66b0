-- Whose log the account figures in this database are folded from, and how far. One row.
CREATE TABLE followed_log (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    ledger TEXT NOT NULL, -- the id that the log names
    prefix TEXT NOT NULL, -- of its streams
    position INTEGER NOT NULL, -- of the last event that is folded; 0 before the first
    event_id TEXT, -- of that event
    hour INTEGER NOT NULL, -- the latest hour since 1970 that an event was posted in; 0 before the first
    halted_at INTEGER, -- the event that stands in the way; NULL where none does
    halted_reason TEXT,
    CHECK ((position = 0) = (event_id IS NULL)),
    CHECK ((halted_at IS NULL) = (halted_reason IS NULL))
) STRICT;

-- The last event of each job's stream that is folded: no credit is taken for an append behind which the stream has gone.
CREATE TABLE followed_streams (
    stream TEXT PRIMARY KEY,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Where an hour begins in the log: no event posted in this hour or later stands at the position or before it.
CREATE TABLE followed_hours (
    hour INTEGER PRIMARY KEY, -- since 1970
    position INTEGER NOT NULL
) STRICT;

-- Credit that is taken for an append on its way, at most one for a stream. Closed when the event at that revision is folded, whatever it is.
CREATE TABLE reservations (
    stream TEXT PRIMARY KEY,
    revision INTEGER NOT NULL, -- that the append's first event gets
    command TEXT NOT NULL,
    account TEXT NOT NULL,
    cost INTEGER NOT NULL,
    cap_month TEXT, -- YYYY-MM; NULL where no cap is checked
    made_at INTEGER NOT NULL -- microseconds since 1970
) STRICT, WITHOUT ROWID;

CREATE INDEX reservations_account ON reservations (account);
CREATE INDEX reservations_made_at ON reservations (made_at);

-- Events that a person had the figures skip. Rows are never updated and never deleted.
CREATE TABLE followed_skips (
    position INTEGER PRIMARY KEY,
    found TEXT NOT NULL, -- why it could not be folded
    reason TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    decided_at INTEGER NOT NULL -- microseconds since 1970
) STRICT;
