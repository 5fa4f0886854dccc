-- Samples between snapshots: a row per step and device of a process, and what became of snapshots nobody will see.

CREATE TABLE processes (
    process      INTEGER PRIMARY KEY,        -- order of appearance
    run_id       TEXT    NOT NULL REFERENCES runs (id),
    -- As in snapshots: '' and -1 for what is not known.
    attempt      INTEGER NOT NULL,
    role         TEXT    NOT NULL,
    rank         INTEGER NOT NULL,
    host         TEXT    NOT NULL,
    pid          INTEGER NOT NULL,
    -- As the process counted them last.
    n_dropped    INTEGER NOT NULL DEFAULT 0, -- samples that it could not send
    n_lost       INTEGER NOT NULL DEFAULT 0, -- snapshots that nobody will see
    -- Over all of its samples that came, also those thinned out since.
    first_step   INTEGER,
    last_step    INTEGER,
    sampled_at   INTEGER,                    -- latest sample, by the process's clock
    lowest_peak  INTEGER,
    highest_peak INTEGER,
    UNIQUE (run_id, attempt, role, rank, host, pid)
) STRICT;

CREATE TABLE samples (
    process         INTEGER NOT NULL REFERENCES processes (process),
    step            INTEGER NOT NULL,
    device          INTEGER NOT NULL,
    at_us           INTEGER NOT NULL,        -- Unix epoch microseconds, by the process's clock
    step_us         INTEGER,
    allocated       INTEGER,
    allocated_peak  INTEGER,
    active          INTEGER,
    active_peak     INTEGER,
    reserved        INTEGER,
    reserved_peak   INTEGER,
    requested       INTEGER,
    requested_peak  INTEGER,
    inactive_split  INTEGER,
    n_ooms          INTEGER,
    n_alloc_retries INTEGER,
    device_free     INTEGER,
    device_total    INTEGER,
    PRIMARY KEY (process, step, device)
) STRICT, WITHOUT ROWID;

CREATE TABLE lost (
    process    INTEGER NOT NULL REFERENCES processes (process),
    first_step INTEGER NOT NULL,
    last_step  INTEGER NOT NULL,
    why        TEXT    NOT NULL,
    PRIMARY KEY (process, first_step, last_step, why)
) STRICT, WITHOUT ROWID;

ALTER TABLE runs ADD COLUMN n_samples INTEGER NOT NULL DEFAULT 0;       -- rows of samples
ALTER TABLE runs ADD COLUMN sample_change INTEGER NOT NULL DEFAULT 0;   -- goes up with everything that changes them
ALTER TABLE runs ADD COLUMN sample_stride INTEGER NOT NULL DEFAULT 1;   -- of old steps, every so manieth is kept
