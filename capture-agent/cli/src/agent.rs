//! `tidegauge agent`: sends what trainings leave in their outboxes, beside them and after them.
//!
//! It takes what dead processes left, and what living ones hand over (`send="sidecar"`). Locks decide whose a folder
//! is, so any number of agents and trainings share an outbox.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use tidegauge_capture_agent::{
    backoff::{Backoff, jitter},
    delivery::{Delivered, Deliveries, Waits},
    outbox::{self, Folder, Found, Item},
    push::Server,
};
use tidegauge_snapshot::words::{count, counted, size};

use crate::{
    DONE,
    destination::Reach,
    ending::{self, Stop},
    sending::outcome,
    watch::interval,
};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How often the status is made young again while a snapshot is sent.
const FRESHEN_EVERY: Duration = Duration::from_secs(5);
/// Between two looks, and two tries, once it is told to end.
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// Send what trainings leave in their outboxes, until told to end
///
/// Takes what ended trainings left behind and what running ones hand over (TIDEGAUGE_SEND=sidecar), and removes it
/// once the server has it. While the server is away everything stays where it is. Several agents may share an outbox.
/// A signal (SIGTERM, SIGINT) ends it once nothing waits, after --grace at the latest; an upload that is cut by that goes
/// on at the next start.
#[derive(Debug, Clone, Args)]
pub(crate) struct Agent {
    /// Outboxes; one that is not there yet is waited for
    #[arg(value_name = "OUTBOX", required = true)]
    outboxes: Vec<PathBuf>,
    #[command(flatten)]
    reach: Reach,
    /// Seconds between two looks
    #[arg(long, value_name = "SECS", default_value = "2", value_parser = interval)]
    interval: Duration,
    /// Seconds between two lines on how things are
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = interval)]
    report: Duration,
    /// Seconds that it goes on sending what is there when it is told to end
    #[arg(long, value_name = "SECS", default_value = "5", value_parser = interval)]
    grace: Duration,
    /// A file in which each look says how things are, as JSON, for probes
    #[arg(long, value_name = "FILE")]
    status: Option<PathBuf>,
}

impl Agent {
    pub(crate) fn run(&self) -> Result<u8> {
        let server = self.reach.server()?;
        run(Errand {
            outboxes: self.outboxes.clone(),
            server,
            interval: self.interval,
            report: self.report,
            grace: self.grace,
            status: self.status.clone(),
        })
    }
}

/// What is sent, and where it goes.
pub(crate) struct Errand {
    pub(crate) outboxes: Vec<PathBuf>,
    pub(crate) server: Server,
    /// From one look to the next.
    pub(crate) interval: Duration,
    /// From one line to the next.
    pub(crate) report: Duration,
    /// How long it goes on when it is told to end.
    pub(crate) grace: Duration,
    pub(crate) status: Option<PathBuf>,
}

/// Sends until told to end.
pub(crate) fn run(errand: Errand) -> Result<u8> {
    for outbox in &errand.outboxes {
        ensure!(!outbox.is_file(), "{} is a file; an outbox is a folder", outbox.display());
    }
    let grace = errand.grace + ending::GRACE;
    let mut drain = Drain::new(errand);
    let ended = ending::until_told(grace, move |stop| drain.run(stop))?;
    Ok(ended.unwrap_or_else(|| {
        eprintln!("ended amid a snapshot; the next start goes on with it");
        DONE
    }))
}

/// How things are.
#[derive(Debug, Default, Serialize)]
struct Health {
    n_waiting: u64,
    bytes_waiting: u64,
    /// Processes that live.
    n_alive: u64,
    n_sent: u64,
    bytes_sent: u64,
    n_refused: u64,
    /// Why nothing is sent, where that is so.
    trouble: Option<String>,
}

struct Drain {
    errand: Errand,
    deliveries: Deliveries,
    backoff: Backoff,
    /// While the server is away: when to try again.
    away_until: Option<Instant>,
    /// Once it is told to end: until when it goes on.
    ends_by: Option<Instant>,
    health: Health,
    /// What was said of an outbox that cannot be looked into.
    said: BTreeMap<PathBuf, String>,
}

/// A folder that is ours for one look, and what waits in it.
struct Ours {
    folder: Folder,
    items: VecDeque<Item>,
}

impl Drain {
    fn new(errand: Errand) -> Self {
        Self {
            deliveries: Deliveries::to(errand.server.clone()),
            errand,
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
            away_until: None,
            ends_by: None,
            health: Health::default(),
            said: BTreeMap::new(),
        }
    }

    fn run(&mut self, stop: &Stop) -> u8 {
        let outboxes: Vec<_> =
            self.errand.outboxes.iter().map(|outbox| outbox.display().to_string()).collect();
        eprintln!("sending what is left in {} to {}", outboxes.join(", "), self.errand.server.address());
        let mut reported = Instant::now();
        loop {
            let ours = self.look();
            self.send_all(ours, stop);
            self.write_status();
            // What a training wrote at its very end is found by one more look.
            let was_asked = self.ends_by.is_some();
            if self.is_over(stop) || (was_asked && self.health.n_waiting == 0) {
                break;
            }
            if !was_asked {
                stop.is_asked_within(self.errand.interval);
            } else {
                thread::sleep(SHORT_WAIT);
            }
            if reported.elapsed() >= self.errand.report {
                eprintln!("{}", self.health.line());
                reported = Instant::now();
            }
        }
        self.look();
        self.write_status();
        eprintln!("{}", self.health.line());
        DONE
    }

    /// Whether it is told to end, and has gone on for long enough.
    fn is_over(&mut self, stop: &Stop) -> bool {
        if self.ends_by.is_none() && stop.is_asked() {
            self.ends_by = Some(Instant::now() + self.errand.grace);
        }
        self.ends_by.is_some_and(|ends_by| Instant::now() >= ends_by)
    }

