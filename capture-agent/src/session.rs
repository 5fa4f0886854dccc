//! The life of a recording: from the first step to the last snapshot.
//!
//! ```text
//! Waiting ─ begin ─→ Recording ─ stop ─→ Over        the device is there, this rank is chosen
//!                ╲─→ Bystander ─ stop ─→ Over        this rank is not chosen: nothing is recorded
//! ```
//! Where somebody else records already, Recording means looking on: the history is read, and neither cleared nor
//! switched off. A bystander whose memory runs out takes a snapshot without a history, which still shows what is
//! there.
//!
//! No method fails: what goes wrong is said, and after [`MAX_FAILURES`] in a row the session stands down. Only
//! [`Session::stop`] waits for the network, for as long as the settings allow.

mod told;

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tidegauge_api::{Place, Sidecar};
use tidegauge_snapshot::words::size;

use crate::{
    breaker::Breaker,
    courier::{Courier, Left, Parcel},
    frameworks::{Believed, StepsBy},
    growth::{Grown, Growth},
    neighbors::Neighbors,
    notices::Notices,
    occasions::{Occasion, Ooms},
    outbox::Outbox,
    plan::{Due, Steps, Windows},
    reckoning::{Lacking, Seen},
    recorder::{Group, Recorder},
    request::Lookout,
    samples::{Mailbox, Sampling},
    settings::Settings,
    taking::{Taken, Taking},
    whereabouts::{Surroundings, Whereabouts},
};

/// Snapshots that may fail in a row before the session stands down.
const MAX_FAILURES: u32 = 3;

/// How long a chosen step may wait for earlier snapshots to be written. Past that it is skipped, and its events
/// go to the next snapshot.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a process that may be about to end is held up until its snapshot is on the disk. Launchers give it
/// thirty seconds from SIGTERM to SIGKILL.
const LAST_PATIENCE: Duration = Duration::from_secs(20);

/// The reason of a snapshot that somebody asked for from outside.
const ON_DEMAND: &str = "on-demand";
/// The reason of a snapshot that growth called for.
const GROWTH: &str = "growth";

/// What a process is and has, handed in once.
pub struct Process {
    /// Reads an environment variable.
    pub env: fn(&str) -> Option<String>,
    /// The system's clock: Unix epoch, microseconds.
    pub now_us: fn() -> i64,
    /// Name of this machine.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// The script that runs.
    pub script: Option<String>,
    /// Runs something that waits for other threads. A language with one big lock lets go of it meanwhile.
    pub waiting: fn(&mut (dyn FnMut() + Send)),
}

/// A recording.
pub struct Session {
    settings: Settings,
    recorder: Box<dyn Recorder>,
    process: Process,
    notices: Arc<Notices>,
    windows: Windows,
    whereabouts: Whereabouts,
    /// Who says where steps end.
    steps_by: Believed,
    /// Whoever says so from now on has not said a step's end yet.
    is_renumbered: bool,
    /// What other packages said when they were asked last, and what adapters told.
    neighbors: Neighbors,
    /// The process group was looked for at a step's end; after that the rank is what it is.
    is_settled: bool,
    n_failures: u32,
    state: State,
    /// Somebody else records: the history is not ours to clear.
    is_guest: bool,
    ooms: Ooms,
    /// SIGTERM came: the next one finds its snapshot taken.
    is_terminated: bool,
    breaker: Breaker,
    /// When recording began.
    began: Instant,
    counts: Counts,
    /// There once recording began.
    taking: Option<Taking>,
    /// There once recording began, until the end: what was taken is sent even after standing down.
    courier: Option<Courier>,
    /// There while recording, where the system gave it a thread.
    lookout: Option<Lookout>,
    /// There when growth is watched.
    growth: Option<Growth>,
    sampling: Sampling,
    /// Where samples and lost snapshots are told.
    mailbox: Mailbox,
}

/// What became of snapshots so far. Goes into each sidecar.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Taken, this one among them.
    n_taken: u64,
    /// Failed while being taken.
    n_failed: u64,
    /// Skipped, since earlier ones were still being written.
    n_skipped: u64,
    /// Skipped, since memory had run out a short while before.
    n_oom_skipped: u64,
}

impl Counts {
    fn json(self) -> serde_json::Value {
        let Self { n_taken, n_failed, n_skipped, n_oom_skipped } = self;
        json!({"taken": n_taken, "failed": n_failed, "skipped": n_skipped, "oom_skipped": n_oom_skipped})
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Recording,
    Bystander,
    Over,
}

impl Session {
    /// A session that waits for its device.
    pub fn new(
        settings: Settings,
        mut recorder: Box<dyn Recorder>,
        process: Process,
        notices: Arc<Notices>,
    ) -> Self {
        let windows = Windows::new(settings.steps.clone(), settings.window);
        let neighbors = recorder.neighbors();
        let around = surroundings(&process, recorder.group(), &neighbors);
        let whereabouts = Whereabouts::find(&settings.said, around);
        let growth = settings.growth.map(Growth::new);
        let mailbox = Mailbox::new(settings.server.clone(), Arc::clone(&notices));
        let sampling = Sampling::new(settings.samples, mailbox.clone());
        let (is_settled, n_failures, state, courier, lookout) = (false, 0, State::Waiting, None, None);
        let breaker = Breaker::new(settings.max_capture_percent);
        let taking = None;
        Self {
            is_guest: false,
            ooms: Ooms::default(),
            is_terminated: false,
            breaker,
            began: Instant::now(),
            counts: Counts::default(),
            settings,
            recorder,
            process,
            notices,
            windows,
            whereabouts,
            steps_by: Believed::default(),
            is_renumbered: false,
            neighbors,
            is_settled,
            n_failures,
            state,
            taking,
            courier,
            lookout,
            growth,
            sampling,
            mailbox,
        }
    }

    /// The device is there: recording begins, if this rank is chosen.
    pub fn begin(&mut self) {
        if self.state != State::Waiting {
            return;
        }
        self.look_around();
        self.record_if_chosen();
    }

    /// The end of step `n`, or of the one after the last.
    pub fn step(&mut self, n: Option<u64>) {
        self.step_by(n, StepsBy::Script);
    }

