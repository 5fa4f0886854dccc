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
