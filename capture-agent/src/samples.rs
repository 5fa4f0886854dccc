//! Cheap samples between snapshots: what the allocator counts at each step's end, sent every few seconds.
//!
//! ```text
//! step(n) ─ Sampling: is it time? ─ recorder: counters ─ Mailbox ─┬─ POST /api/v1/samples
//!           training thread                              bounded  │
//!                        snapshots that nobody will see ──────────┘   a thread of its own
//! ```
//! A sample is news, not a record: it waits in memory only, and when the mailbox is full the oldest goes and is
//! counted. The thread begins with the first sample or report, so there is none where nothing is sampled.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegauge_api::{
    Place,
    samples::{Lost, MAX_BATCH_LOST, Sample, SampleBatch, Samples},
};

use crate::{
    backoff::{Backoff, jitter},
    notices::Notices,
    outbox::{Loss, Losses},
    push::{PushError, Server},
    recorder::Recorder,
};

/// The least time between two samples: a loop that is faster is sampled at some of its steps.
pub const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// The least time between two questions to the driver for the device's free memory, which is not our allocator's
/// to tell and may take longer.
const DEVICE_PAUSE: Duration = Duration::from_secs(1);

/// Samples that wait to be sent, about 700 KB. When there are more, the oldest goes and is counted.
const MAX_WAITING: usize = 4_096;

/// Lost snapshots that wait to be told one by one. Further ones are only counted.
const MAX_LOST_WAITING: usize = MAX_BATCH_LOST;

/// The longest reason of a loss that is told, characters; the rest is in this process's log.
const MAX_WHY_CHARS: usize = 200;

/// Samples in one request, about 100 KB.
const MAX_SENT_AT_ONCE: usize = 1_024;

/// From one batch to the next. The first wait is shorter by chance, so that a thousand ranks do not send together,
/// but long enough for more than a sample or two to come together.
const PAUSE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Failures in a row after which a line is said; before, whoever sends snapshots says it better.
const FAILURES_TO_SAY: u32 = 3;

/// When to take a sample, in the training thread.
#[derive(Debug)]
pub struct Sampling {
    /// At the ends of steps whose number it divides; at none with 0.
    every: u64,
    mailbox: Mailbox,
    /// The step and time of the last `step()`.
    ended: Option<(u64, Instant)>,
    sampled: Option<Instant>,
    device_asked: Option<Instant>,
}

impl Sampling {
    /// At the ends of steps whose number `every` divides; at none with 0.
    pub fn new(every: u64, mailbox: Mailbox) -> Self {
        Self { every, mailbox, ended: None, sampled: None, device_asked: None }
    }

    /// Whose samples these are.
    pub fn belong_to(&self, place: Place) {
        self.mailbox.belongs_to(place);
    }

    /// Step `step` ended `now`, which the system's clock calls `now_us`. Samples if it is time for it. Where that
    /// fails it says so and never samples again.
    pub fn end_of_step(&mut self, step: u64, now: Instant, now_us: i64, recorder: &mut dyn Recorder) {
        let before = self.ended.replace((step, now));
        let is_soon = |last: Option<Instant>, pause| last.is_some_and(|last| now - last < pause);
        let is_repeated = before.is_some_and(|(last, _)| last == step);
        let is_chosen = self.every > 0 && step.is_multiple_of(self.every);
        if !is_chosen || is_repeated || is_soon(self.sampled, LEAST_PAUSE) {
            return;
        }
        let asks_device = !is_soon(self.device_asked, DEVICE_PAUSE);
        match recorder.sample(asks_device) {
            Ok(None) => {}
            Ok(Some(sample)) => {
                self.sampled = Some(now);
                self.device_asked = if asks_device { Some(now) } else { self.device_asked };
                let step_us = before.and_then(|(_, ended)| u64::try_from((now - ended).as_micros()).ok());
                self.mailbox.put(Sample { step, at_us: now_us, step_us, ..sample });
            }
            Err(error) => {
                self.every = 0;
                self.mailbox.0.notices.say(format_args!("no samples are taken any more: {error}"));
            }
        }
    }
}