    fn end_of_step(&mut self, n: Option<u64>) {
        match self.windows.end_of_step(n) {
            Ok(due) => {
                self.sample();
                if self.state == State::Recording {
                    self.do_what_is_due(due);
                }
            }
            Err(error) => self.notices.say_once("step-back", error),
        }
    }

    /// Ranks that do not record are sampled, too, once the device is there.
    fn sample(&mut self) {
        let is_sampled = self.settings.sample_ranks.contains(self.whereabouts.among());
        if let (State::Recording | State::Bystander, true, Some(step)) =
            (self.state, is_sampled, self.windows.done())
        {
            self.sampling.end_of_step(step, Instant::now(), (self.process.now_us)(), &mut *self.recorder);
        }
    }

    /// A snapshot now, whatever the plan says. Without a reason it is a "startup" before the first step, and
    /// "manual" later.
    pub fn snapshot(&mut self, reason: Option<&str>) {
        self.settle();
        let steps = self.windows.so_far();
        let reason = reason.unwrap_or(if steps.last.is_none() { "startup" } else { "manual" });
        self.take(steps, reason);
    }

    /// Something happened at which a snapshot may be worth having, if it was chosen. It is on the disk, or has
    /// failed, when this returns; nothing here uses the device or the network.
    pub fn happened(&mut self, occasion: Occasion) {
        if !self.settings.also.contains(occasion) || matches!(self.state, State::Waiting | State::Over) {
            return;
        }
        if !self.is_settled {
            // As far as it is known: to ask other ranks would be to wait for the network.
            self.look_around();
        }
        let now = Instant::now();
        if occasion == Occasion::Oom
            && let Err(sentence) = self.ooms.may_take(now)
        {
            self.counts.n_oom_skipped += 1;
            return self.notices.say_once("oom", sentence);
        }
        if occasion == Occasion::Sigterm && std::mem::replace(&mut self.is_terminated, true) {
            return;
        }
        if self.state == State::Bystander && (occasion != Occasion::Oom || !self.has_courier()) {
            return;
        }
        let steps = match occasion {
            Occasion::Exit => self.windows.at_end(),
            _ => self.windows.so_far(),
        };
        if self.take_at_once(steps, occasion.as_str()) && occasion == Occasion::Oom {
            self.ooms.taken(now);
        }
    }

    /// An error reached the end of its thread. Running out of memory was most likely noticed when it happened.
    pub fn died(&mut self, is_out_of_memory: bool) {
        match is_out_of_memory {
            true if self.ooms.is_recent(Instant::now()) => {}
            true => self.happened(Occasion::Oom),
            false => self.happened(Occasion::Exception),
        }
    }

    /// Ends recording, writes what is in memory, sends what it can in the time that was set, and says what is
    /// left and how to send it.
    pub fn stop(&mut self) {
        self.happened(Occasion::Exit);
        self.end(State::Over);
        self.flush();
        self.notices.say_the_rest();
    }

    fn flush(&mut self) {
        let (mut courier, mut left, flush) = (self.courier.take(), Left::default(), self.settings.flush);
        (self.process.waiting)(&mut || {
            // Both send at the same time: the courier stops the mailbox as soon as all is written.
            left = courier.take().map_or(left, |courier| courier.stop(flush));
            self.mailbox.stop();
            self.mailbox.wait(flush);
        });
        self.say_what_is_left(left);
    }

    /// Whether this rank is chosen, as far as it is known.
    pub fn is_chosen(&self) -> bool {
        self.settings.ranks.contains(self.whereabouts.among())
    }

    /// What the plan says, or a snapshot that somebody asked for or growth calls for.
    fn do_what_is_due(&mut self, due: Due) {
        let grown = self.grown();
        let is_asked = self.lookout.as_ref().is_some_and(Lookout::is_asked);
        let unplanned = if is_asked { Some(ON_DEMAND) } else { grown.map(|_| GROWTH) };
        let is_taken = match (due, unplanned, self.windows.since_cleared()) {
            (Due::Take(steps), _, _) => self.take(steps, "step"),
            (_, Some(reason), Some(steps)) => self.take(steps, reason),
            (Due::Clear, _, _) => {
                self.clear();
                false
            }
            (Due::Nothing, _, _) => false,
        };
        if !is_taken {
            return;
        }
        if let Some(lookout) = self.lookout.as_ref().filter(|_| is_asked) {
            lookout.is_done();
        }
        if let (Some(growth), Some(grown)) = (&mut self.growth, grown) {
            growth.taken();
            self.notices.say(grown);
        }
    }

    fn grown(&mut self) -> Option<Grown> {
        let growth = self.growth.as_mut()?;
        match self.recorder.peak_bytes() {
            Ok(peak_bytes) => growth.end_of_step(peak_bytes),
            Err(error) => {
                self.notices.say(format_args!("growth is not watched any more: {error}"));
                self.growth = None;
                None
            }
        }
    }

    fn look_around(&mut self) {
        let group = self.recorder.group();
        let Neighbors { role, agreed_run, .. } = std::mem::take(&mut self.neighbors);
        self.neighbors = Neighbors { role, agreed_run, ..self.recorder.neighbors() };
        let around = surroundings(&self.process, group, &self.neighbors);
        self.whereabouts = Whereabouts::find(&self.settings.said, around);
        if self.is_settled {
            self.sampling.belong_to(self.whereabouts.place());
        }
    }

