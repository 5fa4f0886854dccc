//! Memory after every event, exactly as the allocator counted it.
//!
//! A trace holds requested sizes only, but the allocator accounts in blocks. What a block really occupies
//! follows from the free memory at that moment: the allocator rounds the request up, takes a free block that
//! starts there and splits the rest off, or hands out all of it. So:
//!
//! 1. *Backward* from the segments, which stand as they were at the end: what was reserved and in use before the
//!    first event ([`head`]). This also anchors a trace whose beginning was lost.
//! 2. *Forward* from there through the trace: every block split, given back and merged as the allocator does it
//!    ([`heap`]).
//!
//! The result equals `torch.cuda.memory_stats()`, current and peak, of requested, allocated, active and reserved
//! bytes. The rules are those of `c10/cuda/CUDACachingAllocator.cpp`: `round_size`, `should_split`, `free_block`;
//! torch_npu adds 32 bytes to a request before rounding.

mod rounding;
mod head;
mod heap;
mod reservations;
mod fragmentation;
mod frees;
mod state;

pub use fragmentation::{Fragmentation, fragmentation};
pub use frees::{FreeSite, FreeSites};
pub use reservations::Reservations;
pub use rounding::Rounding;
pub use state::{BlockAt, FreeAt, SegmentAt, StateAt};

use crate::Snapshot;
use crate::model::{Action, BlockState, Device, StackId};
use heap::{Heap, NONE, Place, Watch};
use reservations::Ledger;

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
    fn with_capacity(n: usize) -> Self {
        let column = || Vec::with_capacity(n);
        Self { requested: column(), allocated: column(), active: column(), reserved: column() }
    }

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
    /// Row of [`Replay::reservations`] it lies in; [`NEVER`] when none is known.
    pub reservation: Vec<u32>,
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

    fn reserve(&mut self, n: usize) {
        self.address.reserve(n);
        self.requested.reserve(n);
        self.size.reserve(n);
        self.from.reserve(n);
        self.to.reserve(n);
        self.free_requested.reserve(n);
        self.stack.reserve(n);
        self.reservation.reserve(n);
    }

    fn push(&mut self, made: Made) -> u32 {
        self.address.push(made.address);
        self.requested.push(made.requested);
        self.size.push(made.size);
        self.from.push(made.from);
        self.to.push(NEVER);
        self.free_requested.push(NEVER);
        self.stack.push(made.stack);
        self.reservation.push(made.reservation);
        self.len() as u32 - 1
    }
}

/// A new row of [`Allocations`].
struct Made {
    address: u64,
    requested: u64,
    size: u64,
    from: u32,
    stack: StackId,
    reservation: u32,
}

/// What [`replay`] finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Every life of a block.
    pub allocations: Allocations,
    /// The first rows of [`Replay::allocations`] that are older than the trace.
    pub n_preexisting: usize,
    /// Every life of a segment, or of a mapped piece of an expandable one.
    pub reservations: Reservations,
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
    /// What the recorder was told to leave out.
    pub skipped: Skipped,
}

/// How well the pieces fit: all zero in a sound file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Doubts {
    /// Allocations on an address that was still in use: a free is missing.
    pub alloc_on_live: u64,
    /// Frees of an address that was not in use: it was freed twice, or its allocation is missing.
    pub free_of_unknown: u64,
    /// Allocations that did not fall on the beginning of a free block.
    pub alloc_off_range: u64,
    /// Segments taken where one was already: the event that gave it back is missing.
    pub segment_on_segment: u64,
    /// Blocks whose size or presence at the end differs from the segments.
    pub end_mismatch: u64,
    /// Blocks older than the trace and freed in it whose size the file leaves open.
    pub ambiguous_sizes: u64,
    /// Bytes by which those blocks may be larger than shown, all together.
    pub ambiguous_bytes: u64,
    /// Frees that were completed without having been requested.
    pub unrequested_frees: u64,
}

impl Doubts {
    /// What speaks against the rounding that was assumed.
    fn weight(&self) -> u64 {
        self.alloc_on_live + self.free_of_unknown + self.alloc_off_range + self.end_mismatch
    }
}

/// Kinds of events that `skip_actions` kept out of a trace: some of one half of a pair are there, none of the other.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// No `alloc`, though blocks were freed and others are in use.
    pub allocs: bool,
    /// No `free_requested`: a block counts as allocated until its free is completed.
    pub free_requests: bool,
    /// No `free_completed`: a block counts as free as soon as that is requested.
    pub free_completions: bool,
}

