-- Ways out of a halt that a person took: an event skipped, a projection made anew. Rows are never updated and never deleted.
CREATE TABLE projection_skips (
    id INTEGER PRIMARY KEY,
    projection TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('skip', 'reset')),
    position INTEGER NOT NULL, -- skip: the event that was skipped; reset: where the checkpoint stood
    last_position INTEGER NOT NULL, -- skip: the last event of a broken append, else as position; reset: 0
    event_id TEXT, -- of the event at position; NULL where it cannot be read or there is none
    found TEXT NOT NULL, -- skip: why it could not be applied; reset: the definition of the rows that are gone
    reason TEXT, -- why it was decided
    decided_by TEXT NOT NULL,
    decided_at INTEGER NOT NULL, -- microseconds since 1970
    CHECK (kind = 'reset' OR reason IS NOT NULL)
) STRICT;

CREATE INDEX projection_skips_projection ON projection_skips (projection);
