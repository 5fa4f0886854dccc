//! What travels beside a snapshot's bytes: where it belongs and how it was recorded.
//!
//! The agent writes it as a JSON file next to the snapshot in the outbox and sends it, base64url without
//! padding, in the header [`HEADER`]. `docs/sidecar.md` lists the fields for people who write their own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegauge_snapshot::findings::Known;

use crate::Place;

/// The request header that carries a sidecar: base64url, no padding, of its JSON.
pub const HEADER: &str = "Tidegauge-Sidecar";

/// The version of these fields, in [`Sidecar::sidecar`].
pub const VERSION: u32 = 1;

/// The longest sidecar header that is read, bytes of base64. Eight devices' `memory_stats` take about 40 KiB.
pub const MAX_HEADER_BYTES: usize = 256 * 1024;

/// The longest sidecar that is read, bytes of JSON. Compressed, as resumable uploads carry it, so much fits into
/// a header.
pub const MAX_JSON_BYTES: usize = 1 << 20;

/// What is known of a snapshot beside its bytes. Unknown fields are kept in [`Sidecar::more`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sidecar {
    /// Version of this shape: [`VERSION`].
    pub sidecar: u32,
    /// Where the snapshot belongs.
    #[serde(flatten)]
    pub place: Place,
    /// Name of the file the bytes came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    /// Number of ranks in the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// "since_previous" or "step".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// "cuda", "npu", …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Version strings: "torch", "torch_npu", "python", "tidegauge".
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Recording settings in force: "context", "stacks", "max_entries".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<Value>,
    /// Unix epoch, microseconds: when the snapshot was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_at_us: Option<i64>,
    /// Milliseconds the training thread spent, by part: "statistics", "snapshot", "clear".
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capture_ms: BTreeMap<String, f64>,
    /// Microseconds from the beginning of reading the history to the end of clearing it, in which other threads'
    /// events can be lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_us: Option<u64>,
    /// `torch.cuda.memory_stats()` at the snapshot, by device ordinal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memory_stats: BTreeMap<String, Value>,
    /// `mem_get_info()` at the snapshot, by device ordinal: [free bytes, total bytes].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mem_get_info: BTreeMap<String, [u64; 2]>,
    /// Per device ordinal, the number of leading trace events that belong to an earlier window.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub window_starts: BTreeMap<String, u64>,
    /// What was done to the paths in the snapshot's stacks, in words: "paths hashed".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redaction: Option<String>,
    /// BLAKE3 of the decompressed bytes, hex; a receiver computes its own and compares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_digest: Option<String>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

impl Sidecar {
    /// What it knows that the snapshot does not tell.
    pub fn known(&self) -> Known {
        let device_bytes = self.mem_get_info.iter();
        Known {
            device_bytes: device_bytes
                .filter_map(|(device, info)| Some((device.parse().ok()?, info[1])))
                .collect(),
            max_entries: self.recording.as_ref().and_then(|recording| recording.get("max_entries")?.as_u64()),
        }
    }
}
