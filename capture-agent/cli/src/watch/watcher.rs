//! The work of a watch: looks, reads, sends, remembers.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tidegauge_capture_agent::{
    backoff::{Backoff, jitter},
    parts::Bookmark,
    push::{PushError, Server},
};
use tidegauge_snapshot::words::{count, counted};

use super::{
    ledger::{Entry, Fate, Ledger},
    lookout::Lookout,
    stamp::Stamp,
    verdict::Verdict,
};
use crate::{
    DONE,
    destination::Destination,
    ending::Stop,
    parcel::{self, Parcel, Part},
    search::{self, Found, Step},
    sending::{Tally, is_no_snapshot, outcome, send, try_to_send},
};

/// The most files that are watched: what a thousand ranks leave in a hundred steps. Those found beyond are not sent,
/// and that is said.
pub(super) const MAX_FILES: usize = 100_000;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// What a server says of bytes that are not those that were announced.
const DIGEST_MISMATCH: &str = "digest-mismatch";

/// What is watched, and where it goes.
pub(super) struct Errand {
    /// Absolute, each once.
    pub(super) folders: Vec<PathBuf>,
    pub(super) destination: Destination,
    pub(super) server: Server,
    /// From one look to the next.
    pub(super) interval: Duration,
    /// Send what is there, and end.
    pub(super) is_once: bool,
}

/// A running watch.
pub(super) struct Watcher {
    errand: Errand,
    ledger: Ledger,
    lookout: Lookout,
    tally: Tally,
    /// Where a cut upload goes on, by its parcel and content. All others wait for it.
    left_off: Option<((String, Option<String>), Bookmark)>,
    /// While the server is away: when to try again.
    away_until: Option<Instant>,
    backoff: Backoff,
    /// What was said about the folders at the last look.
    said_of_folders: Vec<String>,
    has_said_of_ledger: bool,
}

/// Why a file's parcels were not all handed over.
enum Broken {
    /// The file is not what it was; the next look will see.
    Changed,
    Unreadable(String),
    /// Whatever was sent now would fail in the same way.
    Server {
        reason: String,
        retry_after: Option<Duration>,
    },
}

impl Watcher {
    pub(super) fn new(errand: Errand, ledger: Ledger) -> Self {
        Self {
            errand,
            ledger,
            lookout: Lookout::default(),
            tally: Tally::default(),
            left_off: None,
            away_until: None,
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
            said_of_folders: Vec::new(),
            has_said_of_ledger: false,
        }
    }

    /// Returns the exit status, when it is asked to stop or, for an errand of once, all is done.
    pub(super) fn run(&mut self, stop: &Stop) -> u8 {
        if self.errand.is_once { self.run_once(stop) } else { self.run_on(stop) }
    }

    fn run_on(&mut self, stop: &Stop) -> u8 {
        let folders: Vec<_> = self.errand.folders.iter().map(|folder| folder.display().to_string()).collect();
        eprintln!("watching {}; snapshots go to {}", folders.join(", "), self.errand.server.address());
        loop {
            let began = Instant::now();
            self.look();
            let took = began.elapsed();
            self.send_due(stop);
            // A look that takes long is a large tree on a busy file server, which is to have a rest as long.
            if stop.is_asked_within(self.errand.interval.max(took)) {
                break;
            }
        }
        let n_waiting = self.lookout.unsettled().count() as u64;
        let waiting = match n_waiting {
            0 => String::new(),
            n => format!("; {} left for the next start", counted(n, "file")),
        };
        eprintln!("{}{waiting}", self.tally.summary(self.errand.server.address()));
        DONE
    }

    fn run_once(&mut self, stop: &Stop) -> u8 {
        self.look();
        if self.lookout.unsettled().next().is_some() && !stop.is_asked_within(self.errand.interval) {
            self.look();
            self.send_due(stop);
        }
        for (path, watched) in self.lookout.unsettled() {
            self.tally.n_failed += 1;
            if !watched.stood_still() || Stamp::of(path) != Some(watched.stamp) {
                eprintln!("{}: it is still being written, so it was not sent", path.display());
            }
        }
        match self.tally.has_any() || self.tally.n_passed_over > 0 {
            true => eprintln!("{}", self.tally.summary(self.errand.server.address())),
            false => eprintln!("nothing new to send"),
        }
        self.tally.exit_status()
    }

