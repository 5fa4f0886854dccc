//! Memory at the cursor: the question, the answer, and the rectangles that travel beside it.

use serde::{Deserialize, Serialize};
use tidegauge_snapshot::picture::{MapKind, MapOrder, MapRect, MapScale};
use tidegauge_snapshot::replay::NEVER;

/// Segments and blocks at one state, as rows for a canvas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryQuestion {
    /// Device ordinal.
    pub device: u32,
    /// The state.
    pub state: u32,
    /// Width of a row, device pixels.
    pub width: u32,
    /// How wide rows are.
    pub scale: Scale,
    /// In what order they stand.
    pub order: Order,
    /// The allocation whose place is asked for.
    pub pinned: Option<u32>,
}

/// How wide the rows of segments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// A byte is as wide in every row.
    Common,
    /// Every segment fills its row.
    Own,
}

/// In what order segments stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The largest first.
    Largest,
    /// By address.
    Address,
}

/// Answer to [`MemoryQuestion`]; two columns of numbers travel beside it, see [`Block`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryAnswer {
    /// The question.
    pub question: MemoryQuestion,
    /// The segments that have a row, in order.
    pub segments: Vec<SegmentAnswer>,
    /// All segments, those without a row included.
    pub total: SegmentTotal,
    /// Those without a row: they are smaller than the others.
    pub others: SegmentTotal,
    /// Bytes of blocks that wait for another stream.
    pub pending: u64,
    /// Bytes of active blocks beyond what was asked for.
    pub waste: u64,
    /// Bytes of free blocks that share their segment with others.
    pub inactive_split: u64,
    /// The segment with the largest free block, which is its `largest_free`.
    pub roomiest: Option<SegmentAnswer>,
    /// Blocks too small to be drawn on their own.
    pub n_merged: u64,
    /// Pixels a block needs to be drawn on its own.
    pub grain: u32,
    /// Allocations that lie in no segment: the file contradicts itself.
    pub n_strays: u64,
    /// Where the allocation of the question lies: its row, left edge and width.
    pub pinned: Option<[u32; 3]>,
    /// Set where the event before this state is a request that could not be met.
    pub oom: Option<OomAnswer>,
}

/// One segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentAnswer {
    /// Hexadecimal with "0x".
    pub address: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of its active blocks.
    pub active: u64,
    /// Bytes of its largest free block; 0 when it has none.
    pub largest_free: u64,
    /// Its pool, where the file tells: "default", "graph 1".
    pub pool: Option<String>,
    /// The raw handle of its stream, hexadecimal with "0x"; absent of the default stream.
    pub stream: Option<String>,
    /// Number of its stream, by first appearance.
    pub stream_number: u32,
    /// True when it can grow and shrink.
    pub is_expandable: bool,
}

/// Segments, summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentTotal {
    /// How many there are.
    pub segments: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes of active blocks.
    pub active: u64,
}

/// A request that could not be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomAnswer {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes that the device reported free.
    pub device_free: u64,
}

/// A rectangle of the picture. It travels as [`Block::N_CELLS`] numbers of 32 bits and [`Block::N_SIZES`] of 64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// Its row.
    pub row: u32,
    /// Left edge, device pixels from where the rows begin.
    pub x: u32,
    /// Width, device pixels.
    pub width: u32,
    /// Of that, at the right end, what rounding added.
    pub waste: u32,
    /// What it shows.
    pub kind: BlockKind,
    /// Red, green and blue.
    pub color: [u8; 3],
    /// The allocation it shows, if it is one.
    pub allocation: Option<u32>,
    /// Blocks it shows.
    pub n_blocks: u32,
    /// First byte, from the beginning of its segment.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Of those, bytes that are not free.
    pub active: u64,
}

/// What a rectangle shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// A free block.
    Free,
    /// A block in use.
    Allocated,
    /// A block that waits for another stream.
    Pending,
    /// Several, each too small to draw.
    Several,
}

impl Block {
    /// Numbers of 32 bits that one takes.
    pub const N_CELLS: usize = 7;
    /// Floats that one takes; a size of memory is exact in them.
    pub const N_SIZES: usize = 3;

    /// A rectangle with its color.
    pub fn new(rect: &MapRect, color: [u8; 3]) -> Self {
        let kind = match rect.kind {
            MapKind::Free => BlockKind::Free,
            MapKind::Allocated => BlockKind::Allocated,
            MapKind::Pending => BlockKind::Pending,
            MapKind::Several => BlockKind::Several,
        };
        Self {
            row: rect.row,
            x: rect.x,
            width: rect.width,
            waste: rect.waste,
            kind,
            color,
            allocation: (rect.allocation != NEVER).then_some(rect.allocation),
            n_blocks: rect.n_blocks,
            offset: rect.offset,
            bytes: rect.bytes,
            active: rect.active,
        }
    }

    /// It, as numbers.
    pub fn to_numbers(self) -> ([u32; Self::N_CELLS], [f64; Self::N_SIZES]) {
        let kind = match self.kind {
            BlockKind::Free => 0,
            BlockKind::Allocated => 1,
            BlockKind::Pending => 2,
            BlockKind::Several => 3,
        };
        let [red, green, blue] = self.color;
        let look = u32::from_be_bytes([kind, red, green, blue]);
        (
            [self.row, self.x, self.width, self.waste, look, self.allocation.unwrap_or(NEVER), self.n_blocks],
            [self.offset as f64, self.bytes as f64, self.active as f64],
        )
    }

    /// One from its numbers; none when they are of another build.
    pub fn from_numbers(cells: &[u32], sizes: &[f64]) -> Option<Self> {
        let ([row, x, width, waste, look, allocation, n_blocks], [offset, bytes, active]) = (cells, sizes)
        else {
            return None;
        };
        let [kind, red, green, blue] = look.to_be_bytes();
        let kind = match kind {
            0 => BlockKind::Free,
            1 => BlockKind::Allocated,
            2 => BlockKind::Pending,
            3 => BlockKind::Several,
            _ => return None,
        };
        Some(Self {
            row: *row,
            x: *x,
            width: *width,
            waste: *waste,
            kind,
            color: [red, green, blue],
            allocation: (*allocation != NEVER).then_some(*allocation),
            n_blocks: *n_blocks,
            offset: *offset as u64,
            bytes: *bytes as u64,
            active: *active as u64,
        })
    }
}

impl From<Scale> for MapScale {
    fn from(scale: Scale) -> Self {
        match scale {
            Scale::Common => Self::Common,
            Scale::Own => Self::Own,
        }
    }
}

impl From<Order> for MapOrder {
    fn from(order: Order) -> Self {
        match order {
            Order::Largest => Self::Largest,
            Order::Address => Self::Address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_out_of_its_numbers_as_it_went_in() {
        let block = Block {
            row: 3,
            x: 10,
            width: 20,
            waste: 2,
            kind: BlockKind::Pending,
            color: [1, 200, 255],
            allocation: Some(77),
            n_blocks: 1,
            offset: 1 << 40,
            bytes: 5_000_000_001,
            active: 5_000_000_001,
        };
        let gap = Block { kind: BlockKind::Free, allocation: None, active: 0, ..block };
        for block in [block, gap, Block { kind: BlockKind::Several, ..gap }] {
            let (cells, sizes) = block.to_numbers();
            assert_eq!(Block::from_numbers(&cells, &sizes), Some(block));
        }
        assert_eq!(Block::from_numbers(&[0; 3], &[0.0; 3]), None);
    }
}