impl Skipped {
    fn of(snapshot: &Snapshot, device: &Device) -> Self {
        /// In a shorter trace one half of a pair may be missing by chance.
        const ENOUGH: usize = 8;
        let actions = &snapshot.trace.action[device.events.clone()];
        let mut counts = [0usize; 256];
        actions.iter().for_each(|action| counts[usize::from(action.0)] += 1);
        let n = |action: Action| counts[usize::from(action.0)];
        let (allocs, requests, completions) =
            (n(Action::ALLOC), n(Action::FREE_REQUESTED), n(Action::FREE_COMPLETED));
        Self {
            allocs: allocs == 0 && requests.max(completions) >= ENOUGH,
            free_requests: requests == 0 && completions >= ENOUGH,
            free_completions: completions == 0 && requests >= ENOUGH,
        }
    }

    /// True when something was left out.
    pub fn any(self) -> bool {
        self.allocs || self.free_requests || self.free_completions
    }
}

/// Replays one device of a snapshot.
///
/// torch_npu rounds differently and does not say so in the file. Where the file leaves open who wrote it (no
/// times, as with torch_npu and torch before 2.2), both ways are tried and the one that fits the segments better
/// is kept.
pub fn replay(snapshot: &Snapshot, device: &Device) -> Replay {
    replay_watched(snapshot, device, || ()).0
}

/// Replays one device under the eyes of a watcher.
fn replay_watched<W: Watch>(snapshot: &Snapshot, device: &Device, watch: impl Fn() -> W) -> (Replay, W) {
    let rounding = if device.is_host() { Rounding::whole_segments() } else { Rounding::of(snapshot) };
    let is_open = snapshot.trace.time_us.is_empty() && !device.events.is_empty() && !device.is_host();
    let first = Replayer::new(snapshot, device, rounding.clone(), watch()).run();
    if !is_open || first.0.doubts.weight() == 0 {
        return first;
    }
    let other = Replayer::new(snapshot, device, rounding.other_padding(), watch()).run();
    if other.0.doubts.weight() < first.0.doubts.weight() { other } else { first }
}

/// Events at the head of a trace that describe what was there already: torch_npu puts `workspace_snapshot`,
/// `segment_alloc` and `alloc` there for each workspace, whenever it was made, and its segment beside the others.
pub(crate) fn n_workspace_events(snapshot: &Snapshot, device: &Device) -> usize {
    const TRIPLE: [Action; 3] = [Action::WORKSPACE_SNAPSHOT, Action::SEGMENT_ALLOC, Action::ALLOC];
    let actions = &snapshot.trace.action[device.events.clone()];
    TRIPLE.len() * actions.chunks(TRIPLE.len()).take_while(|chunk| *chunk == TRIPLE).count()
}

/// Events that are replayed in one go.
const BURST: usize = 4096;

/// Bytes that a block of the head was larger than assumed, in the states before `until`.
struct Correction {
    bytes: u64,
    until: u32,
    /// It stopped being allocated here, if that came first.
    allocated_until: u32,
}

struct Replayer<'a, W> {
    snapshot: &'a Snapshot,
    device: &'a Device,
    /// The first event that is not a description of torch_npu's workspaces.
    first_event: usize,
    rounding: Rounding,
    heap: Heap<W>,
    ledger: Ledger,
    allocations: Allocations,
    n_preexisting: usize,
    curves: Curves,
    now: Levels,
    doubts: Doubts,
    skipped: Skipped,
    /// Blocks of the head that later events have shown to be larger.
    corrections: Vec<Correction>,
    /// Rows of the head whose size is open, ascending, and by how much it may be larger; 0 once it is known.
    open_sizes: Vec<(u32, u64)>,
}

impl<'a, W: Watch> Replayer<'a, W> {
    fn new(snapshot: &'a Snapshot, device: &'a Device, rounding: Rounding, watch: W) -> Self {
        Self {
            snapshot,
            device,
            first_event: device.events.start + n_workspace_events(snapshot, device),
            rounding,
            heap: Heap::new(watch),
            ledger: Ledger::default(),
            allocations: Allocations::default(),
            n_preexisting: 0,
            curves: Curves::with_capacity(device.events.len() + 1),
            now: Levels::default(),
            doubts: Doubts::default(),
            skipped: Skipped::of(snapshot, device),
            corrections: Vec::new(),
            open_sizes: Vec::new(),
        }
    }

