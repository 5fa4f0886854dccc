//! Where windows begin and end in a history that goes on: the native way never empties it.
//!
//! A moment is told by what the allocator has counted up to it ([`Counts`]): allocations, frees asked for, frees done,
//! segments taken from the device and given back, requests it could not meet. Each event of a trace counts one of these
//! up, and `memory_stats()` reads all of them at once, under the allocator's lock. So the place of a moment in a trace follows exactly, once
//! the counts are known at any place of it:
//!
//! ```text
//! trace of snapshot 1   [ a a f a f ─────────┐ s ]                    s: what the snapshot itself leaves in the trace
//! trace of snapshot 2   [ a a f a f s a f a a ───────────┐ s ]        the same events again, and those since
//!                       └─ window 1 ┘└─── window 2 ──────┘            each ends where step(n) read the counts
//! ```
//! They are known at the first event of a history that was just begun, and where a trace continues the one before it;
//! that is found by comparing their events where the ring has pushed the oldest ones out. Where neither helps, because
//! more happened than the ring holds, the place is found by the clock, and that is said.

use std::{collections::BTreeMap, ops::Range};

use serde_json::Value;
use tidegauge_snapshot::{
    Snapshot,
    model::{Action, Device},
};

use crate::recorder::Statistics;

/// Events at the end of a trace by which it is found in the next one.
const MAX_TAIL_EVENTS: usize = 256;

/// How far two traces may differ in the time of the same event, microseconds. Torch measures its clock anew for each
/// snapshot; steps that repeat the same events are longer than this, or happen in other places of memory.
const MAX_TIME_DIFFERENCE_US: u64 = 1000;

/// How far the time of an event may be from the system's clock, microseconds. Torch reads a faster one and converts.
const CLOCK_ERROR_US: i64 = 50;

/// What a device's allocator has counted so far: events of each kind that it counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts([u64; N_KINDS]);

/// Kinds of events that are counted.
const N_KINDS: usize = 6;

/// What `memory_stats()` calls them.
const NAMES: [&str; N_KINDS] = [
    "allocation.all.allocated",
    "allocation.all.freed",
    "active.all.freed",
    "num_device_alloc",
    "num_device_free",
    "num_ooms",
];

/// A moment in the histories of all devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mark {
    /// By ordinal; a device that is not here was not used yet.
    devices: BTreeMap<u32, Counts>,
    /// When reading the counts began and ended: Unix epoch, microseconds.
    between_us: [i64; 2],
}

/// A window, as it is known when its snapshot is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Its beginning.
    pub from: Mark,
    /// Its end.
    pub to: Mark,
    /// How often the history was emptied before it.
    pub epoch: u64,
    /// The counts when the history was last emptied, if nothing happened meanwhile.
    pub emptied: Option<Mark>,
}

/// What was learned of the history, snapshot by snapshot, in their order.
#[derive(Debug)]
pub struct Ring {
    max_entries: u64,
    epoch: u64,
    seen: BTreeMap<u32, Seen>,
}

/// A trace as it was seen last.
#[derive(Debug)]
struct Seen {
    n_events: usize,
    counts_at_end: Counts,
    tail: Vec<Print>,
}

/// Enough of an event to know it again.
#[derive(Debug, Clone, Copy)]
struct Print {
    action: Action,
    address: u64,
    size: u64,
    stream: u64,
    time_us: Option<i64>,
}

/// A window in a snapshot's traces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windowed {
    /// Its events, in the order of [`Snapshot::devices`].
    pub windows: Vec<Range<usize>>,
    /// Events of it that the ring had pushed out, by ordinal; devices without any are not here.
    pub dropped: BTreeMap<u32, Dropped>,
    /// Devices whose window was found by the clock.
    pub by_clock: Vec<u32>,
}

/// How many events are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// So many, or more.
    pub n_events: u64,
    /// Exactly so many.
    pub is_exact: bool,
}

impl Counts {
    /// From `memory_stats()`; `None` when it does not count.
    pub fn of(stats: &Value) -> Option<Self> {
        let mut counts = Self::default();
        for (count, name) in counts.0.iter_mut().zip(NAMES) {
            *count = stats.get(name)?.as_u64()?;
        }
        Some(counts)
    }

