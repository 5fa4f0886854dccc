//! Where memory was freed, as far as the trace tells.

use super::{Allocations, NEVER, Replay};
use crate::Snapshot;
use crate::model::{Device, StackId};

/// Where an allocation's free was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeSite {
    /// Here.
    At(StackId),
    /// It outlives the trace.
    NotFreed,
    /// It was freed, and the trace has no stack for that.
    Unrecorded,
    /// Recording ran with context="alloc": the stack that stands at the free is the allocation's.
    AllocStack,
}

/// The free sites of a device.
///
/// The stack of a `free_completed` is that of whatever made the allocator look for finished work, often an unrelated
/// allocation; only the one of the `free_requested` before it says who freed.
#[derive(Debug)]
pub struct FreeSites<'a> {
    snapshot: &'a Snapshot,
    device: &'a Device,
    allocations: &'a Allocations,
    repeats_allocs: bool,
}

impl<'a> FreeSites<'a> {
    /// Looks through the trace once, to see whether it records free sites at all.
    pub fn new(snapshot: &'a Snapshot, device: &'a Device, replay: &'a Replay) -> Self {
        let mut sites = Self { snapshot, device, allocations: &replay.allocations, repeats_allocs: false };
        let has_frames = |stack: StackId| snapshot.stacks.frames(stack).next().is_some();
        let mut known = (replay.n_preexisting..replay.allocations.len())
            .filter_map(|row| Some((replay.allocations.stack[row], sites.stack(row)?)))
            .filter(|(alloc, free)| has_frames(*alloc) || has_frames(*free))
            .peekable();
        // A free at the very place of its allocation is common; all of them there is how context="alloc" looks.
        sites.repeats_allocs = known.peek().is_some() && known.all(|(alloc, free)| alloc == free);
        sites
    }

    /// True when the stack at a free is the one of its allocation.
    pub fn repeat_allocs(&self) -> bool {
        self.repeats_allocs
    }

    /// Where an allocation was freed.
    pub fn of(&self, row: usize) -> FreeSite {
        if self.allocations.free_requested[row] == NEVER {
            return FreeSite::NotFreed;
        }
        match self.stack(row) {
            None | Some(StackId::NONE) => FreeSite::Unrecorded,
            Some(_) if self.repeats_allocs => FreeSite::AllocStack,
            Some(stack) => FreeSite::At(stack),
        }
    }

    /// The stack that stands at the request, if that lies in the trace.
    fn stack(&self, row: usize) -> Option<StackId> {
        let state = self.allocations.free_requested[row];
        let before = (state as usize).checked_sub(1).filter(|_| state != NEVER)?;
        self.snapshot.trace.stack.get(self.device.events.start + before).copied()
    }
}
