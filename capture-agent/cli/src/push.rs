//! `tidegauge push`: files, archives, folders or an outbox, to a server.
//!
//! A snapshot's place is put together from the flags, the sidecar beside it and its path, in this order.

use std::{
    env,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::{ArgGroup, Args};
use tidegauge_capture_agent::{
    outbox::{self, Folder, Found},
    parts::Bookmark,
    push::{PushError, Server},
};
use tidegauge_snapshot::words::counted;

use crate::{
    agent,
    destination::Destination,
    ending,
    framework::Framework,
    parcel::{self, Parcel, Part},
    search,
    sending::{Tally, is_no_snapshot, outcome, send},
};

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
    /// Stay, and send what appears there, as tidegauge agent does
    #[arg(long, requires = "outbox", conflicts_with_all = ["role", "rank", "step", "first_step"])]
    watch: bool,
    /// Send only what the process wrote that runs this; for commands that a framework runs in each process
    #[arg(long, value_enum, value_name = "NAME", conflicts_with = "outbox")]
    framework: Option<Framework>,
    #[command(flatten)]
    destination: Destination,
}

/// Why the rest is not tried: it would fail in the same way.
struct GiveUp;

impl Push {
    pub(crate) fn run(&self) -> Result<u8> {
        let server = self.destination.server()?;
        if let (true, Some(outbox)) = (self.watch, &self.outbox) {
            let outboxes = vec![outbox.clone()];
            return agent::run(agent::Errand {
                outboxes,
                server,
                interval: Duration::from_secs(2),
                report: Duration::from_secs(60),
                grace: ending::GRACE,
                status: None,
            });
        }
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
        let owner =
            self.framework.map(|framework| framework.owner(&|name| env::var(name).ok())).transpose()?;
        if let Some(owner) = owner {
            let n_found = files.len();
            files.retain(|file| owner.wrote(&file.path.to_string_lossy()));
            eprintln!("{} of other processes left to them", counted((n_found - files.len()) as u64, "file"));
            // A rank that was not profiled has none, and that is as it should be.
            if files.is_empty() {
                return Ok(());
            }
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
        let pushed = parcel::each(&found.path, found.is_guess, &mut |part| match part {
            Part::Parcel(parcel) => {
                match self.push_one(server, &mut Bookmark::default(), parcel, head, tally) {
                    Ok(_) => ControlFlow::Continue(()),
                    Err(GiveUp) => ControlFlow::Break(GiveUp),
                }
            }
            Part::Lost(sentence) => {
                tally.n_failed += 1;
                eprintln!("{sentence}");
                ControlFlow::Continue(())
            }
        });
        match pushed {
            ControlFlow::Continue(n_others) => {
                tally.n_passed_over += n_others;
                Ok(())
            }
            ControlFlow::Break(GiveUp) => Err(GiveUp),
        }
    }

    fn push_outbox(&self, server: &Server, root: &Path, tally: &mut Tally) -> Result<()> {
        let found =
            outbox::folders(root).with_context(|| format!("cannot read the outbox {}", root.display()))?;
        let mut folders = Vec::new();
        for found in found {
            match found {
                Found::Abandoned(folder) | Found::HandedOver(folder) => folders.push(folder),
                Found::InUse(path) => {
                    eprintln!("{}: its process is alive and sends it, or somebody else does", path.display());
                }
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
                    self.push_one(server, &mut item.bookmark(), &parcel, &counted(n_left, "snapshot"), tally)
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
        bookmark: &mut Bookmark,
        parcel: &Parcel<'_>,
        head: &str,
        tally: &mut Tally,
    ) -> Result<bool, GiveUp> {
        let sidecar = self.destination.sidecar(parcel);
        if sidecar.place.run.is_none() {
            tally.n_failed += 1;
            eprintln!("{}: its path names no run; say which with --run", parcel.shown);
            return Ok(false);
        }
        match send(server, bookmark, parcel, &sidecar, head) {
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
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
