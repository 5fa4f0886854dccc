//! `tidegauge watch`: folders in which trainings leave snapshots, sent to a server as they are written.
//!
//! Whoever writes them knows nothing of it, so a file is sent when it stood still from one look to the next *and*
//! reads to its end. It stays where it is and is its own place in the queue: while the server is away nothing is
//! copied, and nothing can be lost but by whoever overwrites or removes it.
//!
//! ```text
//! look: search ─ lookout (stood still?) ─ verdict (whole?) ─ ledger (sent before?) ─ send ─ ledger
//! ```

mod watcher;
mod lookout;
mod verdict;
mod ledger;
mod stamp;

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tidegauge_capture_agent::settings::default_outbox;

use self::{
    ledger::Ledger,
    watcher::{Errand, Watcher},
};
use crate::{DONE, FAILED, destination::Destination, ending};

/// Send snapshots as trainings write them
///
/// Looks into the folders again and again and sends what is new in them: snapshots of any framework, and archives of
/// some. Run, rank and step are read from folders and names, unless a flag says otherwise. A file is sent once it is
/// complete; what was sent is remembered, so it can be ended and started at any time. Nothing is removed.
///
/// Exit status with --once: 0 all sent, 1 some not, 2 refused by the server as no snapshots.
#[derive(Debug, Clone, Args)]
pub(crate) struct Watch {
    /// Folders that snapshots are written to; one that is not there yet is waited for
    #[arg(value_name = "DIR", required = true)]
    folders: Vec<PathBuf>,
    #[command(flatten)]
    destination: Destination,
    /// Seconds between two looks; a file is sent when it did not change from one to the next
    #[arg(long, value_name = "SECS", default_value = "2", value_parser = interval)]
    interval: Duration,
    /// The file that keeps what was sent [default: one for these folders in ~/.local/state/tidegauge/watch]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Send what is there, and end
    #[arg(long)]
    once: bool,
}

impl Watch {
    pub(crate) fn run(&self) -> Result<u8> {
        let mut watcher = self.watcher()?;
        let ended = ending::until_told(ending::GRACE, move |stop| watcher.run(stop))?;
        Ok(ended.unwrap_or_else(|| {
            eprintln!("ended amid a snapshot; the next start sends it");
            if self.once { FAILED } else { DONE }
        }))
    }

    fn watcher(&self) -> Result<Watcher> {
        let server = self.destination.server()?;
        let mut folders =
            self.folders.iter().map(|folder| self.watched(folder)).collect::<Result<Vec<_>>>()?;
        folders.sort();
        folders.dedup();
        let state = match &self.state {
            Some(state) => state.clone(),
            None => default_state(&folders, server.address()),
        };
        let errand = Errand {
            folders,
            destination: self.destination.clone(),
            server,
            interval: self.interval,
            is_once: self.once,
        };
        Ok(Watcher::new(errand, Ledger::open(&state)?))
    }

    /// A folder's absolute path. It need not be there yet, unless there is only one look.
    fn watched(&self, folder: &Path) -> Result<PathBuf> {
        match fs::metadata(folder) {
            Ok(metadata) if !metadata.is_dir() => {
                bail!("{} is a file; tidegauge push sends files", folder.display())
            }
            Err(error) if self.once => {
                Err(error).with_context(|| format!("cannot open {}", folder.display()))
            }
            _ => std::path::absolute(folder)
                .with_context(|| format!("cannot tell where {} is", folder.display())),
        }
    }
}

/// A ledger for these folders and this server on this machine, beside where the agent keeps its outbox.
fn default_state(folders: &[PathBuf], server: &str) -> PathBuf {
    // Homes are often shared by machines that each have a /tmp of their own.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for part in [host.as_bytes(), server.as_bytes()] {
        hasher.update(part).update(b"\0");
    }
    for folder in folders {
        hasher.update(folder.as_os_str().as_encoded_bytes()).update(b"\0");
    }
    let digest = hasher.finalize().to_hex();
    let name = format!("{}.jsonl", &digest[..16]);
    default_outbox(&|name| env::var(name).ok()).with_file_name("watch").join(name)
}

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    // Oftener than ten times a second would ask a file server for nothing else; less often than daily is cron's.
    let expected = || format!("expected seconds from 0.1 to 86400, found {text:?}");
    let seconds: f64 = text.parse().map_err(|_not_a_number| expected())?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(expected()),
    }
}
