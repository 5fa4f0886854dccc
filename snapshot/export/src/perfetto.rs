//! Levels over time for ui.perfetto.dev: a trace of `TracePacket`s.
//!
//! Each device is a process with a counter for each of the four levels, the program's annotations as slices, and
//! what happens to segments as instants. Where the trace has no times, an event takes a microsecond.

use std::io::{self, Write};

use tidegauge_snapshot::{annotations::Named, model::Action, replay::Levels, sites};

use crate::{DevicePart, ExportError, Part, annotations, protobuf::Message};

/// Field of `Trace`.
const PACKET: u32 = 1;

/// Fields of `TracePacket`.
mod packet {
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
}

/// Fields of `TrackDescriptor`.
mod track {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const PARENT: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
}

/// Fields of `TrackEvent`, and values of its type.
mod event {
    pub(super) const DEBUG_ANNOTATION: u32 = 4;
    pub(super) const TYPE: u32 = 9;
    pub(super) const TRACK: u32 = 11;
    pub(super) const NAME: u32 = 23;
    pub(super) const COUNTER_VALUE: u32 = 30;

    pub(super) const SLICE_BEGIN: u64 = 1;
    pub(super) const SLICE_END: u64 = 2;
    pub(super) const INSTANT: u64 = 3;
    pub(super) const COUNTER: u64 = 4;
}

/// All packets come from one writer.
const ONLY_SEQUENCE: u64 = 1;

/// Tracks a device may have; annotations that overlap take one each, and the last takes what is left.
const TRACKS_PER_DEVICE: u64 = 64;

/// A counter's number, its name, and the level it shows.
type Counter = (u64, &'static str, fn(&Levels) -> u64);

/// What a device's tracks are, by their number.
const PROCESS: u64 = 0;
const COUNTERS: [Counter; 4] = [
    (1, "requested", |levels| levels.requested),
    (2, "allocated", |levels| levels.allocated),
    (3, "active", |levels| levels.active),
    (4, "reserved", |levels| levels.reserved),
];
const INSTANTS: u64 = 5;
const FIRST_LANE: u64 = 6;

/// Writes levels, annotations and events of segments.
///
/// # Errors
/// When nothing can be written.
pub fn write(part: &Part<'_>, mut out: impl Write) -> Result<(), ExportError> {
    for (at, device) in (1..).zip(&part.devices) {
        let mut tracks = Tracks { first: at * TRACKS_PER_DEVICE, out: &mut out };
        tracks.describe(device)?;
        let clock = Clock::new(device);
        tracks.levels(device, clock)?;
        tracks.annotations(device)?;
    }
    Ok(())
}

/// Times that never go backwards: the order of events is what is known, and a level would land elsewhere.
#[derive(Clone, Copy)]
struct Clock<'a> {
    device: &'a DevicePart<'a>,
    latest_us: i64,
}

impl<'a> Clock<'a> {
    fn new(device: &'a DevicePart<'a>) -> Self {
        Self { device, latest_us: i64::MIN }
    }

    /// Microseconds at a state.
    fn at(&mut self, state: u32) -> i64 {
        let origins = &self.device.origins;
        let trace = &origins.snapshot.trace;
        if trace.time_us.is_empty() {
            return state.into();
        }
        // Before the first event is as late as it.
        let event = origins.event_before(state).or_else(|| origins.event_before(1));
        let time_us = event.and_then(|event| trace.time_us(event)).unwrap_or(0);
        self.latest_us = self.latest_us.max(time_us);
        self.latest_us
    }
}

struct Tracks<'a, W> {
    /// Number of the device's process track.
    first: u64,
    out: &'a mut W,
}

