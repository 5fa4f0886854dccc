//! The life of a recording: from the first step to the last snapshot.
//!
//! ```text
//! Waiting ─ begin ─→ Recording ─ stop ─→ Over        the device is there, this rank is chosen
//!                ╲─→ Bystander ─ stop ─→ Over        this rank is not chosen: nothing is recorded
//! ```
//! No method fails: what goes wrong is said, and after [`MAX_FAILURES`] in a row the session stands down. Only
//! [`Session::stop`] waits for the network, for as long as the settings allow.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tidegauge_api::Place;
use tidegauge_snapshot::words::size;

use crate::{
    courier::{Courier, Left, Parcel},
    growth::{Grown, Growth},
    notices::Notices,
    outbox::Outbox,
    plan::{Due, Steps, Windows},
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
    /// The process group was looked for at a step's end; after that the rank is what it is.
    is_settled: bool,
    n_failures: u32,
    state: State,
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
        let whereabouts = Whereabouts::find(&settings.said, surroundings(&process, recorder.group()));
        let growth = settings.growth.map(Growth::new);
        let mailbox = Mailbox::new(settings.server.clone(), Arc::clone(&notices));
        let sampling = Sampling::new(settings.samples, mailbox.clone());
        let (is_settled, n_failures, state, courier, lookout) = (false, 0, State::Waiting, None, None);
        let taking = None;
        Self {
            settings,
            recorder,
            process,
            notices,
            windows,
            whereabouts,
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
        self.settle();
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

    /// Ends recording, writes what is in memory, sends what it can in the time that was set, and says what is
    /// left and how to send it.
    pub fn stop(&mut self) {
        self.end(State::Over);
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
        self.whereabouts = Whereabouts::find(&self.settings.said, surroundings(&self.process, group));
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
            self.notices.say(format_args!(
                "recording run {}, steps {}, to {}",
                self.whereabouts.run,
                self.settings.steps,
                self.settings.server.address()
            ));
        }
    }

    fn record(&mut self) -> Result<Courier, String> {
        let Whereabouts { run, host, pid, .. } = &self.whereabouts;
        let outbox = Outbox::open(&self.settings.outbox, run, &format!("{host}-{pid}"), self.settings.room);
        let outbox = outbox.map_err(|error| error.to_string())?.redacting(self.settings.redaction.clone());
        let taking = Taking::begin(&mut *self.recorder, &self.settings, self.process.now_us);
        self.taking = Some(taking.map_err(|error| error.to_string())?);
        let (server, notices) = (self.settings.server.clone(), Arc::clone(&self.notices));
        let courier = Courier::start(outbox, server, self.settings.send, notices);
        if courier.is_err() {
            // Whatever this says, the courier's error is the one to tell.
            self.recorder.stop().ok();
        }
        courier.map_err(|error| format!("no thread to write and send snapshots with: {error}"))
    }

    fn look_out(&self) -> Option<Lookout> {
        let lookout = Lookout::start(&self.settings.outbox, &self.whereabouts.run);
        let say = |error: &io::Error| {
            self.notices.say(format_args!("snapshots cannot be asked for: no thread to look with: {error}"));
        };
        lookout.inspect_err(say).ok()
    }

    fn clear(&mut self) {
        if self.state != State::Recording {
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
            self.notices.say("no snapshot: earlier ones are still being written; its events go to the next");
            return false;
        }
        let taken = self.taking.as_mut().map(|taking| taking.take(&mut *self.recorder, &self.settings));
        let Taken { unwritten, mut sidecar, is_cleared } = match taken {
            Some(Ok(taken)) => taken,
            Some(Err(error)) => {
                self.failed(&format!("no snapshot: {error}"));
                return false;
            }
            None => return false,
        };
        self.n_failures = 0;
        sidecar.place = Place {
            first_step: steps.first,
            last_step: steps.last,
            reason: Some(reason.to_owned()),
            ..self.whereabouts.place()
        };
        sidecar.world_size = self.whereabouts.world_size;
        courier.carry(Parcel { unwritten, sidecar, name: name(self.whereabouts.rank, steps, reason) });
        match is_cleared {
            Ok(()) => self.windows.cleared(),
            Err(error) => self.stand_down(&format!("the history cannot be cleared: {error}")),
        }
        true
    }

    fn failed(&mut self, reason: &str) {
        self.n_failures += 1;
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

fn surroundings(process: &Process, group: Option<Group>) -> Surroundings<'_> {
    Surroundings {
        env: &process.env,
        group,
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
            Err(RecorderError("no statistics".to_owned()))
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

    /// The steps that were sampled, with the rank they came from.
    fn sampled(received: &[Received]) -> Vec<(Option<u32>, Vec<u64>)> {
        let batches = received.iter().filter(|request| request.line.contains(paths::SAMPLES));
        let batch = |request: &Received| serde_json::from_slice::<SampleBatch>(&request.body).unwrap();
        batches.map(batch).map(|batch| (batch.place.rank, batch.samples.step)).collect()
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
        assert_eq!(run(&one).0, [(Some(1), vec![1, 2, 3])]);
        let (samples, calls) = run(&[one[0], one[1], ("ranks", "0")]);
        assert_eq!((samples, calls.as_str()), (vec![(Some(1), vec![1, 2, 3])], ""));
        assert_eq!(run(&[one[0], one[1], ("samples", "2")]).0, [(Some(1), vec![2])]);
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
        let told = |request: &Received| serde_json::from_slice::<SampleBatch>(&request.body).unwrap().n_lost;
        // The server is told of them, and sent nothing else.
        let told: Vec<u64> = server.received().iter().map(told).collect();
        assert_eq!(told.last(), Some(&3));
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
