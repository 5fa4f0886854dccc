-- Runs, their snapshots, and a summary of each device in them. The bytes lie in the store, not here.
-- Times are Unix epoch milliseconds. What is not known of a place is '' or -1, never NULL, so that the unique
-- indexes below see it.

CREATE TABLE runs (
    id         TEXT    PRIMARY KEY,          -- ULID
    name       TEXT    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,             -- when its latest snapshot arrived
    change     INTEGER NOT NULL DEFAULT 0    -- goes up with everything that changes the run's grid
) STRICT;

CREATE TABLE snapshots (
    arrival        INTEGER PRIMARY KEY AUTOINCREMENT,   -- order of arrival, and of reading
    id             TEXT    NOT NULL UNIQUE,             -- ULID
    run_id         TEXT    NOT NULL REFERENCES runs (id),
    -- The place it was claimed for. Never changes: a repeated upload is recognized by it.
    attempt        INTEGER NOT NULL,
    role           TEXT    NOT NULL,
    rank           INTEGER NOT NULL,
    host           TEXT    NOT NULL,
    pid            INTEGER NOT NULL,
    first_step     INTEGER NOT NULL,
    last_step      INTEGER NOT NULL,
    reason         TEXT    NOT NULL,
    content_digest TEXT    NOT NULL,         -- BLAKE3 of the decompressed bytes
    seq            INTEGER NOT NULL,         -- number among other contents for the same place
    -- What came.
    digest         TEXT    NOT NULL,         -- BLAKE3 of the bytes as stored: where they lie
    bytes          INTEGER NOT NULL,
    file_name      TEXT    NOT NULL,         -- '' when none was given
    sidecar        TEXT,                     -- JSON
    received_at    INTEGER NOT NULL,
    -- What became of it.
    state          TEXT    NOT NULL CHECK (state IN ('received', 'reading', 'ready', 'failed')),
    n_reads        INTEGER NOT NULL DEFAULT 0,   -- readings begun
    problem        TEXT,                     -- why it failed, one sentence
    inspection     TEXT,                     -- JSON, once ready
    producer       TEXT,
    n_events       INTEGER,
    n_findings     INTEGER,
    UNIQUE (run_id, attempt, role, rank, host, pid, first_step, last_step, reason, content_digest),
    UNIQUE (run_id, attempt, role, rank, host, pid, first_step, last_step, reason, seq)
) STRICT;

CREATE INDEX snapshots_by_run ON snapshots (run_id, arrival);
CREATE INDEX snapshots_to_read ON snapshots (arrival) WHERE state = 'received';

CREATE TABLE devices (
    arrival        INTEGER NOT NULL REFERENCES snapshots (arrival),
    device         INTEGER NOT NULL,
    busiest        INTEGER NOT NULL,         -- 1 for the one device whose numbers the grid shows
    requested_peak INTEGER NOT NULL,
    requested_end  INTEGER NOT NULL,
    allocated_peak INTEGER NOT NULL,
    allocated_end  INTEGER NOT NULL,
    active_peak    INTEGER NOT NULL,
    active_end     INTEGER NOT NULL,
    reserved_peak  INTEGER NOT NULL,
    reserved_end   INTEGER NOT NULL,
    n_events       INTEGER NOT NULL,
    PRIMARY KEY (arrival, device)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX devices_busiest ON devices (arrival) WHERE busiest = 1;
