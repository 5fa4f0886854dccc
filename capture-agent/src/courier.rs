//! Two threads that carry snapshots away from training: one writes them to the outbox, one sends them.
//!
//! The training thread hands a snapshot over and goes on. Writing is bounded in number: while
//! [`MAX_UNWRITTEN`] snapshots are still in memory, the next is not taken. Sending is bounded by the outbox and
//! goes on trying while the process lives.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegauge_api::Sidecar;

use crate::{
    backoff::{Backoff, jitter},
    delivery::{Delivered, Deliveries, Waits, turn},
    notices::Notices,
    outbox::{Folder, Item, Outbox, Worth},
    push::Server,
    recorder::Unwritten,
    samples::Mailbox,
    settings::SentBy,
};

/// Snapshots that may be in memory at once, one being written and one behind it. Each holds up to a few hundred
/// megabytes of Python objects. One more is taken when the process may be about to end.
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
    /// There unless others send.
    sender: Option<JoinHandle<()>>,
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
    /// Snapshots that were given up since the beginning.
    pub n_lost: u64,
    /// Others send what is left.
    pub is_handed_over: bool,
}

#[derive(Debug)]
struct Shared {
    outbox: Outbox,
    server: Server,
    /// The first and the longest wait before the server is asked again.
    retries: Range<Duration>,
    notices: Arc<Notices>,
    /// Whoever tells the server of snapshots that were given up.
    mailbox: OnceLock<Mailbox>,
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
    /// Those, and the ones that could not be written.
    n_done: u64,
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
    pub fn start(outbox: Outbox, server: Server, sent_by: SentBy, notices: Arc<Notices>) -> io::Result<Self> {
        Self::start_retrying_after(FIRST_RETRY..LONGEST_RETRY, outbox, server, sent_by, notices)
    }

