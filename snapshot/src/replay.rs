//! Memory after every event, exactly as the allocator counted it.
//!
//! A trace holds requested sizes only, but the allocator accounts in blocks. What a block really occupies
//! follows from the free ranges at that moment: the allocator rounds the request up, takes a free range that
//! starts there and splits the rest off, or hands out all of it. So:
//!
//! 1. *Backward* from the segments, which stand as they were at the end: what was reserved and in use before the
//!    first event. This also anchors a trace whose beginning was lost.
//! 2. *Forward* from there through the trace: every range split, given back and merged as the allocator does it.
//!
//! The result equals `torch.cuda.memory_stats()`, current and peak, of requested, allocated, active and reserved
//! bytes. The rules are those of `c10/cuda/CUDACachingAllocator.cpp`: `round_size`, `should_split`, `free_block`;
//! torch_npu adds 32 bytes to a request before rounding.

mod rounding;
mod ranges;

pub use rounding::Rounding;

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::Snapshot;
use crate::model::{Action, BlockState, Device, StackId};
use ranges::{EXPANDABLE, FreeRanges};

/// The four levels at one moment, bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// What the program asked for, of blocks that are active.
    pub requested: u64,
    /// Blocks in use.
    pub allocated: u64,
    /// Blocks in use or waiting for another stream.
    pub active: u64,
    /// Segments.
    pub reserved: u64,
}

/// State `k` is memory after the first `k` events; all columns have one entry per state, `0..=n_events`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Curves {
    /// Bytes by state.
    pub requested: Vec<u64>,
    /// Bytes by state.
    pub allocated: Vec<u64>,
    /// Bytes by state.
    pub active: Vec<u64>,
    /// Bytes by state.
    pub reserved: Vec<u64>,
}

impl Curves {
    fn push(&mut self, levels: Levels) {
        self.requested.push(levels.requested);
        self.allocated.push(levels.allocated);
        self.active.push(levels.active);
        self.reserved.push(levels.reserved);
    }

    /// The levels at a state.
    pub fn at(&self, state: usize) -> Levels {
        let of = |column: &[u64]| column.get(state).copied().unwrap_or(0);
        Levels {
            requested: of(&self.requested),
            allocated: of(&self.allocated),
            active: of(&self.active),
            reserved: of(&self.reserved),
        }
    }

    /// How many states there are.
    pub fn n_states(&self) -> usize {
        self.active.len()
    }
}

/// One row per life of a block: from when it was handed out to when it could be handed out again. Rows stand in
/// order of [`Allocations::from`]; those older than the trace come first, by address.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Allocations {
    /// First byte.
    pub address: Vec<u64>,
    /// Bytes asked for.
    pub requested: Vec<u64>,
    /// Bytes occupied.
    pub size: Vec<u64>,
    /// First state it is alive in; 0 when it is older than the trace.
    pub from: Vec<u32>,
    /// First state it is gone in; [`NEVER`] when it outlives the trace.
    pub to: Vec<u32>,
    /// First state in which its free had been requested; [`NEVER`] when it never was.
    pub free_requested: Vec<u32>,
    /// Where it was allocated. Of blocks older than the trace it is known only if they outlived it.
    pub stack: Vec<StackId>,
}

/// A state that does not come.
pub const NEVER: u32 = u32::MAX;

impl Allocations {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.address.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.address.is_empty()
    }

    fn push(&mut self, address: u64, requested: u64, size: u64, from: u32, stack: StackId) -> u32 {
        self.address.push(address);
        self.requested.push(requested);
        self.size.push(size);
        self.from.push(from);
        self.to.push(NEVER);
        self.free_requested.push(NEVER);
        self.stack.push(stack);
        self.len() as u32 - 1
    }
}

/// What [`replay`] finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Every life of a block.
    pub allocations: Allocations,
    /// The first rows of [`Replay::allocations`] that are older than the trace.
    pub n_preexisting: usize,
    /// The levels at every state.
    pub curves: Curves,
    /// Before the first event.
    pub head: Levels,
    /// Each level's highest, over all states.
    pub peak: Levels,
    /// After the last event.
    pub end: Levels,
    /// First state with the highest allocated level.
    pub peak_state: u32,
    /// How requests were rounded.
    pub rounding: Rounding,
    /// Where trace and segments, or one event and the next, do not fit together.
    pub doubts: Doubts,
}

