//! A caching allocator as PyTorch's is, without a device: best fit, splitting, merging, two pools.
//!
//! It keeps its own counts, so what a reader says of its history can be compared with what was so.

use std::collections::{BTreeMap, BTreeSet};

/// Sizes are multiples of this, bytes.
const ROUND: u64 = 512;
/// Requests up to this, rounded, come from the small pool, bytes.
const SMALL: u64 = 1 << 20;
/// A segment of the small pool, bytes.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests below this share a segment of [`LARGE_SEGMENT`], bytes.
const MIDDLE: u64 = 10 << 20;
/// A segment that several middle-sized blocks share, bytes.
const LARGE_SEGMENT: u64 = 20 << 20;
/// Larger segments are multiples of this, bytes.
const ROUND_LARGE: u64 = 2 << 20;
/// Where the simulated device's memory begins.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;

/// Numbers a stack of [`crate::trainer::Stacks`].
pub(crate) type Stack = u32;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    SegmentAlloc,
    Alloc,
    FreeRequested,
    FreeCompleted,
}

/// One entry of the history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) action: Action,
    pub(crate) address: u64,
    /// As torch writes it: what was asked for, or the segment's size.
    pub(crate) size: u64,
    pub(crate) stack: Stack,
}

/// A stretch of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) size: u64,
    /// What was asked for; stale once the block is free, as in torch.
    pub(crate) requested: u64,
    pub(crate) is_allocated: bool,
    pub(crate) stack: Stack,
    segment: u64,
}

/// A stretch of device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) size: u64,
    pub(crate) is_small: bool,
    pub(crate) stack: Stack,
}

/// Bytes in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    pub(crate) requested: u64,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
}

/// The allocator.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// By address; they cover the segments without gaps.
    pub(crate) blocks: BTreeMap<u64, Block>,
    /// Free blocks of the small and the large pool by size, then address.
    free: [BTreeSet<(u64, u64)>; 2],
    /// The history, while it is recorded; as long as the simulation asks for.
    pub(crate) events: Vec<Event>,
    is_recording: bool,
    pub(crate) now: Levels,
    /// Highest since recording began.
    pub(crate) peak: Levels,
}

impl Allocator {
    /// Forgets the history and begins a new one.
    pub(crate) fn start_recording(&mut self) {
        self.events.clear();
        self.is_recording = true;
        self.peak = self.now;
    }

    /// Hands out a block, and says where.
    pub(crate) fn alloc(&mut self, requested: u64, stack: Stack) -> u64 {
        let size = requested.next_multiple_of(ROUND).max(ROUND);
        let is_small = size <= SMALL;
        let fit = self.free[pool(is_small)].range((size, 0)..).next().copied();
        let (found, address) = fit.unwrap_or_else(|| self.new_segment(size, is_small, stack));
        self.free[pool(is_small)].remove(&(found, address));

        let rest = found - size;
        let is_split = if is_small { rest >= ROUND } else { rest > SMALL };
        let block = self.blocks.get_mut(&address).expect("every free block is a block");
        block.requested = requested;
        block.is_allocated = true;
        block.stack = stack;
        if is_split {
            block.size = size;
            let rest = Block { size: rest, requested: 0, is_allocated: false, ..*block };
            self.blocks.insert(address + size, rest);
            self.free[pool(is_small)].insert((rest.size, address + size));
        }
        self.now.allocated += if is_split { size } else { found };
        self.now.requested += requested;
        self.record(Action::Alloc, address, requested, stack);
        address
    }

    /// Takes a block back and merges it with its free neighbors.
    pub(crate) fn free(&mut self, address: u64, stack: Stack) {
        let block = self.blocks.get_mut(&address).expect("only what was handed out is freed");
        block.is_allocated = false;
        let block = *block;
        self.record(Action::FreeRequested, address, block.requested, stack);
        self.now.allocated -= block.size;
        self.now.requested -= block.requested;
        self.record(Action::FreeCompleted, address, block.requested, stack);

        let is_small = self.segments[&block.segment].is_small;
        let (mut start, mut size) = (address, block.size);
        let before = self.blocks.range(..address).next_back().map(|(at, block)| (*at, *block));
        let after = self.blocks.get(&(address + block.size)).map(|after| (address + block.size, *after));
        for (at, neighbor) in before.into_iter().chain(after) {
            if !neighbor.is_allocated && neighbor.segment == block.segment {
                self.free[pool(is_small)].remove(&(neighbor.size, at));
                self.blocks.remove(&at);
                start = start.min(at);
                size += neighbor.size;
            }
        }
        self.blocks.remove(&address);
        self.blocks.insert(start, Block { size, ..block });
        self.free[pool(is_small)].insert((size, start));
    }

    /// Takes a segment from the device, large enough for `size`: one free block.
    fn new_segment(&mut self, size: u64, is_small: bool, stack: Stack) -> (u64, u64) {
        let total = match size {
            _ if is_small => SMALL_SEGMENT,
            ..MIDDLE => LARGE_SEGMENT,
            _ => size.next_multiple_of(ROUND_LARGE),
        };
        let end = self.segments.last_key_value().map_or(FIRST_ADDRESS, |(at, segment)| at + segment.size);
        // The driver leaves room between segments, so that neighbors never look like one.
        let address = end.next_multiple_of(ROUND_LARGE) + ROUND_LARGE;
        self.segments.insert(address, Segment { size: total, is_small, stack });
        self.blocks.insert(
            address,
            Block { size: total, requested: 0, is_allocated: false, stack, segment: address },
        );
        self.free[pool(is_small)].insert((total, address));
        self.now.reserved += total;
        self.record(Action::SegmentAlloc, address, total, stack);
        (total, address)
    }

    fn record(&mut self, action: Action, address: u64, size: u64, stack: Stack) {
        if !self.is_recording {
            return;
        }
        self.events.push(Event { action, address, size, stack });
        self.peak.requested = self.peak.requested.max(self.now.requested);
        self.peak.allocated = self.peak.allocated.max(self.now.allocated);
        self.peak.reserved = self.peak.reserved.max(self.now.reserved);
    }
}

fn pool(is_small: bool) -> usize {
    usize::from(!is_small)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_that_are_free_become_one_block_again() {
        let mut allocator = Allocator::default();
        let blocks: Vec<u64> = (0..3).map(|_| allocator.alloc(1000, 0)).collect();
        assert_eq!(allocator.now.allocated, 3 * 1024);
        for address in [blocks[0], blocks[2], blocks[1]] {
            allocator.free(address, 0);
        }
        assert_eq!(allocator.blocks.len(), 1);
        assert_eq!(allocator.now, Levels { reserved: SMALL_SEGMENT, ..Levels::default() });
    }

    #[test]
    fn a_large_block_keeps_a_rest_of_up_to_a_mebibyte() {
        let mut allocator = Allocator::default();
        allocator.alloc(21 << 20, 0);
        assert_eq!(allocator.now.allocated, 22 << 20);
        allocator.alloc((21 << 20) - 512, 0);
        assert_eq!(allocator.now.allocated, (22 << 20) + (21 << 20) - 512);
    }
}
