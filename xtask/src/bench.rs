//! `cargo xtask bench`: what users wait for, measured beside what they have today.
//!
//! Every number comes from a process of its own, so that its highest memory is its own. What is compared takes
//! turns, so that a busy minute of the machine is everyone's, and the middle of several turns is shown.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arguments::Arguments,
    fixtures::{self, Stacks},
    python,
    site::{self, Build},
    torch,
    workspace::{self, Workspace, is_installed},
};

/// Events of the simulated files.
const EVENTS: u64 = 1_000_000;

/// Events of the file that shows whether time and memory grow as the file does.
const LARGE_EVENTS: u64 = 10_000_000;

/// Events of the file that other programs read, too.
const PEER_EVENTS: u64 = 100_000;

/// Turns; the middle one counts.
const TURNS: usize = 5;

/// Other programs that summarize a snapshot, as PyPI has them.
const PEERS: [&str; 2] = ["pt-snap-cli==0.4.1", "ptmem==0.1.2"];

/// Loads a pickle as people do, and prints seconds and the process's highest memory in KiB.
const PYTHON: &str = "\
import pickle, resource, sys, time
start = time.perf_counter()
with open(sys.argv[1], 'rb') as file:
    loaded = pickle.load(file)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
";

/// Runs commands, parted by `;`, on a copy of a file in an empty folder, since some keep what they found beside it.
/// Prints seconds and the highest memory of any of them in KiB.
const OTHERS: &str = "\
import itertools, os, resource, shutil, subprocess, sys, tempfile, time
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(sys.argv[1], os.path.join(folder, 'snapshot.pickle'))
    commands = [list(words) for is_end, words in itertools.groupby(sys.argv[2:], ';'.__eq__) if not is_end]
    start = time.perf_counter()
    for command in commands:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode:
            sys.exit(done.stderr.decode())
    print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
";

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let what = arguments.word();
    let is_large = arguments.flag("--large");
    let file = arguments.word();
    arguments.end()?;
    let bench = Bench { program: workspace.build("xtask-bench", "xtask-bench", "release")?, workspace };
    match what.as_deref() {
        Some("read") => bench.read(file.as_deref(), is_large)?,
        Some("picture") => bench.picture(file.as_deref())?,
        Some("samples") => bench.samples()?,
        Some("capture") => bench.capture()?,
        _ => bail!(
            "say what to measure: `bench read [--large] [FILE]`, `bench picture [FILE]`, `bench samples` or `bench capture`"
        ),
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench<'a> {
    workspace: &'a Workspace,
    program: PathBuf,
}