    fn run(mut self) -> (Replay, W) {
        self.place_head();
        self.n_preexisting = self.allocations.len();
        self.allocations.reserve(self.device.events.len() / 3);
        self.curves.push(self.now);
        self.heap.watch.state();
        let mut begin = self.device.events.start;
        while begin < self.device.events.end {
            let end = self.device.events.end.min(begin + BURST);
            self.burst(begin..end);
            begin = end;
        }
        self.compare_with_segments();
        self.correct_head();
        let (peak, peak_state) = peaks(&self.curves);
        let replay = Replay {
            n_preexisting: self.n_preexisting,
            reservations: self.ledger.rows,
            head: self.curves.at(0),
            peak,
            end: self.now,
            peak_state,
            allocations: self.allocations,
            curves: self.curves,
            rounding: self.rounding,
            doubts: self.doubts,
            skipped: self.skipped,
        };
        (replay, self.heap.watch)
    }

    /// Some thousand events. A browser runs wasm slowly at first and changes to the quick code only when a function is
    /// entered anew, never in the middle of a loop.
    #[inline(never)]
    fn burst(&mut self, events: std::ops::Range<usize>) {
        for event in events {
            if event >= self.first_event {
                self.step(event, (event - self.device.events.start) as u32 + 1);
            }
            self.curves.push(self.now);
            self.heap.watch.state();
        }
    }

    /// Puts what stood before the first event into the heap.
    fn place_head(&mut self) {
        let head = head::Head::before(self.snapshot, self.device, self.first_event, self.skipped);
        let mut blocks = head.blocks.into_iter().peekable();
        let mut strays = Vec::new();
        for area in head.areas {
            let (start, end) = (area.address, area.address.saturating_add(area.size));
            self.now.reserved = self.now.reserved.saturating_add(end - start);
            let is_expandable = area.is_expandable;
            let reservation = self.ledger.open(area, 0);
            let place = Place::new(reservation, is_expandable);
            // Expandable memory that touches is one area here already, so nothing is left to join.
            let mut last = NONE;
            let mut at = start;
            while let Some(block) = blocks.next_if(|block| block.address < end) {
                // One that overlaps another, or takes nothing: the file contradicts itself.
                if block.address < at || block.size == Some(0) {
                    strays.push(block);
                    continue;
                }
                if block.address > at {
                    last = self.heap.append(last, at, block.address, place);
                }
                let limit = blocks.peek().map_or(end, |next| next.address.min(end));
                let (size, open) = self.size_of_head(&block, limit, is_expandable);
                let row = self.add_head(&block, size, reservation);
                if open > 0 {
                    self.open_sizes.push((row, open));
                }
                at = block.address.saturating_add(size);
                last = self.heap.append_live(last, block.address, at, place, row);
            }
            if at < end {
                self.heap.append(last, at, end, place);
            }
        }
        // Blocks outside every segment: the file contradicts itself, or a segment event is missing.
        for block in strays.into_iter().chain(blocks) {
            let size = block.size.unwrap_or_else(|| self.rounding.round(block.requested));
            let row = self.add_head(&block, size, NEVER);
            let end = block.address.saturating_add(size);
            self.heap.append_live(NONE, block.address, end, Place::NOWHERE, row);
            self.doubts.alloc_off_range += 1;
        }
    }

    /// What a block of the head occupies, and how much more it might. `limit` is where the next block begins, or the
    /// segment ends.
    ///
    /// Only a block that is freed in the trace has an unknown size. A rest of less than the smallest that is split off
    /// (more than 1 MiB in large segments) is no free block, so it belongs to the block before it. Of a larger one a
    /// part may: the block may once have been handed out with such a rest, and what follows it freed since.
    fn size_of_head(&self, block: &head::Block, limit: u64, is_expandable: bool) -> (u64, u64) {
        if let Some(size) = block.size {
            return (size, 0);
        }
        let room = limit - block.address;
        let rounded = self.rounding.round(block.requested).min(room);
        let rest = room - rounded;
        match self.rounding.smallest_rest(rounded, is_expandable) {
            Some(least) if rest >= least => (rounded, (least - 1).min(rest - least) / 512 * 512),
            _ => (room, 0),
        }
    }

    fn add_head(&mut self, block: &head::Block, size: u64, reservation: u32) -> u32 {
        let row = self.allocations.push(Made {
            address: block.address,
            requested: block.requested,
            size,
            from: 0,
            stack: block.stack,
            reservation,
        });
        self.now.requested = self.now.requested.saturating_add(block.requested);
        self.now.active = self.now.active.saturating_add(size);
        if block.is_allocated {
            self.now.allocated = self.now.allocated.saturating_add(size);
        } else {
            self.allocations.free_requested[row as usize] = 0;
        }
        row
    }

