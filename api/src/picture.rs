//! Questions of the page to its worker, and the answers.
//!
//! A position on the x axis is a *state index*: state 0 is memory as it stood before the trace's first event,
//! state `k` after its first `k` events. A trace of `n` events has the states `0..=n`.

use serde::{Deserialize, Serialize};

/// The stacked picture of a window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PictureQuestion {
    /// Device ordinal.
    pub device: u32,
    /// First state of the window.
    pub from: u32,
    /// One past its last state.
    pub to: u32,
    /// Width, device pixels.
    pub width: u32,
    /// Height, device pixels.
    pub height: u32,
    /// Bytes at the upper edge; absent: 1.05 × the window's highest level of active bytes.
    pub top: Option<u64>,
}

/// Answer to [`PictureQuestion`]; `width × height` RGBA pixels and as many `u32` ids travel beside it.
///
/// An id is an allocation's number; [`ID_OTHER`] is the band of allocations too small to draw, [`ID_NONE`] is
/// above the level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PictureAnswer {
    /// The question, with `top` filled in.
    pub question: PictureQuestion,
    /// Allocations drawn on their own.
    pub n_drawn: u32,
    /// Highest "other" band over the columns, bytes.
    pub other_max: u64,
    /// The four curves over the same columns.
    pub curves: Curves,
}

/// Id of pixels in the "other" band.
pub const ID_OTHER: u32 = u32::MAX - 1;
/// Id of pixels above the level.
pub const ID_NONE: u32 = u32::MAX;

/// Highest level in each pixel column, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Bytes asked for.
    pub requested: Vec<u64>,
    /// Bytes of blocks handed out.
    pub allocated: Vec<u64>,
    /// Allocated and freed blocks that still wait for another stream.
    pub active: Vec<u64>,
    /// Bytes of segments.
    pub reserved: Vec<u64>,
    /// The state each column shows: the one with the highest active level in it.
    pub states: Vec<u32>,
}

/// One device of an opened snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenedDevice {
    /// Device ordinal.
    pub device: u32,
    /// Events in its trace; states are `0..=n_events`.
    pub n_events: u32,
    /// Allocations, those older than the trace included.
    pub n_allocations: u32,
    /// Unix epoch microseconds of the first and last event, if the trace has times.
    pub time_us: Option<[i64; 2]>,
    /// Highest level of active bytes.
    pub peak_active: u64,
    /// State of the highest allocated level.
    pub peak_state: u32,
}

/// Levels at one state, and the event that led to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LevelsAnswer {
    /// The state.
    pub state: u32,
    /// Bytes.
    pub requested: u64,
    /// Bytes.
    pub allocated: u64,
    /// Bytes.
    pub active: u64,
    /// Bytes.
    pub reserved: u64,
    /// Action of the event before this state; absent at state 0.
    pub action: Option<String>,
    /// Unix epoch microseconds of that event.
    pub time_us: Option<i64>,
}

/// One frame of a stack, innermost first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameAnswer {
    /// Function.
    pub name: String,
    /// File; empty or "??" when unknown.
    pub filename: String,
    /// Line; absent when unknown.
    pub line: Option<u32>,
}

/// Everything known of one allocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllocationAnswer {
    /// Its number.
    pub id: u32,
    /// Hexadecimal with "0x": addresses do not fit a JavaScript number.
    pub address: String,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of its block.
    pub size: u64,
    /// First state it is alive in; 0 when it is older than the trace.
    pub from: u32,
    /// First state it is gone in; absent when it outlives the trace.
    pub to: Option<u32>,
    /// State in which its free was asked for, when later states wait for another stream.
    pub free_requested: Option<u32>,
    /// True when it is older than the trace.
    pub preexisting: bool,
    /// Microseconds it lived, when the trace has times and both ends.
    pub lifetime_us: Option<i64>,
    /// Number of its stream, by first appearance; 0 is the default stream.
    pub stream: Option<u64>,
    /// Where it was allocated, innermost first.
    pub stack: Vec<FrameAnswer>,
    /// Why `stack` is empty.
    pub stack_missing: Option<String>,
    /// Torch's `compile_context` and `user_metadata`, if set.
    pub notes: Vec<String>,
}

/// The snapshots of an archive, one of which can be opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveListing {
    /// In the archive's order.
    pub snapshots: Vec<ArchiveMember>,
    /// Files that are none.
    pub n_others: u64,
}

/// A snapshot in an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveMember {
    /// Its path in the archive.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
}

/// Answer to opening a file or a snapshot of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Summary, as `tidegauge inspect --json` prints it.
    pub inspection: crate::Inspection,
    /// Devices with segments or events, busiest first.
    pub devices: Vec<OpenedDevice>,
}

/// One allocation, asked for by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationQuestion {
    /// Device ordinal.
    pub device: u32,
    /// The allocation's number.
    pub id: u32,
}

/// Levels, asked for by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelsQuestion {
    /// Device ordinal.
    pub device: u32,
    /// The state.
    pub state: u32,
}
