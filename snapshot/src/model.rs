//! A snapshot as tables: columns side by side, rows named by small numbers, strings and stacks stored once.

pub mod action;
pub mod stacks;
pub mod trace;
pub mod segments;
pub mod value;
pub mod kept;

pub use action::{Action, ActionNames};
pub use kept::{Kept, KeptOf, Keys, More, MoreValue, ShapeId, Texts};
pub use segments::{BlockState, Blocks, History, Segments};
pub use stacks::{Frame, FrameId, StackId, Stacks, StrId, Strings};
pub use trace::{Extra, Trace};
pub use value::Value;

use std::ops::Range;

/// Everything one file holds.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Snapshot {
    /// From the outside in: "zstd", "gzip", "pickle4".
    pub wrapping: Vec<String>,
    /// Bytes of the pickle, decompressed.
    pub content_bytes: u64,
    /// What wrote the file, as far as it tells: "torch 2.9", "torch_npu".
    pub producer: String,
    /// Every text, once.
    pub strings: Strings,
    /// Every call stack, once.
    pub stacks: Stacks,
    /// Raw stream handles by first appearance.
    pub streams: Vec<u64>,
    /// Names of actions this version does not know.
    pub action_names: ActionNames,
    /// The events of all devices, one device after the other; [`Device::events`] says which are whose.
    pub trace: Trace,
    /// The segments of all devices; [`Device::segments`] says which are whose.
    pub segments: Segments,
    /// The blocks of all segments, in order of address within each; [`Segments::blocks`] says which are whose.
    pub blocks: Blocks,
    /// Devices with segments or events, by ordinal.
    pub devices: Vec<Device>,
    /// Pinned host memory, since torch 2.14 and if its recording was asked for.
    pub host: Option<Device>,
    /// `external_annotations`, in order.
    pub annotations: Vec<Annotation>,
    /// `allocator_settings`, in order.
    pub settings: Vec<(String, Value)>,
    /// Odd things that did not stop the reading.
    pub findings: Vec<Finding>,
    /// Which fields the rows had, in order.
    pub keys: Keys,
    /// Lists of texts that events name by number: `forward_frames`, since torch 2.11.
    pub forward: Texts,
    /// Fields that no column holds: unknown ones, and values that are odd. By kind and row.
    pub kept: Vec<Kept>,
    /// Names of the parts at the top of the file, in order; empty for `torch.cuda.memory_snapshot()`, whose segments
    /// stand alone.
    pub top: Vec<String>,
    /// Entries of `device_traces`, empty ones included.
    pub n_traces: u32,
    /// Parts at the top that this version does not know.
    pub rest: Vec<(String, Value)>,
}

/// One device of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Ordinal as the process saw it, after `CUDA_VISIBLE_DEVICES`; [`Device::HOST`] for pinned host memory.
    pub ordinal: u32,
    /// Its rows in [`Snapshot::trace`].
    pub events: Range<usize>,
    /// Its rows in [`Snapshot::segments`].
    pub segments: Range<usize>,
}

impl Device {
    /// Stands where a device has its ordinal; torch writes -1.
    pub const HOST: u32 = u32::MAX;

    /// True of pinned host memory.
    pub fn is_host(&self) -> bool {
        self.ordinal == Self::HOST
    }
}

/// One end of a named range that the program marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// True for the beginning, false for the end.
    pub is_start: bool,
    /// Name of the range.
    pub name: StrId,
    /// Device that was current in the thread.
    pub device: u32,
    /// Unix epoch, microseconds.
    pub time_us: i64,
    /// Its fields in the file.
    pub shape: ShapeId,
}

/// Something odd that did not stop the reading, said once with its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable code: "unknown-key".
    pub code: String,
    /// How often.
    pub count: u64,
    /// One sentence.
    pub message: String,
}

impl Snapshot {
    /// The device with this ordinal, if it has segments or events.
    pub fn device(&self, ordinal: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.ordinal == ordinal)
    }

    /// A setting of the allocator by its name.
    pub fn setting(&self, name: &str) -> Option<&Value> {
        self.settings.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// A text that says something: torch writes "N/A" for no compile context and "" for no metadata.
    pub fn said(&self, text: Option<StrId>) -> Option<StrId> {
        text.filter(|id| !matches!(self.strings.bytes(*id), b"" | b"N/A"))
    }

    /// The fields of a row that no column holds.
    pub fn kept_of(&self, of: KeptOf, row: usize) -> &[Kept] {
        let key = |kept: &Kept| (kept.of, kept.row as usize);
        let from = self.kept.partition_point(|kept| key(kept) < (of, row));
        let to = self.kept.partition_point(|kept| key(kept) <= (of, row));
        &self.kept[from..to]
    }

    /// The name of an action as it stands in the file.
    pub fn action_name(&self, action: Action) -> &str {
        action.known_name().or_else(|| self.action_names.name(action)).unwrap_or("unknown")
    }
}
