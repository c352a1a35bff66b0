-- A ledger that takes its past from a file: open until it is closed, and only that file's commands are taken meanwhile.
CREATE TABLE backfill (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    sha256 TEXT COLLATE "C" NOT NULL, -- of the file, in hexadecimal
    state TEXT COLLATE "C" NOT NULL CHECK (state IN ('open', 'closing', 'closed'))
);
