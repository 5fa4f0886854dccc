//! `cargo xtask test`: everything the pipeline checks, tier by tier.
//!
//! A tier runs whatever happened to the one before it, so one run names everything that is broken. What cannot
//! run here is counted as skipped, with the reason, and never as passed.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arguments::Arguments,
    browser, python, tidy, torch, wasm, wheel,
    workspace::{Workspace, is_installed},
};

/// What came of some tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that could not run here.
    pub(crate) skipped: u64,
    /// Why something failed or was skipped, a sentence each.
    pub(crate) notes: Vec<String>,
}

impl Tally {
    /// One test that could not run, and why.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self { skipped: 1, notes: vec![why.into()], ..Self::default() }
    }

    /// One test that failed, and why.
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self { failed: 1, notes: vec![why.into()], ..Self::default() }
    }

    /// One test, which failed if there are problems.
    pub(crate) fn of(problems: Vec<String>) -> Self {
        if problems.is_empty() {
            Self { passed: 1, ..Self::default() }
        } else {
            Self { failed: 1, notes: problems, ..Self::default() }
        }
    }

    /// Both together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.notes.extend(other.notes);
        self
    }
}

/// A part of the tests with a line of its own in the table.
struct Tier {
    name: &'static str,
    run: fn(&Workspace) -> Result<Tally>,
}

/// What always runs, quick things first.
const TIERS: [Tier; 7] = [
    Tier { name: "format", run: format },
    Tier { name: "tidy", run: tidy::tally },
    Tier { name: "lints", run: lints },
    Tier { name: "rust", run: rust },
    Tier { name: "wasm", run: wasm::run },
    Tier { name: "python", run: python::run },
    Tier { name: "browser", run: browser::run },
];

/// What runs when asked for.
const ON_REQUEST: [(&str, Tier); 4] = [
    ("--torch", Tier { name: "torch", run: torch::run }),
    ("--wheel", Tier { name: "wheel", run: wheel::tier }),
    ("--services", Tier { name: "services", run: |_| Ok(Tally::skipped("no test needs a service yet")) }),
    ("--soak", Tier { name: "soak", run: |_| Ok(Tally::skipped("no soak test yet")) }),
];

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let only = arguments.value("--only")?;
    let mut tiers: Vec<&Tier> = TIERS.iter().collect();
    tiers.extend(ON_REQUEST.iter().filter(|(flag, _)| arguments.flag(flag)).map(|(_, tier)| tier));
    arguments.end()?;
    if let Some(only) = &only {
        tiers = TIERS.iter().chain(ON_REQUEST.iter().map(|(_, tier)| tier)).collect();
        tiers.retain(|tier| tier.name == only);
        if tiers.is_empty() {
            bail!("there is no tier named {only}");
        }
    }

    let mut rows = Vec::new();
    for tier in tiers {
        println!("\n── {} ──", tier.name);
        let start = Instant::now();
        let tally = (tier.run)(workspace).unwrap_or_else(|error| Tally::failed(format!("{error:#}")));
        rows.push((tier.name, tally, start.elapsed()));
    }
    Ok(report(&rows))
}

