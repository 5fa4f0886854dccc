//! What reading a snapshot found: the summary of `tidegauge inspect --json`, of the catalog and of the page.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::findings::{Known, findings_knowing};
use tidegauge_snapshot::model::Device;
use tidegauge_snapshot::replay::{self, Replay};

/// Summary of one snapshot. Sizes in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// Name of the file, as given.
    pub file: String,
    /// Bytes of the file as given.
    pub bytes: u64,
    /// From the outside in: "gzip", "zstd", "pickle4", …
    pub wrapping: Vec<String>,
    /// What wrote it, as far as the file tells: "torch 2.10+", "torch_npu", …
    pub producer: String,
    /// Devices with segments or events.
    pub devices: Vec<DeviceInspection>,
    /// Pinned host memory, where its history or its segments are in the file; its `device` means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<DeviceInspection>,
    /// Entries of `external_annotations`.
    pub annotations: u64,
    /// Odd things that did not stop the reading.
    pub findings: Vec<Finding>,
}

/// Summary of one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceInspection {
    /// Device ordinal as the process saw it.
    pub device: u32,
    /// Segments at the end.
    pub segments: u64,
    /// Blocks in them, inactive ones included.
    pub blocks: u64,
    /// Events in the trace.
    pub events: u64,
    /// Events by action.
    pub actions: BTreeMap<String, u64>,
    /// Sum of `requested_size` of active blocks.
    pub requested: Levels,
    /// Sum of sizes of blocks that are allocated.
    pub allocated: Levels,
    /// Sum of sizes of blocks that are allocated or wait to be freed.
    pub active: Levels,
    /// Sum of sizes of segments.
    pub reserved: Levels,
    /// Index of the event after which `allocated` is highest for the first time; absent when that is before
    /// the first event, or when there are no events.
    pub peak_event: Option<u64>,
    /// Active blocks that are older than the trace.
    pub preexisting_blocks: u64,
}

/// A level before the trace, at its highest and after the trace, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// Before the first event.
    pub head: u64,
    /// Highest over all states.
    pub peak: u64,
    /// After the last event.
    pub end: u64,
}

/// What `tidegauge inspect --json` prints: the summary, and who holds the memory at the peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inspected {
    /// The summary.
    #[serde(flatten)]
    pub inspection: Inspection,
    /// The stacks that hold most at each device's peak.
    pub top: Vec<crate::breakdown::Breakdown>,
    /// What an earlier snapshot holds already, when one was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub since: Vec<Since>,
}

/// What an earlier snapshot of the same process holds of a device's trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Since {
    /// Name of the earlier file.
    pub file: String,
    /// Device ordinal.
    pub device: u32,
    /// So many of the first events are in it too; 0 when the history was cleared in between.
    pub known_events: u32,
}

/// Something odd that did not stop the reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable code: "unknown-key".
    pub code: String,
    /// How often.
    pub count: u64,
    /// One sentence.
    pub message: String,
}

impl Inspection {
    /// How the snapshot came, from the inside out: "pickle4 in zstd".
    pub fn wrapped(&self) -> String {
        self.wrapping.iter().rev().map(String::as_str).collect::<Vec<_>>().join(" in ")
    }

    /// The device whose allocated peak is highest.
    pub fn busiest_device(&self) -> Option<&DeviceInspection> {
        self.devices.iter().max_by_key(|device| (device.allocated.peak, device.events))
    }
}

/// The summary of a snapshot that was read from a file of this name and size. Replays every device.
pub fn inspect(snapshot: &Snapshot, file: &str, bytes: u64) -> Inspection {
    let replays: Vec<Replay> =
        snapshot.devices.iter().map(|device| replay::replay(snapshot, device)).collect();
    inspect_replayed(snapshot, &replays, file, bytes)
}

