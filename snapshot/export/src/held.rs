//! Who holds the memory at one moment: what flame graphs are made of.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::filter::Filter;
use tidegauge_snapshot::model::Frame;
use tidegauge_snapshot::sums::{By, Key, Sum, sums};
use tidegauge_snapshot::words::count;

use crate::{DevicePart, ExportError, Part};

/// A moment of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// When most bytes are allocated, for the first time.
    Peak,
    /// After the last event.
    End,
    /// After this event, counted from 0.
    After(u32),
}

impl Moment {
    /// The state it is in the window of a device.
    ///
    /// # Errors
    /// When the window has no such event.
    pub fn state(self, device: &DevicePart<'_>) -> Result<u32, ExportError> {
        let events = &device.events;
        match self {
            Self::End => Ok(events.end),
            Self::Peak => {
                let allocated = &device.origins.replay.curves.allocated;
                let level = |state: &u32| allocated.get(*state as usize).copied().unwrap_or(0);
                // Of equal levels the last one found is kept, so the search goes backward.
                Ok((events.start..=events.end).rev().max_by_key(level).unwrap_or(events.start))
            }
            Self::After(event) if events.contains(&event) => Ok(event + 1),
            Self::After(event) => Err(ExportError::NoSuchEvent {
                device: device.name(),
                event,
                from: events.start,
                until: events.end,
            }),
        }
    }
}

/// Blocks in use on one device at one moment, by stack.
pub(crate) struct Held<'a> {
    pub(crate) device: &'a DevicePart<'a>,
    pub(crate) state: u32,
    /// Most bytes first.
    pub(crate) sums: Vec<Sum>,
}

/// What each device of a part holds.
pub(crate) fn held<'a>(part: &'a Part<'a>, moment: Moment) -> Result<Vec<Held<'a>>, ExportError> {
    let of_device = |device: &'a DevicePart<'a>| {
        let state = moment.state(device)?;
        Ok(Held { device, state, sums: sums(&device.origins, state, By::Stack, &Filter::default()) })
    };
    part.devices.iter().map(of_device).collect()
}

impl Held<'_> {
    /// "device 0, after event 1,234", "device 0, before the trace"
    pub(crate) fn title(&self) -> String {
        let device = self.device.name();
        match self.state.checked_sub(1) {
            Some(event) => format!("{device}, after event {}", count(event.into())),
            None if self.device.origins.device.events.is_empty() => device,
            None => format!("{device}, before the trace"),
        }
    }

    /// When that was: Unix epoch, microseconds.
    pub(crate) fn time_us(&self) -> Option<i64> {
        let origins = &self.device.origins;
        origins.snapshot.trace.time_us(origins.event_before(self.state)?)
    }
}

/// A stack as flame graphs take it.
pub(crate) enum Path {
    /// Frames, innermost first.
    Frames(Vec<Frame>),
    /// One frame of ours, which says why there are none.
    Reason(&'static str),
}

impl Path {
    pub(crate) fn of(snapshot: &Snapshot, key: &Key) -> Self {
        match key {
            Key::Stack(stack) => Self::Frames(snapshot.stacks.frames(*stack).collect()),
            Key::OlderThanTrace => Self::Reason("(older than the trace: stack unknown)"),
            Key::NoFrames => Self::Reason("(no Python frames)"),
            _ => Self::Reason("(recorded without a stack)"),
        }
    }
}
