//! A thread that reads the history beside training.
//!
//! The training thread asks and waits until the call has begun; what is read is fetched later, by the thread that
//! writes it. Before a fork no call may be in progress: the child would inherit the allocator's lock, held by a thread
//! it does not have.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::recorder::RecorderError;

/// The longest that a step waits for its call to begin. It begins later when an earlier one is still in progress, and
/// the window ends where it should all the same.
const BEGIN_PATIENCE: Duration = Duration::from_millis(20);

/// How long a step waits once its call has begun, so that torch has the allocator's lock: it looks at its clock first,
/// for a tenth of a millisecond. What happens in between is cut off later; this makes it rare.
const LOCK_PAUSE: Duration = Duration::from_micros(500);

/// Reads the whole history, in whatever way; an error is a sentence.
pub type Read = Box<dyn Fn() -> Result<Vec<u8>, String> + Send>;

/// The thread, and its end.
#[derive(Debug)]
pub struct Beside {
    /// Of the process that has the thread; a forked child inherits only this.
    pid: u32,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A pickle that is being read.
#[derive(Debug)]
pub struct Pending {
    answer: mpsc::Receiver<Result<Vec<u8>, String>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Who waits for a call, in order. Bounded by the courier, which takes two snapshots at most.
    asked: Vec<mpsc::Sender<Result<Vec<u8>, String>>>,
    n_begun: u64,
    n_asked: u64,
    is_calling: bool,
    is_paused: bool,
    is_over: bool,
    failure: Option<String>,
}

impl Beside {
    /// Starts the thread; `read` is called on it and nowhere else.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(read: Read) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("tidegauge-read".to_owned()).spawn(move || of_thread.run(&read))?;
        Ok(Self { pid: std::process::id(), shared, thread: Some(thread) })
    }

    /// Asks for the history, and waits a moment until reading has begun. The caller must not hold a lock that
    /// reading needs.
    ///
    /// # Errors
    /// When an earlier call failed: then the way is not to be gone again.
    pub fn begin(&self) -> Result<Pending, RecorderError> {
        let (sender, answer) = mpsc::channel();
        let number = {
            let mut state = self.shared.lock();
            if let Some(failure) = &state.failure {
                return Err(RecorderError(failure.clone()));
            }
            state.asked.push(sender);
            state.n_asked += 1;
            state.n_asked
        };
        self.shared.changed.notify_all();
        // Whether it began or not: the window's end is fixed.
        drop(self.shared.wait(BEGIN_PATIENCE, |state| state.n_begun >= number || state.is_over));
        thread::sleep(LOCK_PAUSE);
        Ok(Pending { answer, shared: Arc::clone(&self.shared) })
    }

    /// Why a call failed, if one did.
    pub fn failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    /// Waits until everything that was asked for is read, `longest` at most.
    pub fn drain(&self, longest: Duration) {
        drop(self.shared.wait(longest, |state| state.asked.is_empty() && !state.is_calling));
    }

    /// Before a fork: waits until no call is in progress, `longest` at most, and lets none begin. Returns whether none is.
    pub fn pause(&self, longest: Duration) -> bool {
        self.shared.lock().is_paused = true;
        !self.shared.wait(longest, |state| !state.is_calling).is_calling
    }

    /// After a fork, in the parent.
    pub fn resume(&self) {
        self.shared.lock().is_paused = false;
        self.shared.changed.notify_all();
    }
}

impl Drop for Beside {
    /// Waits for the call in progress: a thread that is inside PyTorch while the interpreter ends would not survive it.
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on standard error.
            thread.join().ok();
        }
    }
}