    /// Ranks are known for sure once the process group is joined, which may be after recording began.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) || self.state == State::Over {
            return;
        }
        self.look_around();
        self.agree_on_a_run();
        match self.state {
            State::Recording if !self.is_chosen() => self.end(State::Bystander),
            State::Bystander => self.record_if_chosen(),
            _ => {}
        }
        self.notices.on_rank(self.whereabouts.rank);
        if let Some(lack) = self.settings.ranks.lacks(self.whereabouts.among()) {
            self.notices.say_once("ranks", lack);
        }
    }

    fn record_if_chosen(&mut self) {
        if !self.is_chosen() {
            self.state = State::Bystander;
            return;
        }
        match self.record() {
            Ok(courier) => {
                self.state = State::Recording;
                self.began = Instant::now();
                courier.tells_losses_to(&self.mailbox);
                self.courier = Some(courier);
                self.lookout = self.look_out();
                // Steps that ended before are not in the history.
                self.windows.cleared();
                self.say_that_it_records();
            }
            Err(reason) => self.stand_down(&reason),
        }
    }

    /// One line per run, not one per rank, unless ranks were chosen.
    fn say_that_it_records(&self) {
        if self.whereabouts.rank == 0 || !self.settings.ranks.is_all() {
            self.notices.tell(format_args!(
                "recording run {}, steps {}, to {}",
                self.whereabouts.run,
                self.settings.steps,
                self.settings.server.address()
            ));
        }
    }

    fn record(&mut self) -> Result<Courier, String> {
        let outbox = self.open_outbox()?;
        self.is_guest = self.recorder.is_recording() == Some(true) && !self.settings.takeover;
        self.taking = Some(match self.is_guest {
            true => {
                self.notices.say(format_args!(
                    "somebody else records already{}: looking on, and nothing is cleared or switched off; takeover=1 \
                     changes that",
                    self.who_records()
                ));
                Taking::looking_on(&self.settings, self.process.now_us)
            }
            false => {
                let taking = Taking::begin(&mut *self.recorder, &self.settings, self.process.now_us);
                taking.map_err(|error| error.to_string())?
            }
        });
        let courier = self.start_courier(outbox);
        if courier.is_err() && !self.is_guest {
            // Whatever this says, the courier's error is the one to tell.
            self.recorder.stop().ok();
        }
        courier
    }

    /// torch_npu does by itself when this variable is set, without a bound.
    fn who_records(&self) -> &'static str {
        match (self.process.env)("OOM_SNAPSHOT_ENABLE").is_some_and(|value| value != "0") {
            true => " (OOM_SNAPSHOT_ENABLE is set)",
            false => "",
        }
    }

    fn open_outbox(&self) -> Result<Outbox, String> {
        let Whereabouts { run, host, pid, .. } = &self.whereabouts;
        let outbox = Outbox::open(&self.settings.outbox, run, &format!("{host}-{pid}"), self.settings.room);
        let outbox = outbox.map_err(|error| error.to_string())?;
        Ok(outbox.redacting(self.settings.redaction.clone()))
    }

    fn start_courier(&self, outbox: Outbox) -> Result<Courier, String> {
        let (server, notices) = (self.settings.server.clone(), Arc::clone(&self.notices));
        let courier = Courier::start(outbox, server, self.settings.send, notices);
        courier.map_err(|error| format!("no thread to write and send snapshots with: {error}"))
    }

    /// Whether there is one, now that a bystander needs it.
    fn has_courier(&mut self) -> bool {
        if self.courier.is_none() {
            match self.open_outbox().and_then(|outbox| self.start_courier(outbox)) {
                Ok(courier) => {
                    courier.tells_losses_to(&self.mailbox);
                    self.courier = Some(courier);
                }
                Err(reason) => self.notices.say_once("bystander", format_args!("no snapshot: {reason}")),
            }
        }
        self.courier.is_some()
    }

    fn look_out(&self) -> Option<Lookout> {
        let lookout = Lookout::start(&self.settings.outbox, &self.whereabouts.run);
        let say = |error: &io::Error| {
            self.notices.say(format_args!("snapshots cannot be asked for: no thread to look with: {error}"));
        };
        lookout.inspect_err(say).ok()
    }

    fn clear(&mut self) {
        if self.state != State::Recording || self.is_guest {
            return;
        }
        let forgotten = self.taking.as_mut().map(|taking| taking.forget(&mut *self.recorder, &self.settings));
        match forgotten.unwrap_or(Ok(())) {
            Ok(()) => self.windows.cleared(),
            Err(error) => self.failed(&format!("the history cannot be cleared: {error}")),
        }
    }

    /// Whether it worked.
    fn take(&mut self, steps: Steps, reason: &str) -> bool {
        let (State::Recording, Some(courier)) = (self.state, &self.courier) else { return false };
        let mut has_room = courier.has_room(Duration::ZERO);
        if !has_room {
            (self.process.waiting)(&mut || has_room = courier.has_room(PATIENCE));
        }
        if !has_room {
            self.counts.n_skipped += 1;
            self.notices.say_once(
                "no-room",
                "no snapshot: earlier ones are still being written; its events go to the next",
            );
            return false;
        }
        let started = Instant::now();
        if let Err(error) = self.recorder.settle() {
            self.failed(&format!("no snapshot: {error}"));
            return false;
        }
        let settled = started.elapsed();
        let Some(mut parcel) = self.parcel(steps, reason) else { return false };
        parcel.sidecar.capture_ms.insert("settle".to_owned(), settled.as_secs_f64() * 1e3);
        if let Some(courier) = &self.courier {
            courier.carry(parcel);
        }
        if let Err(sentence) = self.breaker.spend(started.elapsed(), self.began.elapsed()) {
            self.notices.say(format_args!("recording is switched off: {sentence}"));
            self.end(State::Bystander);
        }
        true
    }

    /// A snapshot by a process that may be about to end: it is on the disk when this returns.
    fn take_at_once(&mut self, steps: Steps, reason: &str) -> bool {
        let Some(parcel) = self.parcel(steps, reason) else { return false };
        let Some(courier) = &self.courier else { return false };
        let (mut parcel, mut is_done) = (Some(parcel), false);
        (self.process.waiting)(&mut || {
            is_done = parcel.take().is_some_and(|parcel| courier.carry_at_once(parcel, LAST_PATIENCE));
        });
        if !is_done {
            let seconds = LAST_PATIENCE.as_secs();
            self.notices
                .say(format_args!("the snapshot {reason:?} is not written after {seconds} s; going on"));
        }
        true
    }

    /// Reads, and begins a new window; nothing when that failed, which is said.
    fn parcel(&mut self, steps: Steps, reason: &str) -> Option<Parcel> {
        let is_ours = self.state == State::Recording && !self.is_guest;
        let is_off = self.state == State::Recording && self.recorder.is_recording() == Some(false);
        if is_off {
            let then = if is_ours { "; it is on again from here" } else { "" };
            self.notices.say_once("switched-off", format_args!("somebody else switched recording off{then}"));
        }
        let looking_on = || Taking::looking_on(&self.settings, self.process.now_us);
        let taking = match self.state {
            State::Recording => self.taking.get_or_insert_with(looking_on),
            _ => self.taking.insert(looking_on()),
        };
        let taken = taking.take(&mut *self.recorder, &self.settings).map(|mut taken| {
            if is_off && is_ours && taken.is_cleared.is_ok() {
                taken.is_cleared = taking.begin_again(&mut *self.recorder, &self.settings);
            }
            taken
        });
        let Taken { unwritten, mut sidecar, is_cleared, seen, lacking } = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.failed(&format!("no snapshot: {error}"));
                return None;
            }
        };
        self.n_failures = 0;
        self.counts.n_taken += 1;
        match is_ours {
            true => self.state_what_is_lacking(&lacking, &mut sidecar),
            false => self.state_whose_it_is(&seen, &mut sidecar),
        }
        sidecar.place = Place {
            first_step: steps.first,
            last_step: steps.last,
            reason: Some(reason.to_owned()),
            ..self.whereabouts.place()
        };
        self.describe(&mut sidecar);
        sidecar.more.insert("agent".to_owned(), self.counts.json());
        match is_cleared {
            Ok(()) => self.windows.cleared(),
            Err(error) => self.stand_down(&format!("the history cannot be cleared: {error}")),
        }
        Some(Parcel { unwritten, sidecar, name: name(self.whereabouts.rank, steps, reason) })
    }

    fn state_what_is_lacking(&self, Lacking { dropped, missing }: &Lacking, sidecar: &mut Sidecar) {
        let n_missing: u64 = missing.values().sum();
        if n_missing > 0 {
            self.notices.say_once(
                "missing",
                format_args!(
                    "at least {n_missing} events are missing: somebody else cleared the history, or switched it \
                     off for a while"
                ),
            );
        }
        for (name, by_device) in [("dropped", dropped), ("missing", missing)] {
            if !by_device.is_empty() {
                let at_least =
                    |(device, n): (&String, &u64)| (device.clone(), json!({ "events_at_least": n }));
                let said: serde_json::Map<_, _> = by_device.iter().map(at_least).collect();
                sidecar.more.insert(name.to_owned(), said.into());
            }
        }
    }

    /// Of a history that is not ours: what is older than this window, where it can be told.
    fn state_whose_it_is(&self, seen: &Seen, sidecar: &mut Sidecar) {
        let by = if self.state == State::Bystander { "nobody" } else { "somebody else" };
        sidecar.recording = Some(json!({ "by": by }));
        let older = seen.iter().filter_map(|(device, trace)| Some((device.clone(), trace.n_older?)));
        sidecar.window_starts = older.filter(|(_, n_older)| *n_older > 0).collect();
        let torn: Vec<_> =
            seen.iter().filter(|(_, trace)| trace.n_older.is_none()).map(|(device, _)| device).collect();
        if !torn.is_empty() {
            self.notices.say_once(
                "torn",
                "events of this window may be missing: somebody else cleared the history, or has too small a ring",
            );
            sidecar.more.insert("torn_windows".to_owned(), json!(torn));
        }
    }

    fn failed(&mut self, reason: &str) {
        self.n_failures += 1;
        self.counts.n_failed += 1;
        match self.n_failures < MAX_FAILURES {
            true => self.notices.say(reason),
            false => self.stand_down(reason),
        }
    }

    /// Gives up for good, leaving training alone. What was taken is still sent.
    fn stand_down(&mut self, reason: &str) {
        self.notices.say(format_args!("stands down, nothing more is recorded: {reason}"));
        self.end(State::Over);
    }

    fn end(&mut self, next: State) {
        self.lookout = None;
        if std::mem::replace(&mut self.state, next) == State::Recording
            && !self.is_guest
            && let Err(error) = self.recorder.stop()
        {
            self.notices.say(format_args!("recording cannot be switched off: {error}"));
        }
    }

    fn say_what_is_left(&self, left: Left) {
        let Left { n_snapshots, bytes, n_unwritten, n_lost, is_handed_over } = left;
        if n_lost > 1 {
            self.notices.say(format_args!("{n_lost} snapshots were given up in all"));
        }
        if n_unwritten > 0 {
            self.notices.say(format_args!("{n_unwritten} snapshots were not written in time and are lost"));
        }
        if is_handed_over {
            // Whoever sends says what it does.
            return;
        }
        if n_snapshots > 0 {
            let snapshots = if n_snapshots == 1 { "snapshot waits" } else { "snapshots wait" };
            let outbox = shell_word(&std::path::absolute(&self.settings.outbox).unwrap_or_default());
            self.notices.say(format_args!(
                "{n_snapshots} {snapshots} in the outbox ({}), to be sent with: tidegauge push --outbox {outbox} --server {}",
                size(bytes),
                self.settings.server.address()
            ));
        }
    }
}