impl Bench<'_> {
    /// What samples cost a server, and the training thread where PyTorch is set up for the training tests.
    fn samples(&self) -> Result<()> {
        self.say_machine();
        let server = self.workspace.build("tidegauge-server", "tidegauge-server", "release")?;
        let script = self.workspace.root.join("xtask/bench/samples.py");
        workspace::run(Command::new("python3").arg(script).arg(server))?;
        let Some(torch) = torch::ready(self.workspace)? else {
            println!("what a step costs needs PyTorch: run `cargo xtask test --only torch` first");
            return Ok(());
        };
        let interpreter = torch::interpreter(&torch);
        python::install(&interpreter, &python::wheel_by(self.workspace, &interpreter, "release")?)?;
        for samples in ["0", "1"] {
            let mut step = torch::script(self.workspace, &torch, "tests/training/step_cost.py");
            workspace::run(step.env("TIDEGAUGE_SAMPLES", samples))?;
        }
        Ok(())
    }

    /// What a snapshot costs training in each way, whether windows lose events, and what the agent costs when it is off.
    fn capture(&self) -> Result<()> {
        let Some(torch) = torch::ready(self.workspace)? else {
            println!("it needs PyTorch on a stand-in for CUDA: run `cargo xtask test --only torch` first");
            return Ok(());
        };
        let interpreter = torch::interpreter(&torch);
        python::install(&interpreter, &python::wheel_by(self.workspace, &interpreter, "release")?)?;
        self.say_machine();
        let unpack = self.program.as_os_str();
        let runs: [&[&OsStr]; 6] = [
            &["cost".as_ref(), "native".as_ref()],
            &["cost".as_ref(), "python".as_ref()],
            &["cost".as_ref(), "dump".as_ref()],
            &["exact".as_ref(), "native".as_ref(), unpack],
            &["exact".as_ref(), "python".as_ref(), unpack],
            &["off".as_ref()],
        ];
        for words in runs {
            let mut run = torch::script(self.workspace, &torch, "xtask/bench/capture.py");
            workspace::run(run.args(words))?;
        }
        println!(
            "budgets: native at least 70 % of the idle rate and no stall above 40 ms; python at most 1.1 times the bare"
        );
        println!("_snapshot(), and no stall above 5 ms while it is written; off: import 20 ms, step() 1 µs");
        Ok(())
    }

    fn read(&self, named: Option<&str>, is_large: bool) -> Result<()> {
        self.say_machine();
        if let Some(named) = named {
            let file = Path::new(named).canonicalize().with_context(|| format!("cannot find {named}"))?;
            let plain = self.workspace.folder("bench")?.join("plain.pickle");
            workspace::run(Command::new(&self.program).arg("unpack").arg(&file).arg(&plain))?;
            return self.read_file(&plain);
        }
        self.build_all()?;
        let python = self.simulated(EVENTS, Stacks::Python)?;
        self.read_file(&python)?;
        self.read_file(&self.simulated(EVENTS, Stacks::All)?)?;
        self.replay(&python)?;
        self.wasm(&python)?;
        self.peers()?;
        if is_large {
            self.large(&python)?;
        }
        Ok(())
    }

    /// Builds everything first: a machine that has just compiled is slower for a while.
    fn build_all(&self) -> Result<()> {
        self.inspect()?;
        if is_installed("node") {
            self.site()?;
        }
        Ok(())
    }

    fn inspect(&self) -> Result<PathBuf> {
        self.workspace.build("tidegauge-cli", "tidegauge", "release")
    }

    fn site(&self) -> Result<PathBuf> {
        site::build_site(self.workspace, Build::Shipped)
    }

    /// A file into tables, and on to the pack, beside CPython.
    fn read_file(&self, file: &Path) -> Result<()> {
        let mut race = Race::new(file, self.workspace)?;
        race.enter("CPython's pickle.load", ["python3", "-c", PYTHON], file);
        race.enter("tables", [self.program.as_os_str(), OsStr::new("read")], file);
        race.enter("tables, replay and pack", [self.program.as_os_str(), OsStr::new("prepare")], file);
        race.run()?.show("times as fast", |first, other| first.seconds / other.seconds);
        Ok(())
    }

    /// The replay of tables that were read before.
    fn replay(&self, file: &Path) -> Result<()> {
        let mut race = Race::new(file, self.workspace)?;
        race.enter("tables", [self.program.as_os_str(), OsStr::new("read")], file);
        race.enter("replay of the tables", [self.program.as_os_str(), OsStr::new("replay")], file);
        race.run()?.show("times as long", |first, other| other.seconds / first.seconds);
        Ok(())
    }

    /// Opening a file in the page's engine under Node, beside the same steps natively.
    fn wasm(&self, file: &Path) -> Result<()> {
        if !is_installed("node") {
            println!("\nwasm was not measured: node is not installed");
            return Ok(());
        }
        let site = self.site()?;
        let script = self.workspace.root.join("tests/wasm/read.bench.mjs");
        let zstd = file.with_extension("pickle.zst");
        if !zstd.is_file() {
            workspace::run(Command::new(&self.program).arg("pack-zstd").arg(file).arg(&zstd))?;
        }
        for file in [file, &zstd] {
            let mut race = Race::new(file, self.workspace)?;
            race.enter("open natively", [self.program.as_os_str(), OsStr::new("open")], file);
            race.enter("open in wasm, under Node", [OsStr::new("node"), script.as_os_str()], file);
            race.environment.push(("TIDEGAUGE_TEST_SITE".into(), site.clone().into()));
            race.run()?.show("times as long", |first, other| other.seconds / first.seconds);
        }
        Ok(())
    }

    /// What other programs need for a summary of the same file.
    fn peers(&self) -> Result<()> {
        let file = self.simulated(PEER_EVENTS, Stacks::Python)?;
        let inspect = self.inspect()?;
        let venv = self.workspace.folder("bench")?.join("peers");
        if let Err(error) = python::make_venv(&venv, &PEERS) {
            println!("\nother programs were not measured: {error:#}");
            return Ok(());
        }
        let bin = |name: &str| venv.join("bin").join(name).into_os_string();
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let mut race = Race::new(&file, self.workspace)?;
        let mut enter = |name: &str, commands: &[Vec<OsString>]| {
            let mut line = words(&["python3", "-c", OTHERS]);
            line.push(file.clone().into());
            line.extend(commands.join(&OsString::from(";")));
            race.enter_line(name, line);
        };
        let import = words(&["import", "--no-focus", "snapshot.pickle"]);
        let overview = words(&["overview", "snapshot.pickle.db"]);
        enter(
            "pt-snap: import, overview",
            &[[vec![bin("pt-snap")], import].concat(), [vec![bin("pt-snap")], overview].concat()],
        );
        enter("ptmem --summary", &[[vec![bin("ptmem")], words(&["--summary", "snapshot.pickle"])].concat()]);
        enter(
            "tidegauge inspect",
            &[[vec![inspect.into_os_string()], words(&["inspect", "snapshot.pickle"])].concat()],
        );
        println!("{}", PEERS.join(", "));
        race.run()?.show("times as fast", |first, other| first.seconds / other.seconds);
        Ok(())
    }

    /// A file ten times as long, beside the usual one.
    fn large(&self, usual: &Path) -> Result<()> {
        let large = self.simulated(LARGE_EVENTS, Stacks::Python)?;
        for work in ["read", "prepare"] {
            let mut race = Race::new(&large, self.workspace)?;
            race.megabytes = None;
            race.enter(
                &format!("{work}, {EVENTS} events"),
                [self.program.as_os_str(), OsStr::new(work)],
                usual,
            );
            race.enter(
                &format!("{work}, {LARGE_EVENTS} events"),
                [self.program.as_os_str(), OsStr::new(work)],
                &large,
            );
            race.run()?.show("times as long", |first, other| other.seconds / first.seconds);
        }
        Ok(())
    }

    fn picture(&self, file: Option<&str>) -> Result<()> {
        let file = match file {
            Some(named) => Path::new(named).canonicalize().with_context(|| format!("cannot find {named}"))?,
            None => self.simulated(EVENTS, Stacks::Python)?,
        };
        let site = self.site()?;
        let script = self.workspace.root.join("tests/wasm/picture.bench.mjs");
        println!("{}, in wasm under Node, {} cores", self.workspace.shown(&file), cores());
        workspace::run(Command::new("node").arg(script).arg(file).env("TIDEGAUGE_TEST_SITE", site))
    }

    /// A simulated file, made once.
    fn simulated(&self, n_events: u64, stacks: Stacks) -> Result<PathBuf> {
        let file = self.workspace.folder("bench")?.join(fixtures::file_name(n_events, stacks));
        if !file.is_file() {
            println!("simulating a training of {n_events} events");
            fixtures::simulate(&self.program, n_events, stacks, &file)?;
        }
        Ok(file)
    }

    fn say_machine(&self) {
        let version = |program: &str| {
            let said = workspace::output(Command::new(program).arg("--version"));
            said.map_or_else(|_| format!("no {program}"), |said| first_line(&said.stdout))
        };
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        println!("{}, {} cores", model.map_or("unknown processor", |(_, name)| name), cores());
        println!("{}; {}; node {}", version("rustc"), version("python3"), version("node"));
        println!("{TURNS} turns, the middle one is shown");
    }
}

