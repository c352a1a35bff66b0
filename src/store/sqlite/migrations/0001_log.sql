-- What the ledger was created with. One row.
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id TEXT NOT NULL,
    zone TEXT NOT NULL,
    scale INTEGER NOT NULL,
    created_at INTEGER NOT NULL -- microseconds since 1970
) STRICT;

-- The log. One row is one append: its events stand in `body`, in order, at `position`, `position + 1`, … and at
-- `revision`, `revision + 1`, … of their stream. Rows are never updated and never deleted.
CREATE TABLE appends (
    position INTEGER PRIMARY KEY, -- of the first event
    stream TEXT NOT NULL,
    revision INTEGER NOT NULL, -- of the first event
    events INTEGER NOT NULL CHECK (events > 0),
    posted_at INTEGER NOT NULL, -- microseconds since 1970
    metadata TEXT NOT NULL, -- JSON
    body BLOB NOT NULL
) STRICT;

-- The guard: of two appends that follow one revision, one is refused.
CREATE UNIQUE INDEX appends_stream_revision ON appends (stream, revision);

-- The figures that guard charges: the only stored copy of them.
CREATE TABLE account_state (
    account TEXT PRIMARY KEY,
    balance INTEGER NOT NULL,
    held INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    floor INTEGER, -- NULL: none
    monthly_cap INTEGER, -- NULL: none
    last_position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE account_month (
    account TEXT NOT NULL,
    month TEXT NOT NULL, -- YYYY-MM, in the ledger's zone
    spent INTEGER NOT NULL,
    held INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    PRIMARY KEY (account, month)
) STRICT, WITHOUT ROWID;
