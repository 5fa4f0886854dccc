//! `tidegauge push`: files, archives, folders or an outbox, to a server.
//!
//! A snapshot's place is put together from the flags, the sidecar beside it and its path, in this order.

use std::{
    fs::{self, File},
    io::{self, Read},
    ops::ControlFlow,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::{ArgGroup, Args, builder::FalseyValueParser};
use tempfile::NamedTempFile;
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
use tidegauge_snapshot::{
    read::archive::{self, Member},
    words::{counted, size},
};

use crate::{DONE, FAILED, REFUSED, progress::Progress, search};

/// How often a snapshot is tried when the server is away or busy: about ten seconds in all.
const MAX_TRIES: u32 = 5;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Send snapshots to a server
///
/// Run, rank and step are read from the folders and names that training frameworks use, unless a flag says
/// otherwise. Exit status: 0 all sent, 1 some not, 2 refused by the server as no snapshots.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["paths", "outbox"])))]
pub(crate) struct Push {
    /// Snapshots, archives of them, or folders to search for both
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
    /// Files that a search found and that are no snapshots, nor named like any.
    n_passed_over: u64,
    bytes: u64,
}

/// Something to send.
struct Parcel<'p> {
    /// The file with its bytes.
    file: &'p Path,
    /// What it is called in messages.
    shown: String,
    /// The path that tells its place.
    path: String,
    sidecar: Sidecar,
    /// Whether it may turn out to be something else without harm.
    is_guess: bool,
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
            files.extend(search::files_at(path)?);
        }
        let n_files = files.len() as u64;
        for (file, i) in files.iter().zip(1..) {
            if let Err(GiveUp) = self.push_found(server, file, &format!("{i}/{n_files}"), tally) {
                tally.n_failed += n_files - i;
                break;
            }
        }
        ensure!(tally.has_any(), "no snapshots at {}", shown(&self.paths));
        Ok(())
    }

    /// Sends a file, or every snapshot of an archive.
    fn push_found(
        &self,
        server: &Server,
        found: &search::Found,
        head: &str,
        tally: &mut Tally,
    ) -> Result<(), GiveUp> {
        if found.is_guess && !search::may_be_snapshot(&found.path) {
            tally.n_passed_over += 1;
            return Ok(());
        }
        if let Some(pushed) = self.push_archive(server, &found.path, head, tally) {
            return pushed;
        }
        self.push_one(server, &Parcel::of_file(&found.path, found.is_guess), head, tally).map(|_| ())
    }

    /// Sends what is in an archive; nothing when the file is none.
    fn push_archive(
        &self,
        server: &Server,
        path: &Path,
        head: &str,
        tally: &mut Tally,
    ) -> Option<Result<(), GiveUp>> {
        let file = File::open(path).ok()?;
        let mut result = Ok(());
        let mut n = 0;
        let listed = archive::each(file, |member, bytes| {
            n += 1;
            result = self.push_member(server, path, member, bytes, &format!("{head}, {n}"), tally);
            Ok(if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        });
        match listed {
            Ok(None) => return None,
            Ok(Some(listing)) => tally.n_passed_over += listing.n_others,
            // Nothing came of it: the server will say what it is.
            Err(_) if n == 0 => return None,
            Err(error) => {
                tally.n_failed += 1;
                eprintln!("{}: after {}: {error}", path.display(), counted(n, "snapshot"));
            }
        }
        Some(result)
    }

    fn push_member(
        &self,
        server: &Server,
        archive: &Path,
        member: &Member,
        bytes: &mut dyn Read,
        head: &str,
        tally: &mut Tally,
    ) -> Result<(), GiveUp> {
        let shown = format!("{}: {}", archive.display(), member.path);
        // A file of its own, so that it can be sent again; its name is the system's, never the archive's.
        let copied = NamedTempFile::new().and_then(|mut file| {
            io::copy(bytes, &mut file)?;
            Ok(file)
        });
        let file = match copied {
            Ok(file) => file,
            Err(error) => {
                tally.n_failed += 1;
                eprintln!("{shown}: cannot be copied out of the archive: {error}");
                return Ok(());
            }
        };
        let path = format!("{}/{}", search::without_archive_ending(&absolute(archive)), member.path);
        let sidecar = Sidecar { file_name: Some(member.path.clone()), ..Sidecar::default() };
        let parcel = Parcel { file: file.path(), shown, path, sidecar, is_guess: false };
        self.push_one(server, &parcel, head, tally).map(|_| ())
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
                let sent = {
                    let parcel = Parcel::of_file(&item.snapshot, false);
                    self.push_one(server, &parcel, &counted(n_left, "snapshot"), tally)
                };
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
    fn push_one(
        &self,
        server: &Server,
        parcel: &Parcel<'_>,
        head: &str,
        tally: &mut Tally,
    ) -> Result<bool, GiveUp> {
        let sidecar = self.sidecar(parcel);
        if sidecar.place.run.is_none() {
            tally.n_failed += 1;
            eprintln!("{}: its path names no run; say which with --run", parcel.shown);
            return Ok(false);
        }
        match send(server, parcel, &sidecar, head) {
            Ok(details) => {
                tally.add(&details);
                println!("{}: {}", parcel.shown, outcome(&details));
                Ok(true)
            }
            Err(error) if parcel.is_guess && is_no_snapshot(&error) => {
                tally.n_passed_over += 1;
                Ok(false)
            }
            Err(error) => {
                let is_this_file = error.is_about_the_snapshot() || matches!(error, PushError::File { .. });
                match is_no_snapshot(&error) {
                    true => tally.n_refused += 1,
                    false => tally.n_failed += 1,
                }
                eprintln!("{}: {error}", parcel.shown);
                if is_this_file { Ok(false) } else { Err(GiveUp) }
            }
        }
    }

    fn sidecar(&self, parcel: &Parcel<'_>) -> Sidecar {
        let beside = parcel.sidecar.clone();
        let from_path = place_from_path(&parcel.path).map(|told| told.place).unwrap_or_default();
        let flags = Place {
            run: self.run.clone().filter(|run| !run.is_empty()),
            role: self.role.clone(),
            rank: self.rank,
            first_step: self.first_step,
            last_step: self.step,
            ..Place::default()
        };
        let mut place = flags.or(beside.place).or(from_path);
        place.run = place.run.or_else(|| run_from_path(&parcel.path));
        Sidecar { sidecar: sidecar::VERSION, place, ..beside }
    }
}

impl<'p> Parcel<'p> {
    fn of_file(file: &'p Path, is_guess: bool) -> Self {
        let mut sidecar = sidecar_beside(file).unwrap_or_default();
        let name = || Some(file.file_name()?.to_string_lossy().into_owned());
        sidecar.file_name = sidecar.file_name.or_else(name);
        Self { file, shown: file.display().to_string(), path: absolute(file), sidecar, is_guess }
    }
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

impl Tally {
    fn has_any(&self) -> bool {
        self.n_sent + self.n_already_here + self.n_refused + self.n_failed > 0
    }

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
            (self.n_passed_over, "passed over as something else"),
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
fn send(
    server: &Server,
    parcel: &Parcel<'_>,
    sidecar: &Sidecar,
    head: &str,
) -> Result<SnapshotDetails, PushError> {
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    for n_tries in 1.. {
        let total = fs::metadata(parcel.file).map_or(0, |metadata| metadata.len());
        let mut progress = Progress::new(format!("{head}  {}", parcel.shown), Some(total));
        let sent = server.send(parcel.file, sidecar, &mut |bytes| progress.advance(bytes));
        drop(progress);
        match sent {
            Err(PushError::Later { reason, retry_after }) if n_tries < MAX_TRIES => {
                let wait = backoff.after_failure(retry_after, jitter());
                eprintln!("{}: {reason}; trying again in {:.1} s", parcel.shown, wait.as_secs_f64());
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
