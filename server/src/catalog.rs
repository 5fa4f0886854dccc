//! What the server knows of its runs and snapshots. The bytes lie in the store.

mod sqlite;

use tidegauge_api::Sidecar;
use tidegauge_api::snapshot::SnapshotDetails;

use crate::place::Said;
use crate::store::Digest;

pub(crate) use sqlite::Catalog;

/// Readings of one snapshot that may end with the server's end (out of memory, say) before it counts as failed.
/// Without a bound one bad file would take the server down at every start.
pub(crate) const MAX_READS: u32 = 3;

/// Runs in the list; older ones are still reached by their address.
pub(crate) const MAX_RUNS: u32 = 1000;

/// Samples of one run that are kept: about a hundred megabytes. Past that, of its older steps every second stays,
/// then every fourth, and so on.
pub(crate) const MAX_SAMPLES_PER_RUN: i64 = 1_000_000;

/// Processes of one run whose samples are taken; a further one is refused.
pub(crate) const MAX_PROCESSES_PER_RUN: i64 = 65_536;

/// Lost snapshots that are kept one by one for a process; further ones are only counted.
pub(crate) const MAX_LOST_PER_PROCESS: i64 = 1_000;

/// Lost snapshots that a grid shows one by one; the run's count holds them all.
pub(crate) const MAX_LOST_IN_GRID: u32 = 10_000;

/// What became of a batch of samples.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub(crate) run_id: String,
    /// Samples that were not here before.
    pub(crate) n_new: u64,
}

/// Why a batch of samples is not kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SamplesRefused {
    /// The run has [`MAX_PROCESSES_PER_RUN`] processes already.
    TooManyProcesses,
}

/// A complete upload that wants a row.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) said: Said,
    /// BLAKE3 of the decompressed bytes.
    pub(crate) content_digest: Digest,
    /// BLAKE3 of the bytes as stored.
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
}

/// What became of an upload.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// It has a row now.
    New(SnapshotDetails),
    /// The same content was there already for the same place.
    Here(SnapshotDetails),
}

/// A snapshot whose turn it is.
#[derive(Debug, Clone)]
pub(crate) struct ToRead {
    pub(crate) id: String,
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
    pub(crate) file_name: String,
    pub(crate) sidecar: Option<Sidecar>,
}
