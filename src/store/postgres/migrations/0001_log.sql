-- What the ledger was created with. One row.
CREATE TABLE ledger (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    id TEXT COLLATE "C" NOT NULL,
    zone TEXT COLLATE "C" NOT NULL,
    scale BIGINT NOT NULL,
    created_at BIGINT NOT NULL -- microseconds since 1970
);

-- The log. One row is one append: its events stand in `body`, in order, at `position`, `position + 1`, … and at
-- `revision`, `revision + 1`, … of their stream. Rows are never updated and never deleted.
CREATE TABLE appends (
    position BIGINT PRIMARY KEY, -- of the first event
    stream TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL, -- of the first event
    events BIGINT NOT NULL CHECK (events > 0),
    posted_at BIGINT NOT NULL, -- microseconds since 1970
    metadata TEXT COLLATE "C" NOT NULL, -- JSON
    body BYTEA NOT NULL
);

-- The guard: of two appends that follow one revision, one is refused.
CREATE UNIQUE INDEX appends_stream_revision ON appends (stream, revision);

-- The figures that guard charges: the only stored copy of them. Written over and over: room in each page lets an update stay in it.
CREATE TABLE account_state (
    account TEXT COLLATE "C" PRIMARY KEY,
    balance BIGINT NOT NULL,
    held BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    floor BIGINT, -- NULL: none
    monthly_cap BIGINT, -- NULL: none
    last_position BIGINT NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE account_month (
    account TEXT COLLATE "C" NOT NULL,
    month TEXT COLLATE "C" NOT NULL, -- YYYY-MM, in the ledger's zone
    spent BIGINT NOT NULL,
    held BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    PRIMARY KEY (account, month)
) WITH (fillfactor = 50);