    /// The same with a first and a longest wait of the caller's.
    pub(crate) fn start_retrying_after(
        retries: Range<Duration>,
        outbox: Outbox,
        server: Server,
        sent_by: SentBy,
        notices: Arc<Notices>,
    ) -> io::Result<Self> {
        let sent_by = match outbox.hand_over_to(sent_by) {
            Ok(()) => sent_by,
            Err(error) => {
                notices.say(format_args!("sends snapshots itself: {error}"));
                SentBy::Itself
            }
        };
        let (mailbox, state, changed) = (OnceLock::new(), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { outbox, server, retries, notices, mailbox, state, changed });
        let spawn = |name: &str, work: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared))
        };
        let writer = spawn("tidegauge-write", write_all)?;
        let sender = match sent_by {
            SentBy::Sidecar => None,
            SentBy::Itself => Some(spawn("tidegauge-send", send_all).inspect_err(|_| {
                shared.update(|state| state.stopping = true);
            })?),
        };
        Ok(Self { shared, writer, sender })
    }

    /// From now on snapshots that are given up are told there.
    pub fn tells_losses_to(&self, mailbox: &Mailbox) {
        self.shared.mailbox.get_or_init(|| mailbox.clone());
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

    /// Takes a snapshot over, before all others and however many these are, and waits until it is written, for at
    /// most `patience`. Whether the writer was done with it by then.
    pub fn carry_at_once(&self, parcel: Parcel, patience: Duration) -> bool {
        let n_done_then = self.shared.update(|state| {
            let n_in_hand = (state.n_unwritten - state.parcels.len()) as u64;
            state.n_unwritten += 1;
            state.parcels.push_front(parcel);
            state.n_done + n_in_hand + 1
        });
        self.shared.wait(patience, |state| state.n_done >= n_done_then).n_done >= n_done_then
    }

    /// Writes what is in memory, sends for at most `flush`, and says what is left.
    pub fn stop(self, flush: Duration) -> Left {
        self.shared.update(|state| state.stopping = true);
        let n_unwritten = self.shared.wait(WRITE_PATIENCE, |state| state.n_unwritten == 0).n_unwritten;
        self.shared.tell_losses();
        if let Some(mailbox) = self.shared.mailbox.get() {
            // Nothing is lost any more: it sends the rest beside the sender, in the same time.
            mailbox.stop();
        }
        let deadline = Instant::now() + flush;
        let is_sending = || self.sender.as_ref().is_some_and(|sender| !sender.is_finished());
        while is_sending() && Instant::now() < deadline {
            // Ends with the sender's last step at the latest, which is no more than a few milliseconds off.
            thread::sleep(Duration::from_millis(5));
        }
        let items = self.shared.outbox.items();
        let left = Left {
            n_snapshots: items.len(),
            bytes: items.iter().map(|item| item.bytes).sum(),
            n_unwritten,
            n_lost: self.shared.outbox.n_lost(),
            is_handed_over: self.sender.is_none(),
        };
        if n_unwritten == 0 && !is_sending() {
            // A thread that panicked has said so on standard error; what it left is counted above.
            self.writer.join().ok();
            self.sender.map(|sender| sender.join().ok());
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

    fn tell_losses(&self) {
        if let Some(mailbox) = self.mailbox.get() {
            mailbox.lost(self.outbox.take_losses());
        }
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
        let (name, place) = (parcel.name.clone(), parcel.sidecar.place.clone());
        let n_lost = shared.outbox.n_lost();
        let written = write(shared, parcel);
        let n_gave_way = shared.outbox.n_lost() - n_lost;
        if n_gave_way > 0 {
            shared
                .notices
                .say(format_args!("the outbox is full: {n_gave_way} of its snapshots gave way to {name}"));
        }
        if let Err(reason) = &written {
            shared.outbox.lose(&place, reason);
            shared.notices.say(format_args!("{name} is lost: {reason}"));
        }
        shared.tell_losses();
        shared.update(|state| {
            state.n_unwritten -= 1;
            state.n_done += 1;
            state.n_written += u64::from(written.is_ok());
        });
    }
}

fn write(shared: &Shared, Parcel { unwritten, mut sidecar, name }: Parcel) -> Result<(), String> {
    let worth = Worth::of(sidecar.place.reason.as_deref());
    let draft = shared.outbox.draft_worth(worth, &name).map_err(|error| error.to_string())?;
    let draft = unwritten.write(draft, &mut sidecar).map_err(|error| error.to_string())?;
    draft.finish(sidecar).map_err(|error| error.to_string())?;
    Ok(())
}

fn send_all(shared: &Shared) {
    let mut adopted = shared.outbox.abandoned_in_run();
    let mut backoff = Backoff::new(shared.retries.start, shared.retries.end);
    let mut deliveries = Deliveries::to(shared.server.clone());
    let mut has_its_turn = false;
    loop {
        let n_written = shared.lock().n_written;
        let Some((item, folder)) = next(&shared.outbox, &adopted) else {
            adopted.drain(..).for_each(Folder::tidy);
            has_its_turn = false;
            let state = shared.wait_for_ever(|state| {
                state.n_written != n_written || (state.stopping && state.n_unwritten == 0)
            });
            match state.n_written == n_written {
                true => return,
                false => continue,
            }
        };
        if !std::mem::replace(&mut has_its_turn, true) {
            let wait = turn(&item.sidecar().unwrap_or_default());
            drop(shared.wait(wait, |state| state.stopping));
        }
        shared.outbox.is_on_its_way(Some(&item));
        let delivered = deliveries.deliver(folder, &item, &mut |_| {});
        shared.outbox.is_on_its_way(None);
        match delivered {
            Ok(delivered) => {
                backoff.succeeded();
                say_if_refused(shared, &item, delivered);
            }
            Err(Waits::Later { reason, retry_after }) => {
                let line = format_args!(
                    "{reason}; snapshots wait in the outbox and are sent as soon as that changes"
                );
                shared.notices.say_once("server-away", line);
                pause(shared, backoff.after_failure(retry_after, jitter()));
            }
            Err(Waits::ForGood(reason)) => {
                shared.notices.say(format_args!("sending stops, snapshots stay in the outbox: {reason}"));
                return;
            }
        }
    }
}

fn say_if_refused(shared: &Shared, item: &Item, delivered: Delivered) {
    if let Delivered::Refused { kept, sentence } = delivered {
        shared.notices.say(format_args!(
            "the server refused {}: {sentence}; kept as {}",
            item.name(),
            kept.display()
        ));
    }
}

/// Own snapshots first: somebody may be looking at their grid.
fn next<'a>(outbox: &'a Outbox, adopted: &'a [Folder]) -> Option<(Item, &'a Folder)> {
    let folders = std::iter::once(outbox.folder()).chain(adopted);
    folders.into_iter().find_map(|folder| Some((folder.items().into_iter().next()?, folder)))
}

/// Waits, but not past the moment when the process wants to end.
fn pause(shared: &Shared, wait: Duration) {
    let was_stopping = shared.lock().stopping;
    match was_stopping {
        true => thread::sleep(wait.min(LONGEST_RETRY_AT_EXIT)),
        false => drop(shared.wait(wait, |state| state.stopping)),
    }
}
