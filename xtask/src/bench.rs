//! `cargo xtask bench`: what users wait for, measured beside what they have today.
//!
//! Every number comes from a process of its own, so that its highest memory is its own. What is compared takes
//! turns, so that a busy minute of the machine is everyone's, and the middle of several turns is shown.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arguments::Arguments,
    site::{self, Build},
    workspace::{self, Workspace},
};

/// Events of the simulated file.
const EVENTS: &str = "1000000";

/// Turns; the middle one counts.
const TURNS: usize = 5;

/// Loads a pickle as people do, and prints seconds and the process's highest memory in KiB.
const PYTHON: &str = "\
import pickle, resource, sys, time
start = time.perf_counter()
with open(sys.argv[1], 'rb') as file:
    loaded = pickle.load(file)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
";

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let what = arguments.word();
    let file = arguments.word();
    arguments.end()?;
    let bench = Bench { program: workspace.build("xtask-bench", "xtask-bench", "release")?, workspace };
    match what.as_deref() {
        Some("read") => bench.read(file.as_deref())?,
        Some("picture") => bench.picture(file.as_deref())?,
        _ => bail!("say what to measure: `bench read [FILE]` or `bench picture [FILE]`"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Seconds of one run, and the highest memory of its process.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    seconds: f64,
    peak_kib: f64,
}

struct Bench<'a> {
    workspace: &'a Workspace,
    program: PathBuf,
}

impl Bench<'_> {
    fn read(&self, file: Option<&str>) -> Result<()> {
        let file = self.file(file)?;
        let plain = self.workspace.folder("bench")?.join("plain.pickle");
        workspace::run(Command::new(&self.program).arg("unpack").arg(&file).arg(&plain))?;
        let megabytes = std::fs::metadata(&plain)?.len() as f64 / 1e6;
        println!("{}, {megabytes:.1} MB unpacked, {} cores", self.workspace.shown(&file), cores());
        println!("{:<28} {:>9} {:>9} {:>12}", "", "seconds", "MB/s", "peak RSS");
        let (mut python, mut read, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            python.push(sample(Command::new("python3").args(["-c", PYTHON]).arg(&plain))?);
            read.push(sample(Command::new(&self.program).arg("read").arg(&plain))?);
            whole.push(sample(Command::new(&self.program).arg("prepare").arg(&plain))?);
        }
        let (python, read, whole) = (middle(python)?, middle(read)?, middle(whole)?);
        show("CPython's pickle.load", python, megabytes);
        show("read into tables", read, megabytes);
        show("read, replay and pack", whole, megabytes);
        println!("reading is {:.1} × as fast as pickle.load", python.seconds / read.seconds);
        println!("read, replay and pack together are {:.1} ×", python.seconds / whole.seconds);
        Ok(())
    }

    fn picture(&self, file: Option<&str>) -> Result<()> {
        let file = self.file(file)?;
        let site = site::build_site(self.workspace, Build::Shipped)?;
        let script = self.workspace.root.join("tests/wasm/picture.bench.mjs");
        println!("{}, in wasm under Node, {} cores", self.workspace.shown(&file), cores());
        workspace::run(Command::new("node").arg(script).arg(file).env("TIDEGAUGE_TEST_SITE", site))
    }

    /// The file to measure on: the one named, or a simulated training of a million events, made once.
    fn file(&self, named: Option<&str>) -> Result<PathBuf> {
        if let Some(named) = named {
            return Path::new(named).canonicalize().with_context(|| format!("cannot find {named}"));
        }
        let file = self.workspace.folder("bench")?.join("million.pickle");
        if !file.is_file() {
            println!("simulating a training of {EVENTS} events");
            workspace::run(Command::new(&self.program).args(["simulate", EVENTS, "python"]).arg(&file))?;
        }
        Ok(file)
    }
}

/// Runs a program that prints seconds and KiB.
fn sample(command: &mut Command) -> Result<Sample> {
    let output = workspace::output(command)?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = printed.split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(seconds)), Some(Ok(peak_kib))) = (numbers.next(), numbers.next()) else {
        bail!("expected seconds and KiB, got `{}`", printed.trim());
    };
    Ok(Sample { seconds, peak_kib })
}

/// The sample in the middle by time.
fn middle(mut samples: Vec<Sample>) -> Result<Sample> {
    samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    samples.get(samples.len() / 2).copied().context("nothing was measured")
}

fn show(name: &str, sample: Sample, megabytes: f64) {
    let Sample { seconds, peak_kib } = sample;
    println!("{name:<28} {seconds:>9.3} {:>9.1} {:>8.0} MiB", megabytes / seconds, peak_kib / 1024.0);
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_three_runs_is_not_their_mean() {
        let samples = [9.0, 1.0, 2.0].map(|seconds| Sample { seconds, peak_kib: 0.0 });
        let middle = middle(samples.to_vec()).unwrap();
        assert_eq!(middle.seconds, 2.0);
    }
}