    fn step(&mut self, event: usize, state: u32) {
        let trace = &self.snapshot.trace;
        let (address, size) = (trace.address[event], trace.size[event]);
        match trace.action[event] {
            Action::ALLOC => self.alloc(address, size, state, trace.stack[event]),
            Action::FREE_REQUESTED if self.skipped.free_completions => self.complete_free(address, state),
            Action::FREE_REQUESTED => self.request_free(address, state),
            Action::FREE_COMPLETED => self.complete_free(address, state),
            Action::SEGMENT_ALLOC => self.take_segment(event, state),
            Action::SEGMENT_FREE => self.give_segment_back(address, size, state),
            Action::SEGMENT_MAP => {
                let area = head::Area::of_event(self.snapshot, event, true);
                let stream = area.stream;
                let place = Place::new(self.ledger.open(area, state), true);
                let streams = &self.ledger.rows.stream;
                self.heap.map(address, address.saturating_add(size), place, |other| {
                    streams.get(other.reservation() as usize) == Some(&stream)
                });
                self.now.reserved = self.now.reserved.saturating_add(size);
            }
            Action::SEGMENT_UNMAP => {
                self.heap.unmap(address, address.saturating_add(size));
                self.ledger.close_range(address, address.saturating_add(size), state);
                self.now.reserved = self.now.reserved.saturating_sub(size);
            }
            _ => {}
        }
    }

    fn take_segment(&mut self, event: usize, state: u32) {
        let area = head::Area::of_event(self.snapshot, event, false);
        let (address, size) = (area.address, area.size);
        if let Some(old) = self.ledger.size_at(address) {
            // The event that gave it back was lost: it must have ended by now.
            self.doubts.segment_on_segment += 1;
            self.give_segment_back(address, old, state);
        }
        let place = Place::new(self.ledger.open(area, state), false);
        self.heap.append(NONE, address, address.saturating_add(size), place);
        self.now.reserved = self.now.reserved.saturating_add(size);
    }

    fn give_segment_back(&mut self, address: u64, size: u64, state: u32) {
        self.heap.drop_segment(address, address.saturating_add(size));
        self.ledger.close_range(address, address.saturating_add(size), state);
        self.now.reserved = self.now.reserved.saturating_sub(size);
    }

    fn alloc(&mut self, address: u64, requested: u64, state: u32, stack: StackId) {
        if self.heap.live_at(address).is_some() {
            // Its free was lost: it must have ended by now.
            self.doubts.alloc_on_live += 1;
            self.complete_free(address, state);
        }
        let rounded = self.rounding.round(requested);
        let mut node = self.heap.free_at(address);
        if node.is_none()
            && let Some(found) = self.heap.free_around(address)
        {
            let (start, _) = self.heap.range(found);
            if !self.grow_head(found, address - start, state) {
                self.doubts.alloc_off_range += 1;
            }
            node = self.heap.cut_front(found, address);
        }
        let (size, place, node) = match node {
            Some(node) => {
                let (_, end) = self.heap.range(node);
                let place = self.heap.place(node);
                let rest = (end - address).saturating_sub(rounded);
                let least = self.rounding.smallest_rest(rounded, place.is_expandable());
                let is_split = least.is_some_and(|least| rest >= least);
                let size = if is_split { rounded } else { end - address };
                (size, place, Some(node))
            }
            None => {
                self.doubts.alloc_off_range += 1;
                (rounded, Place::NOWHERE, None)
            }
        };
        let reservation = place.reservation();
        let row = self.allocations.push(Made { address, requested, size, from: state, stack, reservation });
        match node {
            Some(node) => self.heap.hand_out(node, size, row),
            None => _ = self.heap.append_live(NONE, address, address.saturating_add(size), place, row),
        }
        self.now.requested = self.now.requested.saturating_add(requested);
        self.now.active = self.now.active.saturating_add(size);
        self.now.allocated = self.now.allocated.saturating_add(size);
    }