fn surroundings<'a>(
    process: &'a Process,
    group: Option<Group>,
    neighbors: &'a Neighbors,
) -> Surroundings<'a> {
    Surroundings {
        env: &process.env,
        group,
        neighbors,
        host: &process.host,
        pid: process.pid,
        script: process.script.as_deref(),
    }
}

/// A name that [`tidegauge_api::from_path`] reads even without the sidecar: "rank3_step5".
fn name(rank: u32, steps: Steps, reason: &str) -> String {
    let step = steps.last.map(|step| format!("_step{step}")).unwrap_or_default();
    let reason = if reason == "step" { String::new() } else { format!("_{reason}") };
    format!("rank{rank}{step}{reason}")
}

/// A path as a shell takes it.
fn shell_word(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = path.chars().all(|c| c.is_alphanumeric() || "/_.-+=:,@%".contains(c));
    if is_plain { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io::{self, Write as _},
        net::TcpListener,
        sync::Mutex,
        time::Instant,
    };

    use tempfile::TempDir;
    use tidegauge_api::{
        Sidecar, paths,
        samples::{Sample, SampleBatch},
    };

    use super::*;
    use crate::{
        backend::Recording,
        fake_server::{Answer, FakeServer, Received},
        outbox::Draft,
        reckoning::SeenTrace,
        recorder::{RecorderError, Statistics, Unwritten},
        request,
    };

    /// What a recorder was asked, in order, and what it is to answer.
    #[derive(Default)]
    struct Script {
        calls: Vec<String>,
        history: Vec<String>,
        group: Option<Group>,
        fails: Option<&'static str>,
        cannot_write: bool,
        peak_bytes: Option<u64>,
        is_recording: Option<bool>,
        counted: Option<(u64, u64)>,
        samples: Option<u64>,
    }

    #[derive(Clone, Default)]
    struct Double(Arc<Mutex<Script>>);

    impl Double {
        fn call(&self, name: &str) -> Result<(), RecorderError> {
            let mut script = self.0.lock().unwrap();
            script.calls.push(name.to_owned());
            match script.fails {
                Some(fails) if fails == name => Err(RecorderError(format!("{name} failed"))),
                _ => Ok(()),
            }
        }

        fn happens(&self, event: &str) {
            self.0.lock().unwrap().history.push(event.to_owned());
        }

        fn calls(&self) -> String {
            self.0.lock().unwrap().calls.join(" ")
        }
    }

    impl Recorder for Double {
        fn record(&mut self, recording: &Recording) -> Result<(), RecorderError> {
            self.call(&format!("record:{}", recording.max_entries))
        }

        fn settle(&mut self) -> Result<(), RecorderError> {
            Ok(())
        }

        fn statistics(&mut self) -> Result<Statistics, RecorderError> {
            let counted = self.0.lock().unwrap().counted;
            let (allocated, _) = counted.ok_or_else(|| RecorderError("no statistics".to_owned()))?;
            let stats = json!({"allocation.all.allocated": allocated, "allocation.all.freed": 0});
            Ok(Statistics {
                memory_stats: BTreeMap::from([("0".to_owned(), stats)]),
                ..Statistics::default()
            })
        }

        fn is_recording(&mut self) -> Option<bool> {
            self.0.lock().unwrap().is_recording
        }

        fn seen(&mut self, is_continued: bool) -> Seen {
            let counted = self.0.lock().unwrap().counted;
            let trace = |(_, n_events)| SeenTrace { n_events, n_older: is_continued.then_some(3) };
            counted.map(|counted| ("0".to_owned(), trace(counted))).into_iter().collect()
        }

        fn peak_bytes(&mut self) -> Result<u64, RecorderError> {
            self.0.lock().unwrap().peak_bytes.ok_or_else(|| RecorderError("no peak".to_owned()))
        }

        fn sample(&mut self, _: bool) -> Result<Option<Sample>, RecorderError> {
            let allocated = self.0.lock().unwrap().samples;
            Ok(allocated.map(|allocated| Sample { allocated: Some(allocated), ..Sample::default() }))
        }

        fn read(&mut self) -> Result<Box<dyn Unwritten>, RecorderError> {
            self.call("read")?;
            let script = self.0.lock().unwrap();
            Ok(Box::new(Written { text: script.history.join(" "), fails: script.cannot_write }))
        }

        fn clear(&mut self, recording: &Recording) -> Result<(), RecorderError> {
            self.call(&format!("clear:{}", recording.max_entries))?;
            self.0.lock().unwrap().history.clear();
            Ok(())
        }

        fn stop(&mut self) -> Result<(), RecorderError> {
            self.call("stop")
        }

        fn group(&mut self) -> Option<Group> {
            self.0.lock().unwrap().group
        }

        fn describe(&self, _: &Recording, sidecar: &mut Sidecar) {
            sidecar.backend = Some("double".to_owned());
        }
    }

    struct Written {
        text: String,
        fails: bool,
    }

    impl Unwritten for Written {
        fn write(self: Box<Self>, mut draft: Draft, _: &mut Sidecar) -> io::Result<Draft> {
            if self.fails {
                return Err(io::Error::other("the disk is full"));
            }
            draft.write_all(self.text.as_bytes())?;
            Ok(draft)
        }
    }

    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn snapshots_below(folder: &Path) -> usize {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".pickle.zst")).count()
    }

    fn session(
        address: &str,
        outbox: &TempDir,
        double: &Double,
        keywords: &[(&'static str, &str)],
    ) -> Session {
        let mut all = BTreeMap::from([
            ("server", address.to_owned()),
            ("outbox", outbox.path().display().to_string()),
            ("run", "gpt".to_owned()),
            ("max_entries", "77".to_owned()),
        ]);
        all.extend(keywords.iter().map(|(name, text)| (*name, (*text).to_owned())));
        let settings = Settings::new(&all, &|_| None).unwrap();
        let process = Process {
            env: |_| None,
            now_us: || 1_000_000,
            host: "node1".to_owned(),
            pid: 42,
            script: None,
            waiting: |wait| wait(),
        };
        let notices = Notices::new(|line| SAID.lock().unwrap().push(line.to_owned()));
        Session::new(settings, Box::new(double.clone()), process, Arc::new(notices))
    }

    /// Ten steps, an event in each, and one before and one after them.
    fn train(session: &mut Session, double: &Double) {
        session.begin();
        double.happens("startup");
        for n in 1..=10 {
            double.happens(&n.to_string());
            session.step(None);
        }
        double.happens("after");
        session.stop();
    }

    fn cells(received: &[Received]) -> Vec<(String, String)> {
        let cell = |request: &Received| {
            (request.sidecar().place.step_label(), String::from_utf8(request.pickle()).unwrap())
        };
        received.iter().map(cell).collect()
    }

    fn pair(label: &str, events: &str) -> (String, String) {
        (label.to_owned(), events.to_owned())
    }

    #[test]
    fn each_snapshot_holds_the_events_since_the_previous_one() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        train(&mut session(&server.address, &outbox, &double, &[]), &double);
        let expected = [pair("1", "startup 1"), pair("2–5", "2 3 4 5"), pair("6–10", "6 7 8 9 10")];
        assert_eq!(cells(&server.received()), expected);
        let sidecar = server.received()[1].sidecar();
        assert_eq!(sidecar.place.rank, Some(0));
        assert_eq!((sidecar.place.host.as_deref(), sidecar.place.pid), (Some("node1"), Some(42)));
        assert_eq!(sidecar.captured_at_us, Some(1_000_000));
        assert_eq!(sidecar.backend.as_deref(), Some("double"));
        assert!(sidecar.gap_us.is_some() && sidecar.capture_ms.contains_key("snapshot"));
        // Nothing is left, not even a folder.
        assert_eq!(std::fs::read_dir(outbox.path()).unwrap().count(), 0);
    }

    /// The steps that were sampled, in however many batches, with the rank they came from.
    fn sampled(received: &[Received]) -> Vec<(Option<u32>, u64)> {
        let batches = received.iter().filter(|request| request.line.contains(paths::SAMPLES));
        let batch = |request: &Received| serde_json::from_slice::<SampleBatch>(&request.body).unwrap();
        let steps = |SampleBatch { place, samples, .. }: SampleBatch| {
            samples.step.into_iter().map(move |step| (place.rank, step))
        };
        batches.map(batch).flat_map(steps).collect()
    }

    #[test]
    fn steps_between_snapshots_are_sampled_also_on_ranks_that_do_not_record() {
        // Steps of this test take no time: it samples them all the same.
        let slowly = |session: &mut Session| {
            session.begin();
            for _ in 1..=3 {
                session.step(None);
                std::thread::sleep(crate::samples::LEAST_PAUSE);
            }
            session.stop();
        };
        let run = |keywords: &[(&'static str, &str)]| {
            let (server, outbox, double) =
                (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
            double.0.lock().unwrap().samples = Some(512);
            slowly(&mut session(&server.address, &outbox, &double, keywords));
            (sampled(&server.received()), double.calls())
        };
        let one = [("steps", "none"), ("rank", "1")];
        assert_eq!(run(&one).0, [1, 2, 3].map(|step| (Some(1), step)));
        let (samples, calls) = run(&[one[0], one[1], ("ranks", "0")]);
        assert_eq!((samples, calls.as_str()), ([1, 2, 3].map(|step| (Some(1), step)).to_vec(), ""));
        assert_eq!(run(&[one[0], one[1], ("samples", "2")]).0, [(Some(1), 2)]);
        assert_eq!(run(&[one[0], one[1], ("samples", "0")]).0, []);
        assert_eq!(run(&[one[0], one[1], ("sample_ranks", "0,2")]).0, []);
    }

    #[test]
    fn a_window_of_one_step_holds_that_step_only() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        train(&mut session(&server.address, &outbox, &double, &[("window", "step")]), &double);
        assert_eq!(cells(&server.received()), [pair("1", "startup 1"), pair("5", "5"), pair("10", "10")]);
    }

    #[test]
    fn clearing_is_unconditional_and_repeats_the_settings() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        double.0.lock().unwrap().cannot_write = true;
        train(&mut session(&server.address, &outbox, &double, &[("steps", "1,5")]), &double);
        assert_eq!(double.calls(), "record:77 read clear:77 read clear:77 stop");
        // What could not be written is told to the server, and nothing else.
        let batch = |request: &Received| serde_json::from_slice::<SampleBatch>(&request.body).unwrap();
        let batches: Vec<_> = server.received().iter().map(batch).collect();
        assert_eq!(batches.last().map(|batch| batch.n_lost), Some(2));
        let lost: Vec<_> = batches.iter().flat_map(|batch| &batch.lost).collect();
        assert_eq!((lost[1].first_step, lost[1].last_step), (Some(2), Some(5)));
        assert!(lost.iter().all(|lost| lost.why == "the disk is full"), "{lost:?}");
    }

    #[test]
    fn a_rank_that_is_not_chosen_records_nothing() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        train(&mut session(&server.address, &outbox, &double, &[("ranks", "1-3")]), &double);
        assert_eq!(double.calls(), "");
        assert_eq!(std::fs::read_dir(outbox.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_rank_that_shows_itself_late_is_still_the_rank() {
        let (server, outbox) = (FakeServer::that_takes_all(), TempDir::new().unwrap());
        let play = |ranks: &str| {
            let double = Double::default();
            let mut session = session(&server.address, &outbox, &double, &[("ranks", ranks), ("steps", "2")]);
            session.begin();
            double.0.lock().unwrap().group = Some(Group { rank: 1, world_size: 2 });
            session.step(None);
            double.happens("2");
            session.step(None);
            session.stop();
            double.calls()
        };
        assert_eq!(play("0"), "record:77 stop");
        assert_eq!(play("1"), "record:77 read clear:77 stop");
        let [request] = server.received().try_into().unwrap();
        assert_eq!((request.sidecar().place.rank, request.sidecar().world_size), (Some(1), Some(2)));
    }

    #[test]
    fn steps_before_the_device_was_used_are_in_no_window() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("steps", "4")]);
        session.step(None);
        session.step(None);
        session.begin();
        session.step(None);
        session.step(None);
        session.stop();
        assert_eq!(cells(&server.received()), [pair("3–4", "")]);
    }

    #[test]
    fn after_three_failures_in_a_row_it_stands_down() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        double.0.lock().unwrap().fails = Some("read");
        train(&mut session(&server.address, &outbox, &double, &[("steps", "all")]), &double);
        assert_eq!(double.calls(), "record:77 read read read stop");
    }

    #[test]
    fn a_history_that_cannot_be_cleared_ends_the_recording_but_not_the_snapshot() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        double.0.lock().unwrap().fails = Some("clear:77");
        train(&mut session(&server.address, &outbox, &double, &[]), &double);
        assert_eq!(double.calls(), "record:77 read clear:77 stop");
        assert_eq!(cells(&server.received()), [pair("1", "startup 1")]);
    }

    #[test]
    fn a_snapshot_asked_for_is_taken_at_once_and_named_for_its_reason() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("steps", "2")]);
        session.begin();
        double.happens("model");
        session.snapshot(None);
        double.happens("1");
        session.step(None);
        double.happens("2a");
        session.snapshot(Some("validation"));
        double.happens("2b");
        session.step(None);
        session.stop();
        let expected = [pair("startup", "model"), pair("1–2 validation", "1 2a"), pair("2", "2b")];
        assert_eq!(cells(&server.received()), expected);
    }

    /// Waits until the session has noticed that a snapshot is asked for.
    fn until_asked(session: &Session) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !session.lookout.as_ref().unwrap().is_asked() {
            assert!(Instant::now() < deadline, "nobody looked");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_snapshot_asked_for_from_outside_is_taken_at_the_next_steps_end_and_once() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("steps", "6")]);
        session.begin();
        for n in 1..=3 {
            double.happens(&n.to_string());
            session.step(None);
        }
        request::ask(outbox.path(), Some("gpt")).unwrap();
        until_asked(&session);
        for n in 4..=6 {
            double.happens(&n.to_string());
            session.step(Some(n));
            session.step(Some(n));
        }
        session.stop();
        assert_eq!(cells(&server.received()), [pair("1–4 on-demand", "1 2 3 4"), pair("5–6", "5 6")]);
    }

    #[test]
    fn a_step_that_is_taken_anyway_answers_who_asked() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("steps", "1")]);
        session.begin();
        request::ask(outbox.path(), None).unwrap();
        until_asked(&session);
        session.step(None);
        session.step(None);
        session.stop();
        assert_eq!(cells(&server.received()), [pair("1", "")]);
    }

    #[test]
    fn a_snapshot_asked_for_that_fails_is_tried_at_the_next_step() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("steps", "none")]);
        session.begin();
        request::ask(outbox.path(), None).unwrap();
        until_asked(&session);
        double.0.lock().unwrap().fails = Some("read");
        session.step(None);
        double.0.lock().unwrap().fails = None;
        session.step(None);
        session.step(None);
        session.stop();
        assert_eq!(cells(&server.received()), [pair("1–2 on-demand", "")]);
    }

    #[test]
    fn memory_that_grows_calls_for_a_snapshot() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let keywords = [("steps", "none"), ("growth", "1.5"), ("growth_pause", "3")];
        let mut session = session(&server.address, &outbox, &double, &keywords);
        session.begin();
        for peak in [10, 10, 10, 10, 10, 10, 20, 20, 20, 20] {
            double.0.lock().unwrap().peak_bytes = Some(peak);
            session.step(None);
        }
        session.stop();
        assert_eq!(cells(&server.received()), [pair("1–7 growth", ""), pair("8–10 growth", "")]);
    }

    #[test]
    fn growth_that_cannot_be_watched_costs_nothing_but_a_line() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("growth", "1.5"), ("steps", "2")]);
        session.begin();
        session.step(None);
        session.step(None);
        session.stop();
        assert!(session.growth.is_none());
        assert_eq!(cells(&server.received()), [pair("1–2", "")]);
    }

    #[test]
    fn memory_that_runs_out_is_on_the_disk_at_once_named_and_once_a_minute() {
        let (outbox, double) = (TempDir::new().unwrap(), Double::default());
        let nobody = "http://127.0.0.1:1";
        let mut session = session(nobody, &outbox, &double, &[("flush_secs", "0"), ("steps", "none")]);
        session.begin();
        double.happens("model");
        session.happened(Occasion::Oom);
        assert_eq!(snapshots_below(&outbox.path().join("gpt/node1-42")), 1);
        session.happened(Occasion::Oom);
        session.died(true);
        session.happened(Occasion::Exception);
        session.happened(Occasion::Sigterm);
        assert_eq!(double.calls(), "record:77 read clear:77");
        let name = outbox.path().join("gpt/node1-42/000001_rank0_oom.pickle.zst");
        assert_eq!(zstd::decode_all(std::fs::File::open(name).unwrap()).unwrap(), b"model");
        session.stop();
    }

    #[test]
    fn a_bystander_whose_memory_runs_out_shows_what_is_there_without_a_history() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let also = ("also", "oom,exception,sigterm,exit");
        let mut session = session(&server.address, &outbox, &double, &[("ranks", "1"), also]);
        session.begin();
        session.step(None);
        for occasion in [Occasion::Exception, Occasion::Sigterm, Occasion::Oom] {
            session.happened(occasion);
        }
        session.stop();
        assert_eq!(double.calls(), "read");
        let [request] = server.received().try_into().unwrap();
        assert_eq!(request.sidecar().place.reason.as_deref(), Some("oom"));
        assert_eq!(request.sidecar().recording, Some(json!({"by": "nobody"})));
    }

    #[test]
    fn occasions_that_were_chosen_are_taken_and_the_exit_is_the_last() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let keywords = [("steps", "2"), ("also", "exception,sigterm,exit")];
        let mut session = session(&server.address, &outbox, &double, &keywords);
        session.begin();
        session.step(None);
        session.died(false);
        session.step(None);
        session.step(None);
        session.happened(Occasion::Sigterm);
        session.happened(Occasion::Sigterm);
        session.happened(Occasion::Sigterm);
        session.happened(Occasion::Oom);
        session.stop();
        // One that cannot wait may be written before one that can.
        let mut arrived = cells(&server.received());
        arrived.sort();
        let expected =
            [pair("1–2 exception", ""), pair("2", ""), pair("3 exit", ""), pair("3–4 sigterm", "")];
        assert_eq!(arrived, expected);
    }

    #[test]
    fn where_somebody_else_records_the_history_is_read_and_left_alone() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        {
            let mut script = double.0.lock().unwrap();
            (script.is_recording, script.counted) = (Some(true), Some((0, 9)));
        }
        train(&mut session(&server.address, &outbox, &double, &[("window", "step")]), &double);
        assert_eq!(double.calls(), "read read read");
        let sidecars: Vec<_> = server.received().iter().map(Received::sidecar).collect();
        assert!(sidecars.iter().all(|sidecar| sidecar.recording == Some(json!({"by": "somebody else"}))));
        assert_eq!(sidecars[1].window_starts, BTreeMap::from([("0".to_owned(), 3)]));
        train(&mut session(&server.address, &outbox, &double, &[("takeover", "1"), ("steps", "1")]), &double);
        assert_eq!(double.calls(), "read read read record:77 clear:77 read clear:77 stop");
    }

    #[test]
    fn events_that_somebody_else_cleared_or_that_were_pushed_out_are_stated() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("steps", "all")]);
        let count = |allocated, n_events| double.0.lock().unwrap().counted = Some((allocated, n_events));
        count(0, 0);
        session.begin();
        count(50, 10);
        session.step(None);
        count(150, 77);
        session.step(None);
        count(160, 10);
        session.step(None);
        session.stop();
        let received = server.received();
        let lacking = |n: usize| {
            let more = received[n].sidecar().more;
            (more.get("missing").cloned(), more.get("dropped").cloned())
        };
        assert_eq!(lacking(0), (Some(json!({"0": {"events_at_least": 40}})), None));
        assert_eq!(lacking(1), (None, Some(json!({"0": {"events_at_least": 23}}))));
        assert_eq!(lacking(2), (None, None));
    }

    #[test]
    fn snapshots_that_cost_too_much_switch_recording_off_and_memory_that_runs_out_is_still_seen() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let mut session = session(&server.address, &outbox, &double, &[("steps", "all")]);
        session.breaker = Breaker::at_once(1);
        session.begin();
        // All of its time so far, and more.
        session.began = Instant::now() + Duration::from_secs(3600);
        session.step(None);
        session.step(None);
        session.happened(Occasion::Oom);
        session.stop();
        assert_eq!(double.calls(), "record:77 read clear:77 stop read");
        let said = SAID.lock().unwrap().join("\n");
        assert!(said.contains("recording is switched off: snapshots took"), "{said}");
    }

    #[test]
    fn a_server_that_is_away_or_broken_costs_the_flush_and_loses_nothing() {
        let outbox = TempDir::new().unwrap();
        let broken = FakeServer::start(|_| Answer::new("500 Oops", ""));
        let double = Double::default();
        let started = Instant::now();
        train(
            &mut session(&broken.address, &outbox, &double, &[("run", "away"), ("flush_secs", "1")]),
            &double,
        );
        assert!(started.elapsed() < Duration::from_secs(5));
        let said = SAID.lock().unwrap().join("\n");
        let outbox_path = outbox.path().display();
        let expected =
            format!("to be sent with: tidegauge push --outbox {outbox_path} --server {}", broken.address);
        assert!(said.contains("3 snapshots wait in the outbox") && said.contains(&expected), "{said}");
        assert_eq!(snapshots_below(&outbox.path().join("away/node1-42")), 3);
    }

    #[test]
    fn what_a_dead_process_of_the_run_left_is_sent_by_the_next() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let dead = Outbox::open(outbox.path(), "gpt", "node1-41", u64::MAX).unwrap();
        let mut draft = dead.draft("rank0_step3").unwrap();
        draft.write_all(b"3").unwrap();
        let place = Place { last_step: Some(3), ..Place::default() };
        draft.finish(Sidecar { place, ..Sidecar::default() }).unwrap();
        drop(dead);

        train(
            &mut session(&server.address, &outbox, &double, &[("steps", "1"), ("flush_secs", "30")]),
            &double,
        );
        let mut cells = cells(&server.received());
        cells.sort();
        assert_eq!(cells, [pair("1", "startup 1"), pair("3", "3")]);
        assert_eq!(std::fs::read_dir(outbox.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_server_that_comes_back_gets_everything() {
        let (outbox, double) = (TempDir::new().unwrap(), Double::default());
        let later = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", later.local_addr().unwrap());
        let flaky = FakeServer::listen(later, |n| match n {
            0 | 1 => Answer::new("503 Busy\r\nRetry-After: 0", ""),
            _ => Answer::created(),
        });
        train(&mut session(&address, &outbox, &double, &[("flush_secs", "30")]), &double);
        assert_eq!(flaky.received().len(), 5);
        assert_eq!(std::fs::read_dir(outbox.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_the_server_refuses_is_kept_aside_and_the_rest_goes_on() {
        let (outbox, double) = (TempDir::new().unwrap(), Double::default());
        let server = FakeServer::start(|n| match n {
            0 => Answer::problem(413, "it is too large"),
            _ => Answer::created(),
        });
        train(&mut session(&server.address, &outbox, &double, &[]), &double);
        assert_eq!(server.received().len(), 3);
        let kept = std::fs::read_dir(outbox.path().join(".rejected/gpt-node1-42")).unwrap().count();
        assert_eq!(kept, 3);
    }

    #[test]
    fn what_is_handed_over_is_written_and_left_to_who_sends() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        let keywords = [("run", "handed"), ("send", "sidecar"), ("flush_secs", "3600")];
        train(&mut session(&server.address, &outbox, &double, &keywords), &double);
        assert!(server.received().is_empty());
        assert_eq!(snapshots_below(&outbox.path().join("handed/node1-42")), 3);
        assert!(outbox.path().join("handed/node1-42/handed-over").exists());
        let said = SAID.lock().unwrap().join("\n");
        assert!(!said.contains(&format!("push --outbox {} ", outbox.path().display())), "{said}");
    }

    #[test]
    fn an_outbox_without_room_costs_its_snapshots_and_says_how_many() {
        let (server, outbox, double) =
            (FakeServer::that_takes_all(), TempDir::new().unwrap(), Double::default());
        train(
            &mut session(&server.address, &outbox, &double, &[("outbox_bytes", "10"), ("run", "full")]),
            &double,
        );
        // The server hears of them, and gets none.
        let received = server.received();
        assert!(received.iter().all(|request| request.line.contains(paths::SAMPLES)), "{received:?}");
        let told = received.last().map(|batch| serde_json::from_slice::<SampleBatch>(&batch.body).unwrap());
        assert_eq!(told.map(|batch| batch.n_lost), Some(3));
        let said = SAID.lock().unwrap().join("\n");
        assert!(said.contains("rank0_step10 is lost: cannot write to the outbox"), "{said}");
        assert!(
            said.contains("the outbox is full (at most 10 B, with 1.00 GiB left free on its disk)"),
            "{said}"
        );
        assert!(said.contains("3 snapshots were given up in all"), "{said}");
        assert_eq!(std::fs::read_dir(outbox.path()).unwrap().count(), 0);
    }

    #[test]
    fn paths_are_written_for_shells() {
        assert_eq!(shell_word(Path::new("/a/b-c")), "/a/b-c");
        assert_eq!(shell_word(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
