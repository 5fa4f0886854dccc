//! Two threads that carry snapshots away from training: one writes them to the outbox, one sends them.
//!
//! The training thread hands a snapshot over and goes on. Writing is bounded in number: while
//! [`MAX_UNWRITTEN`] snapshots are still in memory, the next is not taken. Sending is bounded by the outbox and
//! goes on trying while the process lives.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegauge_api::Sidecar;

use crate::{
    backoff::{Backoff, jitter},
    notices::Notices,
    outbox::{Folder, Item, Outbox},
    push::{PushError, Server},
    recorder::Unwritten,
};

/// Snapshots that may be in memory at once, one being written and one behind it. Each holds up to a few hundred
/// megabytes of Python objects.
const MAX_UNWRITTEN: usize = 2;

/// The longest wait for the writer at exit. It needs no network, only the processor and the disk.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// At exit the whole flush takes seconds, so retries come sooner.
const LONGEST_RETRY_AT_EXIT: Duration = Duration::from_millis(500);

/// The threads, and what they share with the training thread.
#[derive(Debug)]
pub struct Courier {
    shared: Arc<Shared>,
    writer: JoinHandle<()>,
    sender: JoinHandle<()>,
}

/// A snapshot to be written and sent.
pub struct Parcel {
    /// The snapshot in memory.
    pub unwritten: Box<dyn Unwritten>,
    /// What travels beside it.
    pub sidecar: Sidecar,
    /// Its name in the outbox.
    pub name: String,
}

/// What a stopped courier leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Snapshots in this process's part of the outbox.
    pub n_snapshots: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Snapshots that were not even written in time.
    pub n_unwritten: usize,
}

#[derive(Debug)]
struct Shared {
    outbox: Outbox,
    server: Server,
    notices: Arc<Notices>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Waits for the writer; at most [`MAX_UNWRITTEN`].
    parcels: VecDeque<Parcel>,
    /// Those, and the one being written.
    n_unwritten: usize,
    /// Counts up with each snapshot that appears in the outbox.
    n_written: u64,
    stopping: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("State").field("n_unwritten", &self.n_unwritten).finish_non_exhaustive()
    }
}