/// Takes samples and reports from any thread and has them sent. Clones are the same mailbox.
#[derive(Debug, Clone)]
pub struct Mailbox(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: Server,
    notices: Arc<Notices>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing is sent before it is known for sure.
    place: Option<Place>,
    /// Oldest first, at most [`MAX_WAITING`].
    waiting: VecDeque<Sample>,
    /// At most [`MAX_LOST_WAITING`].
    lost: Vec<Lost>,
    counts: Counts,
    /// The counts that the server has.
    told: Counts,
    /// Since when what waits is the last.
    stopping: Option<Instant>,
    /// Nothing is taken any more: the server takes none, or there is no thread.
    is_closed: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    n_dropped: u64,
    n_lost: u64,
}

impl Mailbox {
    /// An empty one without a thread.
    pub fn new(server: Server, notices: Arc<Notices>) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { server, notices, state, changed }))
    }

    /// Whose samples these are. Sending begins once that is told.
    pub fn belongs_to(&self, place: Place) {
        self.0.lock().place = Some(Place { first_step: None, last_step: None, reason: None, ..place });
    }

    /// Snapshots that this process gave up, to be counted and shown in the run's grid. It may be called from any
    /// thread and never waits for the network.
    pub fn lost(&self, Losses { n, untold }: Losses) {
        let lost = |loss: Loss| {
            let Place { first_step, last_step, .. } = loss.place;
            Lost {
                first_step: first_step.or(last_step),
                last_step,
                why: loss.why.chars().take(MAX_WHY_CHARS).collect(),
            }
        };
        if n > 0 {
            self.add(|state| {
                state.counts.n_lost = state.counts.n_lost.max(n);
                let room = MAX_LOST_WAITING.saturating_sub(state.lost.len());
                state.lost.extend(untold.into_iter().take(room).map(lost));
            });
        }
    }

    fn put(&self, sample: Sample) {
        self.add(|state| {
            if state.waiting.len() == MAX_WAITING {
                state.waiting.pop_front();
                state.counts.n_dropped += 1;
            }
            state.waiting.push_back(sample);
        });
    }

    fn add(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.lock();
        if state.is_closed {
            return;
        }
        change(&mut state);
        if state.thread.is_none() && state.stopping.is_none() {
            match self.start() {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => {
                    state.close();
                    drop(state);
                    self.0
                        .notices
                        .say(format_args!("no samples are sent: no thread to send them with: {error}"));
                }
            }
        }
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("tidegauge-sample".to_owned()).spawn(move || send_all(&shared))
    }

    /// What waits is to be sent now, and nothing after it.
    pub fn stop(&self) {
        self.0.lock().stopping.get_or_insert_with(Instant::now);
        self.0.changed.notify_all();
    }

    /// Waits until a stopped mailbox has sent what it can, for at most `longest` since it was stopped.
    pub fn wait(&self, longest: Duration) {
        let (thread, stopping) = {
            let mut state = self.0.lock();
            (state.thread.take(), state.stopping)
        };
        let Some(thread) = thread else { return };
        let deadline = stopping.unwrap_or_else(Instant::now) + longest;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        if thread.is_finished() {
            // A thread that panicked has said so on standard error.
            thread.join().ok();
        }
    }
}

impl State {
    /// What waits, as one request holds it; none when there is no news.
    fn next_batch(&mut self) -> Option<SampleBatch> {
        let place = self.place.clone()?;
        if self.waiting.is_empty() && self.lost.is_empty() && self.counts == self.told {
            return None;
        }
        let mut samples = Samples::default();
        let n = self.waiting.len().min(MAX_SENT_AT_ONCE);
        self.waiting.drain(..n).for_each(|sample| samples.push(&sample));
        let Counts { n_dropped, n_lost } = self.counts;
        Some(SampleBatch { place, n_dropped, n_lost, lost: std::mem::take(&mut self.lost), samples })
    }

    /// A batch could not be sent: its samples wait again, unless newer ones have taken their room.
    fn put_back(&mut self, batch: SampleBatch) {
        let samples = batch.samples.rows().expect("our own columns are even");
        for sample in samples.into_iter().rev() {
            if self.waiting.len() < MAX_WAITING {
                self.waiting.push_front(sample);
            } else {
                self.counts.n_dropped += 1;
            }
        }
        self.lost.extend(batch.lost);
        self.lost.truncate(MAX_LOST_WAITING);
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.waiting = VecDeque::new();
        self.lost = Vec::new();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next batch's time; whether it is the last.
    fn pause(&self, pause: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), pause, |state| state.stopping.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.stopping.is_some()
    }
}

/// What is to become of a batch, and of the sending.
enum Verdict {
    Sent,
    Later(Option<Duration>),
    Refused,
    NotTakenHere,
}

