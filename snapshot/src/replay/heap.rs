//! The blocks of a device's memory as the allocator chains them: each knows its neighbors in the segment, so giving
//! back and merging take no search.
//!
//! A sound trace finds every block by its first byte, in a hash table. Only what is found otherwise (unmapping a part
//! of an expandable segment, a trace that contradicts itself) needs the blocks in order of address; that order is
//! built when it is first asked for and kept from then on.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// No node, no row.
pub(super) const NONE: u32 = u32::MAX;

/// Where a block lies: a row of the reservations, and whether that is expandable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Place {
    /// Outside of every segment. What lies there is taken to merge and split like expandable memory.
    pub(super) const NOWHERE: Self = Self(u32::MAX);
    const EXPANDABLE: u32 = 1 << 31;

    /// A place in a reservation.
    pub(super) fn new(reservation: u32, is_expandable: bool) -> Self {
        Self(reservation | if is_expandable { Self::EXPANDABLE } else { 0 })
    }

    pub(super) fn is_expandable(self) -> bool {
        self.0 & Self::EXPANDABLE != 0
    }

    /// The row; [`NONE`] outside of every segment.
    pub(super) fn reservation(self) -> u32 {
        if self == Self::NOWHERE { NONE } else { self.0 & !Self::EXPANDABLE }
    }
}

/// Sees every free block come and go.
pub(super) trait Watch {
    /// A free block appeared. `is_split`: it shares a plain segment with other blocks.
    fn added(&mut self, size: u64, is_split: bool);
    /// A free block is gone.
    fn removed(&mut self, size: u64, is_split: bool);
    /// An event is over.
    fn state(&mut self);
}

/// Nobody looks.
impl Watch for () {
    #[inline]
    fn added(&mut self, _: u64, _: bool) {}
    #[inline]
    fn removed(&mut self, _: u64, _: bool) {}
    #[inline]
    fn state(&mut self) {}
}

/// A block, free or handed out.
#[derive(Clone, Copy)]
struct Node {
    start: u64,
    end: u64,
    /// Neighbors in the same segment, or [`NONE`].
    before: u32,
    after: u32,
    /// Row of the allocation that has it; [`NONE`] while it is free.
    row: u32,
    place: Place,
}

/// All blocks of a device.
pub(super) struct Heap<W> {
    nodes: Vec<Node>,
    /// Nodes that are not in use.
    spare: Vec<u32>,
    /// By first byte.
    by_start: HashMap<u64, u32, RandomState>,
    /// The same in order, once somebody asked.
    in_order: Option<BTreeMap<u64, u32>>,
    n_live: u64,
    pub(super) watch: W,
}

impl<W: Watch> Heap<W> {
    pub(super) fn new(watch: W) -> Self {
        Self {
            nodes: Vec::new(),
            spare: Vec::new(),
            by_start: HashMap::default(),
            in_order: None,
            n_live: 0,
            watch,
        }
    }

    /// Blocks that are handed out.
    pub(super) fn n_live(&self) -> u64 {
        self.n_live
    }

    /// The row of the block handed out at an address.
    #[inline]
    pub(super) fn live_at(&self, address: u64) -> Option<u32> {
        let node = *self.by_start.get(&address)?;
        Some(self.nodes[node as usize].row).filter(|row| *row != NONE)
    }

    /// The free block that begins at an address.
    #[inline]
    pub(super) fn free_at(&self, address: u64) -> Option<u32> {
        let node = *self.by_start.get(&address)?;
        (self.nodes[node as usize].row == NONE).then_some(node)
    }

    /// The free block that an address lies inside of.
    pub(super) fn free_around(&mut self, address: u64) -> Option<u32> {
        let node = self.node_around(address)?;
        (self.nodes[node as usize].row == NONE).then_some(node)
    }

    pub(super) fn range(&self, node: u32) -> (u64, u64) {
        let Node { start, end, .. } = self.nodes[node as usize];
        (start, end)
    }

    pub(super) fn place(&self, node: u32) -> Place {
        self.nodes[node as usize].place
    }

    /// The row of the handed out block right before a block.
    pub(super) fn row_before(&self, node: u32) -> Option<u32> {
        let before = self.nodes.get(self.nodes[node as usize].before as usize)?;
        Some(before.row).filter(|row| *row != NONE)
    }

    /// Adds a free block after the last one of a segment, or as the first one of a new segment.
    pub(super) fn append(&mut self, last: u32, start: u64, end: u64, place: Place) -> u32 {
        self.append_node(last, Node { start, end, before: last, after: NONE, row: NONE, place })
    }

    /// Adds a handed out block after the last one of a segment, or as the first one of a new segment.
    pub(super) fn append_live(&mut self, last: u32, start: u64, end: u64, place: Place, row: u32) -> u32 {
        self.append_node(last, Node { start, end, before: last, after: NONE, row, place })
    }

