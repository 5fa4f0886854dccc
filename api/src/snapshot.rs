//! One snapshot: where it is in its life, and its details.

use serde::{Deserialize, Serialize};

use crate::{Inspection, Place, Sidecar};

/// Where a snapshot is on its way from bytes to pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its bytes are safe; reading has not begun.
    Received,
    /// It is being read.
    Reading,
    /// It can be looked at.
    Ready,
    /// It could not be read; the sentence says why, and the original can be downloaded.
    Failed,
}

impl State {
    /// The word used in JSON and in the catalog.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Reading => "reading",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

/// `GET /api/v1/snapshots/{id}`, and the answer to an upload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotDetails {
    /// ULID.
    pub id: String,
    /// Id of its run.
    pub run_id: String,
    /// Name of its run.
    pub run_name: String,
    /// Where it belongs.
    pub place: Place,
    /// Number among snapshots of the same place with other content, from 0.
    pub seq: u32,
    /// Where it is on its way.
    pub state: State,
    /// Why it failed, one sentence.
    pub problem: Option<String>,
    /// Name of the file it came from, if one was given.
    pub file_name: Option<String>,
    /// Bytes as stored.
    pub bytes: u64,
    /// BLAKE3 of the stored bytes, hex; also the original's ETag.
    pub digest: String,
    /// RFC 3339, UTC.
    pub received_at: String,
    /// What reading found; present once it is ready.
    pub inspection: Option<Inspection>,
    /// What came beside it.
    pub sidecar: Option<Sidecar>,
    /// True in the answer to an upload whose content was here already for the same place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_here: bool,
}