/// The summary, when the devices have been replayed already, in the order of [`Snapshot::devices`].
pub fn inspect_replayed(snapshot: &Snapshot, replays: &[Replay], file: &str, bytes: u64) -> Inspection {
    inspect_knowing(snapshot, replays, file, bytes, &Known::default())
}

/// The same, with what whoever took the snapshot wrote down beside it ([`crate::Sidecar::known`]).
pub fn inspect_knowing(
    snapshot: &Snapshot,
    replays: &[Replay],
    file: &str,
    bytes: u64,
    known: &Known,
) -> Inspection {
    let findings = findings_knowing(snapshot, replays, known);
    Inspection {
        file: file.to_owned(),
        bytes,
        wrapping: snapshot.wrapping.clone(),
        // Where nothing in the file says so, the rounding that fits its segments does.
        producer: match replays.iter().any(|replay| replay.rounding.padding > 0) {
            true => "torch_npu".to_owned(),
            false => snapshot.producer.clone(),
        },
        devices: snapshot
            .devices
            .iter()
            .zip(replays)
            .map(|(device, replay)| inspect_device(snapshot, device, replay))
            .collect(),
        host: snapshot
            .host
            .as_ref()
            .map(|host| inspect_device(snapshot, host, &replay::replay(snapshot, host))),
        annotations: snapshot.annotations.len() as u64,
        findings: findings
            .into_iter()
            .map(|finding| Finding { code: finding.code, count: finding.count, message: finding.message })
            .collect(),
    }
}

fn inspect_device(snapshot: &Snapshot, device: &Device, replay: &Replay) -> DeviceInspection {
    let mut counts = [0u64; 256];
    for event in device.events.clone() {
        counts[usize::from(snapshot.trace.action[event].0)] += 1;
    }
    let actions = (0..=u8::MAX)
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(action, count)| {
            (snapshot.action_name(tidegauge_snapshot::model::Action(action)).to_owned(), count)
        })
        .collect();
    let levels = |of: fn(&replay::Levels) -> u64| Levels {
        head: of(&replay.head),
        peak: of(&replay.peak),
        end: of(&replay.end),
    };
    DeviceInspection {
        device: device.ordinal,
        segments: device.segments.len() as u64,
        blocks: device.segments.clone().map(|segment| snapshot.segments.blocks[segment].len() as u64).sum(),
        events: device.events.len() as u64,
        actions,
        requested: levels(|levels| levels.requested),
        allocated: levels(|levels| levels.allocated),
        active: levels(|levels| levels.active),
        reserved: levels(|levels| levels.reserved),
        peak_event: u64::from(replay.peak_state).checked_sub(1),
        preexisting_blocks: replay.n_preexisting as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrapped_stands_before_what_it_is_wrapped_in() {
        let wrapping = ["zstd", "html", "pickle4"].map(str::to_owned).to_vec();
        let inspection = Inspection { wrapping, ..Inspection::default() };
        assert_eq!(inspection.wrapped(), "pickle4 in html in zstd");
    }

    #[test]
    fn a_file_that_only_fits_the_rounding_of_an_npu_is_an_npus() {
        // 512 bytes in a block of 1,024: nothing but torch_npu does that.
        let file = r#"{"segments": [{"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "blocks": [
            {"address": 4096, "size": 1024, "requested_size": 512, "state": "active_allocated"},
            {"address": 5120, "size": 2096128, "requested_size": 0, "state": "inactive"}],
            "segment_pool_id": [0, 0], "is_expandable": false}], "device_traces": [[
            {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0},
            {"action": "alloc", "addr": 4096, "size": 512, "stream": 0}]]}"#;
        let snapshot = tidegauge_snapshot::read::open(file.as_bytes()).unwrap();
        let inspection = inspect(&snapshot, "memory.json", 9);
        assert_eq!(snapshot.producer, "torch 2.1");
        assert_eq!(inspection.producer, "torch_npu");
        assert_eq!(inspection.devices[0].allocated, Levels { head: 0, peak: 1024, end: 1024 });
    }
}
