//! Where allocations came from, beyond what their rows say: their events, stream and pool.

use crate::Snapshot;
use crate::model::Device;
use crate::replay::{NEVER, Replay};

/// Looks up what belongs to the allocations of one device.
#[derive(Debug, Clone, Copy)]
pub struct Origins<'a> {
    /// Where everything is.
    pub snapshot: &'a Snapshot,
    /// Whose allocations these are.
    pub device: &'a Device,
    /// Its replay.
    pub replay: &'a Replay,
}

impl<'a> Origins<'a> {
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
        let event = self.made_in(allocation).or_else(|| self.ended_in(allocation));
        let row = match event {
            Some(event) => self.snapshot.trace.stream.get(event),
            None => {
                self.replay.reservations.stream.get(self.replay.allocations.reservation[allocation] as usize)
            }
        };
        self.snapshot.streams.get(*row? as usize).copied()
    }

    /// The pool of an allocation: as its event says (torch 2.12 and later), or that of the segment it lies in.
    pub fn pool(&self, allocation: usize) -> Option<(u64, u64)> {
        let event = self.made_in(allocation).or_else(|| self.ended_in(allocation));
        let said = event.and_then(|event| self.snapshot.trace.extra(event).pool);
        said.or_else(|| self.replay.reservations.pool(self.replay.allocations.reservation[allocation]))
    }
}