impl Courier {
    /// Starts the threads. What processes of the same run left in the outbox when they died is sent too.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start(outbox: Outbox, server: Server, notices: Arc<Notices>) -> io::Result<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { outbox, server, notices, state, changed });
        let spawn = |name: &str, work: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared))
        };
        let writer = spawn("tidegauge-write", write_all)?;
        let sender = match spawn("tidegauge-send", send_all) {
            Ok(sender) => sender,
            Err(error) => {
                shared.update(|state| state.stopping = true);
                return Err(error);
            }
        };
        Ok(Self { shared, writer, sender })
    }

    /// Whether another snapshot may be taken now; waits up to `patience` for that.
    pub fn has_room(&self, patience: Duration) -> bool {
        let state = self.shared.wait(patience, |state| state.n_unwritten < MAX_UNWRITTEN);
        state.n_unwritten < MAX_UNWRITTEN
    }

    /// Takes a snapshot over. Ask [`Courier::has_room`] before taking one.
    pub fn carry(&self, parcel: Parcel) {
        self.shared.update(|state| {
            state.n_unwritten += 1;
            state.parcels.push_back(parcel);
        });
    }

    /// Writes what is in memory, sends for at most `flush`, and says what is left.
    pub fn stop(self, flush: Duration) -> Left {
        self.shared.update(|state| state.stopping = true);
        let n_unwritten = self.shared.wait(WRITE_PATIENCE, |state| state.n_unwritten == 0).n_unwritten;
        let deadline = Instant::now() + flush;
        while !self.sender.is_finished() && Instant::now() < deadline {
            // Ends with the sender's last step at the latest, which is no more than a few milliseconds off.
            thread::sleep(Duration::from_millis(5));
        }
        let items = self.shared.outbox.items();
        let left =
            Left { n_snapshots: items.len(), bytes: items.iter().map(|item| item.bytes).sum(), n_unwritten };
        if n_unwritten == 0 && self.sender.is_finished() {
            // A thread that panicked has said so on standard error; what it left is counted above.
            self.writer.join().ok();
            self.sender.join().ok();
            if let Some(shared) = Arc::into_inner(self.shared) {
                shared.outbox.tidy();
            }
        }
        left
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    fn wait(&self, longest: Duration, mut until: impl FnMut(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.lock(), longest, |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait_for_ever(&self, mut until: impl FnMut(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_while(self.lock(), |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_all(shared: &Shared) {
    loop {
        let parcel = {
            let mut state = shared.wait_for_ever(|state| state.stopping || !state.parcels.is_empty());
            state.parcels.pop_front()
        };
        let Some(parcel) = parcel else { return };
        let name = parcel.name.clone();
        let written = write(shared, parcel);
        if let Err(reason) = &written {
            shared.notices.say(format_args!("{name} is lost: {reason}"));
        }
        shared.update(|state| {
            state.n_unwritten -= 1;
            state.n_written += u64::from(written.is_ok());
        });
    }
}

fn write(shared: &Shared, Parcel { unwritten, sidecar, name }: Parcel) -> Result<(), String> {
    let draft = shared.outbox.draft(&name).map_err(|error| error.to_string())?;
    let draft = unwritten.write(draft).map_err(|error| error.to_string())?;
    draft.finish(sidecar).map_err(|error| error.to_string())?;
    Ok(())
}

fn send_all(shared: &Shared) {
    let mut adopted = shared.outbox.abandoned_in_run();
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    loop {
        let n_written = shared.lock().n_written;
        let Some((item, folder)) = next(&shared.outbox, &adopted) else {
            adopted.drain(..).for_each(Folder::tidy);
            let state = shared.wait_for_ever(|state| {
                state.n_written != n_written || (state.stopping && state.n_unwritten == 0)
            });
            match state.n_written == n_written {
                true => return,
                false => continue,
            }
        };
        match send(shared, &item, folder) {
            Ok(()) => backoff.succeeded(),
            Err(Trouble::Later(asked)) => pause(shared, backoff.after_failure(asked, jitter())),
            Err(Trouble::ForGood(reason)) => {
                shared.notices.say(format_args!("sending stops, snapshots stay in the outbox: {reason}"));
                return;
            }
        }
    }
}

/// Own snapshots first: somebody may be looking at their grid.
fn next<'a>(outbox: &'a Outbox, adopted: &'a [Folder]) -> Option<(Item, &'a Folder)> {
    let folders = std::iter::once(outbox.folder()).chain(adopted);
    folders.into_iter().find_map(|folder| Some((folder.items().into_iter().next()?, folder)))
}

enum Trouble {
    Later(Option<Duration>),
    ForGood(String),
}

fn send(shared: &Shared, item: &Item, folder: &Folder) -> Result<(), Trouble> {
    let for_good = |error: io::Error| Trouble::ForGood(format!("{}: {error}", item.snapshot.display()));
    match shared.server.send(&item.snapshot, &item.sidecar().unwrap_or_default(), &mut |_| {}) {
        Ok(_) => item.remove().map_err(for_good),
        Err(PushError::Later { reason, retry_after }) => {
            let line =
                format_args!("{reason}; snapshots wait in the outbox and are sent as soon as that changes");
            shared.notices.say_once("server-away", line);
            Err(Trouble::Later(retry_after))
        }
        Err(PushError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.is_about_the_snapshot() => {
            let moved = folder.reject(item, &error.to_string()).map_err(for_good)?;
            shared.notices.say(format_args!(
                "the server refused {}: {error}; kept as {}",
                item.name(),
                moved.display()
            ));
            Ok(())
        }
        Err(error) => Err(Trouble::ForGood(error.to_string())),
    }
}

/// Waits, but not past the moment when the process wants to end.
fn pause(shared: &Shared, wait: Duration) {
    let was_stopping = shared.lock().stopping;
    match was_stopping {
        true => thread::sleep(wait.min(LONGEST_RETRY_AT_EXIT)),
        false => drop(shared.wait(wait, |state| state.stopping)),
    }
}
