//! The snapshots of an archive, for `tidegauge inspect`.

use std::{fs::File, ops::ControlFlow, path::Path};

use tidegauge_api::{Inspection, inspection};
use tidegauge_snapshot::{
    read::{
        self, ReadError,
        archive::{self, Member},
    },
    words::{count, counted, size},
};

/// What an archive holds, each snapshot opened.
pub(crate) struct Members {
    pub(crate) snapshots: Vec<(Member, Result<Inspection, ReadError>)>,
    n_others: u64,
}

impl Members {
    /// Opens every snapshot of an archive, one at a time.
    ///
    /// # Errors
    /// [`ReadError`] when it is no archive, or a damaged one.
    pub(crate) fn of(file: File) -> Result<Self, ReadError> {
        let mut snapshots = Vec::new();
        let listing = archive::each(file, |member, bytes| {
            let opened = read::open(bytes);
            let inspected = opened.map(|snapshot| inspection::inspect(&snapshot, &member.path, member.bytes));
            snapshots.push((member.clone(), inspected));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Self { snapshots, n_others: listing.map_or(0, |listing| listing.n_others) })
    }

    /// Whether each of them opened.
    pub(crate) fn all_opened(&self) -> bool {
        self.snapshots.iter().all(|(_, inspected)| inspected.is_ok())
    }

    pub(crate) fn json(&self, file: &str, bytes: u64) -> serde_json::Value {
        let members: Vec<_> = self
            .snapshots
            .iter()
            .map(|(member, inspected)| match inspected {
                Ok(inspection) => serde_json::json!(inspection),
                Err(error) => {
                    serde_json::json!({ "file": member.path, "bytes": member.bytes, "error": json_of(error) })
                }
            })
            .collect();
        serde_json::json!({ "file": file, "bytes": bytes, "members": members, "other_files": self.n_others })
    }

    pub(crate) fn table(&self, file: &str, bytes: u64) -> String {
        let others = match self.n_others {
            0 => String::new(),
            n => format!(", {}", counted(n, "other file")),
        };
        let mut lines = vec![
            format!(
                "{file}   {}   {}{others}",
                size(bytes),
                counted(self.snapshots.len() as u64, "snapshot")
            ),
            String::new(),
            format!("  {:>12} {:>12} {:>12} {:>12}", "events", "peak", "reserved", "end"),
        ];
        for (member, inspected) in &self.snapshots {
            lines.push(match inspected {
                Ok(inspection) => line(&member.path, inspection),
                Err(error) => format!("  {}: {error}", member.path),
            });
        }
        lines.extend([
            String::new(),
            "peak and end are allocated bytes; one of them in full: --member PATH".to_owned(),
        ]);
        lines.join("\n")
    }
}

/// An error as `--json` prints it.
pub(crate) fn json_of(error: &ReadError) -> serde_json::Value {
    serde_json::json!({ "code": error.code(), "message": error.to_string(), "offset": error.offset() })
}

/// The device with the most allocated bytes speaks for the snapshot.
fn line(path: &str, inspection: &Inspection) -> String {
    let events = inspection.devices.iter().map(|device| device.events).sum();
    match inspection.devices.iter().max_by_key(|device| device.allocated.peak) {
        Some(device) => format!(
            "  {:>12} {:>12} {:>12} {:>12}   {path}",
            count(events),
            size(device.allocated.peak),
            size(device.reserved.peak),
            size(device.allocated.end)
        ),
        None => format!("  {:>12} {:>12} {:>12} {:>12}   {path}", 0, "-", "-", "-"),
    }
}

/// A file's name without its folders.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
