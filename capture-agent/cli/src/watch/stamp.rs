//! What a file's metadata tell of its content: enough to see that it changed, not to say that it did not.

use std::{
    fs::{self, Metadata},
    path::Path,
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};

/// A file's size and the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    /// Nanoseconds since 1970; 0 where the file system keeps none.
    pub(super) modified_ns: u64,
}

impl Stamp {
    pub(super) fn new(metadata: &Metadata) -> Self {
        let since_1970 = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_ns = since_1970.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0);
        Self { bytes: metadata.len(), modified_ns }
    }

    /// `None` for a file that is gone.
    pub(super) fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|metadata| Self::new(&metadata))
    }
}
