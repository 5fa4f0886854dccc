//! Chores: `cargo xtask` and the name of one.
//!
//! One file per chore. What is heavy to compile lives in programs of its own (`xtask/bindgen`, `xtask/bench`),
//! so that the first chore starts soon.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "chores talk")]

mod workspace;
mod arguments;
mod site;
mod serve;
mod demo;
mod http;
mod test;
mod tidy;
mod wasm;
mod browser;
mod python;
mod torch;
mod wheel;
mod bench;
mod fuzz;
mod fixtures;

use std::process::ExitCode;

use anyhow::Result;

use crate::{arguments::Arguments, workspace::Workspace};

const USAGE: &str = "\
usage: cargo xtask CHORE

For users:
  serve [--demo] [--listen ADDR] [--data DIR] [--release] [--quick] [--no-open]
      Builds the page and the server and starts both. --demo fills a run from the committed snapshots.
  test [--torch] [--wheel] [--services] [--soak] [--only TIER]
      Everything the pipeline checks, tier by tier, with a table at the end.

  wheel [--arch x86_64|aarch64] [--check]
      The Python package for other machines, into the target folder; --check tries it under each Python at hand.

For the desk:
  site [--quick]            Builds the page into the target folder; --quick compiles faster and runs slower.
  tidy                      Who knows whom, forbidden dependencies, module heads, links.
  fuzz TARGET [--seconds N] [--minimize FILE]
      Bytes of strangers against one door of the reader: pickle, json, html, archive, pack.
  bench read [--large] [FILE]
      Reading a snapshot, beside CPython's pickle.load, wasm and other programs.
  bench picture [FILE]      One picture in wasm under Node.
  bench samples             What samples cost a server and a training.
  bench capture             What a snapshot costs a training, and whether windows lose events.
  fixtures --events N [--stacks python|all] [-o FILE]
      A simulated snapshot of any length.";

/// The exit status of a command line nobody understands, as in BSD's sysexits.
const USAGE_EXIT: u8 = 64;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_env();
    let chore = arguments.word();
    let chore: fn(&Workspace, Arguments) -> Result<ExitCode> = match chore.as_deref() {
        Some("serve") => serve::run,
        Some("test") => test::run,
        Some("site") => site::run,
        Some("tidy") => tidy::run,
        Some("bench") => bench::run,
        Some("fuzz") => fuzz::run,
        Some("wheel") => wheel::run,
        Some("fixtures") => fixtures::run,
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(USAGE_EXIT);
        }
    };
    match Workspace::find().and_then(|workspace| chore(&workspace, arguments)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