fn send_all(shared: &Shared) {
    let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
    let mut pause = FIRST_PAUSE + (PAUSE - FIRST_PAUSE).mul_f64(jitter());
    let mut n_failures = 0;
    loop {
        let is_last = shared.pause(pause);
        pause = PAUSE;
        while let Some(batch) = next_batch(shared) {
            let verdict = send(shared, &batch);
            n_failures = if matches!(verdict, Verdict::Later(_)) { n_failures + 1 } else { 0 };
            match verdict {
                Verdict::Sent => {
                    backoff.succeeded();
                    shared.lock().told = Counts { n_dropped: batch.n_dropped, n_lost: batch.n_lost };
                }
                Verdict::Refused => {
                    shared.lock().counts.n_dropped += batch.samples.step.len() as u64;
                    break;
                }
                Verdict::NotTakenHere => return shared.lock().close(),
                Verdict::Later(asked) => {
                    shared.lock().put_back(batch);
                    pause = backoff.after_failure(asked, jitter()).max(PAUSE);
                    if n_failures == FAILURES_TO_SAY {
                        shared.notices.say_once(
                            "samples-away",
                            "samples cannot be sent; some wait in memory, and the oldest of too many go",
                        );
                    }
                    break;
                }
            }
        }
        if is_last {
            return;
        }
    }
}

fn next_batch(shared: &Shared) -> Option<SampleBatch> {
    shared.lock().next_batch()
}