    /// An allocation began this many bytes inside a free block: if a block of the head whose size is open stands before
    /// it, these bytes are its own, and always were.
    fn grow_head(&mut self, free: u32, by: u64, state: u32) -> bool {
        let Some(row) = self.heap.row_before(free) else { return false };
        let Ok(at) = self.open_sizes.binary_search_by_key(&row, |(row, _)| *row) else { return false };
        if by > self.open_sizes[at].1 {
            return false;
        }
        self.open_sizes[at].1 = 0;
        self.allocations.size[row as usize] += by;
        self.now.active = self.now.active.saturating_add(by);
        let free_requested = self.allocations.free_requested[row as usize];
        if free_requested == NEVER {
            self.now.allocated = self.now.allocated.saturating_add(by);
        }
        self.heap.grow_before(free, by);
        self.corrections.push(Correction {
            bytes: by,
            until: state,
            allocated_until: free_requested.min(state),
        });
        true
    }

    fn request_free(&mut self, address: u64, state: u32) {
        let row = self.heap.live_at(address).map(|row| row as usize);
        match row {
            Some(row) if self.allocations.free_requested[row] == NEVER => {
                self.allocations.free_requested[row] = state;
                self.now.allocated = self.now.allocated.saturating_sub(self.allocations.size[row]);
            }
            _ => self.doubts.free_of_unknown += 1,
        }
    }

    fn complete_free(&mut self, address: u64, state: u32) {
        let Some(row) = self.heap.give_back(address) else {
            self.doubts.free_of_unknown += 1;
            return;
        };
        let row = row as usize;
        let (size, requested) = (self.allocations.size[row], self.allocations.requested[row]);
        self.allocations.to[row] = state;
        if self.allocations.free_requested[row] == NEVER {
            self.allocations.free_requested[row] = state;
            self.now.allocated = self.now.allocated.saturating_sub(size);
            if !self.skipped.free_requests && !self.skipped.free_completions {
                self.doubts.unrequested_frees += 1;
            }
        }
        self.now.active = self.now.active.saturating_sub(size);
        self.now.requested = self.now.requested.saturating_sub(requested);
    }

    /// The state after the last event must be the one the segments show.
    fn compare_with_segments(&mut self) {
        let Snapshot { segments, blocks, .. } = self.snapshot;
        let mut n_active = 0;
        for segment in self.device.segments.clone() {
            self.ledger.name(
                segments.address[segment],
                segments.total_size[segment],
                segments.pool[segment],
                segment as u32,
            );
            for block in segments.blocks[segment].clone() {
                let block = block as usize;
                if blocks.state[block] == BlockState::Inactive {
                    continue;
                }
                n_active += 1;
                match self.heap.live_at(blocks.address[block]).map(|row| row as usize) {
                    Some(row) if self.allocations.size[row] == blocks.size[block] => {
                        // The block's own stack outlives a cleared history.
                        if self.allocations.stack[row] == StackId::NONE {
                            self.allocations.stack[row] = blocks.stack[block];
                        }
                    }
                    _ => self.doubts.end_mismatch += 1,
                }
            }
        }
        self.doubts.end_mismatch += self.heap.n_live().saturating_sub(n_active);
    }

    /// Adds what later events showed of the head to the states before them, and says what stays open.
    fn correct_head(&mut self) {
        let corrections = &self.corrections;
        add_before(&mut self.curves.active, corrections.iter().map(|found| (found.until, found.bytes)));
        let allocated = corrections.iter().map(|found| (found.allocated_until, found.bytes));
        add_before(&mut self.curves.allocated, allocated);
        self.doubts.ambiguous_sizes = self.open_sizes.iter().filter(|(_, most)| *most > 0).count() as u64;
        self.doubts.ambiguous_bytes = self.open_sizes.iter().map(|(_, most)| *most).sum();
    }
}

/// Adds bytes to all states before one, for each pair of state and bytes.
fn add_before(levels: &mut [u64], corrections: impl Iterator<Item = (u32, u64)>) {
    let mut corrections: Vec<(u32, u64)> = corrections.collect();
    corrections.sort_unstable();
    let Some((last, _)) = corrections.last() else { return };
    let mut more = 0u64;
    for state in (0..*last).rev() {
        while let Some((_, bytes)) = corrections.pop_if(|(until, _)| *until > state) {
            more = more.saturating_add(bytes);
        }
        let level = &mut levels[state as usize];
        *level = level.saturating_add(more);
    }
}

/// Each level's highest, and the first state with the highest allocated level.
fn peaks(curves: &Curves) -> (Levels, u32) {
    let highest = |column: &[u64]| column.iter().copied().max().unwrap_or(0);
    let peak = Levels {
        requested: highest(&curves.requested),
        allocated: highest(&curves.allocated),
        active: highest(&curves.active),
        reserved: highest(&curves.reserved),
    };
    let state = curves.allocated.iter().position(|level| *level == peak.allocated).unwrap_or(0);
    (peak, state as u32)
}