impl Pending {
    /// Waits for the bytes.
    ///
    /// # Errors
    /// A sentence, when they could not be read.
    pub fn bytes(self) -> Result<Vec<u8>, String> {
        let ended = |_| Err("recording ended before it was read".to_owned());
        let read = self.answer.recv().unwrap_or_else(ended);
        if let Err(failure) = &read {
            self.shared.lock().failure.get_or_insert_with(|| failure.clone());
        }
        read
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, longest: Duration, mut until: impl FnMut(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.lock(), longest, |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn run(&self, read: &Read) {
        loop {
            let answer = {
                let is_due = |state: &State| state.is_over || (!state.asked.is_empty() && !state.is_paused);
                let state = self.changed.wait_while(self.lock(), |state| !is_due(state));
                let mut state = state.unwrap_or_else(PoisonError::into_inner);
                if state.asked.is_empty() {
                    return;
                }
                state.is_calling = true;
                state.n_begun += 1;
                state.asked.remove(0)
            };
            self.changed.notify_all();
            let bytes = panic::catch_unwind(AssertUnwindSafe(read));
            let bytes = bytes.unwrap_or_else(|_| Err("a mistake of the agent's own".to_owned()));
            // Nobody may be waiting any more.
            answer.send(bytes).ok();
            self.lock().is_calling = false;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A call that takes as long as the test wants.
    fn gated() -> (Beside, mpsc::Sender<()>) {
        let (go, gate) = mpsc::channel();
        let n = AtomicU32::new(0);
        let read = move || {
            gate.recv().map_err(|error| error.to_string())?;
            Ok(vec![n.fetch_add(1, Ordering::Relaxed) as u8])
        };
        (Beside::start(Box::new(read)).unwrap(), go)
    }

    #[test]
    fn what_is_asked_for_comes_in_order_and_asking_does_not_wait_for_it() {
        let (beside, go) = gated();
        let (first, second) = (beside.begin().unwrap(), beside.begin().unwrap());
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert_eq!((second.bytes(), first.bytes()), (Ok(vec![1]), Ok(vec![0])));
    }

    #[test]
    fn a_fork_waits_for_the_call_in_progress_and_none_begins_until_it_is_over() {
        let (beside, go) = gated();
        let first = beside.begin().unwrap();
        assert!(!beside.pause(Duration::from_millis(10)), "a call is in progress");
        go.send(()).unwrap();
        assert!(beside.pause(Duration::from_secs(20)));
        assert_eq!(first.bytes(), Ok(vec![0]));

        let second = beside.begin().unwrap();
        go.send(()).unwrap();
        assert!(second.answer.recv_timeout(Duration::from_millis(50)).is_err(), "it began during the fork");
        beside.resume();
        assert_eq!(second.bytes(), Ok(vec![1]));
    }

    #[test]
    fn draining_waits_for_what_was_asked_for_and_not_for_ever() {
        let (beside, go) = gated();
        let (first, second) = (beside.begin().unwrap(), beside.begin().unwrap());
        beside.drain(Duration::from_millis(10));
        go.send(()).unwrap();
        go.send(()).unwrap();
        beside.drain(Duration::from_secs(20));
        assert!(first.answer.try_recv().is_ok() && second.answer.try_recv().is_ok());
    }

    #[test]
    fn a_call_that_failed_is_not_made_again() {
        let read = || Err("no snapshot of this allocator".to_owned());
        let beside = Beside::start(Box::new(read)).unwrap();
        assert!(beside.begin().unwrap().bytes().is_err());
        assert_eq!(beside.failure().as_deref(), Some("no snapshot of this allocator"));
        assert!(beside.begin().is_err());
    }

    #[test]
    fn a_panic_in_a_call_is_a_failure_like_others_and_the_end_waits_for_nobody() {
        let beside = Beside::start(Box::new(|| panic!("for the test"))).unwrap();
        assert!(beside.begin().unwrap().bytes().unwrap_err().contains("mistake"));
        drop(beside);
    }

    #[test]
    fn the_end_waits_for_what_was_asked_for() {
        let (beside, go) = gated();
        let pending = beside.begin().unwrap();
        go.send(()).unwrap();
        drop(beside);
        assert_eq!(pending.bytes(), Ok(vec![0]));
    }
}