/// How well the pieces fit: all zero in a sound file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Doubts {
    /// Allocations on an address that was still in use: a free is missing.
    pub alloc_on_live: u64,
    /// Frees of an address that was not in use.
    pub free_of_unknown: u64,
    /// Allocations that did not fall on the beginning of a free range.
    pub alloc_off_range: u64,
    /// Blocks whose size or presence at the end differs from the segments.
    pub end_mismatch: u64,
    /// Blocks freed in the trace but older than it whose size the file leaves open by at most 1 MiB.
    pub ambiguous_sizes: u64,
    /// Frees that were completed without having been requested.
    pub unrequested_frees: u64,
}

impl Doubts {
    /// What speaks against the rounding that was assumed.
    fn weight(&self) -> u64 {
        self.alloc_on_live + self.free_of_unknown + self.alloc_off_range + self.end_mismatch
    }
}

/// Replays one device of a snapshot.
///
/// torch_npu rounds differently and does not say so in the file. Where the file leaves open who wrote it (no
/// times, as with torch_npu and torch before 2.2), both ways are tried and the one that fits the segments better
/// is kept.
pub fn replay(snapshot: &Snapshot, device: &Device) -> Replay {
    let rounding = Rounding::of(snapshot);
    let is_open = snapshot.trace.time_us.is_empty() && !device.events.is_empty();
    let first = Replayer::new(snapshot, device, rounding.clone()).run();
    if !is_open || first.doubts.weight() == 0 {
        return first;
    }
    let other = Replayer::new(snapshot, device, rounding.other_padding()).run();
    if other.doubts.weight() < first.doubts.weight() { other } else { first }
}

/// Events at the head of a trace that describe what was there already: torch_npu puts `workspace_snapshot`,
/// `segment_alloc` and `alloc` there for each workspace, whenever it was made, and its segment beside the others.
pub(crate) fn n_workspace_events(snapshot: &Snapshot, device: &Device) -> usize {
    const TRIPLE: [Action; 3] = [Action::WORKSPACE_SNAPSHOT, Action::SEGMENT_ALLOC, Action::ALLOC];
    let actions = &snapshot.trace.action[device.events.clone()];
    TRIPLE.len() * actions.chunks(TRIPLE.len()).take_while(|chunk| *chunk == TRIPLE).count()
}

#[derive(Clone, Copy)]
struct Live {
    row: u32,
    size: u64,
    requested: u64,
    segment: u32,
    is_allocated: bool,
}

/// A block found by the backward pass.
struct HeadBlock {
    /// Unknown for blocks that the trace frees.
    size: Option<u64>,
    requested: u64,
    is_allocated: bool,
    stack: StackId,
}

struct Replayer<'a> {
    snapshot: &'a Snapshot,
    device: &'a Device,
    /// The first event that is not a description of torch_npu's workspaces.
    first_event: usize,
    rounding: Rounding,
    /// Plain segments by address: size.
    segments: BTreeMap<u64, u64>,
    free: FreeRanges,
    live: HashMap<u64, Live, RandomState>,
    allocations: Allocations,
    curves: Curves,
    now: Levels,
    doubts: Doubts,
}

impl<'a> Replayer<'a> {
    fn new(snapshot: &'a Snapshot, device: &'a Device, rounding: Rounding) -> Self {
        Self {
            snapshot,
            device,
            first_event: device.events.start + n_workspace_events(snapshot, device),
            rounding,
            segments: BTreeMap::new(),
            free: FreeRanges::default(),
            live: HashMap::default(),
            allocations: Allocations::default(),
            curves: Curves::default(),
            now: Levels::default(),
            doubts: Doubts::default(),
        }
    }

    fn run(mut self) -> Replay {
        let (blocks, mapped) = self.head();
        self.place_head(blocks, &mapped);
        let n_preexisting = self.allocations.len();
        let head = self.now;
        let mut peak = head;
        let (mut peak_state, mut peak_allocated) = (0, head.allocated);
        self.reserve_columns();
        self.curves.push(head);
        for (state, event) in (1..).zip(self.device.events.clone()) {
            if event >= self.first_event {
                self.step(event, state);
            }
            self.curves.push(self.now);
            peak.requested = peak.requested.max(self.now.requested);
            peak.active = peak.active.max(self.now.active);
            peak.reserved = peak.reserved.max(self.now.reserved);
            if self.now.allocated > peak_allocated {
                (peak_state, peak_allocated) = (state, self.now.allocated);
            }
        }
        peak.allocated = peak_allocated;
        self.compare_with_segments();
        Replay {
            n_preexisting,
            head,
            peak,
            end: self.now,
            peak_state,
            allocations: self.allocations,
            curves: self.curves,
            rounding: self.rounding,
            doubts: self.doubts,
        }
    }