    /// Searches the folders.
    fn look(&mut self) {
        let mut found = BTreeMap::new();
        let mut troubles = Vec::new();
        for folder in &self.errand.folders {
            search::walk(folder, &mut |step| {
                take(step, &mut found, &mut troubles);
                if found.len() < MAX_FILES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        if found.len() >= MAX_FILES {
            troubles.push(format!(
                "there are more than {} files that may be snapshots, and the others are left out; watch fewer \
                 folders, or those further down",
                count(MAX_FILES as u64)
            ));
        }
        for trouble in troubles.iter().filter(|trouble| !self.said_of_folders.contains(trouble)) {
            eprintln!("{trouble}");
        }
        self.said_of_folders = troubles;
        let ledger = &self.ledger;
        self.lookout.look(found, &|path, stamp| ledger.fate(path, stamp).is_some());
    }

    /// Reads and sends the files that it is time for.
    fn send_due(&mut self, stop: &Stop) {
        let due = self.lookout.due();
        let n_due = due.len();
        for (path, i) in due.iter().zip(1..) {
            let is_away = self.away_until.is_some_and(|until| Instant::now() < until);
            if stop.is_asked() || is_away {
                return;
            }
            if self.is_whole(path)
                && let Err(Broken::Server { reason, retry_after }) = self.send(path, &format!("{i}/{n_due}"))
            {
                self.server_is_away(path, &reason, retry_after);
                return;
            }
        }
    }

    /// Whether a file is to be sent now. It is read unless it was before.
    fn is_whole(&mut self, path: &Path) -> bool {
        let Some(watched) = self.lookout.get(path) else { return false };
        let (is_guess, stamp) = (watched.is_guess, watched.stamp);
        if watched.digest().is_some() {
            return Stamp::of(path) == Some(stamp);
        }
        let verdict = Verdict::of(path, is_guess);
        // What was read of a file that changed meanwhile says nothing.
        if Stamp::of(path) != Some(stamp) {
            return false;
        }
        let digest = match verdict {
            Verdict::Whole { digest } => digest,
            Verdict::NotWhole(sentence) => {
                self.not_whole(path, &sentence);
                return false;
            }
            Verdict::Unreadable(sentence) => {
                self.unreadable(path, &sentence);
                return false;
            }
            Verdict::Other(sentence) => {
                self.something_else(path, &sentence);
                return false;
            }
        };
        if self.ledger.was_sent(path, &digest) {
            // Only touched, or written again with the same content.
            self.settle(path, Some(Entry { stamp, digest, fate: Fate::Sent }));
            return false;
        }
        if let Some(watched) = self.lookout.get_mut(path) {
            watched.is_whole(digest);
        }
        true
    }

    /// Sends a whole file, or every snapshot in it.
    fn send(&mut self, path: &Path, head: &str) -> Result<(), Broken> {
        let Some(watched) = self.lookout.get(path) else { return Ok(()) };
        let (is_guess, stamp) = (watched.is_guess, watched.stamp);
        let Some(digest) = watched.digest().map(str::to_owned) else { return Ok(()) };
        let has_changed = || Stamp::of(path) != Some(stamp);
        let mut all_sent = true;
        let visited = parcel::each(path, is_guess, &mut |part| {
            let delivered = match part {
                Part::Lost(sentence) => {
                    self.not_sent(&sentence);
                    Ok(false)
                }
                Part::Parcel(parcel) => self.deliver(parcel, head),
            };
            match delivered {
                Ok(is_sent) => {
                    all_sent &= is_sent;
                    ControlFlow::Continue(())
                }
                Err(_) if has_changed() => ControlFlow::Break(Broken::Changed),
                Err(broken) => ControlFlow::Break(broken),
            }
        });
        match visited {
            ControlFlow::Continue(n_others) => self.tally.n_passed_over += n_others,
            ControlFlow::Break(Broken::Unreadable(sentence)) => {
                self.unreadable(path, &sentence);
                return Ok(());
            }
            ControlFlow::Break(broken) => return Err(broken),
        }
        if !has_changed() {
            // What was refused is tried again at the next start, perhaps by a server with more room.
            self.settle(path, all_sent.then_some(Entry { stamp, digest, fate: Fate::Sent }));
        }
        Ok(())
    }

    /// Sends a snapshot and prints its line. `Ok(false)` when it was not sent, but others may be.
    fn deliver(&mut self, parcel: &Parcel<'_>, head: &str) -> Result<bool, Broken> {
        let mut sidecar = self.errand.destination.sidecar(parcel);
        if sidecar.place.run.is_none() {
            self.not_sent(&format!("{}: its path names no run; say which with --run", parcel.shown));
            return Ok(false);
        }
        // The server compares, so bytes that change on their way are not taken.
        sidecar.content_digest = sidecar.content_digest.or_else(|| self.announced(parcel));
        let key = (parcel.shown.clone(), sidecar.content_digest.clone());
        let left_off = self.left_off.take().filter(|(of, _)| *of == key);
        let mut bookmark = left_off.map(|(_, bookmark)| bookmark).unwrap_or_default();
        let sent = match self.errand.is_once {
            true => send(&self.errand.server, &mut bookmark, parcel, &sidecar, head),
            false => try_to_send(&self.errand.server, &mut bookmark, parcel, &sidecar, head),
        };
        if let (Err(PushError::Later { .. }), Some(_)) = (&sent, &key.1) {
            self.left_off = Some((key, bookmark));
        }
        match sent {
            Ok(details) => {
                self.server_is_back();
                self.tally.add(&details);
                // Whoever read the lines has seen enough of them; snapshots are sent all the same.
                crate::print(&format!("{}: {}", parcel.shown, outcome(&details))).ok();
                Ok(true)
            }
            Err(PushError::File { source, .. }) => {
                Err(Broken::Unreadable(format!("it cannot be read: {source}")))
            }
            // Unless it was a sidecar's own digest, which will not fit the next time either.
            Err(PushError::Refused(problem))
                if problem.kind == DIGEST_MISMATCH && sidecar.content_digest == self.announced(parcel) =>
            {
                Err(Broken::Server { reason: problem.detail, retry_after: None })
            }
            Err(error) if error.is_about_the_snapshot() => {
                self.server_is_back();
                let watched = self.lookout.get(parcel.file);
                if watched.is_some_and(|watched| Stamp::of(parcel.file) != Some(watched.stamp)) {
                    return Err(Broken::Changed);
                }
                match is_no_snapshot(&error) {
                    true if parcel.is_guess => self.tally.n_passed_over += 1,
                    true => {
                        self.tally.n_refused += 1;
                        eprintln!("{}: {error}", parcel.shown);
                    }
                    false => self.not_sent(&format!("{}: {error}", parcel.shown)),
                }
                Ok(false)
            }
            Err(PushError::Later { reason, retry_after }) => Err(Broken::Server { reason, retry_after }),
            Err(error) => Err(Broken::Server { reason: error.to_string(), retry_after: None }),
        }
    }

    /// The digest of a parcel that is the whole file; that of an archive's members is not known.
    fn announced(&self, parcel: &Parcel<'_>) -> Option<String> {
        let watched = self.lookout.get(parcel.file)?;
        watched.digest().map(str::to_owned)
    }

    fn server_is_away(&mut self, path: &Path, reason: &str, retry_after: Option<Duration>) {
        if let Some(watched) = self.lookout.get_mut(path) {
            watched.server_was_away();
        }
        if self.errand.is_once {
            eprintln!("{}: {reason}", path.display());
            return;
        }
        if self.away_until.is_none() {
            eprintln!("{reason}; snapshots stay where they are until that changes, and are sent then");
        }
        self.away_until = Some(Instant::now() + self.backoff.after_failure(retry_after, jitter()));
    }

    fn server_is_back(&mut self) {
        self.backoff.succeeded();
        if self.away_until.take().is_some() {
            eprintln!("{} takes snapshots again", self.errand.server.address());
        }
    }

    /// A file that ends too early, which may be because it is still being written.
    fn not_whole(&mut self, path: &Path, sentence: &str) {
        let is_once = self.errand.is_once;
        let Some(watched) = self.lookout.get_mut(path) else { return };
        if !is_once && !watched.is_out_of_patience() {
            watched.is_not_whole_yet();
            return;
        }
        let (is_guess, stamp) = (watched.is_guess, watched.stamp);
        if is_guess && stamp.bytes == 0 {
            self.settle(path, None);
            return;
        }
        let sentence = format!("{}: {sentence}; it is sent when it is complete", path.display());
        // Somebody who asks once hears of it each time.
        match is_once {
            true => self.not_sent(&sentence),
            false => eprintln!("{sentence}"),
        }
        self.settle(path, (!is_once).then(|| said(stamp)));
    }

    fn unreadable(&mut self, path: &Path, sentence: &str) {
        let Some(watched) = self.lookout.get_mut(path) else { return };
        watched.cannot_be_read();
        if !std::mem::replace(&mut watched.was_said, true) {
            eprintln!("{}: {sentence}; it is tried again", path.display());
        }
    }

    /// A file that is no snapshot. Of one that is named like any, somebody will want to hear.
    fn something_else(&mut self, path: &Path, sentence: &str) {
        let Some(watched) = self.lookout.get(path) else { return };
        let (is_guess, stamp) = (watched.is_guess, watched.stamp);
        self.tally.n_passed_over += 1;
        if !is_guess {
            eprintln!("{}: passed over: {sentence}", path.display());
        }
        // A guess costs little to make again, and there may be very many.
        self.settle(path, (!is_guess).then(|| said(stamp)));
    }

    fn not_sent(&mut self, sentence: &str) {
        self.tally.n_failed += 1;
        eprintln!("{sentence}");
    }

    /// Nothing is to be done about a file until it changes; after a restart neither, if there is an entry.
    fn settle(&mut self, path: &Path, entry: Option<Entry>) {
        if let Some(watched) = self.lookout.get_mut(path) {
            watched.settle();
        }
        let Some(entry) = entry else { return };
        let lookout = &self.lookout;
        let remembered = self.ledger.remember(path, entry, &|path| lookout.is_watched(path));
        if let Err(error) = remembered
            && !std::mem::replace(&mut self.has_said_of_ledger, true)
        {
            eprintln!(
                "{error}; after a restart some snapshots are sent again, and the server keeps them once"
            );
        }
    }
}

fn said(stamp: Stamp) -> Entry {
    Entry { stamp, digest: String::new(), fate: Fate::Said }
}

fn take(step: Step, found: &mut BTreeMap<PathBuf, (bool, Stamp)>, troubles: &mut Vec<String>) {
    match step {
        Step::File(Found { path, is_guess }, metadata) => {
            found.insert(path, (is_guess, Stamp::new(&metadata)));
        }
        Step::Unlisted(folder, error) => {
            troubles.push(format!("cannot list {}: {error}; it is tried again", folder.display()));
        }
    }
}
