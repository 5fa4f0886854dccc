//! The command line: `tidegauge inspect`, `export`, `push`, `watch`, `agent`, `take`, `run` and `doctor`.
//!
//! A library, so that the Python package can bring the same program. Data goes to standard output, talk to
//! standard error.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks")]

mod inspect;
mod export;
mod push;
mod framework;
mod watch;
mod agent;
mod take;
mod run;
mod doctor;
mod opened;
mod members;
mod search;
mod destination;
mod parcel;
mod sending;
mod progress;
mod style;
mod ending;

use std::{
    ffi::OsString,
    io::{self, Write as _},
};

use clap::{Parser, Subcommand};

/// Everything was done.
const DONE: u8 = 0;
/// Something failed that is not the input's fault.
const FAILED: u8 = 1;
/// The file was refused: it is no snapshot, or none that can be read.
const REFUSED: u8 = 2;
/// Nobody understands the command line; as in BSD's sysexits.
const USAGE: u8 = 64;

/// Memory snapshots of PyTorch training: look at them, write them for other programs, send them to a server.
#[derive(Debug, Parser)]
#[command(name = "tidegauge", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(inspect::Inspect),
    Export(export::Export),
    Push(push::Push),
    Watch(watch::Watch),
    Agent(agent::Agent),
    Take(take::Take),
    Run(run::Run),
    Doctor(doctor::Doctor),
}

/// Runs the program with these arguments, the first being its name, and returns the exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let command_line = match CommandLine::try_parse_from(arguments) {
        Ok(command_line) => command_line,
        Err(error) => {
            // Nothing can be said when standard error is gone, and the status says it.
            error.print().ok();
            return if error.use_stderr() { USAGE } else { DONE };
        }
    };
    let result = match command_line.command {
        Command::Inspect(inspect) => inspect.run(),
        Command::Export(export) => export.run(),
        Command::Push(push) => push.run(),
        Command::Watch(watch) => watch.run(),
        Command::Agent(agent) => agent.run(),
        Command::Take(take) => take.run(),
        Command::Run(run) => run.run(),
        Command::Doctor(doctor) => doctor.run(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        FAILED
    })
}

/// Unlike `println!`, takes it calmly when whoever reads has seen enough.
fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