fn send(shared: &Shared, batch: &SampleBatch) -> Verdict {
    match shared.server.send_samples(batch) {
        Ok(()) => Verdict::Sent,
        Err(PushError::Later { retry_after, .. }) => Verdict::Later(retry_after),
        Err(PushError::Refused(problem)) if matches!(problem.status, 404 | 405) => {
            let line = "the server takes no samples, perhaps because it is older than this agent; snapshots are sent as ever";
            shared.notices.say_once("samples-not-taken", line);
            Verdict::NotTakenHere
        }
        // Whoever sends snapshots says so, and the token may be another one soon.
        Err(PushError::Refused(problem)) if matches!(problem.status, 401 | 403) => {
            Verdict::Later(Some(LONGEST_PAUSE))
        }
        Err(error) => {
            shared.notices.say_once("samples-refused", format_args!("the server refused samples: {error}"));
            Verdict::Refused
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tidegauge_api::{Sidecar, paths};

    use super::*;
    use crate::{
        backend::Recording,
        fake_server::{Answer, FakeServer, Received},
        recorder::{Group, RecorderError, Statistics, Unwritten},
    };

    /// Counts what it is asked.
    #[derive(Default)]
    struct Counters {
        n_asked: u64,
        n_asked_device: u64,
        fails: bool,
    }

    impl Recorder for Counters {
        fn sample(&mut self, asks_device: bool) -> Result<Option<Sample>, RecorderError> {
            if self.fails {
                return Err(RecorderError("the device is lost".to_owned()));
            }
            self.n_asked += 1;
            self.n_asked_device += u64::from(asks_device);
            Ok(Some(Sample { device: 1, allocated: Some(self.n_asked * 512), ..Sample::default() }))
        }

        fn record(&mut self, _: &Recording) -> Result<(), RecorderError> {
            Ok(())
        }

        fn settle(&mut self) -> Result<(), RecorderError> {
            Ok(())
        }

        fn statistics(&mut self) -> Result<Statistics, RecorderError> {
            Ok(Statistics::default())
        }

        fn peak_bytes(&mut self) -> Result<u64, RecorderError> {
            Ok(0)
        }

        fn read(&mut self) -> Result<Box<dyn Unwritten>, RecorderError> {
            Err(RecorderError("nothing is recorded".to_owned()))
        }

        fn clear(&mut self, _: &Recording) -> Result<(), RecorderError> {
            Ok(())
        }

        fn stop(&mut self) -> Result<(), RecorderError> {
            Ok(())
        }

        fn group(&mut self) -> Option<Group> {
            None
        }

        fn describe(&self, _: &Recording, _: &mut Sidecar) {}
    }

    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn taken() -> Answer {
        Answer::new("200 OK\r\nContent-Type: application/json", r#"{"run_id":"1","n_new":1}"#)
    }

    fn mailbox(address: &str) -> Mailbox {
        let notices = Notices::new(|line| SAID.lock().unwrap().push(line.to_owned()));
        let mailbox = Mailbox::new(Server::new(address, Some("secret"), false).unwrap(), Arc::new(notices));
        mailbox.belongs_to(Place { rank: Some(3), last_step: Some(9), ..Place::default() });
        mailbox
    }

    fn nowhere() -> Mailbox {
        mailbox("http://127.0.0.1:1")
    }

    fn flush(mailbox: &Mailbox) {
        mailbox.stop();
        mailbox.wait(Duration::from_secs(60));
    }

    fn losses(n: u64, n_untold: usize) -> Losses {
        let place = Place { first_step: Some(1), last_step: Some(3), ..Place::default() };
        let loss = Loss { place, why: "the disk is full".to_owned() };
        Losses { n, untold: std::iter::repeat_n(loss, n_untold).collect() }
    }

    fn waiting_and_dropped(mailbox: &Mailbox) -> (usize, u64) {
        let state = mailbox.0.lock();
        (state.waiting.len(), state.counts.n_dropped)
    }

    fn batch(request: &Received) -> SampleBatch {
        assert_eq!(request.line, format!("POST {} HTTP/1.1", paths::SAMPLES));
        serde_json::from_slice(&request.body).unwrap()
    }

    /// The steps that wait, after these have ended, each at so many milliseconds.
    fn sampled(every: u64, ends: &[(u64, u64)]) -> Vec<u64> {
        let mailbox = nowhere();
        let (mut sampling, begin) = (Sampling::new(every, mailbox.clone()), Instant::now());
        for (step, millis) in ends {
            sampling.end_of_step(*step, begin + Duration::from_millis(*millis), 0, &mut Counters::default());
        }
        mailbox.0.lock().waiting.iter().map(|sample| sample.step).collect()
    }

    #[test]
    fn each_step_is_sampled_once_or_every_so_manieth_or_none() {
        let ends: Vec<_> = (1..=6).map(|step| (step, step * 100)).collect();
        assert_eq!(sampled(1, &ends), [1, 2, 3, 4, 5, 6]);
        assert_eq!(sampled(3, &ends), [3, 6]);
        assert_eq!(sampled(0, &ends), [0_u64; 0]);
        assert_eq!(sampled(1, &[(1, 0), (1, 500), (2, 1_000)]), [1, 2]);
    }

    #[test]
    fn a_very_fast_loop_is_sampled_at_some_of_its_steps() {
        let ends: Vec<_> = (0..100).map(|step| (step, step)).collect();
        assert_eq!(sampled(1, &ends), [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
    }

    #[test]
    fn a_sample_knows_its_step_and_how_long_it_took_and_the_device_is_asked_once_a_second() {
        let mailbox = nowhere();
        let (mut sampling, mut counters) = (Sampling::new(1, mailbox.clone()), Counters::default());
        let begin = Instant::now();
        for step in 1..=5 {
            let now = begin + Duration::from_millis(400 * step);
            sampling.end_of_step(step, now, 7, &mut counters);
        }
        assert_eq!((counters.n_asked, counters.n_asked_device), (5, 2));
        let state = mailbox.0.lock();
        let expected = Sample {
            step: 2,
            at_us: 7,
            step_us: Some(400_000),
            device: 1,
            allocated: Some(1024),
            ..Sample::default()
        };
        assert_eq!(state.waiting[1], expected);
        assert_eq!(state.waiting[0].step_us, None);
    }

    #[test]
    fn counters_that_cannot_be_read_end_sampling_with_a_line() {
        let mailbox = nowhere();
        let mut sampling = Sampling::new(1, mailbox.clone());
        let mut counters = Counters { fails: true, ..Counters::default() };
        sampling.end_of_step(1, Instant::now(), 0, &mut counters);
        counters.fails = false;
        sampling.end_of_step(2, Instant::now(), 0, &mut counters);
        assert_eq!(counters.n_asked, 0);
        let state = mailbox.0.lock();
        assert!(state.waiting.is_empty() && state.thread.is_none());
        let line = "tidegauge: no samples are taken any more: the device is lost";
        assert!(SAID.lock().unwrap().iter().any(|said| said == line));
    }

    #[test]
    fn a_batch_holds_what_waits_with_its_place_and_the_token() {
        let server = FakeServer::start(|_| taken());
        let mailbox = mailbox(&server.address);
        for step in 1..=3 {
            mailbox.put(Sample { step, ..Sample::default() });
        }
        mailbox.lost(losses(1, 1));
        flush(&mailbox);
        let [request] = server.received().try_into().unwrap();
        assert_eq!(request.headers["authorization"], "Bearer secret");
        let batch = batch(&request);
        assert_eq!(batch.place, Place { rank: Some(3), ..Place::default() });
        assert_eq!((batch.samples.step.as_slice(), batch.n_lost, batch.n_dropped), (&[1, 2, 3][..], 1, 0));
        let lost = Lost { first_step: Some(1), last_step: Some(3), why: "the disk is full".to_owned() };
        assert_eq!(batch.lost, [lost]);
    }

    #[test]
    fn of_too_many_the_oldest_go_and_are_counted() {
        let mailbox = nowhere();
        // Nothing is sent meanwhile.
        mailbox.stop();
        let most = MAX_WAITING as u64;
        (0..most + 3).for_each(|step| mailbox.put(Sample { step, ..Sample::default() }));
        let mut state = mailbox.0.lock();
        let batch = state.next_batch().unwrap();
        assert_eq!(
            (batch.n_dropped, batch.samples.step[0], batch.samples.step.len()),
            (3, 3, MAX_SENT_AT_ONCE)
        );
        // What could not be sent waits again, in its order, as far as there is room.
        (0..1_022)
            .for_each(|step| state.waiting.push_back(Sample { step: most + 3 + step, ..Sample::default() }));
        state.put_back(batch);
        assert_eq!((state.waiting.len(), state.counts.n_dropped), (MAX_WAITING, 3 + 1_022));
        assert_eq!((state.waiting[0].step, state.waiting[1].step), (1_025, 1_026));
    }

    #[test]
    fn many_samples_go_in_several_batches_and_nothing_twice() {
        let server = FakeServer::start(|_| taken());
        let mailbox = mailbox(&server.address);
        (0..2_500).for_each(|step| mailbox.put(Sample { step, ..Sample::default() }));
        flush(&mailbox);
        let steps: Vec<u64> =
            server.received().iter().flat_map(|request| batch(request).samples.step).collect();
        assert_eq!(steps, (0..2_500).collect::<Vec<_>>());
    }

    #[test]
    fn a_batch_that_the_server_has_no_time_for_waits_in_memory() {
        let server = FakeServer::start(|_| Answer::new("503 Busy\r\nRetry-After: 7", ""));
        let mailbox = mailbox(&server.address);
        mailbox.put(Sample::default());
        flush(&mailbox);
        assert_eq!(server.received().len(), 1);
        assert_eq!(waiting_and_dropped(&mailbox), (1, 0));
    }

    #[test]
    fn a_batch_that_is_refused_goes_and_is_counted() {
        let server = FakeServer::start(|_| Answer::problem(400, "the columns are uneven"));
        let mailbox = mailbox(&server.address);
        mailbox.put(Sample::default());
        flush(&mailbox);
        assert_eq!(waiting_and_dropped(&mailbox), (0, 1));
        let line = "tidegauge: the server refused samples: the columns are uneven";
        assert!(SAID.lock().unwrap().iter().any(|said| said == line));
    }

    #[test]
    fn a_server_that_knows_no_samples_is_asked_once() {
        let server = FakeServer::start(|_| Answer::problem(404, "there is nothing here"));
        let mailbox = mailbox(&server.address);
        mailbox.put(Sample::default());
        flush(&mailbox);
        mailbox.put(Sample::default());
        assert!(mailbox.0.lock().waiting.is_empty());
        assert_eq!(server.received().len(), 1);
    }

    #[test]
    fn without_samples_and_reports_there_is_no_thread() {
        let mailbox = nowhere();
        assert!(mailbox.0.lock().thread.is_none());
        let begun = Instant::now();
        flush(&mailbox);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_is_lost_is_counted_also_where_it_cannot_be_told_one_by_one() {
        let mailbox = nowhere();
        mailbox.stop();
        mailbox.lost(losses(500, 200));
        mailbox.lost(losses(700, 200));
        mailbox.lost(losses(0, 0));
        let batch = mailbox.0.lock().next_batch().unwrap();
        assert_eq!((batch.n_lost, batch.lost.len()), (700, MAX_LOST_WAITING));
        mailbox.0.lock().told = Counts { n_dropped: 0, n_lost: batch.n_lost };
        assert_eq!(mailbox.0.lock().next_batch(), None);
    }
}