    /// Takes all folders that are nobody's.
    fn look(&mut self) -> Vec<Ours> {
        let mut ours = Vec::new();
        (self.health.n_waiting, self.health.bytes_waiting, self.health.n_alive) = (0, 0, 0);
        for root in self.errand.outboxes.clone() {
            let found = match outbox::folders(&root) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(error) => {
                    self.say_of(&root, format!("{}: cannot be looked into: {error}", root.display()));
                    continue;
                }
            };
            self.said.remove(&root);
            for found in found {
                let folder = match found {
                    Found::InUse(_) => {
                        self.health.n_alive += 1;
                        continue;
                    }
                    Found::Abandoned(folder) | Found::HandedOver(folder) => folder,
                };
                self.health.n_alive += u64::from(folder.is_alive());
                let items = VecDeque::from(folder.items());
                self.health.n_waiting += items.len() as u64;
                self.health.bytes_waiting += items.iter().map(|item| item.bytes).sum::<u64>();
                ours.push(Ours { folder, items });
            }
        }
        ours
    }

    /// Sends one of each folder in turn: one process's many do not hold up another's few.
    fn send_all(&mut self, mut ours: Vec<Ours>, stop: &Stop) {
        while ours.iter().any(|ours| !ours.items.is_empty()) {
            for Ours { folder, items } in &mut ours {
                if self.is_over(stop) || self.away_until.is_some_and(|until| Instant::now() < until) {
                    return;
                }
                let Some(item) = items.front() else { continue };
                if self.send(folder, item) {
                    items.pop_front();
                }
                self.write_status();
            }
        }
        ours.into_iter().for_each(|ours| ours.folder.tidy());
    }

    /// Whether it waits no more.
    fn send(&mut self, folder: &Folder, item: &Item) -> bool {
        let shown = item.snapshot.display().to_string();
        let (status, mut freshened) = (self.errand.status.as_deref(), Instant::now());
        let mut progress = |_| {
            if freshened.elapsed() >= FRESHEN_EVERY {
                freshen(status);
                freshened = Instant::now();
            }
        };
        match self.deliveries.deliver(folder, item, &mut progress) {
            Ok(delivered) => {
                self.server_is_back();
                self.health.n_waiting = self.health.n_waiting.saturating_sub(1);
                self.health.bytes_waiting = self.health.bytes_waiting.saturating_sub(item.bytes);
                match delivered {
                    Delivered::Sent(details) => {
                        self.health.n_sent += 1;
                        self.health.bytes_sent += item.bytes;
                        // Whoever read the lines has seen enough of them; snapshots are sent all the same.
                        crate::print(&format!("{shown}: {}", outcome(&details))).ok();
                    }
                    Delivered::Refused { kept, sentence } => {
                        self.health.n_refused += 1;
                        eprintln!("{shown}: {sentence}; kept as {}", kept.display());
                    }
                    Delivered::Gone => {}
                }
                true
            }
            Err(waits) => {
                let retry_after = match &waits {
                    Waits::Later { retry_after, .. } => *retry_after,
                    // It may be put right while this goes on: a token, a disk.
                    Waits::ForGood(_) => Some(LONGEST_RETRY),
                };
                let reason = waits.to_string();
                if self.health.trouble.as_ref() != Some(&reason) {
                    eprintln!("{reason}; snapshots stay in the outbox until that changes, and are sent then");
                    self.health.trouble = Some(reason);
                }
                let wait = self.backoff.after_failure(retry_after, jitter());
                // Who is told to end has no time for long ones.
                let wait = if self.ends_by.is_some() { wait.min(SHORT_WAIT) } else { wait };
                self.away_until = Some(Instant::now() + wait);
                false
            }
        }
    }

    fn server_is_back(&mut self) {
        self.backoff.succeeded();
        self.away_until = None;
        if self.health.trouble.take().is_some() {
            eprintln!("{} takes snapshots again", self.errand.server.address());
        }
    }

    fn say_of(&mut self, root: &Path, sentence: String) {
        if self.said.get(root) != Some(&sentence) {
            eprintln!("{sentence}");
            self.said.insert(root.to_owned(), sentence);
        }
    }

    /// Whoever reads finds the whole of it, and knows by its age whether this goes on.
    fn write_status(&mut self) {
        let Some(path) = self.errand.status.clone() else { return };
        let write = || -> io::Result<()> {
            let part = path.with_extension("part");
            fs::write(&part, serde_json::to_string(&self.health)?)?;
            fs::rename(part, &path)
        };
        match write() {
            Ok(()) => drop(self.said.remove(&path)),
            Err(error) => self.say_of(&path, format!("cannot write {}: {error}", path.display())),
        }
    }
}

/// A large snapshot over a slow network takes longer than a probe waits: what goes on is told by the file's age.
fn freshen(status: Option<&Path>) {
    let file = status.and_then(|path| File::options().append(true).open(path).ok());
    if let Some(file) = file {
        // The next look writes it anew.
        file.set_modified(SystemTime::now()).ok();
    }
}

impl Health {
    /// "health: 3 snapshots wait (41.2 MiB), 2 processes alive, 12 sent (1.20 GiB), 0 refused, all is well"
    fn line(&self) -> String {
        format!(
            "health: {} waiting ({}), {} alive, {} sent ({}), {} refused, {}",
            counted(self.n_waiting, "snapshot"),
            size(self.bytes_waiting),
            if self.n_alive == 1 {
                "1 process".to_owned()
            } else {
                format!("{} processes", count(self.n_alive))
            },
            count(self.n_sent),
            size(self.bytes_sent),
            count(self.n_refused),
            self.trouble.as_deref().unwrap_or("all is well")
        )
    }
}
