//! Reserved memory and the blocks inside it, as they stood at the end.

use std::ops::Range;

use super::{ShapeId, StackId, StrId};

/// Segments, one row each. All columns have the same length.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Segments {
    /// Device ordinal.
    pub device: Vec<u32>,
    /// First byte.
    pub address: Vec<u64>,
    /// Bytes. Of an expandable segment: one contiguous mapped range.
    pub total_size: Vec<u64>,
    /// Row of [`super::Snapshot::streams`].
    pub stream: Vec<u32>,
    /// "small" or "large".
    pub kind: Vec<StrId>,
    /// Pool: (0, 0) is the default one, (n, 0) a CUDA graph's, (0, n) a `MemPool`'s.
    pub pool: Vec<(u64, u64)>,
    /// True when parts of it can be mapped and unmapped.
    pub is_expandable: Vec<bool>,
    /// Where it was taken from the device; often empty though recorded.
    pub stack: Vec<StackId>,
    /// Its rows in [`Blocks`].
    pub blocks: Vec<Range<u32>>,
    /// Its fields in the file.
    pub shape: Vec<ShapeId>,
}

impl Segments {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.address.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.address.is_empty()
    }
}

/// What a block is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Free for the next request.
    Inactive,
    /// In use.
    Allocated,
    /// Given back by the program; another stream may still use it.
    PendingFree,
}

/// Blocks, one row each. All columns have the same length.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Blocks {
    /// First byte.
    pub address: Vec<u64>,
    /// Bytes occupied.
    pub size: Vec<u64>,
    /// Bytes asked for; meaningless on inactive blocks.
    pub requested: Vec<u64>,
    /// What it is doing.
    pub state: Vec<BlockState>,
    /// Where it was allocated.
    pub stack: Vec<StackId>,
    /// Its fields in the file.
    pub shape: Vec<ShapeId>,
    /// The uses of blocks that torch 2.0 lists, by block, the latest of each first.
    pub history: Vec<History>,
}

/// A use of a block, of which torch 2.0 lists the latest and those before that lay inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Row of [`Blocks`].
    pub block: u32,
    /// First byte.
    pub address: u64,
    /// Bytes asked for.
    pub real_size: u64,
    /// Where it was allocated.
    pub stack: StackId,
}

impl Blocks {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.size.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.size.is_empty()
    }
}
