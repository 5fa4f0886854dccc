//! `cargo xtask fixtures`: a simulated snapshot of any length, for measuring and for trying things out.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arguments::Arguments,
    workspace::{self, Workspace},
};

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let n_events = arguments.value("--events")?.context("say how long: `fixtures --events 1000000`")?;
    let n_events: u64 = n_events.replace('_', "").parse().context("--events is a number of events")?;
    let stacks = match arguments.value("--stacks")?.as_deref() {
        None | Some("python") => Stacks::Python,
        Some("all") => Stacks::All,
        Some(other) => bail!("--stacks is `python` or `all`, as in torch, not `{other}`"),
    };
    let named = arguments.value("-o")?;
    arguments.end()?;
    let program = workspace.build("xtask-bench", "xtask-bench", "release")?;
    let file = match named {
        // Cargo starts us where the user is.
        Some(named) => PathBuf::from(named),
        None => workspace.folder("bench")?.join(file_name(n_events, stacks)),
    };
    simulate(&program, n_events, stacks, &file)?;
    println!("{}", workspace.shown(&file));
    Ok(ExitCode::SUCCESS)
}

/// What recording was told of stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stacks {
    /// About 102 bytes an event.
    Python,
    /// About 150 bytes an event.
    All,
}

impl Stacks {
    /// torch's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::All => "all",
        }
    }
}

/// Simulates a training of so many events.
pub(crate) fn simulate(program: &Path, n_events: u64, stacks: Stacks, file: &Path) -> Result<()> {
    let mut command = Command::new(program);
    workspace::run(command.args(["simulate", &n_events.to_string(), stacks.name()]).arg(file))
}

/// What a simulated file is called when nobody says.
pub(crate) fn file_name(n_events: u64, stacks: Stacks) -> String {
    format!("{n_events}-events-{}.pickle", stacks.name())
}