    fn reserve_columns(&mut self) {
        let n = self.device.events.len() + 1;
        self.curves.requested.reserve_exact(n);
        self.curves.allocated.reserve_exact(n);
        self.curves.active.reserve_exact(n);
        self.curves.reserved.reserve_exact(n);
    }

    /// The backward pass: blocks and mapped ranges as they stood before the first event. Plain segments are left
    /// in `self.segments`.
    fn head(&mut self) -> (BTreeMap<u64, HeadBlock>, ranges::Mapped) {
        let Snapshot { segments, blocks, trace, .. } = self.snapshot;
        let mut head = BTreeMap::new();
        let mut mapped = ranges::Mapped::default();
        for segment in self.device.segments.clone() {
            let (address, size) = (segments.address[segment], segments.total_size[segment]);
            if segments.is_expandable[segment] {
                mapped.add(address, address.saturating_add(size));
            } else {
                self.segments.insert(address, size);
            }
            for block in segments.blocks[segment].clone() {
                let block = block as usize;
                if blocks.state[block] != BlockState::Inactive {
                    let found = HeadBlock {
                        size: Some(blocks.size[block]),
                        requested: blocks.requested[block],
                        is_allocated: blocks.state[block] == BlockState::Allocated,
                        stack: blocks.stack[block],
                    };
                    head.insert(blocks.address[block], found);
                }
            }
        }
        for event in (self.first_event..self.device.events.end).rev() {
            let (address, size) = (trace.address[event], trace.size[event]);
            match trace.action[event] {
                Action::ALLOC => {
                    head.remove(&address);
                }
                Action::FREE_COMPLETED => {
                    let freed =
                        HeadBlock { size: None, requested: size, is_allocated: false, stack: StackId::NONE };
                    head.insert(address, freed);
                }
                Action::FREE_REQUESTED => {
                    if let Some(block) = head.get_mut(&address) {
                        block.is_allocated = true;
                    }
                }
                Action::SEGMENT_ALLOC => {
                    self.segments.remove(&address);
                }
                Action::SEGMENT_FREE => {
                    self.segments.insert(address, size);
                }
                Action::SEGMENT_MAP => mapped.remove(address, address.saturating_add(size)),
                Action::SEGMENT_UNMAP => mapped.add(address, address.saturating_add(size)),
                _ => {}
            }
        }
        (head, mapped)
    }

    /// Puts the blocks of the head into their segments; what is between them is free.
    fn place_head(&mut self, mut head: BTreeMap<u64, HeadBlock>, mapped: &ranges::Mapped) {
        let plain =
            self.segments.iter().map(|(address, size)| (*address, address.saturating_add(*size), false));
        let mut areas: Vec<(u64, u64, bool)> =
            plain.chain(mapped.iter().map(|(a, b)| (a, b, true))).collect();
        areas.sort_unstable();
        for (start, end, is_expandable) in areas {
            self.now.reserved = self.now.reserved.saturating_add(end - start);
            let segment = if is_expandable { EXPANDABLE } else { self.segment_number(start) };
            let mut inside = head.extract_if(start..end, |_, _| true).peekable();
            let mut at = start;
            while let Some((address, block)) = inside.next() {
                if address > at {
                    self.free.add(at, address, segment);
                }
                let next = inside.peek().map_or(end, |(next, _)| *next);
                let size = block.size.unwrap_or_else(|| {
                    let rounded = self.rounding.round(block.requested);
                    let gap = (next - address).saturating_sub(rounded);
                    let is_open = !is_expandable && !self.rounding.is_small(rounded) && gap > 0;
                    if is_open && gap <= rounding::SMALL_SIZE {
                        self.doubts.ambiguous_sizes += 1;
                    }
                    rounded
                });
                let row = self.allocations.push(address, block.requested, size, 0, block.stack);
                if !block.is_allocated {
                    self.allocations.free_requested[row as usize] = 0;
                }
                self.now.requested = self.now.requested.saturating_add(block.requested);
                self.now.active = self.now.active.saturating_add(size);
                if block.is_allocated {
                    self.now.allocated = self.now.allocated.saturating_add(size);
                }
                let live =
                    Live { row, size, requested: block.requested, segment, is_allocated: block.is_allocated };
                self.live.insert(address, live);
                at = address.saturating_add(size);
            }
            if at < end {
                self.free.add(at, end, segment);
            }
        }
        // Blocks outside every segment: the file contradicts itself, or a segment event is missing.
        for (address, block) in head {
            let size = block.size.unwrap_or_else(|| self.rounding.round(block.requested));
            let row = self.allocations.push(address, block.requested, size, 0, block.stack);
            self.now.requested = self.now.requested.saturating_add(block.requested);
            self.now.active = self.now.active.saturating_add(size);
            if block.is_allocated {
                self.now.allocated = self.now.allocated.saturating_add(size);
            } else {
                self.allocations.free_requested[row as usize] = 0;
            }
            let (requested, is_allocated) = (block.requested, block.is_allocated);
            self.live.insert(address, Live { row, size, requested, segment: EXPANDABLE, is_allocated });
            self.doubts.alloc_off_range += 1;
        }
    }

