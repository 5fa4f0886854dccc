//! Every address of the server as a function, so that no path is written twice.
//!
//! The `*_ROUTE` constants are the same addresses as axum spells them.

/// Version prefix of the HTTP interface.
pub const API: &str = "/api/v1";

/// `GET`: the runs.
pub const RUNS: &str = "/api/v1/runs";
/// `GET`: one run's grid.
pub const GRID_ROUTE: &str = "/api/v1/runs/{run_id}/grid";
/// `GET`: the samples between a run's snapshots.
pub const RUN_SAMPLES_ROUTE: &str = "/api/v1/runs/{run_id}/samples";
/// `POST`: take a batch of samples in.
pub const SAMPLES: &str = "/api/v1/samples";
/// `POST`: take a snapshot in.
pub const SNAPSHOTS: &str = "/api/v1/snapshots";
/// `POST`: begin an upload that may be cut and go on (tus 1.0).
pub const UPLOADS: &str = "/api/v1/uploads";
/// `HEAD`, `PATCH`, `DELETE`: such an upload.
pub const UPLOAD_ROUTE: &str = "/api/v1/uploads/{upload_id}";
/// `GET`: one snapshot's details.
pub const SNAPSHOT_ROUTE: &str = "/api/v1/snapshots/{snapshot_id}";
/// `GET`: its pack, ranges allowed.
pub const PACK_ROUTE: &str = "/api/v1/snapshots/{snapshot_id}/pack";
/// `GET`: the bytes as they came.
pub const ORIGINAL_ROUTE: &str = "/api/v1/snapshots/{snapshot_id}/original";
/// `GET`: 200 while the process lives.
pub const HEALTHZ: &str = "/healthz";
/// `GET`: 200 when it can take and serve snapshots.
pub const READYZ: &str = "/readyz";

/// One run's grid.
pub fn grid(run_id: &str) -> String {
    format!("{RUNS}/{run_id}/grid")
}

/// The same of the steps from `first` to `last` only.
pub fn run_samples_within(run_samples: &str, (first, last): (u64, u64)) -> String {
    format!("{run_samples}&first_step={first}&last_step={last}")
}

/// One upload that may be cut and go on.
pub fn upload(upload_id: &str) -> String {
    format!("{UPLOADS}/{upload_id}")
}

/// The samples of `n_rows` rows of a run's grid, their steps put together to at most `n_columns` columns.
pub fn run_samples(run_id: &str, first_row: u32, n_rows: u32, n_columns: u32) -> String {
    format!("{RUNS}/{run_id}/samples?first_row={first_row}&n_rows={n_rows}&n_columns={n_columns}")
}

/// One snapshot's details.
pub fn snapshot(snapshot_id: &str) -> String {
    format!("{SNAPSHOTS}/{snapshot_id}")
}

/// One snapshot's pack in the format of this build; other versions have other addresses.
pub fn pack(snapshot_id: &str, version: u32) -> String {
    format!("{SNAPSHOTS}/{snapshot_id}/pack?v={version}")
}

/// One snapshot's bytes as they came.
pub fn original(snapshot_id: &str) -> String {
    format!("{SNAPSHOTS}/{snapshot_id}/original")
}

/// Pages of the dashboard.
pub mod page {
    /// The list of runs.
    pub const RUNS: &str = "/";
    /// The upload form.
    pub const UPLOAD: &str = "/upload";
    /// A file opened in the browser, without a server.
    pub const FILE: &str = "/file";

    /// One run's grid.
    pub fn run(run_id: &str) -> String {
        format!("/runs/{run_id}")
    }

    /// One snapshot's timeline.
    pub fn snapshot(snapshot_id: &str) -> String {
        format!("/snapshots/{snapshot_id}")
    }
}