/// Seconds of one run, and the highest memory of its process.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    seconds: f64,
    peak_kib: f64,
}

/// Programs that do something with a file, in turns.
struct Race {
    /// Of the file, where seconds per byte say something.
    megabytes: Option<f64>,
    entries: Vec<Entry>,
    environment: Vec<(OsString, OsString)>,
}

/// One of them.
struct Entry {
    name: String,
    line: Vec<OsString>,
    samples: Vec<Sample>,
}

impl Race {
    /// On this file; says which it is.
    fn new(file: &Path, workspace: &Workspace) -> Result<Self> {
        let megabytes = fs::metadata(file)?.len() as f64 / 1e6;
        println!("\n{}, {megabytes:.1} MB", workspace.shown(file));
        Ok(Self { megabytes: Some(megabytes), entries: Vec::new(), environment: Vec::new() })
    }

    fn enter<S: AsRef<OsStr>>(&mut self, name: &str, words: impl IntoIterator<Item = S>, file: &Path) {
        let words = words.into_iter().map(|word| word.as_ref().to_owned());
        self.enter_line(name, words.chain([file.as_os_str().to_owned()]).collect());
    }

    fn enter_line(&mut self, name: &str, line: Vec<OsString>) {
        self.entries.push(Entry { name: name.to_owned(), line, samples: Vec::new() });
    }

    fn run(mut self) -> Result<Self> {
        for _ in 0..TURNS {
            for entry in &mut self.entries {
                let (program, words) = entry.line.split_first().context("a line begins with a program")?;
                let mut command = Command::new(program);
                command.args(words).envs(self.environment.iter().map(|(name, value)| (name, value)));
                entry.samples.push(sample(&mut command)?);
            }
        }
        Ok(self)
    }

    /// Prints a row each; the last column compares with the first.
    fn show(self, compared: &str, ratio: impl Fn(Sample, Sample) -> f64) {
        println!("{:<28} {:>9} {:>9} {:>12} {compared:>14}", "", "seconds", "MB/s", "peak RSS");
        let first = self.entries.first().map(|entry| middle(&entry.samples));
        for entry in &self.entries {
            let Sample { seconds, peak_kib } = middle(&entry.samples);
            let speed = self.megabytes.map_or_else(String::new, |bytes| format!("{:.1}", bytes / seconds));
            let ratio = first.map_or(1.0, |first| ratio(first, Sample { seconds, peak_kib }));
            let name = &entry.name;
            println!("{name:<28} {seconds:>9.3} {speed:>9} {:>8.0} MiB {ratio:>14.2}", peak_kib / 1024.0);
        }
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
fn middle(samples: &[Sample]) -> Sample {
    let mut samples = samples.to_vec();
    samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    samples[samples.len() / 2]
}

fn first_line(printed: &[u8]) -> String {
    String::from_utf8_lossy(printed).lines().next().unwrap_or_default().to_owned()
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
        assert_eq!(middle(&samples).seconds, 2.0);
    }
}
