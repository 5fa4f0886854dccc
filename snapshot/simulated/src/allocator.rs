//! A caching allocator as PyTorch's is, without a device.
//!
//! Best fit by stream, size and address; pools of small and of large blocks, each once more for every private
//! pool; splitting and merging; segments that expand; frees that wait for other streams; what it does before it
//! gives up. It counts as it goes, so what a reader says of its history can be compared with what was so.
//!
//! The rules are those of `c10/cuda/CUDACachingAllocator.cpp`, written down from what it does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{addresses::Addresses, rules::Rules, stacks::Stack};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A segment was taken from the device.
    SegmentAlloc,
    /// It was given back.
    SegmentFree,
    /// A part of an expandable segment was mapped.
    SegmentMap,
    /// It was unmapped.
    SegmentUnmap,
    /// A block was handed out.
    Alloc,
    /// The program gave it back.
    FreeRequested,
    /// It can be handed out again.
    FreeCompleted,
    /// A request could not be met.
    Oom,
    /// A snapshot was taken.
    Snapshot,
}

/// Bytes of a device, counted by the allocator itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Levels {
    /// What the program asked for, of blocks that are active.
    pub requested: u64,
    /// Blocks in use.
    pub allocated: u64,
    /// Blocks in use or waiting for another stream.
    pub active: u64,
    /// Segments, and the mapped parts of expandable ones.
    pub reserved: u64,
    /// Free blocks that share a segment with others; torch counts none in expandable segments.
    pub inactive_split: u64,
    /// The largest free block.
    pub largest_free: u64,
}

/// One entry of the history, and the truth about it.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Where; of an [`Action::Oom`] the bytes the device had free.
    pub address: u64,
    /// As torch writes it: what was asked for, or the segment's size.
    pub size: u64,
    /// The stream it belongs to.
    pub stream: u64,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Where the program was.
    pub stack: Stack,
    /// Bytes the block really occupies; no file tells them.
    pub block: u64,
    /// The levels after it.
    pub levels: Levels,
}

/// (0, 0) is the default pool, (n, 0) a graph's, (0, n) a `MemPool`'s.
pub type PoolId = (u64, u64);

/// What a block is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Free for the next request.
    Free,
    /// In use.
    Allocated,
    /// Given back by the program; another stream may still use it.
    Pending,
    /// Addresses without memory, in an expandable segment.
    Unmapped,
}

/// A stretch of a segment.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Bytes.
    pub size: u64,
    /// What was asked for; stale once the block is free, as in torch.
    pub requested: u64,
    /// What it is doing.
    pub state: State,
    /// Where it was handed out; `None` when it is free.
    pub stack: Option<Stack>,
    /// The segment it lies in, by address.
    pub segment: u64,
}

/// A stretch of addresses; all of it is memory unless it is expandable.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Bytes.
    pub size: u64,
    /// The pool it belongs to.
    pub pool: Pool,
    /// The stream it belongs to.
    pub stream: u64,
    /// Where it was taken.
    pub stack: Stack,
}

/// Blocks that are reused among themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pool {
    /// Whose it is.
    pub id: PoolId,
    /// Whether it is for small blocks.
    pub is_small: bool,
}

/// The free blocks of one pool.
#[derive(Debug, Clone, Default)]
struct Free {
    /// By stream, size and address: the first that is large enough is the best.
    mapped: BTreeSet<(u64, u64, u64)>,
    /// By stream and address.
    unmapped: BTreeSet<(u64, u64)>,
}

/// The allocator of one device.
#[derive(Debug, Clone)]
pub struct Allocator {
    /// What it was told.
    pub rules: Rules,
    /// By address.
    pub segments: BTreeMap<u64, Segment>,
    /// By address; they cover the segments without gaps.
    pub blocks: BTreeMap<u64, Block>,
    /// What happened since someone last took it away.
    pub events: Vec<Event>,
    /// The levels now.
    pub now: Levels,
    addresses: Addresses,
    free: BTreeMap<Pool, Free>,
    /// How many free blocks have a size.
    free_sizes: BTreeMap<u64, u32>,
    /// Streams that use a block besides its own, by address.
    uses: BTreeMap<u64, BTreeSet<u64>>,
    /// Blocks that a stream will be done with, in this order.
    waiting: BTreeMap<u64, VecDeque<u64>>,
    /// Streams that are done with the first so many of those, and the allocator has not looked yet.
    done: BTreeMap<u64, usize>,
    /// Where blocks come from while a graph is captured or a `MemPool` is in use.
    route: Option<PoolId>,
    /// Private pools whose owner is gone: their segments may be given back.
    orphans: BTreeSet<PoolId>,
}

