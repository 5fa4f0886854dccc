//! `tidegauge push`: files, folders or an outbox, to a server.
//!
//! A snapshot's place is put together from the flags, the sidecar beside it and its path, in this order.

use std::{
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::{ArgGroup, Args, builder::FalseyValueParser};
use tidegauge_api::{
    Place, Sidecar,
    from_path::{place_from_path, run_from_path},
    sidecar,
    snapshot::SnapshotDetails,
};
use tidegauge_capture_agent::{
    backoff::{Backoff, jitter},
    outbox::{self, Folder, Found},
    push::{DEFAULT_SERVER, PushError, Server},
};

use crate::{DONE, FAILED, REFUSED, words::counted, words::size};

/// How often a snapshot is tried when the server is away or busy: about ten seconds in all.
const MAX_TRIES: u32 = 5;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Folders inside folders are followed this deep; deeper ones are somebody's mistake, or a loop of links.
const MAX_DEPTH: usize = 32;

/// Send snapshots to a server
///
/// Run, rank and step are read from the folders and names that training frameworks use, unless a flag says
/// otherwise. Exit status: 0 all sent, 1 some not, 2 refused by the server as no snapshots.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["paths", "outbox"])))]
pub(crate) struct Push {
    /// Files, or folders to search for *.pickle and *.pkl, also in gzip or zstd
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Send what training processes left in this outbox when they ended
    #[arg(long, value_name = "DIR")]
    outbox: Option<PathBuf>,
    /// The server
    #[arg(long, value_name = "URL", env = "TIDEGAUGE_SERVER", default_value = DEFAULT_SERVER)]
    server: String,
    /// The server's token
    #[arg(long, env = "TIDEGAUGE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Name of the run
    #[arg(long, value_name = "NAME", env = "TIDEGAUGE_RUN")]
    run: Option<String>,
    /// What the processes do in the run: actor, critic
    #[arg(long)]
    role: Option<String>,
    /// Global rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// The step at whose end the snapshot was taken
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// The first step whose events it holds
    #[arg(long, value_name = "N")]
    first_step: Option<u64>,
    /// Send the token unencrypted to another machine
    #[arg(long, env = "TIDEGAUGE_INSECURE", value_parser = FalseyValueParser::new())]
    insecure: bool,
}

/// What became of everything.
#[derive(Debug, Default)]
struct Tally {
    n_sent: u64,
    n_already_here: u64,
    n_refused: u64,
    n_failed: u64,
    bytes: u64,
}

/// Why the rest is not tried: it would fail in the same way.
struct GiveUp;

impl Push {
    pub(crate) fn run(&self) -> Result<u8> {
        let token = self.token.as_deref().filter(|token| !token.is_empty());
        let server = Server::new(&self.server, token, self.insecure)?;
        let mut tally = Tally::default();
        match &self.outbox {
            Some(outbox) => self.push_outbox(&server, outbox, &mut tally)?,
            None => self.push_paths(&server, &mut tally)?,
        }
        eprintln!("{}", tally.summary(server.address()));
        Ok(tally.exit_status())
    }

    fn push_paths(&self, server: &Server, tally: &mut Tally) -> Result<()> {
        let mut files = Vec::new();
        for path in &self.paths {
            files.extend(snapshots_at(path)?);
        }
        ensure!(!files.is_empty(), "no *.pickle or *.pkl below {}", shown(&self.paths));
        let n_files = files.len() as u64;
        for (file, i) in files.iter().zip(1..) {
            let sent = self.push_one(server, file, &format!("{i}/{n_files}"), tally);
            if let Err(GiveUp) = sent {
                tally.n_failed += n_files - i;
                break;
            }
        }
        Ok(())
    }

    fn push_outbox(&self, server: &Server, root: &Path, tally: &mut Tally) -> Result<()> {
        let found =
            outbox::folders(root).with_context(|| format!("cannot read the outbox {}", root.display()))?;
        let mut folders = Vec::new();
        for found in found {
            match found {
                Found::Abandoned(folder) => folders.push(folder),
                Found::InUse(path) => eprintln!("{}: its process is alive and sends it", path.display()),
            }
        }
        folders.sort_by(|a, b| a.path().cmp(b.path()));
        let mut n_left = folders.iter().map(|folder| folder.items().len() as u64).sum::<u64>();
        if n_left == 0 {
            eprintln!("nothing waits in {}", root.display());
        }
        for folder in folders {
            for item in folder.items() {
                let sent = self.push_one(server, &item.snapshot, &counted(n_left, "snapshot"), tally);
                n_left = n_left.saturating_sub(1);
                match sent {
                    Ok(true) => {
                        item.remove().with_context(|| format!("cannot remove {}", item.snapshot.display()))?
                    }
                    Ok(false) => {}
                    Err(GiveUp) => {
                        tally.n_failed += n_left;
                        return Ok(());
                    }
                }
            }
            Folder::tidy(folder);
        }
        Ok(())
    }

    /// Sends one file and prints its line. `Ok(false)` when this file was not sent, but others may be.
    fn push_one(&self, server: &Server, file: &Path, head: &str, tally: &mut Tally) -> Result<bool, GiveUp> {
        let sidecar = self.sidecar(file);
        if sidecar.place.run.is_none() {
            tally.n_failed += 1;
            eprintln!("{}: its path names no run; say which with --run", file.display());
            return Ok(false);
        }
        match send(server, file, &sidecar, head) {
            Ok(details) => {
                tally.add(&details);
                println!("{}: {}", file.display(), outcome(&details));
                Ok(true)
            }
            Err(error) => {
                let is_this_file = error.is_about_the_snapshot() || matches!(error, PushError::File { .. });
                match is_no_snapshot(&error) {
                    true => tally.n_refused += 1,
                    false => tally.n_failed += 1,
                }
                eprintln!("{}: {error}", file.display());
                if is_this_file { Ok(false) } else { Err(GiveUp) }
            }
        }
    }

    fn sidecar(&self, file: &Path) -> Sidecar {
        let beside = sidecar_beside(file).unwrap_or_default();
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let path = absolute.to_string_lossy();
        let from_path = place_from_path(&path).map(|told| told.place).unwrap_or_default();
        let flags = Place {
            run: self.run.clone().filter(|run| !run.is_empty()),
            role: self.role.clone(),
            rank: self.rank,
            first_step: self.first_step,
            last_step: self.step,
            ..Place::default()
        };
        let mut place = flags.or(beside.place).or(from_path);
        place.run = place.run.or_else(|| run_from_path(&path));
        let file_name = beside.file_name.or_else(|| Some(file.file_name()?.to_string_lossy().into_owned()));
        Sidecar { sidecar: sidecar::VERSION, place, file_name, ..beside }
    }
}

impl Tally {
    fn add(&mut self, details: &SnapshotDetails) {
        match details.already_here {
            true => self.n_already_here += 1,
            false => self.n_sent += 1,
        }
        self.bytes += details.bytes;
    }

    /// "12 snapshots sent to http://… (1.40 GiB), 2 there already"
    fn summary(&self, address: &str) -> String {
        let mut parts = vec![format!(
            "{} sent to {address} ({})",
            counted(self.n_sent + self.n_already_here, "snapshot"),
            size(self.bytes)
        )];
        let more = [
            (self.n_already_here, "there already"),
            (self.n_refused, "refused as no snapshots"),
            (self.n_failed, "not sent"),
        ];
        parts.extend(more.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
        parts.join(", ")
    }

    fn exit_status(&self) -> u8 {
        match (self.n_failed, self.n_refused) {
            (0, 0) => DONE,
            (0, _) => REFUSED,
            _ => FAILED,
        }
    }
}

/// Tries until it works, or will not, or has been tried often enough.
fn send(server: &Server, file: &Path, sidecar: &Sidecar, head: &str) -> Result<SnapshotDetails, PushError> {
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    for n_tries in 1.. {
        let mut progress = Progress::new(file, head);
        let sent = server.send(file, sidecar, &mut |bytes| progress.advance(bytes));
        progress.clear();
        match sent {
            Err(PushError::Later { reason, retry_after }) if n_tries < MAX_TRIES => {
                let wait = backoff.after_failure(retry_after, jitter());
                eprintln!("{}: {reason}; trying again in {:.1} s", file.display(), wait.as_secs_f64());
                thread::sleep(wait);
            }
            sent => return sent,
        }
    }
    unreachable!("the last try returns")
}

fn is_no_snapshot(error: &PushError) -> bool {
    matches!(error, PushError::Refused(problem) if matches!(problem.status, 415 | 422))
}

/// "sent: gpt, actor, rank 3, step 2–5"
fn outcome(details: &SnapshotDetails) -> String {
    let role = details.place.role.as_ref().map(|role| format!(", {role}")).unwrap_or_default();
    let rank = details.place.rank.map_or("no rank".to_owned(), |rank| format!("rank {rank}"));
    let state = if details.already_here { "there already" } else { "sent" };
    format!("{state}: {}{role}, {rank}, {}", details.run_name, step_words(&details.place))
}

fn step_words(place: &Place) -> String {
    let label = place.step_label();
    if label.starts_with(|c: char| c.is_ascii_digit()) { format!("step {label}") } else { label }
}

/// The files at a path: itself, or the snapshots below a folder, in order of their names.
fn snapshots_at(path: &Path) -> Result<Vec<PathBuf>> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot open {}", path.display()))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() && depth < MAX_DEPTH => folders.push((path, depth + 1)),
                Ok(metadata) if metadata.is_file() && is_named_like_a_snapshot(&path) => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_named_like_a_snapshot(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    // A name that begins with a dot is still being written, or hidden for another reason.
    !name.starts_with('.') && (stem.ends_with(".pickle") || stem.ends_with(".pkl"))
}

/// `X.json` beside `X.pickle.zst`, if it is a sidecar.
fn sidecar_beside(file: &Path) -> Option<Sidecar> {
    let name = file.file_name()?.to_string_lossy();
    let stem = name.split_once(".pickle").or_else(|| name.split_once(".pkl"))?.0;
    let sidecar: Sidecar =
        serde_json::from_slice(&fs::read(file.with_file_name(format!("{stem}.json"))).ok()?).ok()?;
    (sidecar.sidecar > 0).then_some(sidecar)
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A line on a terminal that says how far one file is; nothing elsewhere.
struct Progress {
    line: Option<String>,
    total: u64,
    sent: u64,
    shown_percent: Option<u64>,
}

impl Progress {
    fn new(file: &Path, head: &str) -> Self {
        let line = io::stderr().is_terminal().then(|| format!("{head}  {}", file.display()));
        Self {
            line,
            total: fs::metadata(file).map_or(0, |metadata| metadata.len()),
            sent: 0,
            shown_percent: None,
        }
    }

    fn advance(&mut self, bytes: u64) {
        self.sent += bytes;
        let percent = (self.sent.saturating_mul(100)).checked_div(self.total).unwrap_or(100).min(100);
        let Some(line) = &self.line else { return };
        if self.shown_percent.replace(percent) != Some(percent) {
            eprint!("\r\x1b[K{line}  {} of {}, {percent} %", size(self.sent), size(self.total));
            // A terminal that does not take it misses a number.
            io::stderr().flush().ok();
        }
    }

    fn clear(&self) {
        if self.shown_percent.is_some() && self.line.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
