//! `tidegauge take`: asks trainings that run for a snapshot.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use tidegauge_capture_agent::{
    outbox::{self, Found},
    request,
    settings::default_outbox,
};
use tidegauge_snapshot::words::count;

use crate::{DONE, FAILED};

/// Ask trainings that run for a snapshot
///
/// Each process that records with this outbox takes one at the end of its step in progress, named "on-demand".
/// Exit status: 0 asked, 1 nobody is there who could answer.
#[derive(Debug, Args)]
pub(crate) struct Take {
    /// The outbox they were started with
    #[arg(long, value_name = "DIR", env = "TIDEGAUGE_OUTBOX")]
    outbox: Option<PathBuf>,
    /// Only the processes of this run
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
}

impl Take {
    pub(crate) fn run(&self) -> Result<u8> {
        let from_env = |name: &str| std::env::var(name).ok();
        let root = self.outbox.clone().unwrap_or_else(|| default_outbox(&from_env));
        let alive = alive(&root, self.run.as_deref())?;
        if alive.is_empty() {
            let which = self.run.as_ref().map(|run| format!(" of run {run}")).unwrap_or_default();
            eprintln!(
                "no process{which} records with the outbox {}: say which with --outbox, as in its settings",
                root.display()
            );
            return Ok(FAILED);
        }
        request::ask(&root, self.run.as_deref())
            .with_context(|| format!("cannot ask in the outbox {}", root.display()))?;
        for (run, n) in &alive {
            let processes = if *n == 1 { "process" } else { "processes" };
            println!("{run}: {} {processes} asked", count(*n));
        }
        eprintln!(
            "each looks once a second and takes a snapshot at the end of its step in progress; it shows up in the run's grid as \"on-demand\""
        );
        Ok(DONE)
    }
}

/// The folders of runs, with how many processes live in each.
fn alive(root: &Path, run: Option<&str>) -> Result<BTreeMap<String, u64>> {
    let found =
        outbox::folders(root).with_context(|| format!("cannot read the outbox {}", root.display()))?;
    let mut alive = BTreeMap::new();
    for path in found.into_iter().filter_map(|found| match found {
        Found::InUse(path) => Some(path),
        Found::HandedOver(folder) => Some(folder.path().to_owned()),
        Found::Abandoned(_) => None,
    }) {
        let name = path.parent().and_then(|run| run.file_name()).unwrap_or_default().to_string_lossy();
        if run.is_none_or(|run| outbox::run_folder(run) == name) {
            *alive.entry(name.into_owned()).or_default() += 1;
        }
    }
    Ok(alive)
}