    fn append_node(&mut self, last: u32, node: Node) -> u32 {
        if last != NONE {
            self.unwatch(last);
        }
        let at = self.add(node);
        if self.nodes[at as usize].before != NONE {
            self.nodes[last as usize].after = at;
            self.watch(last);
        }
        self.watch(at);
        at
    }

    /// Hands out the front of a free block; the rest stays free.
    #[inline]
    pub(super) fn hand_out(&mut self, node: u32, size: u64, row: u32) {
        self.unwatch(node);
        let Node { start, end, after, place, .. } = self.nodes[node as usize];
        let middle = start.saturating_add(size);
        self.nodes[node as usize].row = row;
        self.n_live += 1;
        if middle >= end {
            return;
        }
        self.nodes[node as usize].end = middle;
        let rest = self.add(Node { start: middle, end, before: node, after, row: NONE, place });
        self.nodes[node as usize].after = rest;
        if after != NONE {
            self.nodes[after as usize].before = rest;
        }
        self.watch(rest);
    }

    /// Takes a block back, merges it with its free neighbors, and says whose it was.
    #[inline]
    pub(super) fn give_back(&mut self, address: u64) -> Option<u32> {
        let node = *self.by_start.get(&address)?;
        let row = std::mem::replace(&mut self.nodes[node as usize].row, NONE);
        if row == NONE {
            return None;
        }
        self.n_live -= 1;
        let node = self.merge(node);
        self.watch(node);
        Some(row)
    }

    /// Merges a free block nobody watches yet with its free neighbors; the result is not watched yet either.
    #[inline]
    fn merge(&mut self, mut node: u32) -> u32 {
        let Node { before, after, .. } = self.nodes[node as usize];
        if after != NONE && self.nodes[after as usize].row == NONE {
            self.unwatch(after);
            self.absorb(node, after);
        }
        if before != NONE && self.nodes[before as usize].row == NONE {
            self.unwatch(before);
            self.absorb(before, node);
            node = before;
        }
        node
    }

    /// Makes one of a block and the one right after it.
    fn absorb(&mut self, node: u32, next: u32) {
        let Node { end, after, .. } = self.nodes[next as usize];
        self.nodes[node as usize].end = end;
        self.nodes[node as usize].after = after;
        if after != NONE {
            self.nodes[after as usize].before = node;
        }
        self.remove(next);
    }

    /// Splits a free block at an address inside it and gives the second part.
    pub(super) fn cut_front(&mut self, node: u32, at: u64) -> Option<u32> {
        let Node { start, end, after, place, row, .. } = self.nodes[node as usize];
        if at == start && row == NONE {
            return Some(node);
        }
        if row != NONE || at <= start || at >= end {
            return self.free_at(at);
        }
        self.unwatch(node);
        self.nodes[node as usize].end = at;
        let rest = self.add(Node { start: at, end, before: node, after, row: NONE, place });
        self.nodes[node as usize].after = rest;
        if after != NONE {
            self.nodes[after as usize].before = rest;
        }
        self.watch(node);
        self.watch(rest);
        Some(rest)
    }

    /// Moves the border between a handed out block and the free one after it; the free one may vanish.
    pub(super) fn grow_before(&mut self, free: u32, by: u64) {
        let Node { start, end, before, after, place, .. } = self.nodes[free as usize];
        let border = start.saturating_add(by).min(end);
        self.unwatch(free);
        self.nodes[before as usize].end = border;
        self.remove(free);
        self.nodes[before as usize].after = after;
        if border < end {
            let rest = self.add(Node { start: border, end, before, after, row: NONE, place });
            self.nodes[before as usize].after = rest;
            if after != NONE {
                self.nodes[after as usize].before = rest;
            }
            self.watch(rest);
        } else if after != NONE {
            self.nodes[after as usize].before = before;
        }
    }

    /// Adds newly mapped memory and joins it with what touches it on both sides, where `is_one` says of their
    /// reservations that they are one segment.
    pub(super) fn map(&mut self, start: u64, end: u64, place: Place, is_one: impl Fn(Place) -> bool) {
        if start >= end {
            return;
        }
        let order = self.in_order();
        let before = order.range(..start).next_back().map(|(_, node)| *node);
        let after = order.get(&end).copied();
        if order.range(start..end).next().is_some() {
            // It is there already, at least in part: the event that unmapped it is missing.
            self.drop_segment(start, end);
        }
        let touches = |found: &u32| is_one(self.nodes[*found as usize].place);
        let before = before.filter(|found| self.nodes[*found as usize].end == start).filter(touches);
        let after = after.filter(touches);
        let (before, after) = (before.unwrap_or(NONE), after.unwrap_or(NONE));
        for neighbor in [before, after] {
            if neighbor != NONE {
                self.unwatch(neighbor);
            }
        }
        let node = self.add(Node { start, end, before, after, row: NONE, place });
        if before != NONE {
            self.nodes[before as usize].after = node;
            self.watch(before);
        }
        if after != NONE {
            self.nodes[after as usize].before = node;
            self.watch(after);
        }
        let node = self.merge(node);
        self.watch(node);
    }

