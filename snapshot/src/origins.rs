//! Where allocations came from, beyond what their rows say: their events, stream and pool.

use std::collections::BTreeMap;

use crate::Snapshot;
use crate::model::{Action, Device};
use crate::replay::{NEVER, Replay};

/// Looks up what belongs to the allocations of one device.
#[derive(Debug)]
pub struct Origins<'a> {
    /// Where everything is.
    pub snapshot: &'a Snapshot,
    /// Whose allocations these are.
    pub device: &'a Device,
    /// Its replay.
    pub replay: &'a Replay,
    /// Segments as they stood at the end, by address: row, and the first state each is known to be there in.
    segments: BTreeMap<u64, (usize, u32)>,
}

impl<'a> Origins<'a> {
    /// Prepares the looking up.
    pub fn new(snapshot: &'a Snapshot, device: &'a Device, replay: &'a Replay) -> Self {
        let mut segments: BTreeMap<u64, (usize, u32)> = device
            .segments
            .clone()
            .map(|segment| (snapshot.segments.address[segment], (segment, 0)))
            .collect();
        for (state, event) in (1..).zip(device.events.clone()) {
            if snapshot.trace.action[event] == Action::SEGMENT_ALLOC
                && let Some((_, since)) = segments.get_mut(&snapshot.trace.address[event])
            {
                *since = state;
            }
        }
        Self { snapshot, device, replay, segments }
    }

    /// The row of [`Snapshot::trace`] that led to a state; none led to the first.
    pub fn event_before(&self, state: u32) -> Option<usize> {
        let event = self.device.events.start + (state as usize).checked_sub(1)?;
        (event < self.device.events.end).then_some(event)
    }

    /// True when an allocation is older than the trace.
    pub fn is_older(&self, allocation: usize) -> bool {
        allocation < self.replay.n_preexisting
    }

    /// The event that made an allocation, as a row of [`Snapshot::trace`].
    pub fn made_in(&self, allocation: usize) -> Option<usize> {
        if self.is_older(allocation) {
            return None;
        }
        self.event_before(self.replay.allocations.from[allocation])
    }

    /// The event that ended an allocation, as a row of [`Snapshot::trace`].
    pub fn ended_in(&self, allocation: usize) -> Option<usize> {
        let to = self.replay.allocations.to[allocation];
        if to == NEVER { None } else { self.event_before(to) }
    }

    /// The raw handle of an allocation's stream: its event's, or that of the segment it lies in.
    pub fn stream(&self, allocation: usize) -> Option<u64> {
        let snapshot = self.snapshot;
        let event = self.made_in(allocation).or_else(|| self.ended_in(allocation));
        let row = match event {
            Some(event) => snapshot.trace.stream[event],
            None => snapshot.segments.stream[self.segment(allocation)?],
        };
        snapshot.streams.get(row as usize).copied()
    }

    /// The pool of an allocation: as its event says (torch 2.12 and later), or that of the segment it lies in.
    /// Unknown when that segment was given back within the trace.
    pub fn pool(&self, allocation: usize) -> Option<(u64, u64)> {
        let event = self.made_in(allocation).or_else(|| self.ended_in(allocation));
        let said = event.and_then(|event| self.snapshot.trace.extra(event).pool);
        said.or_else(|| Some(self.snapshot.segments.pool[self.segment(allocation)?]))
    }

    /// The segment an allocation lies in, if it is still there at the end: a row of [`Snapshot::segments`].
    fn segment(&self, allocation: usize) -> Option<usize> {
        let address = self.replay.allocations.address[allocation];
        let (start, (segment, since)) = self.segments.range(..=address).next_back()?;
        let is_inside = address - start < self.snapshot.segments.total_size[*segment];
        // Another one may have lain there before.
        (is_inside && self.replay.allocations.from[allocation] >= *since).then_some(*segment)
    }
}
