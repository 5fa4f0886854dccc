//! A run in the list, and its grid of ranks and steps.

use serde::{Deserialize, Serialize};

use crate::snapshot::State;

/// One run in the list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// ULID, the run's id in addresses.
    pub id: String,
    /// Its label.
    pub name: String,
    /// RFC 3339, UTC.
    pub created_at: String,
    /// When its latest snapshot or sample arrived: RFC 3339, UTC.
    pub updated_at: String,
    /// The last step that a snapshot or a sample told of.
    #[serde(default)]
    pub latest_step: Option<u64>,
    /// Different ranks seen, in snapshots or samples.
    pub n_ranks: u64,
    /// Snapshots of any state.
    pub n_snapshots: u64,
    /// Samples that are kept.
    #[serde(default)]
    pub n_samples: u64,
    /// Snapshots that its agents took or were to take, and that nobody will see.
    #[serde(default)]
    pub n_lost: u64,
    /// Snapshots that could not be read.
    pub n_failed: u64,
    /// Snapshots that wait for reading or are being read.
    pub n_pending: u64,
    /// Highest peak of allocated bytes over its snapshots; absent until one is ready.
    pub peak_allocated: Option<u64>,
    /// "torch 2.9", … of the latest ready snapshot.
    pub producer: Option<String>,
}

/// `GET /api/v1/runs`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    /// Latest first.
    pub runs: Vec<RunRow>,
}

/// `GET /api/v1/runs/{run id}/grid`: everything the grid page draws.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// The run.
    pub run: RunRow,
    /// Rows, by role and rank.
    pub rows: Vec<GridRow>,
    /// Columns, by last step; those without a step come last.
    pub columns: Vec<GridColumn>,
    /// Cells that hold something, in row order, then column order.
    pub cells: Vec<GridCell>,
    /// Snapshots that nobody will see, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<GridLost>,
}

/// A snapshot that nobody will see; its cell may hold another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridLost {
    /// Index into [`Grid::rows`].
    pub row: u32,
    /// Index into [`Grid::columns`].
    pub column: u32,
    /// The window as text: "2–5".
    pub label: String,
    /// What became of it, in words.
    pub why: String,
}

/// One row: a rank in a role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridRow {
    /// Empty when the run has no roles.
    pub role: String,
    /// Absent for snapshots whose rank is not known.
    pub rank: Option<u32>,
}

/// One column: a step at whose end snapshots were taken or lost, or a reason without a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridColumn {
    /// The step; absent for snapshots without one.
    pub last_step: Option<u64>,
    /// "step", "oom", "exit", …
    pub reason: String,
    /// What the head shows: "2–5" when all cells agree on it, else the last step.
    pub label: String,
}

/// One cell: the snapshots of one row and column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridCell {
    /// Index into [`Grid::rows`].
    pub row: u32,
    /// Index into [`Grid::columns`].
    pub column: u32,
    /// The window as text: "1", "2–5".
    pub label: String,
    /// Its snapshots, latest attempt and arrival first; the numbers below are the first one's.
    pub snapshots: Vec<String>,
    /// State of the first.
    pub state: State,
    /// Why it failed, when it did.
    pub problem: Option<String>,
    /// Peak of allocated bytes over its busiest device.
    pub peak_allocated: Option<u64>,
    /// Peak of reserved bytes over the same device.
    pub peak_reserved: Option<u64>,
    /// Events in its traces.
    pub n_events: Option<u64>,
    /// Findings in it.
    pub n_findings: Option<u64>,
}