    /// Takes unmapped memory out of what is free; what is handed out stays, whatever the file says.
    pub(super) fn unmap(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.in_order();
        if let Some(node) = self.free_around(start) {
            self.cut_front(node, start);
        }
        if let Some(node) = self.free_around(end) {
            self.cut_front(node, end);
        }
        self.drop_segment(start, end);
    }

    /// Forgets the free blocks between two addresses; those handed out lose their neighbors.
    pub(super) fn drop_segment(&mut self, start: u64, end: u64) {
        // In a sound trace a segment that goes is one free block.
        if let Some(node) = self.free_at(start)
            && self.nodes[node as usize].end == end
        {
            self.forget(node);
            return;
        }
        let inside: Vec<u32> = self.in_order().range(start..end).map(|(_, node)| *node).collect();
        for node in inside {
            if self.nodes[node as usize].row == NONE && self.nodes[node as usize].end <= end {
                self.forget(node);
            } else {
                self.detach(node);
            }
        }
    }

    /// Takes a free block out of its chain and out of the world.
    fn forget(&mut self, node: u32) {
        self.unwatch(node);
        self.detach_quietly(node);
        self.remove(node);
    }

    fn detach(&mut self, node: u32) {
        self.unwatch(node);
        self.detach_quietly(node);
        self.nodes[node as usize].place = Place::NOWHERE;
        self.watch(node);
    }

    fn detach_quietly(&mut self, node: u32) {
        let Node { before, after, .. } = self.nodes[node as usize];
        for neighbor in [before, after] {
            if neighbor != NONE {
                self.unwatch(neighbor);
            }
        }
        if before != NONE {
            self.nodes[before as usize].after = NONE;
            self.watch(before);
        }
        if after != NONE {
            self.nodes[after as usize].before = NONE;
            self.watch(after);
        }
        let node = &mut self.nodes[node as usize];
        (node.before, node.after) = (NONE, NONE);
    }

    /// The block that covers an address.
    fn node_around(&mut self, address: u64) -> Option<u32> {
        let node = *self.in_order().range(..=address).next_back()?.1;
        (address < self.nodes[node as usize].end).then_some(node)
    }

    fn in_order(&mut self) -> &mut BTreeMap<u64, u32> {
        self.in_order
            .get_or_insert_with(|| self.by_start.iter().map(|(start, node)| (*start, *node)).collect())
    }

    /// Adds a block. One that begins where another does replaces it: the file contradicts itself.
    #[inline]
    fn add(&mut self, node: Node) -> u32 {
        if node.row != NONE {
            self.n_live += 1;
        }
        let at = match self.spare.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        let old = self.by_start.insert(node.start, at);
        if let Some(order) = &mut self.in_order {
            order.insert(node.start, at);
        }
        if let Some(old) = old {
            self.replaced(old, at);
        }
        at
    }

    /// Lets go of a block whose place another has taken. The new one may have been told that it is a neighbor.
    #[cold]
    fn replaced(&mut self, old: u32, new: u32) {
        let node = &mut self.nodes[new as usize];
        for neighbor in [&mut node.before, &mut node.after] {
            if *neighbor == old {
                *neighbor = NONE;
            }
        }
        self.unwatch(old);
        self.detach_quietly(old);
        if self.nodes[old as usize].row != NONE {
            self.n_live -= 1;
        }
        self.spare.push(old);
    }

    #[inline]
    fn remove(&mut self, node: u32) {
        let start = self.nodes[node as usize].start;
        self.by_start.remove(&start);
        if let Some(order) = &mut self.in_order {
            order.remove(&start);
        }
        self.spare.push(node);
    }

    #[inline]
    fn watch(&mut self, node: u32) {
        let Node { start, end, before, after, row, place } = self.nodes[node as usize];
        if row == NONE {
            let has_neighbor = before != NONE || after != NONE;
            self.watch.added(end.saturating_sub(start), has_neighbor && !place.is_expandable());
        }
    }

    #[inline]
    fn unwatch(&mut self, node: u32) {
        let Node { start, end, before, after, row, place } = self.nodes[node as usize];
        if row == NONE {
            let has_neighbor = before != NONE || after != NONE;
            self.watch.removed(end.saturating_sub(start), has_neighbor && !place.is_expandable());
        }
    }
}
