//! How one snapshot is taken: read and emptied at once, or read beside training and cut later.
//!
//! ```text
//! Python way   step(n): statistics, _snapshot(), clear                      → pickled and written later
//! native way   step(n): statistics (the cut), the call begins               → read, cut, written later
//! ```
//! In the native way the history goes on: a window begins where the one before it ended, and both ends are what the
//! allocator had counted when `step` was called ([`crate::ring`]).

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write as _},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use serde_json::{Value, json};
use tidegauge_api::{Sidecar, sidecar};
use tidegauge_snapshot::{read, window, write};

use crate::{
    beside::Pending,
    outbox::Draft,
    reckoning::{Lacking, Reckoning, Seen},
    recorder::{Recorder, RecorderError, Statistics, Unwritten, Way},
    ring::{Dropped, Mark, Ring, Stretch, Windowed},
    settings::Settings,
};

/// Bytes that are compressed at once.
const BLOCK_BYTES: usize = 128 * 1024;

/// A snapshot in memory.
pub struct Taken {
    /// What is to be written.
    pub unwritten: Box<dyn Unwritten>,
    /// What travels beside it.
    pub sidecar: Sidecar,
    /// Whether the next window begins at this one's end.
    pub is_cleared: Result<(), RecorderError>,
    /// What the Python way saw of it.
    pub seen: Seen,
    /// What is not in it, as far as the Python way can tell.
    pub lacking: Lacking,
}

/// Takes snapshots of one recording, one after the other.
#[derive(Debug)]
pub struct Taking {
    now_us: fn() -> i64,
    ring: Arc<Mutex<Ring>>,
    /// How often the history was emptied.
    epoch: u64,
    /// What was counted when it was last emptied, if nothing happened meanwhile.
    emptied: Option<Mark>,
    /// Where the open window begins; `None` when the allocator does not count.
    from: Option<Mark>,
    /// The way in which the last snapshot was taken.
    way: Way,
    /// Somebody else records, or nobody, when the history is not ours to empty.
    is_ours: bool,
    /// What the allocator had counted when the history was last empty.
    reckoning: Reckoning,
}

/// What reading gave, and whether the next window begins at its end.
type Reading = (Box<dyn Unwritten>, Result<(), RecorderError>);

impl Taking {
    /// Begins to record.
    ///
    /// # Errors
    /// When that fails.
    pub fn begin(
        recorder: &mut dyn Recorder,
        settings: &Settings,
        now_us: fn() -> i64,
    ) -> Result<Self, RecorderError> {
        let mut taking = Self { is_ours: true, ..Self::looking_on(settings, now_us) };
        let is_on = recorder.is_recording() == Some(true);
        let before = taking.mark(recorder);
        recorder.record(&settings.recording)?;
        if is_on {
            // What somebody else recorded is still there on some devices.
            recorder.clear(&settings.recording)?;
        }
        taking.emptied_by(recorder, before);
        Ok(taking)
    }

    /// Reads what is there without recording, emptying or switching off anything, in the Python way.
    pub fn looking_on(settings: &Settings, now_us: fn() -> i64) -> Self {
        let ring = Arc::new(Mutex::new(Ring::new(settings.recording.max_entries)));
        let (epoch, way, reckoning) = (0, Way::Python, Reckoning::default());
        Self { now_us, ring, epoch, emptied: None, from: None, way, is_ours: false, reckoning }
    }

    /// Empties the history and switches it on, whoever switched it off.
    ///
    /// # Errors
    /// When that fails.
    pub fn begin_again(
        &mut self,
        recorder: &mut dyn Recorder,
        settings: &Settings,
    ) -> Result<(), RecorderError> {
        let before = self.mark(recorder);
        self.clear(recorder, settings, before)
    }

    /// Begins a window here: what happened before it is forgotten.
    ///
    /// # Errors
    /// When the history cannot be emptied.
    pub fn forget(&mut self, recorder: &mut dyn Recorder, settings: &Settings) -> Result<(), RecorderError> {
        let before = self.mark(recorder);
        if self.way(recorder) == Way::Native && before.is_some() {
            (self.from, self.way) = (before, Way::Native);
            return Ok(());
        }
        self.clear(recorder, settings, before)
    }