/// Prints the table and the closing line.
fn report(rows: &[(&str, Tally, Duration)]) -> ExitCode {
    println!("\n{:<10} {:>7} {:>7} {:>8} {:>9}", "tier", "passed", "failed", "skipped", "seconds");
    let mut total = Tally::default();
    for (name, tally, took) in rows {
        let seconds = took.as_secs_f64();
        println!("{name:<10} {:>7} {:>7} {:>8} {seconds:>9.1}", tally.passed, tally.failed, tally.skipped);
        total = total.and(tally.clone());
    }
    for (name, tally, _) in rows {
        let outcome = if tally.failed > 0 { "failed" } else { "skipped" };
        for note in &tally.notes {
            println!("{name}: {outcome} ({note})");
        }
    }
    println!("\n{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn format(workspace: &Workspace) -> Result<Tally> {
    judged(workspace.cargo("fmt").args(["--all", "--check"]), "cargo fmt --all --check")
}

fn lints(workspace: &Workspace) -> Result<Tally> {
    let deny = ["--quiet", "--", "--deny", "warnings"];
    let mut native = workspace.cargo("clippy");
    native.args(["--workspace", "--all-targets"]).args(deny);
    let mut page = workspace.cargo("clippy");
    page.args(["--package", "tidegauge-viewer", "--package", "tidegauge-engine"]);
    page.args(["--target", "wasm32-unknown-unknown"]).args(deny);
    Ok(judged(&mut native, "cargo clippy")?.and(judged(&mut page, "cargo clippy for the page")?))
}

fn rust(workspace: &Workspace) -> Result<Tally> {
    // The Python face and the whole product have tiers of their own.
    let scope =
        ["--workspace", "--exclude", "tidegauge-python", "--exclude", "tidegauge-tests", "--no-fail-fast"];
    let unit = if is_installed("cargo-nextest") {
        counted(workspace.cargo("nextest").arg("run").args(scope))?
    } else {
        counted(workspace.cargo("test").args(["--lib", "--bins", "--tests"]).args(scope))?
    };
    let documented = ["tidegauge-snapshot", "tidegauge-export", "tidegauge-api"];
    let documented = documented.map(|package| ["--package", package]).concat();
    let doc = counted(workspace.cargo("test").arg("--doc").args(documented).arg("--no-fail-fast"))?;
    Ok(unit.and(doc))
}

/// One test: the command succeeds.
fn judged(command: &mut Command, name: &str) -> Result<Tally> {
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    Ok(if status.success() { Tally::of(Vec::new()) } else { Tally::failed(format!("{name} is not clean")) })
}

/// Runs a test runner, passing on what it prints, and adds up the counts in it.
///
/// Understands cargo test, nextest, pytest and Node's runner. A runner that fails without counting a failure
/// (it did not compile, it crashed) counts as one.
pub(crate) fn counted(command: &mut Command) -> Result<Tally> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let talk = child.stderr.take().context("no stderr")?;
    let talk = thread::spawn(move || echoed(talk, |line| eprintln!("{line}")));
    let stdout = child.stdout.take().context("no stdout")?;
    let mut tally = echoed(stdout, |line| println!("{line}"));
    tally = tally.and(talk.join().unwrap_or_default());
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    if !status.success() && tally.failed == 0 {
        tally = tally.and(Tally::failed(format!("{name} ended with {status} before it counted")));
    }
    Ok(tally)
}

fn echoed(stream: impl Read, print: fn(&str)) -> Tally {
    let mut tally = Tally::default();
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        print(line.trim_end());
        if let Some(counts) = counts_in(&line) {
            tally = tally.and(counts);
        }
    }
    tally
}

/// The counts in a runner's closing line, if this is one.
fn counts_in(line: &str) -> Option<Tally> {
    // What nextest repeats of a failed test's own runner is indented, and counted in its summary already.
    if line.starts_with(' ') && line.trim_start().starts_with("test result: ") {
        return None;
    }
    let line = line.trim();
    if let Some(count) = line.strip_prefix("# ") {
        let (word, n) = count.split_once(' ')?;
        let n = n.parse().ok()?;
        return match word {
            "pass" => Some(Tally { passed: n, ..Tally::default() }),
            "fail" => Some(Tally { failed: n, ..Tally::default() }),
            "skipped" => Some(Tally { skipped: n, ..Tally::default() }),
            _ => None,
        };
    }
    let is_pytest = line.starts_with("==") && line.contains(" in ");
    let is_closing = line.starts_with("test result: ") || line.starts_with("Summary [") || is_pytest;
    if !is_closing {
        return None;
    }
    let mut tally = Tally::default();
    let words: Vec<&str> = line.split([' ', ',', ';', '(', ')']).filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        let Ok(n) = pair[0].parse::<u64>() else { continue };
        match pair[1] {
            "passed" => tally.passed += n,
            "failed" | "error" | "errors" | "timed" => tally.failed += n,
            "skipped" | "ignored" => tally.skipped += n,
            _ => {}
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, passed: u64, failed: u64, skipped: u64) {
        assert_eq!(counts_in(line), Some(Tally { passed, failed, skipped, notes: Vec::new() }), "{line}");
    }

    #[test]
    fn each_runners_closing_line_is_understood() {
        check(
            "test result: FAILED. 5 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.01s",
            5,
            1,
            2,
        );
        check(
            "     Summary [   1.2s] 7 tests run: 5 passed (1 slow), 1 failed, 1 timed out, 4 skipped",
            5,
            2,
            4,
        );
        check("==== 3 failed, 12 passed, 1 skipped, 2 errors in 4.31s ====", 12, 5, 1);
        check("# pass 4", 4, 0, 0);
        check("# fail 2", 0, 2, 0);
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(counts_in("    test result: FAILED. 0 passed; 1 failed; 0 ignored"), None);
        assert_eq!(counts_in("running 5 tests"), None);
        assert_eq!(counts_in("# tests 5"), None);
        assert_eq!(counts_in("I saw 3 failed attempts"), None);
    }

    #[test]
    fn a_runner_that_dies_before_counting_is_a_failure() {
        let tally =
            counted(Command::new("sh").args(["-c", "echo 'test result: ok. 2 passed; 0 failed'; exit 3"]))
                .unwrap();
        assert_eq!((tally.passed, tally.failed), (2, 1));
    }
}
