//! Memory at one moment, as the segments of a snapshot taken then would show it.

use super::{NEVER, Replay, Reservations};
use crate::model::BlockState;

/// Segments and blocks at one state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateAt {
    /// After this many events.
    pub state: u32,
    /// By address.
    pub segments: Vec<SegmentAt>,
    /// The blocks of all segments without gaps, by address in each.
    pub blocks: Vec<BlockAt>,
    /// Rows of allocations that lie in no segment: the file contradicts itself.
    pub strays: Vec<u32>,
}

/// A segment, or a contiguous mapped range of an expandable one.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentAt {
    /// Row of [`Replay::reservations`] it begins with.
    pub reservation: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Its rows in [`StateAt::blocks`].
    pub blocks: std::ops::Range<usize>,
}

/// A block, free or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockAt {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// What it is doing.
    pub state: BlockState,
    /// Row of [`Replay::allocations`] that has it; none when it is free.
    pub allocation: Option<u32>,
}

/// The free memory inside segments at one state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FreeAt {
    /// All of it, bytes.
    pub bytes: u64,
    /// The largest free block, as its segment's row in [`StateAt::segments`] and bytes; the first of several.
    pub largest: Option<(usize, u64)>,
    /// Bytes of free blocks that share their segment with others, as [`super::Fragmentation::inactive_split`]
    /// has them.
    pub inactive_split: u64,
}

impl StateAt {
    /// The blocks of a segment, by address.
    pub fn blocks_of(&self, segment: &SegmentAt) -> &[BlockAt] {
        self.blocks.get(segment.blocks.clone()).unwrap_or(&[])
    }

    /// What is free in it, and how much of that is of little use.
    pub fn free(&self, reservations: &Reservations) -> FreeAt {
        let mut found = FreeAt::default();
        for (row, segment) in self.segments.iter().enumerate() {
            let blocks = self.blocks_of(segment);
            let is_split = blocks.len() > 1 && !reservations.is_expandable[segment.reservation as usize];
            for block in blocks.iter().filter(|block| block.state == BlockState::Inactive) {
                found.bytes = found.bytes.saturating_add(block.size);
                if is_split {
                    found.inactive_split = found.inactive_split.saturating_add(block.size);
                }
                if found.largest.is_none_or(|(_, largest)| block.size > largest) {
                    found.largest = Some((row, block.size));
                }
            }
        }
        found
    }
}

impl Replay {
    /// Rows of the allocations that are alive at a state, in order of allocation. Takes time proportional to the
    /// trace before it; [`crate::picture::Index::alive_at`] is quicker for many questions.
    pub fn alive_at(&self, state: u32) -> Vec<u32> {
        let allocations = &self.allocations;
        let n_begun = allocations.from.partition_point(|from| *from <= state);
        let ends = (0..).zip(&allocations.to[..n_begun]);
        ends.filter(|(_, to)| **to > state).map(|(row, _)| row).collect()
    }

    /// Every segment and block at a state.
    pub fn state_at(&self, state: u32) -> StateAt {
        self.state_of(state, self.alive_at(state))
    }

    /// Every segment and block at a state of which the living allocations are known, in any order.
    pub fn state_of(&self, state: u32, mut alive: Vec<u32>) -> StateAt {
        let allocations = &self.allocations;
        alive.sort_unstable_by_key(|row| allocations.address[*row as usize]);
        let mut alive = alive.into_iter().peekable();
        let mut found = StateAt { state, segments: Vec::new(), blocks: Vec::new(), strays: Vec::new() };
        let mut segments = segments_at(&self.reservations, state).into_iter().peekable();
        while let Some(mut segment) = segments.next() {
            let first = found.blocks.len();
            let mut end = segment.address.saturating_add(segment.size);
            let mut at = segment.address;
            while let Some(row) = alive.next_if(|row| allocations.address[*row as usize] < end) {
                let address = allocations.address[row as usize];
                if address < at {
                    found.strays.push(row);
                    continue;
                }
                if address > at {
                    found.blocks.push(free(at, address));
                }
                let size = allocations.size[row as usize];
                // A block that reaches into the next piece shows that they are one.
                while address.saturating_add(size) > end
                    && let Some(next) = segments.next_if(|next| next.address == end)
                {
                    segment.size = segment.size.saturating_add(next.size);
                    end = segment.address.saturating_add(segment.size);
                }
                let size = size.min(end - address);
                let is_pending = allocations.free_requested[row as usize] <= state;
                let doing = if is_pending { BlockState::PendingFree } else { BlockState::Allocated };
                found.blocks.push(BlockAt { address, size, state: doing, allocation: Some(row) });
                at = address + size;
            }
            if at < end {
                found.blocks.push(free(at, end));
            }
            segment.blocks = first..found.blocks.len();
            found.segments.push(segment);
        }
        found.strays.extend(alive);
        found
    }
}

fn free(start: u64, end: u64) -> BlockAt {
    BlockAt { address: start, size: end - start, state: BlockState::Inactive, allocation: None }
}

/// What is reserved at a state, by address; pieces of expandable segments that touch are one.
fn segments_at(reservations: &Reservations, state: u32) -> Vec<SegmentAt> {
    let n_begun = reservations.from.partition_point(|from| *from <= state);
    let mut rows: Vec<usize> = (0..n_begun).filter(|row| reservations.to[*row] > state).collect();
    rows.sort_unstable_by_key(|row| reservations.address[*row]);
    let mut segments: Vec<SegmentAt> = Vec::new();
    let mut previous = None;
    for row in rows {
        let (address, size) = (reservations.address[row], reservations.size[row]);
        let previous = previous.replace(row);
        if let Some((last, previous)) = segments.last_mut().zip(previous)
            && last.address.saturating_add(last.size) == address
            && is_one(reservations, previous, row)
        {
            last.size = last.size.saturating_add(size);
            continue;
        }
        segments.push(SegmentAt { reservation: row as u32, address, size, blocks: 0..0 });
    }
    segments
}

/// Whether two pieces that touch are parts of one expandable segment. Two that outlive the trace as different segments
/// lie side by side by accident.
fn is_one(reservations: &Reservations, first: usize, second: usize) -> bool {
    let (a, b) = (reservations.segment[first], reservations.segment[second]);
    let is_known = a != NEVER && b != NEVER;
    reservations.is_expandable[first]
        && reservations.is_expandable[second]
        && reservations.stream[first] == reservations.stream[second]
        && (!is_known || a == b)
}