    /// A number that is the same for all addresses of one plain segment.
    fn segment_number(&self, start: u64) -> u32 {
        // Segments are 2 MiB apart at least; colliding numbers could only merge ranges of two segments that
        // also touch, 2^52 bytes apart.
        (start >> 20) as u32 & !EXPANDABLE
    }

    fn segment_of(&self, address: u64) -> u32 {
        match self.segments.range(..=address).next_back() {
            Some((start, size)) if address < start.saturating_add(*size) => self.segment_number(*start),
            _ => EXPANDABLE,
        }
    }

    fn step(&mut self, event: usize, state: u32) {
        let trace = &self.snapshot.trace;
        let (address, size) = (trace.address[event], trace.size[event]);
        match trace.action[event] {
            Action::ALLOC => self.alloc(address, size, state, trace.stack[event]),
            Action::FREE_REQUESTED => self.request_free(address, state),
            Action::FREE_COMPLETED => self.complete_free(address, state),
            Action::SEGMENT_ALLOC => {
                self.segments.insert(address, size);
                self.free.add(address, address.saturating_add(size), self.segment_number(address));
                self.now.reserved = self.now.reserved.saturating_add(size);
            }
            Action::SEGMENT_FREE => {
                self.segments.remove(&address);
                self.free.cut(address, address.saturating_add(size));
                self.now.reserved = self.now.reserved.saturating_sub(size);
            }
            Action::SEGMENT_MAP => {
                self.free.add(address, address.saturating_add(size), EXPANDABLE);
                self.now.reserved = self.now.reserved.saturating_add(size);
            }
            Action::SEGMENT_UNMAP => {
                self.free.cut(address, address.saturating_add(size));
                self.now.reserved = self.now.reserved.saturating_sub(size);
            }
            _ => {}
        }
    }

    fn alloc(&mut self, address: u64, requested: u64, state: u32, stack: StackId) {
        if let Some(old) = self.live.remove(&address) {
            // Its free was lost: it must have ended by now.
            self.doubts.alloc_on_live += 1;
            self.end(old, address, state);
        }
        let rounded = self.rounding.round(requested);
        let (size, segment) = match self.free.take(address) {
            Some((start, end, segment)) => {
                if start < address {
                    self.doubts.alloc_off_range += 1;
                    self.free.add(start, address, segment);
                }
                let rest = (end - address).saturating_sub(rounded);
                let is_split = self.rounding.splits(rounded, rest, segment == EXPANDABLE);
                let size = if is_split { rounded } else { end - address };
                if address + size < end {
                    self.free.put_back(address + size, end, segment);
                }
                (size, segment)
            }
            None => {
                self.doubts.alloc_off_range += 1;
                (rounded, self.segment_of(address))
            }
        };
        let row = self.allocations.push(address, requested, size, state, stack);
        self.live.insert(address, Live { row, size, requested, segment, is_allocated: true });
        self.now.requested = self.now.requested.saturating_add(requested);
        self.now.active = self.now.active.saturating_add(size);
        self.now.allocated = self.now.allocated.saturating_add(size);
    }

    fn request_free(&mut self, address: u64, state: u32) {
        match self.live.get_mut(&address) {
            Some(live) if live.is_allocated => {
                live.is_allocated = false;
                self.allocations.free_requested[live.row as usize] = state;
                self.now.allocated = self.now.allocated.saturating_sub(live.size);
            }
            _ => self.doubts.free_of_unknown += 1,
        }
    }