impl<W: Write> Tracks<'_, W> {
    fn describe(&mut self, device: &DevicePart<'_>) -> io::Result<()> {
        let name = device.name();
        // A process needs a number above 0.
        let pid = self.first / TRACKS_PER_DEVICE;
        let process = Message::default().uint(1, pid).text(6, &name);
        self.descriptor(PROCESS, &name, |track| track.message(track::PROCESS, &process))?;
        for (counter, name, _) in COUNTERS {
            const BYTES: u64 = 3;
            let unit = Message::default().uint(3, BYTES);
            self.descriptor(counter, name, |track| track.message(track::COUNTER, &unit))?;
        }
        self.descriptor(INSTANTS, "segments", |track| track)
    }

    fn descriptor(
        &mut self,
        number: u64,
        name: &str,
        more: impl FnOnce(Message) -> Message,
    ) -> io::Result<()> {
        let mut track = Message::default().uint(track::UUID, self.first + number).text(track::NAME, name);
        if number != PROCESS {
            track = track.uint(track::PARENT, self.first + PROCESS);
        }
        Message::default()
            .uint(packet::SEQUENCE, ONLY_SEQUENCE)
            .message(packet::TRACK_DESCRIPTOR, &more(track))
            .write_as(PACKET, self.out)
    }

    fn event(&mut self, time_us: i64, event: &Message) -> io::Result<()> {
        // Nanoseconds; times before 1970 are someone's mistake, and the format has none.
        let time = time_us.max(0).cast_unsigned().saturating_mul(1000);
        Message::default()
            .uint(packet::TIMESTAMP, time)
            .uint(packet::SEQUENCE, ONLY_SEQUENCE)
            .message(packet::TRACK_EVENT, event)
            .write_as(PACKET, self.out)
    }

    fn levels(&mut self, device: &DevicePart<'_>, mut clock: Clock<'_>) -> io::Result<()> {
        let curves = &device.origins.replay.curves;
        let mut shown = [None; COUNTERS.len()];
        for state in device.events.start..=device.events.end {
            let time_us = clock.at(state);
            let levels = curves.at(state as usize);
            for ((counter, _, level), shown) in COUNTERS.into_iter().zip(&mut shown) {
                let level = level(&levels);
                if shown.replace(level) != Some(level) {
                    let value = Message::default()
                        .uint(event::TYPE, event::COUNTER)
                        .uint(event::TRACK, self.first + counter)
                        .int(event::COUNTER_VALUE, i64::try_from(level).unwrap_or(i64::MAX));
                    self.event(time_us, &value)?;
                }
            }
            if state > device.events.start {
                self.instant(device, state - 1, time_us)?;
            }
        }
        Ok(())
    }

    /// What happens to blocks is in the levels; everything else is rare and worth a mark.
    fn instant(&mut self, device: &DevicePart<'_>, number: u32, time_us: i64) -> io::Result<()> {
        let snapshot = device.origins.snapshot;
        let row = device.trace_row(number);
        let action = snapshot.trace.action[row];
        if matches!(action, Action::ALLOC | Action::FREE_REQUESTED | Action::FREE_COMPLETED) {
            return Ok(());
        }
        let bytes = if action == Action::OOM { "device free bytes" } else { "address" };
        let mut instant = Message::default()
            .uint(event::TYPE, event::INSTANT)
            .uint(event::TRACK, self.first + INSTANTS)
            .text(event::NAME, snapshot.action_name(action))
            .message(event::DEBUG_ANNOTATION, &note("event").uint(note::UINT, number.into()))
            .message(event::DEBUG_ANNOTATION, &note("size bytes").uint(note::UINT, snapshot.trace.size[row]));
        let kind = if action == Action::OOM { note::UINT } else { note::POINTER };
        instant =
            instant.message(event::DEBUG_ANNOTATION, &note(bytes).uint(kind, snapshot.trace.address[row]));
        if let Some(site) = sites::site(snapshot, snapshot.trace.stack[row]) {
            let site = note("site").text(note::TEXT, &sites::frame(snapshot, site));
            instant = instant.message(event::DEBUG_ANNOTATION, &site);
        }
        self.event(time_us, &instant)
    }

    /// Ranges that nest share a lane; others get one of their own.
    fn annotations(&mut self, device: &DevicePart<'_>) -> io::Result<()> {
        let snapshot = device.origins.snapshot;
        let ranges = annotations::within(snapshot, device);
        let Some((first, last)) = span(device, &ranges) else { return Ok(()) };
        let mut lanes: Vec<Lane> = Vec::new();
        for range in &ranges {
            let start = range.start_us.unwrap_or(first);
            let end = range.end_us.unwrap_or(last).max(start);
            let most = (TRACKS_PER_DEVICE - FIRST_LANE) as usize;
            let fitting = lanes.iter_mut().position(|lane| lane.fits(start, end));
            let lane = fitting.unwrap_or(lanes.len().min(most - 1));
            if lane == lanes.len() {
                lanes.push(Lane::default());
                self.descriptor(FIRST_LANE + lane as u64, "annotations", |track| track)?;
            }
            let end = lanes[lane].enter(start, end);
            let on_lane = |kind| {
                let track = self.first + FIRST_LANE + lane as u64;
                Message::default().uint(event::TYPE, kind).uint(event::TRACK, track)
            };
            let begin = on_lane(event::SLICE_BEGIN).text(event::NAME, &snapshot.strings.text(range.name));
            let finish = on_lane(event::SLICE_END);
            self.event(start, &begin)?;
            self.event(end, &finish)?;
        }
        Ok(())
    }
}

/// Fields of `DebugAnnotation`.
mod note {
    pub(super) const UINT: u32 = 3;
    pub(super) const TEXT: u32 = 6;
    pub(super) const POINTER: u32 = 7;
    pub(super) const NAME: u32 = 10;
}

fn note(name: &str) -> Message {
    Message::default().text(note::NAME, name)
}

/// The slices of one track that are still open, by their ends, the earliest last.
#[derive(Default)]
struct Lane(Vec<i64>);

impl Lane {
    /// Whether a slice would nest; slices come in order of their beginning.
    fn fits(&mut self, start: i64, end: i64) -> bool {
        while self.0.last().is_some_and(|open| *open <= start) {
            self.0.pop();
        }
        self.0.last().is_none_or(|open| end <= *open)
    }

    /// Opens a slice and returns where it ends: where nothing fits, with the one around it.
    fn enter(&mut self, start: i64, end: i64) -> i64 {
        let end = if self.fits(start, end) { end } else { self.0.last().copied().unwrap_or(end) };
        self.0.push(end);
        end
    }
}

/// From when to when there is anything: ranges without one of their ends reach that far.
fn span(device: &DevicePart<'_>, ranges: &[Named]) -> Option<(i64, i64)> {
    let trace = &device.origins.snapshot.trace;
    let events = device.events.clone().filter_map(|event| trace.time_us(device.trace_row(event)));
    let ends = ranges.iter().flat_map(|range| [range.start_us, range.end_us]).flatten();
    let times = events.chain(ends);
    times.fold(None, |span, time| match span {
        None => Some((time, time)),
        Some((first, last)) => Some((time.min(first), time.max(last))),
    })
}
