//! Events in order, one row each, as columns.

use super::{Action, ShapeId, StackId, StrId};

/// The events of all devices. All columns have the same length.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Trace {
    /// What happened.
    pub action: Vec<Action>,
    /// Where; for [`Action::OOM`] the bytes the device reported free.
    pub address: Vec<u64>,
    /// Bytes: requested ones for alloc and free, real ones for segments.
    pub size: Vec<u64>,
    /// Row of [`super::Snapshot::streams`].
    pub stream: Vec<u32>,
    /// The stack recorded with the event.
    pub stack: Vec<StackId>,
    /// Unix epoch, microseconds; empty when no event has a time (torch 2.1 and older, torch_npu).
    pub time_us: Vec<i64>,
    /// Row of [`Trace::extras`].
    pub extra: Vec<u32>,
    /// The rarer fields; few different ones in any trace. Row 0 has none.
    pub extras: Vec<Extra>,
}

/// The rarer fields of an event.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extra {
    /// `compile_context`, since torch 2.8; "N/A" outside of compiled regions.
    pub compile_context: Option<StrId>,
    /// `user_metadata`, since torch 2.10; "" when none was set.
    pub user_metadata: Option<StrId>,
    /// `pool_id`, since torch 2.12.
    pub pool: Option<(u64, u64)>,
    /// `category`, of snapshots converted from a profile.
    pub category: Option<StrId>,
    /// `internal_metadata`, since torch 2.15: an event of the allocator's own.
    pub is_internal: bool,
    /// What it says there.
    pub internal: Option<StrId>,
    /// `forward_frames`, since torch 2.11: row of [`super::Snapshot::forward`].
    pub forward: Option<u32>,
    /// The event's fields in the file.
    pub shape: ShapeId,
}

impl Trace {
    /// How many events there are.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// When an event happened, if the trace has times.
    pub fn time_us(&self, event: usize) -> Option<i64> {
        self.time_us.get(event).copied()
    }

    /// The rarer fields of an event.
    pub fn extra(&self, event: usize) -> Extra {
        let row = self.extra.get(event).copied().unwrap_or(0);
        self.extras.get(row as usize).copied().unwrap_or_default()
    }
}