    fn complete_free(&mut self, address: u64, state: u32) {
        match self.live.remove(&address) {
            Some(live) => {
                if live.is_allocated {
                    self.doubts.unrequested_frees += 1;
                }
                self.end(live, address, state);
            }
            None => self.doubts.free_of_unknown += 1,
        }
    }

    fn end(&mut self, live: Live, address: u64, state: u32) {
        let row = live.row as usize;
        self.allocations.to[row] = state;
        if live.is_allocated {
            self.allocations.free_requested[row] = state;
            self.now.allocated = self.now.allocated.saturating_sub(live.size);
        }
        self.now.active = self.now.active.saturating_sub(live.size);
        self.now.requested = self.now.requested.saturating_sub(live.requested);
        self.free.add(address, address.saturating_add(live.size), live.segment);
    }

    /// The state after the last event must be the one the segments show.
    fn compare_with_segments(&mut self) {
        let Snapshot { segments, blocks, .. } = self.snapshot;
        let mut n_active = 0;
        for block in self.device.segments.clone().flat_map(|segment| segments.blocks[segment].clone()) {
            let block = block as usize;
            if blocks.state[block] == BlockState::Inactive {
                continue;
            }
            n_active += 1;
            match self.live.get(&blocks.address[block]) {
                Some(live) if live.size == blocks.size[block] => {
                    // The block's own stack outlives a cleared history.
                    let stack = &mut self.allocations.stack[live.row as usize];
                    if *stack == StackId::NONE {
                        *stack = blocks.stack[block];
                    }
                }
                _ => self.doubts.end_mismatch += 1,
            }
        }
        self.doubts.end_mismatch += (self.live.len() as u64).saturating_sub(n_active);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StrId;

    /// One device whose single segment is one block in use, and a trace of these events.
    fn snapshot_of(block: (u64, u64), events: &[(Action, u64, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (action, address, size) in events {
            snapshot.trace.action.push(*action);
            snapshot.trace.address.push(*address);
            snapshot.trace.size.push(*size);
            snapshot.trace.stream.push(0);
            snapshot.trace.stack.push(StackId::NONE);
            snapshot.trace.extra.push(0);
        }
        let (address, size) = block;
        snapshot.segments.device.push(0);
        snapshot.segments.address.push(address);
        snapshot.segments.total_size.push(size);
        snapshot.segments.stream.push(0);
        snapshot.segments.kind.push(StrId(0));
        snapshot.segments.pool.push((0, 0));
        snapshot.segments.is_expandable.push(false);
        snapshot.segments.stack.push(StackId::NONE);
        snapshot.segments.blocks.push(0..1);
        snapshot.blocks.address.push(address);
        snapshot.blocks.size.push(size);
        snapshot.blocks.requested.push(size);
        snapshot.blocks.state.push(BlockState::Allocated);
        snapshot.blocks.stack.push(StackId::NONE);
        snapshot.devices.push(Device { ordinal: 0, events: 0..events.len(), segments: 0..1 });
        snapshot
    }

    #[test]
    fn an_npus_workspaces_are_older_than_the_window_that_describes_them() {
        const MIB: u64 = 1 << 20;
        let snapshot = snapshot_of(
            (64 * MIB, 32 * MIB),
            &[
                (Action::WORKSPACE_SNAPSHOT, 64 * MIB, 32 * MIB),
                (Action::SEGMENT_ALLOC, 64 * MIB, 32 * MIB),
                (Action::ALLOC, 64 * MIB, 32 * MIB),
                (Action::SEGMENT_ALLOC, 128 * MIB, 2 * MIB),
                (Action::SEGMENT_FREE, 128 * MIB, 2 * MIB),
            ],
        );
        let replay = replay(&snapshot, &snapshot.devices[0]);
        assert_eq!(replay.n_preexisting, 1);
        assert_eq!(replay.allocations.len(), 1);
        assert_eq!(replay.curves.active, [32 * MIB; 6]);
        assert_eq!(replay.curves.reserved, [32, 32, 32, 32, 34, 32].map(|n| n * MIB));
        assert_eq!(replay.doubts, Doubts::default());
    }

    #[test]
    fn an_allocation_on_memory_in_use_ends_the_older_one() {
        let snapshot = snapshot_of((4096, 512), &[(Action::ALLOC, 4096, 512), (Action::ALLOC, 4096, 512)]);
        let replay = replay(&snapshot, &snapshot.devices[0]);
        assert_eq!(replay.doubts.alloc_on_live, 1);
        assert_eq!(replay.end.active, 512);
        assert_eq!(replay.allocations.to, [2, NEVER]);
    }
}