    /// A snapshot of the open window, which ends here; the next begins. Work that is still queued is not waited for.
    ///
    /// # Errors
    /// When there is none; the window stays open then.
    pub fn take(&mut self, recorder: &mut dyn Recorder, settings: &Settings) -> Result<Taken, RecorderError> {
        let mut sidecar = Sidecar {
            sidecar: sidecar::VERSION,
            window: Some(settings.window.as_str().to_owned()),
            captured_at_us: Some((self.now_us)()),
            ..Sidecar::default()
        };
        sidecar.versions.insert("tidegauge".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let (mut seen, mut lacking) = (Seen::new(), Lacking::default());
        let taken = match (self.way(recorder), self.from.clone()) {
            (Way::Native, Some(from)) => self.take_beside(recorder, from, &mut sidecar),
            _ => self.take_at_once(recorder, settings, &mut sidecar, (&mut seen, &mut lacking)),
        };
        let (unwritten, is_cleared) = taken?;
        recorder.describe(&settings.recording, &mut sidecar);
        if let Some(Value::Object(recording)) = &mut sidecar.recording {
            recording.insert("way".to_owned(), self.way.as_str().into());
        }
        Ok(Taken { unwritten, sidecar, is_cleared, seen, lacking })
    }

    /// The way of the next snapshot. Without counts there is no telling where windows begin and end.
    fn way(&self, recorder: &mut dyn Recorder) -> Way {
        match recorder.way() {
            Way::Native if self.from.is_some() => Way::Native,
            _ => Way::Python,
        }
    }

    /// Reads the history and empties it at once, whatever else happens: between the two, and only there, events of
    /// other threads can be lost. How long that took, and how many they can be at most, goes into the sidecar.
    fn take_at_once(
        &mut self,
        recorder: &mut dyn Recorder,
        settings: &Settings,
        sidecar: &mut Sidecar,
        (seen, lacking): (&mut Seen, &mut Lacking),
    ) -> Result<Reading, RecorderError> {
        if self.way == Way::Native {
            // What was taken natively is still in the history, and what failed cannot be told from the rest.
            let before = self.mark(recorder);
            self.clear(recorder, settings, before)?;
            let lost = "the native way failed; events since the last snapshot are lost, and the Python way is gone from here on";
            return Err(RecorderError(lost.to_owned()));
        }
        let (started, started_us) = (Instant::now(), (self.now_us)());
        let before = recorder.statistics().unwrap_or_default();
        let mark = Mark::of(&before, [started_us, (self.now_us)()]);
        let counted = Instant::now();
        let unwritten = recorder.read()?;
        let read = Instant::now();
        if !self.is_ours {
            *seen = recorder.seen(true);
            sidecar.capture_ms = BTreeMap::from([
                ("statistics".to_owned(), millis(started, counted)),
                ("snapshot".to_owned(), millis(counted, read)),
            ]);
            counted_by(before, sidecar);
            return Ok((unwritten, Ok(())));
        }
        let is_cleared = recorder.clear(&settings.recording);
        let (cleared, cleared_us) = (Instant::now(), (self.now_us)());
        let after = recorder.statistics().unwrap_or_default();
        self.emptied(mark, Mark::of(&after, [cleared_us, (self.now_us)()]));
        *seen = recorder.seen(false);
        *lacking = self.reckoning.lacking(&before, seen, settings.recording.max_entries);
        sidecar.capture_ms = BTreeMap::from([
            ("statistics".to_owned(), millis(started, counted) + millis(cleared, Instant::now())),
            ("snapshot".to_owned(), millis(counted, read)),
            ("clear".to_owned(), millis(read, cleared)),
        ]);
        // Reading copies the trace somewhere within its time: all of it counts.
        sidecar.gap_us = u64::try_from((cleared - counted).as_micros()).ok();
        let n_events_in_gap = after.n_events().saturating_sub(before.n_events());
        sidecar.more.insert("gap_events_at_most".to_owned(), n_events_in_gap.into());
        counted_by(before, sidecar);
        self.reckoning = Reckoning::since(after);
        Ok((unwritten, is_cleared))
    }

    /// Has the history read on another thread. Here only the counts are read, which are the window's end.
    fn take_beside(
        &mut self,
        recorder: &mut dyn Recorder,
        from: Mark,
        sidecar: &mut Sidecar,
    ) -> Result<Reading, RecorderError> {
        let (started, started_us) = (Instant::now(), (self.now_us)());
        let statistics = recorder.statistics()?;
        let to = Mark::of(&statistics, [started_us, (self.now_us)()]);
        let to =
            to.ok_or_else(|| RecorderError("the allocator's statistics do not count any more".to_owned()))?;
        let counted = Instant::now();
        let pending = recorder.read_beside()?;
        // Waits for the lock, as the next allocation would, while the trace is copied. What it says is of no use.
        recorder.statistics().ok();
        let begun = Instant::now();
        sidecar.capture_ms = BTreeMap::from([
            ("statistics".to_owned(), millis(started, counted)),
            ("snapshot".to_owned(), millis(counted, begun)),
        ]);
        counted_by(statistics, sidecar);
        let stretch = Stretch { from, to: to.clone(), epoch: self.epoch, emptied: self.emptied.clone() };
        (self.from, self.way) = (Some(to), Way::Native);
        Ok((Box::new(Uncut { pending, ring: Arc::clone(&self.ring), stretch }), Ok(())))
    }

    fn clear(
        &mut self,
        recorder: &mut dyn Recorder,
        settings: &Settings,
        before: Option<Mark>,
    ) -> Result<(), RecorderError> {
        recorder.clear(&settings.recording)?;
        self.emptied_by(recorder, before);
        Ok(())
    }

    /// The history was emptied since `before`.
    fn emptied_by(&mut self, recorder: &mut dyn Recorder, before: Option<Mark>) {
        let after_us = (self.now_us)();
        let after = recorder.statistics().ok();
        let mark = after.as_ref().and_then(|after| Mark::of(after, [after_us, (self.now_us)()]));
        self.emptied(before, mark);
        self.reckoning = Reckoning::since(after.unwrap_or_default());
    }

    /// The history was emptied between the two.
    fn emptied(&mut self, before: Option<Mark>, after: Option<Mark>) {
        let is_quiet = before.zip(after.as_ref()).is_some_and(|(before, after)| before.is_same_place(after));
        self.emptied = after.clone().filter(|_| is_quiet);
        (self.from, self.way) = (after, Way::Python);
        self.epoch += 1;
    }

    fn mark(&self, recorder: &mut dyn Recorder) -> Option<Mark> {
        let before_us = (self.now_us)();
        let statistics = recorder.statistics().ok()?;
        Mark::of(&statistics, [before_us, (self.now_us)()])
    }
}

fn millis(from: Instant, to: Instant) -> f64 {
    (to - from).as_secs_f64() * 1e3
}

fn counted_by(statistics: Statistics, sidecar: &mut Sidecar) {
    let Statistics { memory_stats, mem_get_info } = statistics;
    (sidecar.memory_stats, sidecar.mem_get_info) = (memory_stats, mem_get_info);
}

/// A history that is being read, of which one window is wanted.
struct Uncut {
    pending: Pending,
    ring: Arc<Mutex<Ring>>,
    stretch: Stretch,
}

impl Unwritten for Uncut {
    fn write(self: Box<Self>, draft: Draft, sidecar: &mut Sidecar) -> io::Result<Draft> {
        let started = Instant::now();
        let bytes = self.pending.bytes().map_err(io::Error::other)?;
        let read = Instant::now();
        let draft = cut(&bytes, &self.ring, &self.stretch, draft, sidecar)?;
        let beside_ms =
            json!({ "read": millis(started, read), "cut_and_written": millis(read, Instant::now()) });
        sidecar.more.insert("beside_ms".to_owned(), beside_ms);
        Ok(draft)
    }
}

/// Writes the window alone. Bytes that cannot be read are written as they are, and that is said.
fn cut(
    bytes: &[u8],
    ring: &Mutex<Ring>,
    stretch: &Stretch,
    mut draft: Draft,
    sidecar: &mut Sidecar,
) -> io::Result<Draft> {
    let snapshot = match read::open(bytes) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let reason = format!("it also holds earlier windows: it cannot be read: {error}");
            sidecar.more.insert("uncut".to_owned(), reason.into());
            draft.write_all(bytes)?;
            return Ok(draft);
        }
    };
    let windowed = ring.lock().unwrap_or_else(PoisonError::into_inner).window(&snapshot, stretch);
    describe(&windowed, sidecar);
    let mut devices = snapshot.devices.iter().zip(&windowed.windows);
    if devices.all(|(device, window)| *window == (0..device.events.len())) {
        draft.write_all(bytes)?;
        return Ok(draft);
    }
    let window = window::trim(snapshot, &windowed.windows, stretch.from.at_us());
    let mut out = BufWriter::with_capacity(BLOCK_BYTES, draft);
    write::pickle(&window, &mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)
}

fn describe(windowed: &Windowed, sidecar: &mut Sidecar) {
    if !windowed.dropped.is_empty() {
        let of_device = |(ordinal, dropped): (&u32, &Dropped)| {
            let key = if dropped.is_exact { "events" } else { "events_at_least" };
            (ordinal.to_string(), json!({ key: dropped.n_events }))
        };
        let dropped: serde_json::Map<_, _> = windowed.dropped.iter().map(of_device).collect();
        sidecar.more.insert("dropped".to_owned(), dropped.into());
    }
    if !windowed.by_clock.is_empty() {
        sidecar.more.insert("window_by_clock".to_owned(), json!(windowed.by_clock));
    }
}
