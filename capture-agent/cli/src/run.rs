//! `tidegauge run`: starts a training with the agent in it, without a line of it changed.
//!
//! Settings become variables, TIDEGAUGE_AUTO is set, and the program takes this one's place: same process, same
//! exit status, same signals. The rest happens in the Python that it starts (`_tidegauge_auto.py` in the wheel).

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    process::Command,
};

use anyhow::{Result, ensure};
use clap::Args;
use tidegauge_capture_agent::settings::{Settings, variable};

use crate::USAGE;

/// What switches the agent on in the processes that are started.
pub(crate) const AUTO: &str = "TIDEGAUGE_AUTO";

/// The program was found but could not be started; as in shells.
const NOT_STARTED: u8 = 126;
/// There is no such program; as in shells.
const NOT_FOUND: u8 = 127;

/// Start a training that knows nothing of tidegauge, with the agent in it
///
/// tidegauge run steps=every:100 server=http://gauge:8642 -- torchrun --nproc-per-node=8 train.py: the wheel must be
/// installed in the Python that trains. Steps are told by the framework (transformers, Lightning, accelerate,
/// DeepSpeed, Megatron-Bridge, verl), else by the first optimizer. Exit status: the program's.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Settings as given to tidegauge.start()
    #[arg(value_name = "NAME=VALUE", value_parser = crate::doctor::setting)]
    settings: Vec<(&'static str, String)>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(&self) -> Result<u8> {
        ensure!(
            self.settings.iter().all(|(name, _)| *name != "token"),
            "a token on a command line can be read by everybody on this machine: give it in {}",
            variable("token")
        );
        let keywords: BTreeMap<_, _> =
            self.settings.iter().map(|(name, value)| (*name, value.clone())).collect();
        // What makes no sense is said now, and not by each rank.
        if let Err(error) = Settings::new(&keywords, &|name| std::env::var(name).ok()) {
            eprintln!("error: {error}");
            return Ok(USAGE);
        }
        let Some((program, arguments)) = self.program.split_first() else { return Ok(USAGE) };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.settings.iter().map(|(name, value)| (variable(name), value)));
        if std::env::var_os(AUTO).is_none_or(|value| value.is_empty()) {
            command.env(AUTO, "1");
        }
        Ok(become_it(command, program))
    }
}

/// Returns only when that fails.
#[cfg(unix)]
fn become_it(mut command: Command, program: &OsStr) -> u8 {
    use std::os::unix::process::CommandExt as _;
    not_started(program, &command.exec())
}

/// There is no exec: the program runs beside this one.
#[cfg(not(unix))]
fn become_it(mut command: Command, program: &OsStr) -> u8 {
    match command.status() {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::FAILED),
        Err(error) => not_started(program, &error),
    }
}

fn not_started(program: &OsStr, error: &std::io::Error) -> u8 {
    eprintln!("error: {} does not start: {error}", program.display());
    if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED }
}
