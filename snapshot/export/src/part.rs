//! What of a snapshot is written: all of it, one device, or a window of its trace.

use std::{borrow::Cow, ops::Range};

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::model::Device;
use tidegauge_snapshot::origins::Origins;
use tidegauge_snapshot::replay::Replay;
use tidegauge_snapshot::window::cut;

use crate::ExportError;

/// A snapshot, and what of it is meant.
#[derive(Debug)]
pub struct Part<'a> {
    /// Where everything is.
    pub snapshot: &'a Snapshot,
    /// The devices that are meant.
    pub devices: Vec<DevicePart<'a>>,
}

/// One device, and a window of its trace.
#[derive(Debug)]
pub struct DevicePart<'a> {
    /// The device, its replay, and how to look things up in them.
    pub origins: Origins<'a>,
    /// The events that are meant, as positions in the device's trace.
    pub events: Range<u32>,
}

impl<'a> Part<'a> {
    /// All of a snapshot; `replays` are those of its devices, in their order.
    pub fn whole(snapshot: &'a Snapshot, replays: &'a [Replay]) -> Self {
        let devices = snapshot.devices.iter().zip(replays);
        Self {
            snapshot,
            devices: devices.map(|(device, replay)| DevicePart::whole(snapshot, device, replay)).collect(),
        }
    }

    /// A window of one device's trace. The states in it are those before and after each of its events.
    ///
    /// # Errors
    /// When the device's trace has no such events.
    pub fn window(
        snapshot: &'a Snapshot,
        device: &'a Device,
        replay: &'a Replay,
        events: Range<u32>,
    ) -> Result<Self, ExportError> {
        let whole = DevicePart::whole(snapshot, device, replay);
        let Range { start: from, end: until } = events;
        if from > until || until > whole.events.end {
            let n_events = whole.events.end;
            return Err(ExportError::NoSuchWindow { device: whole.name(), n_events, from, until });
        }
        Ok(Self { snapshot, devices: vec![DevicePart { events, ..whole }] })
    }

    /// The part as a snapshot of its own: all of it as it is, a window or one of several devices cut out, with memory
    /// as it stood at the end of the window.
    pub(crate) fn to_snapshot(&self) -> Cow<'a, Snapshot> {
        match self.devices.as_slice() {
            [part]
                if self.snapshot.devices.len() != 1 || !part.is_whole() || part.origins.device.is_host() =>
            {
                let Origins { snapshot, device, replay } = part.origins;
                let Range { start, end } = part.events;
                Cow::Owned(cut(snapshot, device, replay, start as usize..end as usize))
            }
            _ => Cow::Borrowed(self.snapshot),
        }
    }
}

impl<'a> DevicePart<'a> {
    fn whole(snapshot: &'a Snapshot, device: &'a Device, replay: &'a Replay) -> Self {
        let origins = Origins { snapshot, device, replay };
        // States are numbers of 32 bits; reading bounds the events accordingly.
        Self { origins, events: 0..device.events.len() as u32 }
    }

    /// Device ordinal; -1 for pinned host memory, as torch has it.
    pub fn ordinal(&self) -> i64 {
        if self.origins.device.is_host() { -1 } else { self.origins.device.ordinal.into() }
    }

    /// "device 0", "pinned host memory"
    pub fn name(&self) -> String {
        if self.origins.device.is_host() {
            "pinned host memory".to_owned()
        } else {
            format!("device {}", self.origins.device.ordinal)
        }
    }

    /// Whether every event is meant.
    pub(crate) fn is_whole(&self) -> bool {
        self.events.start == 0 && self.is_to_the_end()
    }

    /// Whether the window reaches the end of the trace.
    pub fn is_to_the_end(&self) -> bool {
        self.events.end as usize == self.origins.device.events.len()
    }

    /// An event's row in the snapshot's trace.
    pub(crate) fn trace_row(&self, event: u32) -> usize {
        self.origins.device.events.start + event as usize
    }

    /// The allocations that are alive in a state of the window.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = u32> + '_ {
        let allocations = &self.origins.replay.allocations;
        let Range { start, end } = self.events;
        let n_begun = allocations.from.partition_point(|from| *from <= end);
        (0..n_begun as u32).filter(move |row| allocations.to[*row as usize] > start)
    }
}