    /// What an event counts up: one of these, or none.
    fn of_event(action: Action) -> Self {
        let kind = match action {
            Action::ALLOC => 0,
            Action::FREE_REQUESTED => 1,
            Action::FREE_COMPLETED => 2,
            Action::SEGMENT_ALLOC | Action::SEGMENT_MAP => 3,
            Action::SEGMENT_FREE | Action::SEGMENT_UNMAP => 4,
            Action::OOM => 5,
            _ => return Self::default(),
        };
        let mut counts = Self::default();
        counts.0[kind] = 1;
        counts
    }

    fn plus(mut self, other: Self) -> Option<Self> {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.checked_add(more)?;
        }
        Some(self)
    }

    fn minus(mut self, other: Self) -> Option<Self> {
        for (count, less) in self.0.iter_mut().zip(other.0) {
            *count = count.checked_sub(less)?;
        }
        Some(self)
    }

    fn n_events(self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

impl Mark {
    /// The moment of these statistics, which were read between two times: Unix epoch, microseconds. `None` when a
    /// device's do not count.
    pub fn of(statistics: &Statistics, between_us: [i64; 2]) -> Option<Self> {
        let counted = statistics.memory_stats.iter().map(|(ordinal, stats)| {
            let counts = Counts::of(stats)?;
            Some((ordinal.parse().ok()?, counts))
        });
        Some(Self { devices: counted.collect::<Option<_>>()?, between_us })
    }

    /// When it was: Unix epoch, microseconds.
    pub fn at_us(&self) -> i64 {
        self.between_us[0]
    }

    /// Whether nothing was counted between the two.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.devices == other.devices
    }

    fn of_device(&self, ordinal: u32) -> Counts {
        self.devices.get(&ordinal).copied().unwrap_or_default()
    }
}

impl Ring {
    /// A history that keeps so many events.
    pub fn new(max_entries: u64) -> Self {
        Self { max_entries, epoch: 0, seen: BTreeMap::new() }
    }

    /// The window in the traces of its snapshot. Snapshots must come in the order in which they were taken.
    pub fn window(&mut self, snapshot: &Snapshot, stretch: &Stretch) -> Windowed {
        if std::mem::replace(&mut self.epoch, stretch.epoch) != stretch.epoch {
            self.seen.clear();
        }
        let mut windowed = Windowed::default();
        for device in &snapshot.devices {
            let trace = Trace { snapshot, device };
            let window = self.of_device(&trace, stretch, &mut windowed);
            windowed.windows.push(window);
        }
        windowed
    }

    fn of_device(&mut self, trace: &Trace<'_>, stretch: &Stretch, windowed: &mut Windowed) -> Range<usize> {
        let ordinal = trace.device.ordinal;
        let (from, to) = (stretch.from.of_device(ordinal), stretch.to.of_device(ordinal));
        let placed = self.place(trace, stretch).and_then(|counts_at_start| {
            let until = trace.find(counts_at_start, to)?;
            trace.is_at(until, &stretch.to).then_some((Some(counts_at_start), until))
        });
        let mut is_exact = placed.is_some();
        let (counts_at_start, until) = placed.unwrap_or_else(|| {
            windowed.by_clock.push(ordinal);
            // With no event near that moment, the clock cannot be wrong.
            let [earliest, likely, latest] = trace.about(&stretch.to);
            is_exact = earliest == latest;
            (to.minus(trace.counted(0..latest)), likely)
        });
        let missing = counts_at_start.and_then(|counts| counts.minus(from)).map_or(0, Counts::n_events);
        let first = if missing > 0 {
            // The window began before the first event that is left.
            windowed.dropped.insert(ordinal, Dropped { n_events: missing, is_exact });
            0
        } else {
            let first = counts_at_start.and_then(|counts| trace.find(counts, from));
            first.unwrap_or_else(|| trace.about(&stretch.from)[1]).min(until)
        };
        let counts_at_end = counts_at_start.and_then(|counts| counts.plus(trace.counted(0..trace.len())));
        let seen = |counts_at_end| Seen { n_events: trace.len(), counts_at_end, tail: trace.tail() };
        // A place that the clock is unsure of is no place to count from.
        match counts_at_end.filter(|_| is_exact).map(seen) {
            Some(seen) => self.seen.insert(ordinal, seen),
            None => self.seen.remove(&ordinal),
        };
        first..until
    }

