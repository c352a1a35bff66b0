-- A ledger that takes its past from a file: open until it is closed, and only that file's commands are taken meanwhile.
CREATE TABLE backfill (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sha256 TEXT NOT NULL, -- of the file, in hexadecimal
    state TEXT NOT NULL CHECK (state IN ('open', 'closing', 'closed'))
) STRICT;