impl Allocator {
    /// An allocator that holds nothing.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            segments: BTreeMap::new(),
            blocks: BTreeMap::new(),
            events: Vec::new(),
            now: Levels::default(),
            addresses: Addresses::default(),
            free: BTreeMap::new(),
            free_sizes: BTreeMap::new(),
            uses: BTreeMap::new(),
            waiting: BTreeMap::new(),
            done: BTreeMap::new(),
            route: None,
            orphans: BTreeSet::new(),
        }
    }

    /// Hands out a block and says where, or runs out of memory.
    pub fn alloc(&mut self, requested: u64, stream: u64, stack: Stack) -> Option<u64> {
        if self.route.is_none() {
            self.look_at_streams(stack);
        }
        let size = self.rules.round(requested);
        let pool = Pool { id: self.route.unwrap_or((0, 0)), is_small: self.rules.is_small(size) };
        let found = self
            .best_fit(pool, stream, size)
            .or_else(|| self.grow(pool, stream, size, stack))
            .or_else(|| {
                let is_enough = self.release_oversize(pool, stream, size, stack);
                is_enough.then(|| self.grow(pool, stream, size, stack)).flatten()
            })
            .or_else(|| {
                self.route.is_none().then(|| self.empty_cache(stack));
                self.route.is_none().then(|| self.grow(pool, stream, size, stack)).flatten()
            });
        let Some(address) = found else {
            let device_free = self.rules.capacity - self.now.reserved;
            self.record(Action::Oom, device_free, size, stream, pool.id, stack, 0);
            return None;
        };
        let mut block = self.blocks[&address];
        let rest = block.size - size;
        if self.rules.splits(size, rest, pool.is_small) {
            block.size = size;
            self.blocks.insert(address + size, Block { size: rest, stack: None, ..block });
            self.list(address + size);
        }
        block.state = State::Allocated;
        block.requested = requested;
        block.stack = Some(stack);
        self.blocks.insert(address, block);
        self.now.requested += requested;
        self.now.allocated += block.size;
        self.now.active += block.size;
        self.record(Action::Alloc, address, requested, stream, pool.id, stack, block.size);
        Some(address)
    }

    /// Takes a block back; it waits where other streams use it.
    pub fn free(&mut self, address: u64, stack: Stack) {
        let block = self.blocks.get_mut(&address).expect("only what was handed out is freed");
        assert_eq!(block.state, State::Allocated, "a block is freed once");
        block.state = State::Pending;
        let block = *block;
        let segment = self.segments[&block.segment];
        self.now.allocated -= block.size;
        let (requested, stream, pool) = (block.requested, segment.stream, segment.pool.id);
        self.record(Action::FreeRequested, address, requested, stream, pool, stack, block.size);
        match self.uses.get(&address) {
            Some(uses) => {
                uses.iter().for_each(|stream| self.waiting.entry(*stream).or_default().push_back(address));
            }
            None => self.complete(address, stack),
        }
    }

    /// Notes that another stream uses a block (`record_stream`).
    pub fn use_on(&mut self, address: u64, stream: u64) {
        let segment = self.segments[&self.blocks[&address].segment];
        if segment.stream != stream {
            self.uses.entry(address).or_default().insert(stream);
        }
    }

    /// Lets a stream be done with the next `n` blocks it uses; the allocator sees it when it next looks.
    pub fn finish(&mut self, stream: u64, n: usize) {
        *self.done.entry(stream).or_default() += n;
    }

    /// Lets blocks come from a private pool until [`Self::leave`].
    pub fn enter(&mut self, pool: PoolId) {
        self.route = Some(pool);
        self.orphans.remove(&pool);
    }

    /// Ends [`Self::enter`].
    pub fn leave(&mut self) {
        self.route = None;
    }

    /// Lets a private pool's segments be given back when the cache is next emptied.
    pub fn drop_pool(&mut self, pool: PoolId) {
        if self.route != Some(pool) {
            self.orphans.insert(pool);
        }
    }

    /// Waits for all streams and gives back what is free.
    pub fn empty_cache(&mut self, stack: Stack) {
        if self.route.is_none() {
            let waiting: Vec<u64> = self.waiting.values().flatten().copied().collect();
            self.waiting.clear();
            self.done.clear();
            for address in waiting {
                // Two streams may have waited for one block; it is gone by the second.
                if self.blocks.get(&address).is_some_and(|block| block.state == State::Pending) {
                    self.complete(address, stack);
                }
            }
        }
        let is_releasable = |pool: &Pool| pool.id == (0, 0) || self.orphans.contains(&pool.id);
        let pools: Vec<Pool> = self.free.keys().copied().filter(is_releasable).collect();
        pools.into_iter().for_each(|pool| self.release(pool, stack));
    }

    /// Notes that a snapshot was taken.
    pub fn snapshot(&mut self) {
        self.record(Action::Snapshot, 0, self.now.active, 0, (0, 0), 0, 0);
    }

    /// Completes the frees of streams that are done.
    fn look_at_streams(&mut self, stack: Stack) {
        let mut completed = Vec::new();
        for (stream, waiting) in &mut self.waiting {
            let done = self.done.remove(stream).unwrap_or(0).min(waiting.len());
            for address in waiting.drain(..done) {
                let uses = self.uses.get_mut(&address).expect("a block waits for streams that use it");
                uses.remove(stream);
                if uses.is_empty() {
                    completed.push(address);
                }
            }
        }
        self.done.clear();
        completed.into_iter().for_each(|address| self.complete(address, stack));
    }

    /// Lets a block be handed out again, merged with its free neighbors.
    fn complete(&mut self, address: u64, stack: Stack) {
        self.uses.remove(&address);
        let block = self.blocks.get_mut(&address).expect("what waits is a block");
        block.state = State::Free;
        block.stack = None;
        let block = *block;
        let segment = self.segments[&block.segment];
        self.now.active -= block.size;
        self.now.requested -= block.requested;
        let merged = self.merge(address);
        self.list(merged);
        let (requested, stream, pool) = (block.requested, segment.stream, segment.pool.id);
        self.record(Action::FreeCompleted, address, requested, stream, pool, stack, block.size);
    }

    /// Takes the best free block out of its list.
    fn best_fit(&mut self, pool: Pool, stream: u64, size: u64) -> Option<u64> {
        let free = &self.free.get(&pool)?.mapped;
        let mut fits = free.range((stream, size, 0)..).take_while(|(of, ..)| *of == stream);
        let mut best = *fits.next()?;
        if self.rules.is_expandable {
            // What counts is how large a block could become.
            for next in fits {
                if self.could_become(next.2) >= self.could_become(best.2) {
                    break;
                }
                best = *next;
            }
        }
        let (_, block, address) = best;
        self.rules.may_serve(block, size).then(|| {
            self.unlist(address);
            address
        })
    }

    fn could_become(&self, address: u64) -> u64 {
        let block = self.blocks[&address];
        let next = self.next(address).filter(|(_, next)| next.state == State::Unmapped);
        block.size + next.map_or(0, |(_, next)| next.size)
    }

    /// Takes memory from the device: a free block of at least `size`, in no list.
    fn grow(&mut self, pool: Pool, stream: u64, size: u64, stack: Stack) -> Option<u64> {
        if self.rules.is_expandable {
            return self.expand(pool, stream, size, stack);
        }
        let total = self.rules.segment(size);
        if self.now.reserved + total > self.rules.capacity {
            return None;
        }
        let address = self.addresses.take(total, self.rules.spacing);
        self.segments.insert(address, Segment { size: total, pool, stream, stack });
        self.blocks.insert(address, nothing(total, State::Free, address));
        self.list(address);
        self.now.reserved += total;
        self.record(Action::SegmentAlloc, address, total, stream, pool.id, stack, total);
        self.unlist(address);
        Some(address)
    }

    fn expand(&mut self, pool: Pool, stream: u64, size: u64, stack: Stack) -> Option<u64> {
        let mut at = self.room(pool, stream, size, stack);
        if self.blocks[&at].state == State::Unmapped {
            at = self.map(at, size.min(self.blocks[&at].size), stack)?;
        }
        while self.blocks[&at].size < size {
            let missing = size - self.blocks[&at].size;
            let (next, block) = self.next(at).expect("there is room behind it");
            at = self.map(next, missing.min(block.size), stack)?;
        }
        self.unlist(at);
        Some(at)
    }

    /// The first of free and unmapped neighbors with room for `size` together; new addresses where there are none.
    fn room(&mut self, pool: Pool, stream: u64, size: u64, stack: Stack) -> u64 {
        let unmapped = self.free.get(&pool).into_iter().flat_map(|free| &free.unmapped);
        for (_, address) in unmapped.filter(|(of, _)| *of == stream) {
            let before = self.previous(*address).filter(|(_, block)| block.state == State::Free);
            let first = before.map_or(*address, |(before, _)| before);
            let (mut bytes, mut at) = (0, Some((first, self.blocks[&first])));
            while let Some((here, block)) = at
                && bytes < size
                && matches!(block.state, State::Free | State::Unmapped)
            {
                bytes += block.size;
                at = self.next(here);
            }
            if bytes >= size {
                return first;
            }
        }
        let total = self.rules.reservation.max(size.next_multiple_of(self.rules.page(pool.is_small)));
        let address = self.addresses.take(total, self.rules.spacing);
        self.segments.insert(address, Segment { size: total, pool, stream, stack });
        self.blocks.insert(address, nothing(total, State::Unmapped, address));
        self.free.entry(pool).or_default().unmapped.insert((stream, address));
        address
    }

    /// Gives the beginning of an unmapped block memory; says where the free block is that it becomes a part of.
    fn map(&mut self, address: u64, size: u64, stack: Stack) -> Option<u64> {
        let block = self.blocks[&address];
        let segment = self.segments[&block.segment];
        let mapped = size.next_multiple_of(self.rules.page(segment.pool.is_small)).min(block.size);
        if self.now.reserved + mapped > self.rules.capacity {
            return None;
        }
        self.unlist(address);
        if mapped < block.size {
            self.blocks.insert(address + mapped, Block { size: block.size - mapped, ..block });
            self.list(address + mapped);
        }
        self.blocks.insert(address, Block { size: mapped, state: State::Free, ..block });
        self.now.reserved += mapped;
        let merged = self.merge(address);
        self.list(merged);
        self.record(Action::SegmentMap, address, mapped, segment.stream, segment.pool.id, stack, mapped);
        Some(merged)
    }

    /// Takes the whole pages of a free block away.
    fn unmap(&mut self, address: u64, stack: Stack) {
        let block = self.blocks[&address];
        let segment = self.segments[&block.segment];
        let page = self.rules.page(segment.pool.is_small);
        let from = block.segment + (address - block.segment).next_multiple_of(page);
        let to = block.segment + (address + block.size - block.segment) / page * page;
        if from >= to {
            return;
        }
        self.unlist(address);
        self.blocks.remove(&address);
        for (start, end) in [(address, from), (to, address + block.size)] {
            if start < end {
                self.blocks.insert(start, Block { size: end - start, ..block });
                self.list(start);
            }
        }
        self.blocks.insert(from, nothing(to - from, State::Unmapped, block.segment));
        self.now.reserved -= to - from;
        let merged = self.merge(from);
        self.list(merged);
        self.record(Action::SegmentUnmap, from, to - from, segment.stream, segment.pool.id, stack, to - from);
        if self.blocks[&merged].size == segment.size {
            self.unlist(merged);
            self.blocks.remove(&merged);
            self.segments.remove(&merged);
            self.addresses.give_back(merged);
        }
    }

    /// Gives back what is free of a pool.
    fn release(&mut self, pool: Pool, stack: Stack) {
        let free: Vec<u64> = self.free[&pool].mapped.iter().map(|(.., address)| *address).collect();
        for address in free {
            if self.rules.is_expandable {
                self.unmap(address, stack);
            } else if self.segments.get(&address).is_some_and(|one| one.size == self.blocks[&address].size) {
                self.release_segment(address, stack);
            }
        }
    }

    /// Gives back one free block that is kept whole and large enough, or several; says whether that may do.
    fn release_oversize(&mut self, pool: Pool, stream: u64, size: u64, stack: Stack) -> bool {
        let Some(max_split) = self.rules.max_split.filter(|_| !self.rules.is_expandable) else {
            return false;
        };
        let wanted = size.max(max_split);
        let free = self.free.entry(pool).or_default();
        let of_stream = free.mapped.range((stream, 0, 0)..(stream + 1, 0, 0));
        if let Some((.., address)) = of_stream.clone().find(|(_, size, _)| *size >= wanted) {
            let address = *address;
            self.release_segment(address, stack);
            return true;
        }
        let mut released = 0;
        let largest_first: Vec<_> = of_stream.rev().copied().collect();
        for (_, block, address) in largest_first {
            if released >= wanted || block < max_split {
                break;
            }
            released += block;
            self.release_segment(address, stack);
        }
        released >= wanted
    }

    fn release_segment(&mut self, address: u64, stack: Stack) {
        self.unlist(address);
        self.blocks.remove(&address);
        let segment = self.segments.remove(&address).expect("a block kept whole is its segment");
        self.addresses.give_back(address);
        self.now.reserved -= segment.size;
        self.record(
            Action::SegmentFree,
            address,
            segment.size,
            segment.stream,
            segment.pool.id,
            stack,
            segment.size,
        );
    }

    /// Makes one of a block and those of its neighbors that are as free, or as unmapped, as it is.
    fn merge(&mut self, address: u64) -> u64 {
        let block = self.blocks[&address];
        let (mut start, mut size) = (address, block.size);
        let neighbors = [self.previous(address), self.next(address)];
        for (at, neighbor) in neighbors.into_iter().flatten() {
            if neighbor.state == block.state {
                self.unlist(at);
                self.blocks.remove(&at);
                start = start.min(at);
                size += neighbor.size;
            }
        }
        self.blocks.remove(&address);
        self.blocks.insert(start, Block { size, ..block });
        start
    }

    fn previous(&self, address: u64) -> Option<(u64, Block)> {
        let (at, block) = self.blocks.range(..address).next_back()?;
        (block.segment == self.blocks[&address].segment).then_some((*at, *block))
    }

    fn next(&self, address: u64) -> Option<(u64, Block)> {
        let block = self.blocks[&address];
        let next = self.blocks.get(&(address + block.size))?;
        (next.segment == block.segment).then_some((address + block.size, *next))
    }

    /// Puts a block where its pool finds it.
    fn list(&mut self, address: u64) {
        let block = self.blocks[&address];
        let segment = self.segments[&block.segment];
        let free = self.free.entry(segment.pool).or_default();
        if block.state == State::Unmapped {
            free.unmapped.insert((segment.stream, address));
            return;
        }
        free.mapped.insert((segment.stream, block.size, address));
        *self.free_sizes.entry(block.size).or_default() += 1;
        if !self.rules.is_expandable && block.size < segment.size {
            self.now.inactive_split += block.size;
        }
    }

    /// Takes it out again.
    fn unlist(&mut self, address: u64) {
        let block = self.blocks[&address];
        let segment = self.segments[&block.segment];
        let free = self.free.entry(segment.pool).or_default();
        if block.state == State::Unmapped {
            free.unmapped.remove(&(segment.stream, address));
            return;
        }
        let was_listed = free.mapped.remove(&(segment.stream, block.size, address));
        assert!(was_listed, "a free block is in its pool's list");
        let n = self.free_sizes.get_mut(&block.size).expect("its size was counted");
        *n -= 1;
        if *n == 0 {
            self.free_sizes.remove(&block.size);
        }
        if !self.rules.is_expandable && block.size < segment.size {
            self.now.inactive_split -= block.size;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of an event, in their order")]
    fn record(
        &mut self,
        action: Action,
        address: u64,
        size: u64,
        stream: u64,
        pool: PoolId,
        stack: Stack,
        block: u64,
    ) {
        self.now.largest_free = self.free_sizes.last_key_value().map_or(0, |(size, _)| *size);
        let levels = self.now;
        self.events.push(Event { action, address, size, stream, pool, stack, block, levels });
    }
}

fn nothing(size: u64, state: State, segment: u64) -> Block {
    Block { size, requested: 0, state, stack: None, segment }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn neighbors_that_are_free_become_one_block_again() {
        let mut allocator = Allocator::new(Rules::default());
        let blocks: Vec<u64> = (0..3).map(|_| allocator.alloc(1000, 0, 0).unwrap()).collect();
        assert_eq!(allocator.now.allocated, 3 * 1024);
        for address in [blocks[0], blocks[2], blocks[1]] {
            allocator.free(address, 0);
        }
        assert_eq!(allocator.blocks.len(), 1);
        assert_eq!(allocator.now, Levels { reserved: 2 * MIB, largest_free: 2 * MIB, ..Levels::default() });
    }

    #[test]
    fn a_large_block_keeps_a_rest_of_up_to_a_mebibyte() {
        let mut allocator = Allocator::new(Rules::default());
        allocator.alloc(21 * MIB, 0, 0);
        assert_eq!(allocator.now.allocated, 22 * MIB);
        allocator.alloc(21 * MIB - 512, 0, 0);
        assert_eq!(allocator.now.allocated, 22 * MIB + 21 * MIB - 512);
    }

    #[test]
    fn a_block_that_another_stream_uses_waits_for_it() {
        let mut allocator = Allocator::new(Rules::default());
        let block = allocator.alloc(512, 0, 0).unwrap();
        allocator.use_on(block, 7);
        allocator.free(block, 0);
        assert_eq!((allocator.now.allocated, allocator.now.active), (0, 512));
        allocator.alloc(512, 0, 0);
        assert_eq!(allocator.now.active, 1024);
        allocator.finish(7, 1);
        assert_eq!(allocator.alloc(512, 0, 0), Some(block));
        assert_eq!(allocator.now.active, 1024);
    }

    #[test]
    fn an_expandable_segment_grows_at_its_end_and_shrinks_by_whole_pages() {
        let mut allocator = Allocator::new(Rules { is_expandable: true, ..Rules::default() });
        let first = allocator.alloc(25 * MIB, 0, 0).unwrap();
        assert_eq!(allocator.now.reserved, 40 * MIB);
        let second = allocator.alloc(30 * MIB, 0, 0).unwrap();
        assert_eq!((second, allocator.now.reserved), (first + 25 * MIB, 60 * MIB));
        allocator.free(first, 0);
        allocator.empty_cache(0);
        assert_eq!((allocator.now.reserved, allocator.now.largest_free), (40 * MIB, 5 * MIB));
        allocator.free(second, 0);
        allocator.empty_cache(0);
        assert_eq!(allocator.now, Levels::default());
        assert!(allocator.segments.is_empty());
    }

    #[test]
    fn before_it_gives_up_it_gives_back_what_is_free() {
        let mut allocator = Allocator::new(Rules { capacity: 64 * MIB, ..Rules::default() });
        let block = allocator.alloc(40 * MIB, 0, 0).unwrap();
        allocator.free(block, 0);
        assert!(allocator.alloc(60 * MIB, 0, 0).is_some());
        assert_eq!(allocator.alloc(60 * MIB, 0, 0), None);
        assert_eq!(allocator.events.last().unwrap().action, Action::Oom);
        assert_eq!(allocator.events.last().unwrap().address, 4 * MIB);
    }
}