    /// The counts before the first event of a trace, where they are known.
    fn place(&self, trace: &Trace<'_>, stretch: &Stretch) -> Option<Counts> {
        let is_full = trace.len() as u64 >= self.max_entries;
        match self.seen.get(&trace.device.ordinal) {
            Some(seen) => {
                let ended = if is_full { trace.position_of(&seen.tail) } else { trace.continues(seen) };
                seen.counts_at_end.minus(trace.counted(0..ended?))
            }
            None if is_full => None,
            None => Some(stretch.emptied.as_ref()?.of_device(trace.device.ordinal)),
        }
    }
}

/// The events of one device.
struct Trace<'a> {
    snapshot: &'a Snapshot,
    device: &'a Device,
}

impl Trace<'_> {
    fn len(&self) -> usize {
        self.device.events.len()
    }

    fn print(&self, event: usize) -> Print {
        let (trace, row) = (&self.snapshot.trace, self.device.events.start + event);
        Print {
            action: trace.action[row],
            address: trace.address[row],
            size: trace.size[row],
            stream: self.snapshot.streams.get(trace.stream[row] as usize).copied().unwrap_or_default(),
            time_us: trace.time_us(row),
        }
    }

    fn tail(&self) -> Vec<Print> {
        (self.len().saturating_sub(MAX_TAIL_EVENTS)..self.len()).map(|event| self.print(event)).collect()
    }

    fn of_event(&self, event: usize) -> Counts {
        Counts::of_event(self.snapshot.trace.action[self.device.events.start + event])
    }

    fn is_counted(&self, event: usize) -> bool {
        self.of_event(event) != Counts::default()
    }

    /// What some of its events count up.
    fn counted(&self, events: Range<usize>) -> Counts {
        // A trace has fewer events than a number has room for.
        events.fold(Counts::default(), |sum, event| sum.plus(self.of_event(event)).unwrap_or(sum))
    }

    /// The first place with these counts.
    fn find(&self, counts_at_start: Counts, wanted: Counts) -> Option<usize> {
        let mut left = wanted.minus(counts_at_start)?;
        for event in 0..self.len() {
            if left == Counts::default() {
                return Some(event);
            }
            left = left.minus(self.of_event(event))?;
        }
        (left == Counts::default()).then_some(self.len())
    }

    /// Whether the clock agrees that this place is that moment. Without times it has nothing to say.
    fn is_at(&self, place: usize, mark: &Mark) -> bool {
        let time = |event: usize| self.snapshot.trace.time_us(self.device.events.start + event);
        let slack = MAX_TIME_DIFFERENCE_US as i64;
        let [began, ended] = mark.between_us;
        let before = place.checked_sub(1).and_then(time);
        let after = (place..self.len()).find(|event| self.is_counted(*event)).and_then(time);
        before.is_none_or(|before| before <= ended.saturating_add(slack))
            && after.is_none_or(|after| after >= began.saturating_sub(slack))
    }

    /// The earliest, the most likely and the latest place that can be this moment, by the clock. Most likely nothing
    /// happened while the counts were read.
    fn about(&self, mark: &Mark) -> [usize; 3] {
        let [began, ended] = mark.between_us;
        let times = [began.saturating_sub(CLOCK_ERROR_US), began, ended.saturating_add(CLOCK_ERROR_US)];
        times.map(|time_us| self.at_time(time_us))
    }

    /// The place after the last counted event that is not later than this.
    fn at_time(&self, time_us: i64) -> usize {
        let times = self.snapshot.trace.time_us.get(self.device.events.clone());
        let place = times.map_or(self.len(), |times| times.partition_point(|time| *time <= time_us));
        (0..place).rev().find(|event| self.is_counted(*event)).map_or(0, |event| event + 1)
    }

    /// Where an earlier trace ended in this one, when nothing was pushed out since.
    fn continues(&self, seen: &Seen) -> Option<usize> {
        let is_there = seen.n_events <= self.len() && self.ends_with(seen.n_events, &seen.tail);
        is_there.then_some(seen.n_events)
    }

    /// Where an earlier trace ended in this one, of which it may have lost the beginning.
    fn position_of(&self, tail: &[Print]) -> Option<usize> {
        let last = tail.last()?;
        let candidates = (1..=self.len()).filter(|ended| {
            let here = self.print(*ended - 1);
            here.is_same(last) && self.ends_with(*ended, tail)
        });
        let difference = |ended: &usize| self.print(*ended - 1).differs_by_us(last);
        candidates.min_by_key(difference)
    }

    /// Whether the events before this place are these, as far as they are still there.
    fn ends_with(&self, ended: usize, tail: &[Print]) -> bool {
        (0..ended).rev().zip(tail.iter().rev()).all(|(event, print)| self.print(event).is_same(print))
    }
}

