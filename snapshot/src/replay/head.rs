//! What stood before the first event, found by walking the trace backward from the segments.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::Skipped;
use super::reservations::Mapped;
use crate::Snapshot;
use crate::model::{Action, BlockState, Device, StackId};
use crate::window;

/// A segment, or a contiguous mapped part of an expandable one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) is_expandable: bool,
    /// Row of [`Snapshot::streams`].
    pub(super) stream: u32,
    pub(super) pool: Option<(u64, u64)>,
    pub(super) stack: StackId,
}

impl Area {
    /// The area that an event takes or gives back.
    pub(super) fn of_event(snapshot: &Snapshot, event: usize, is_expandable: bool) -> Self {
        let trace = &snapshot.trace;
        Self {
            address: trace.address[event],
            size: trace.size[event],
            is_expandable,
            stream: trace.stream[event],
            pool: trace.extra(event).pool,
            stack: trace.stack[event],
        }
    }
}

/// A block in use or waiting for another stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    /// Unknown of blocks that the trace frees.
    pub(super) size: Option<u64>,
    pub(super) requested: u64,
    pub(super) is_allocated: bool,
    pub(super) stack: StackId,
}

/// Areas and blocks, each by address.
pub(super) struct Head {
    pub(super) areas: Vec<Area>,
    pub(super) blocks: Vec<Block>,
}

impl Head {
    /// What stood before an event.
    pub(super) fn before(snapshot: &Snapshot, device: &Device, first_event: usize, skipped: Skipped) -> Self {
        let mut walk = Walk::default();
        walk.begin_at_segments(snapshot, device);
        let mut end = device.events.end;
        while end > first_event {
            let begin = first_event.max(end.saturating_sub(super::BURST));
            walk.burst(snapshot, begin..end, skipped);
            end = begin;
        }
        let mut head = walk.finish();
        let stated = window::stated_head_sizes(snapshot, device);
        for block in head.blocks.iter_mut().filter(|block| block.size.is_none()) {
            let at = stated.binary_search_by_key(&block.address, |(address, _)| *address);
            block.size = at.ok().map(|at| stated[at].1);
        }
        head
    }
}

#[derive(Default)]
struct Walk {
    /// Plain segments by address.
    plain: BTreeMap<u64, Area>,
    /// Mapped ranges of expandable segments, by stream: those of two streams never merge.
    mapped: BTreeMap<u32, Mapped>,
    /// Attributes of expandable segments at the end, by their first byte.
    expandable: BTreeMap<u64, Area>,
    blocks: HashMap<u64, Block, RandomState>,
}

impl Walk {
    fn begin_at_segments(&mut self, snapshot: &Snapshot, device: &Device) {
        let Snapshot { segments, blocks, .. } = snapshot;
        for segment in device.segments.clone() {
            let area = Area {
                address: segments.address[segment],
                size: segments.total_size[segment],
                is_expandable: segments.is_expandable[segment],
                stream: segments.stream[segment],
                pool: Some(segments.pool[segment]),
                stack: segments.stack[segment],
            };
            if area.is_expandable {
                self.mapped(area.stream).add(area.address, area.address.saturating_add(area.size));
                self.expandable.insert(area.address, area);
            } else {
                self.plain.insert(area.address, area);
            }
            for block in segments.blocks[segment].clone() {
                let block = block as usize;
                if blocks.state[block] != BlockState::Inactive {
                    let found = Block {
                        address: blocks.address[block],
                        size: Some(blocks.size[block]),
                        requested: blocks.requested[block],
                        is_allocated: blocks.state[block] == BlockState::Allocated,
                        stack: blocks.stack[block],
                    };
                    self.blocks.insert(found.address, found);
                }
            }
        }
    }

    fn mapped(&mut self, stream: u32) -> &mut Mapped {
        self.mapped.entry(stream).or_default()
    }

    #[inline(never)]
    fn burst(&mut self, snapshot: &Snapshot, events: std::ops::Range<usize>, skipped: Skipped) {
        for event in events.rev() {
            self.step_back(snapshot, event, skipped);
        }
    }

    fn step_back(&mut self, snapshot: &Snapshot, event: usize, skipped: Skipped) {
        let trace = &snapshot.trace;
        let (address, size) = (trace.address[event], trace.size[event]);
        match trace.action[event] {
            Action::ALLOC => _ = self.blocks.remove(&address),
            Action::FREE_COMPLETED => self.unfree(address, size, skipped.free_requests),
            Action::FREE_REQUESTED if skipped.free_completions => self.unfree(address, size, true),
            Action::FREE_REQUESTED => {
                if let Some(block) = self.blocks.get_mut(&address) {
                    block.is_allocated = true;
                }
            }
            Action::SEGMENT_ALLOC => _ = self.plain.remove(&address),
            Action::SEGMENT_FREE => _ = self.plain.insert(address, Area::of_event(snapshot, event, false)),
            Action::SEGMENT_MAP => {
                self.mapped(trace.stream[event]).remove(address, address.saturating_add(size));
            }
            Action::SEGMENT_UNMAP => {
                self.mapped(trace.stream[event]).add(address, address.saturating_add(size));
            }
            _ => {}
        }
    }

    fn unfree(&mut self, address: u64, requested: u64, is_allocated: bool) {
        let block = Block { address, size: None, requested, is_allocated, stack: StackId::NONE };
        self.blocks.insert(address, block);
    }

    fn finish(self) -> Head {
        let mut areas: Vec<Area> = self.plain.into_values().collect();
        for (stream, mapped) in &self.mapped {
            for (start, end) in mapped.iter() {
                // It keeps the attributes of the segment that stands there at the end, if any does.
                let known = self.expandable.range(..end).next_back().map(|(_, area)| area);
                let known = known
                    .filter(|area| area.stream == *stream && area.address.saturating_add(area.size) > start);
                areas.push(Area {
                    address: start,
                    size: end - start,
                    is_expandable: true,
                    stream: *stream,
                    pool: known.and_then(|area| area.pool),
                    stack: known.map_or(StackId::NONE, |area| area.stack),
                });
            }
        }
        areas.sort_unstable_by_key(|area| area.address);
        let mut blocks: Vec<Block> = self.blocks.into_values().collect();
        blocks.sort_unstable_by_key(|block| block.address);
        Head { areas, blocks }
    }
}
