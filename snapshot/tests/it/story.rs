//! Small snapshots, told event by event.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::read::open;
use tidegauge_snapshot::replay::{Replay, replay};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Where the segments of a story lie.
pub(crate) const HERE: u64 = 1 << 40;

/// A snapshot in the making.
#[derive(Default)]
pub(crate) struct Story {
    segments: Vec<String>,
    traces: Vec<Vec<String>>,
    /// Further parts at the top, each `"name": value`.
    parts: Vec<String>,
    is_timeless: bool,
    clock: i64,
}

pub(crate) fn story() -> Story {
    Story { traces: vec![Vec::new()], ..Story::default() }
}

/// A frame as JSON.
pub(crate) fn frame(name: &str, line: u64) -> String {
    format!(r#"{{"name": "{name}", "filename": "train.py", "line": {line}}}"#)
}

/// A stack of one frame as JSON, as a field.
pub(crate) fn at(name: &str) -> String {
    format!(r#""frames": [{}]"#, frame(name, 7))
}

impl Story {
    /// Leaves the times out, as torch before 2.2 and torch_npu do.
    pub(crate) fn timeless(mut self) -> Self {
        self.is_timeless = true;
        self
    }

    /// A plain segment of device 0 at the end: size, requested size and state of its blocks.
    pub(crate) fn segment(self, address: u64, blocks: &[(u64, u64, &str)]) -> Self {
        self.segment_with(
            r#""device": 0, "is_expandable": false, "segment_pool_id": [0, 0]"#,
            address,
            blocks,
        )
    }

    /// A segment with other fields.
    pub(crate) fn segment_with(mut self, fields: &str, address: u64, blocks: &[(u64, u64, &str)]) -> Self {
        let mut next = address;
        let mut written = Vec::new();
        for (size, requested, state) in blocks {
            written.push(format!(
                r#"{{"address": {next}, "size": {size}, "requested_size": {requested}, "state": "{state}",
                "frames": [{}]}}"#,
                frame("of_the_block", 3)
            ));
            next += size;
        }
        self.segments.push(format!(
            r#"{{{fields}, "address": {address}, "total_size": {}, "stream": 0, "segment_type": "large", "frames": [],
            "blocks": [{}]}}"#,
            next - address,
            written.join(", ")
        ));
        self
    }

    /// A segment as it stands in JSON.
    pub(crate) fn raw_segment(mut self, json: &str) -> Self {
        self.segments.push(json.to_owned());
        self
    }

    /// What follows happens on the next device.
    pub(crate) fn next_device(mut self) -> Self {
        self.traces.push(Vec::new());
        self
    }

    pub(crate) fn event(self, action: &str, address: u64, size: u64) -> Self {
        self.event_with(action, address, size, &at(action))
    }

    /// An event with other fields than frames.
    pub(crate) fn event_with(self, action: &str, address: u64, size: u64, fields: &str) -> Self {
        let comma = if fields.is_empty() { "" } else { ", " };
        self.raw_event(&format!(
            r#""action": "{action}", "addr": {address}, "size": {size}, "stream": 0{comma}{fields}"#
        ))
    }

    /// An event's fields as they stand in JSON; the time is added.
    pub(crate) fn raw_event(mut self, fields: &str) -> Self {
        self.clock += 10;
        let time = if self.is_timeless { String::new() } else { format!(r#", "time_us": {}"#, self.clock) };
        self.traces.last_mut().unwrap().push(format!("{{{fields}{time}}}"));
        self
    }

    /// Both halves of a free.
    pub(crate) fn free(self, address: u64, size: u64) -> Self {
        self.event("free_requested", address, size).event("free_completed", address, size)
    }

    /// Sets the clock, for the next event to be later.
    pub(crate) fn clock(mut self, time_us: i64) -> Self {
        self.clock = time_us;
        self
    }

    pub(crate) fn part(mut self, name: &str, json: &str) -> Self {
        self.parts.push(format!(r#""{name}": {json}"#));
        self
    }

    pub(crate) fn read(self) -> Snapshot {
        let traces: Vec<String> =
            self.traces.iter().map(|events| format!("[{}]", events.join(", "))).collect();
        let mut parts = self.parts;
        parts.push(format!(r#""segments": [{}]"#, self.segments.join(", ")));
        parts.push(format!(r#""device_traces": [{}]"#, traces.join(", ")));
        let json = format!("{{{}}}", parts.join(", "));
        open(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"))
    }
}

/// The replay of the first device.
pub(crate) fn replayed(snapshot: &Snapshot) -> Replay {
    replay(snapshot, &snapshot.devices[0])
}

/// The codes of all findings, those of the devices included.
pub(crate) fn codes(snapshot: &Snapshot) -> Vec<String> {
    let replays: Vec<_> = snapshot.devices.iter().map(|device| replay(snapshot, device)).collect();
    let all = tidegauge_snapshot::findings::findings(snapshot, &replays);
    all.into_iter().map(|finding| finding.code).collect()
}