impl Print {
    fn is_same(&self, other: &Self) -> bool {
        self.action == other.action
            && self.address == other.address
            && self.size == other.size
            && self.stream == other.stream
            && self.differs_by_us(other) <= MAX_TIME_DIFFERENCE_US
    }

    fn differs_by_us(&self, other: &Self) -> u64 {
        self.time_us.zip(other.time_us).map_or(0, |(here, there)| here.abs_diff(there))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegauge_snapshot::model::Trace as Events;

    use super::*;

    /// An allocator's history on device 0, told as it happens: `a` alloc, `f` free asked for and done, `g` segment, `o`
    /// out of memory, `s` a snapshot of somebody's. Each event has its own time, 200 µs after the one before.
    #[derive(Default)]
    struct History {
        events: Vec<(Action, i64)>,
        ring: usize,
        n_pushed_out: usize,
        waited_us: i64,
    }

    impl History {
        fn of(ring: usize) -> Self {
            Self { ring, ..Self::default() }
        }

        fn happens(&mut self, story: &str) {
            for event in story.chars() {
                let actions: &[Action] = match event {
                    'a' => &[Action::ALLOC],
                    'f' => &[Action::FREE_REQUESTED, Action::FREE_COMPLETED],
                    'g' => &[Action::SEGMENT_ALLOC],
                    'o' => &[Action::OOM],
                    _ => &[Action::SNAPSHOT],
                };
                for action in actions {
                    self.events.push((*action, self.now_us() + 100));
                }
            }
        }

        fn now_us(&self) -> i64 {
            1_000_000 + self.waited_us + 200 * self.events.len() as i64 - 100
        }

        fn statistics(&self) -> Statistics {
            let count = |wanted: Action| self.events.iter().filter(|(action, _)| *action == wanted).count();
            let stats = json!({
                "allocation.all.allocated": count(Action::ALLOC),
                "allocation.all.freed": count(Action::FREE_REQUESTED),
                "active.all.freed": count(Action::FREE_COMPLETED),
                "num_device_alloc": count(Action::SEGMENT_ALLOC),
                "num_device_free": count(Action::SEGMENT_FREE),
                "num_ooms": count(Action::OOM),
            });
            Statistics { memory_stats: BTreeMap::from([("0".to_owned(), stats)]), ..Statistics::default() }
        }

        fn mark(&self) -> Mark {
            Mark::of(&self.statistics(), [self.now_us(); 2]).unwrap()
        }

        /// Where its trace begins among all events.
        fn first(&self) -> usize {
            self.n_pushed_out.max(self.events.len().saturating_sub(self.ring))
        }

        /// The trace as a snapshot has it, which leaves its own event behind.
        fn snapshot(&mut self) -> (Snapshot, usize) {
            let first = self.first();
            let events = &self.events[first..];
            let trace = Events {
                action: events.iter().map(|(action, _)| *action).collect(),
                // Addresses repeat, as those of steps do.
                address: (0..events.len()).map(|event| ((first + event) % 5) as u64).collect(),
                size: vec![512; events.len()],
                stream: vec![0; events.len()],
                time_us: events.iter().map(|(_, time_us)| *time_us + 40).collect(),
                ..Events::default()
            };
            let device = Device { ordinal: 0, events: 0..events.len(), segments: 0..0 };
            let snapshot = Snapshot { trace, streams: vec![7], devices: vec![device], ..Snapshot::default() };
            self.happens("s");
            (snapshot, first)
        }
    }

    /// Windows among all events: one a mark, its snapshot taken after what happens late.
    struct Story {
        history: History,
        ring: Ring,
        from: Mark,
        start: Mark,
    }

    impl Story {
        fn of(entries: usize) -> Self {
            let history = History::of(entries);
            Self { ring: Ring::new(entries as u64), from: history.mark(), start: history.mark(), history }
        }

        /// A window of these events; others happen between its end and the snapshot.
        fn window(&mut self, story: &str, late: &str) -> (Range<usize>, Windowed) {
            self.history.happens(story);
            let to = self.history.mark();
            self.history.happens(late);
            let (snapshot, first) = self.history.snapshot();
            let emptied = Some(self.start.clone());
            let stretch = Stretch { from: self.from.clone(), to: to.clone(), epoch: 0, emptied };
            self.from = to;
            let windowed = self.ring.window(&snapshot, &stretch);
            let window = windowed.windows[0].clone();
            (first + window.start..first + window.end, windowed)
        }
    }

    #[test]
    fn a_window_ends_where_the_counts_were_read_and_the_next_begins_there() {
        let mut story = Story::of(1000);
        assert_eq!(story.window("gaaf", "aa").0, 0..5);
        // Two that came late, the mark of the snapshot, and its own.
        assert_eq!(story.window("ffa", "").0, 5..13);
        assert_eq!(story.window("", "aaa").0, 13..13);
        let (window, windowed) = story.window("o", "");
        assert_eq!(window, 13..19);
        assert!(windowed.dropped.is_empty() && windowed.by_clock.is_empty());
    }

    #[test]
    fn the_mark_of_a_snapshot_that_stands_at_an_end_may_be_much_older() {
        let mut story = Story::of(1000);
        story.window("aa", "");
        story.history.waited_us += 1_000_000;
        let (window, windowed) = story.window("", "a");
        assert_eq!((window, windowed.by_clock), (2..2, vec![]));
    }

    #[test]
    fn snapshots_of_other_people_move_nothing() {
        let mut story = Story::of(1000);
        assert_eq!(story.window("asa", "as").0, 0..3);
        assert_eq!(story.window("sasas", "").0.end, 10);
    }

    #[test]
    fn a_ring_that_pushed_out_what_was_taken_before_loses_nothing() {
        let mut story = Story::of(12);
        let mut until = 0;
        for late in ["", "aa", "f", "", "s", "", "aa", "a"] {
            let (window, windowed) = story.window("afa", late);
            assert_eq!(window.start, until);
            assert!(windowed.dropped.is_empty() && windowed.by_clock.is_empty(), "{windowed:?}");
            until = window.end;
        }
        assert!(story.history.first() > 20);
    }

    #[test]
    fn what_the_ring_pushed_out_of_a_window_is_counted() {
        let mut story = Story::of(10);
        story.window("aaa", "");
        // Thirteen events, and one of the ten left is the late one: four are gone, and the earlier trace with them.
        let (window, windowed) = story.window("afafafaaaa", "a");
        assert_eq!(window.len(), 9);
        assert_eq!(windowed.dropped[&0], Dropped { n_events: 4, is_exact: true });
        // Far more than it holds: nothing of the earlier trace is left, and the clock must help.
        let (window, windowed) = story.window(&"af".repeat(50), "aaa");
        assert_eq!(window.len(), 7);
        assert_eq!(windowed.by_clock, [0]);
        assert_eq!(windowed.dropped[&0], Dropped { n_events: 151 - 7, is_exact: true });
        // After that it is exact again.
        let (window, windowed) = story.window("a", "");
        assert_eq!(window.len(), 5);
        assert!(windowed.dropped.is_empty() && windowed.by_clock.is_empty());
    }

    #[test]
    fn a_history_that_somebody_emptied_is_placed_by_the_clock_and_the_loss_is_said() {
        let mut story = Story::of(1000);
        story.window("aaf", "");
        story.history.happens("aa");
        story.history.n_pushed_out = story.history.events.len();
        let (window, windowed) = story.window("af", "a");
        assert_eq!(window, 7..10);
        assert_eq!(windowed.by_clock, [0]);
        assert_eq!(windowed.dropped[&0], Dropped { n_events: 2, is_exact: true });
    }

    #[test]
    fn events_at_the_very_moment_of_a_mark_make_the_clock_unsure() {
        let mut story = Story::of(10);
        story.history.happens(&"a".repeat(30));
        let mut to = story.history.mark();
        // Reading the counts took as long as three events.
        to.between_us[1] += 600;
        story.history.happens("aaa");
        let (snapshot, _) = story.history.snapshot();
        let stretch = Stretch { from: story.start.clone(), to, epoch: 0, emptied: Some(story.start) };
        let windowed = story.ring.window(&snapshot, &stretch);
        assert_eq!(windowed.dropped[&0], Dropped { n_events: 20, is_exact: false });
    }

    #[test]
    fn counts_that_the_program_set_back_are_not_believed() {
        let mut story = Story::of(1000);
        story.window("aaaaaa", "");
        let reset = story.history.mark();
        story.history.happens("af");
        let mut to = story.history.mark();
        to.devices.insert(0, Counts([1, 1, 1, 0, 0, 0]));
        let (snapshot, _) = story.history.snapshot();
        let stretch = Stretch { from: reset, to, epoch: 0, emptied: None };
        let windowed = story.ring.window(&snapshot, &stretch);
        assert_eq!((windowed.windows[0].clone(), windowed.by_clock), (6..10, vec![0]));
    }

    #[test]
    fn a_device_that_is_used_later_counts_from_its_first_event() {
        let mut history = History::of(1000);
        let nothing = Mark { devices: BTreeMap::new(), between_us: [0; 2] };
        history.happens("ga");
        let to = history.mark();
        history.happens("a");
        let (snapshot, _) = history.snapshot();
        let stretch = Stretch { from: nothing.clone(), to, epoch: 0, emptied: Some(nothing) };
        assert_eq!(Ring::new(1000).window(&snapshot, &stretch).windows[0], 0..2);
    }

    #[test]
    fn an_allocator_that_does_not_count_gives_no_mark() {
        let stats = json!({"allocation.all.allocated": 1});
        let memory_stats = BTreeMap::from([("0".to_owned(), stats)]);
        assert_eq!(Mark::of(&Statistics { memory_stats, ..Statistics::default() }, [0; 2]), None);
    }

    /// Steps of all kinds on rings of all sizes: every event is in one window or counted as dropped.
    #[test]
    fn no_event_is_lost_or_doubled_whatever_happens_when() {
        let mut seed = 1_u64;
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % end
        };
        for entries in [20, 50, 200, 100_000] {
            let mut story = Story::of(entries);
            let mut until = 0;
            for _ in 0..200 {
                let mut events = |n| {
                    (0..below(n))
                        .map(|_| ['a', 'f', 'a', 'f', 'g', 's', 'o'][below(7) as usize])
                        .collect::<String>()
                };
                let (happens, late) = (events(20), events(5));
                let is_counted = |(action, _): &&(Action, i64)| *action != Action::SNAPSHOT;
                let (window, windowed) = story.window(&happens, &late);
                let missing = &story.history.events[until..window.start.max(until)];
                let dropped = windowed.dropped.get(&0).map_or(0, |dropped| dropped.n_events);
                assert_eq!(missing.iter().filter(is_counted).count() as u64, dropped, "{entries} entries");
                assert!(window.start >= until, "doubled, {entries} entries: {window:?} after {until}");
                until = window.end;
            }
        }
    }
}
