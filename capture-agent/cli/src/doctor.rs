//! `tidegauge doctor`: whether a training that starts here will be recorded and sent, before it starts.
//!
//! Settings are read as the agent reads them; each check says what it found, and where that is red, what to do.

mod cost;
mod interpreter;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tidegauge_capture_agent::{
    backend::{Driven, TorchVersion, UNTESTED},
    outbox::{self, Waiting},
    push::PushError,
    settings::{InForce, NAMES, Settings, variable},
};
use tidegauge_snapshot::words::{count, counted, size};

use self::{cost::Cost, interpreter::Interpreter};
use crate::{DONE, FAILED, print, style::Style};

/// Less free disk than this is red, bytes: 1 GiB. A training fills it with its own files soon.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// Check whether a training that starts here will be recorded and sent
///
/// Reads the environment as the agent does; settings that the script gives to tidegauge.start() can be named, too:
/// tidegauge doctor steps=every:100 server=http://gauge:8642. Exit status: 0 all fine, 1 something is red.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Settings as given to tidegauge.start()
    #[arg(value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(&'static str, String)>,
    /// The interpreter that trains
    #[arg(long, value_name = "PATH", env = "TIDEGAUGE_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Record for a moment on the device, which makes a context on it
    #[arg(long = "try")]
    tries: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    is_fine: bool,
    settings: Vec<Setting>,
    checks: Vec<Check>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
}

#[derive(Debug, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    source: &'static str,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    what_to_do: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Fine,
    Red,
    /// It may work; no test drove it.
    Untested,
    /// Nobody looked.
    Skipped,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<u8> {
        let report = self.report();
        match self.json {
            true => print(&serde_json::to_string_pretty(&report)?)?,
            false => print(report.text(Style::of_stdout()).trim_end())?,
        }
        Ok(if report.is_fine { DONE } else { FAILED })
    }

    fn report(&self) -> Report {
        let from_env = |name: &str| env::var(name).ok();
        let keywords: BTreeMap<_, _> =
            self.settings.iter().map(|(name, value)| (*name, value.clone())).collect();
        let (mut checks, mut shown, mut cost) = (Vec::new(), Vec::new(), None);
        match Settings::new(&keywords, &from_env) {
            Err(error) => {
                let what_to_do = "change it; until then start() records nothing";
                checks.push(Check::red("settings", error.to_string(), what_to_do));
                self.look_at_python(None, &mut checks);
            }
            Ok(settings) => {
                shown = settings.in_force(&keywords, &from_env).into_iter().map(Setting::from).collect();
                checks.push(settings_check(&settings));
                self.look_at_python(Some(&settings), &mut checks);
                let predicted = Cost::of(&settings.recording);
                checks.push(cost_check(&predicted, available_memory()));
                checks.push(server_check(&settings));
                checks.extend(outbox_checks(&settings));
                cost = Some(predicted);
            }
        }
        let is_fine = checks.iter().all(|check| check.state != State::Red);
        Report { is_fine, settings: shown, checks, cost }
    }

    fn look_at_python(&self, settings: Option<&Settings>, checks: &mut Vec<Check>) {
        let interpreter = match Interpreter::ask(&self.python) {
            Ok(interpreter) => interpreter,
            Err(error) => {
                let says = format!("{}: {error:#}", self.python.display());
                return checks.push(Check::red(
                    "python",
                    says,
                    "name the interpreter that trains with --python",
                ));
            }
        };
        checks.push(python_check(&interpreter));
        let Some(torch) = interpreter.versions.get("torch") else {
            return checks.push(torch_is_missing(&interpreter));
        };
        checks.extend(backend_checks(&interpreter, torch));
        let (Some(backend), Some(settings)) = (interpreter.backend(), settings) else { return };
        checks.push(if !self.tries {
            Check::new(
                "recording",
                State::Skipped,
                "not tried; --try records for a moment on the device".to_owned(),
            )
        } else {
            match interpreter.try_recording(&self.python, backend, &settings.recording) {
                Ok(trial) => Check::fine(
                    "recording",
                    format!(
                        "works: {} in a file of {}, training stood still for {:.1} ms",
                        counted(trial.n_events, "event"),
                        size(trial.bytes),
                        trial.stood_still_ms
                    ),
                ),
                Err(error) => Check::red(
                    "recording",
                    format!("{error:#}"),
                    "see the sentence above; a training here would say the same and go on without recording",
                ),
            }
        });
    }
}

/// "steps=1,5" as a keyword and its text.
fn setting(text: &str) -> Result<(&'static str, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as steps=1,5")?;
    let known = NAMES.iter().find(|known| **known == name);
    let known =
        known.ok_or_else(|| format!("there is no setting {name:?}; there are {}", NAMES.join(", ")))?;
    Ok((known, value.to_owned()))
}

fn settings_check(settings: &Settings) -> Check {
    // Not said to be wrong: other programs of ours have variables, too.
    let ours: Vec<_> =
        NAMES.iter().map(|name| variable(name)).chain(["TIDEGAUGE_PYTHON".to_owned()]).collect();
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut others: Vec<_> =
        names.filter(|name| name.starts_with("TIDEGAUGE_") && !ours.contains(name)).collect();
    others.sort();
    if !settings.enabled {
        let what_to_do = "unset TIDEGAUGE_ENABLED, or leave enabled= away";
        return Check::red("settings", "everything is switched off (enabled)".to_owned(), what_to_do);
    }
    let others = match others.as_slice() {
        [] => String::new(),
        names => format!("; no settings of the agent: {}", names.join(", ")),
    };
    Check::fine("settings", format!("steps {}, ranks {}{others}", settings.steps, settings.ranks))
}

fn python_check(interpreter: &Interpreter) -> Check {
    let Interpreter { python, executable, .. } = interpreter;
    match (interpreter.versions.get("tidegauge"), interpreter.broken.get("tidegauge")) {
        (Some(version), _) => {
            Check::fine("python", format!("{python} with tidegauge {version}, {executable}"))
        }
        (None, Some(error)) => Check::red(
            "python",
            format!("{python}, {executable}: tidegauge cannot be imported: {error}"),
            "install a wheel that was built for this system",
        ),
        (None, None) => Check::red(
            "python",
            format!("{python}, {executable}: tidegauge is not installed"),
            "install the wheel into it, or name another interpreter with --python",
        ),
    }
}

fn torch_is_missing(interpreter: &Interpreter) -> Check {
    match interpreter.broken.get("torch") {
        Some(error) => Check::red(
            "torch",
            format!("it cannot be imported: {error}"),
            "repair the installation: python -c 'import torch' must work",
        ),
        None => Check::red(
            "torch",
            "it is not installed".to_owned(),
            "install PyTorch, or name the interpreter that trains with --python",
        ),
    }
}

/// The backend and the mode, and what is there beside it.
fn backend_checks(interpreter: &Interpreter, torch: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    match (interpreter.backend(), TorchVersion::from_text(torch)) {
        (_, None) => checks.push(Check::red(
            "torch",
            format!("its version is {torch:?}, which is no number"),
            "use a release of PyTorch; the calls that record depend on it",
        )),
        (None, _) => checks.push(Check::red(
            "backend",
            format!("torch {torch} finds no device with a memory history"),
            "look at the driver and at CUDA_VISIBLE_DEVICES; on a login node this is as it should be",
        )),
        (Some(backend), Some(version)) => {
            let package = interpreter.versions.get(backend.package).filter(|_| backend.package != "torch");
            let package =
                package.map(|version| format!(", {} {version}", backend.package)).unwrap_or_default();
            let rocm = if interpreter.is_rocm { " (ROCm)" } else { "" };
            let must_import = !interpreter.comes_with_torch.iter().any(|package| package == backend.package);
            let must_import =
                must_import.then(|| format!("; import {} before tidegauge.start()", backend.package));
            let driven = backend.driven(version).filter(|_| !interpreter.is_rocm);
            let state = if driven.is_some() { State::Fine } else { State::Untested };
            let tested = match driven {
                Some(Driven::Torch) => "tested with this release",
                Some(Driven::Double) => "tested with a double of this release",
                None => "no test drove it with this release",
            };
            let says = format!(
                "{}{rocm}, torch {torch}{package}: {tested}{}",
                backend.name,
                must_import.unwrap_or_default()
            );
            checks.push(Check::new("backend", state, says));
            let says = format!(
                "Python: _snapshot(), cleared by {}, pickled beside training",
                match backend.clearing(version) {
                    "off and on" => "going off and on, in which events of other threads can be lost",
                    "same call" => "the same call once more",
                    clearing => clearing,
                }
            );
            checks.push(Check::fine("mode", says));
        }
    }
    for name in UNTESTED.iter().filter(|name| interpreter.available.iter().any(|there| there == *name)) {
        let says = format!("{name} is there; nothing is recorded on it, since no test drove it");
        checks.push(Check::new("backend", State::Untested, says));
    }
    checks
}

/// Twice the memory: one snapshot may be written while the next is taken.
fn cost_check(cost: &Cost, available_bytes: Option<u64>) -> Check {
    let needed = cost.host_bytes.saturating_mul(2);
    let says = format!(
        "at most, with {} in the ring: {} of host memory, {:.1} s, a pickle of {}, a file of {}",
        counted(cost.n_events, "event"),
        size(cost.host_bytes),
        cost.millis as f64 / 1e3,
        size(cost.pickle_bytes),
        size(cost.file_bytes)
    );
    match available_bytes {
        Some(available) if needed > available => Check::red(
            "cost",
            format!("{says}; two at once do not fit into the {} that are available", size(available)),
            "lower max_entries",
        ),
        _ => Check::fine("cost", says),
    }
}

/// What Linux says that programs can still have.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn server_check(settings: &Settings) -> Check {
    let address = settings.server.address();
    let token = if settings.server.has_token() { "the token is accepted" } else { "it asks for no token" };
    match settings.server.check() {
        Ok(()) => Check::fine("server", format!("{address} takes snapshots, {token}")),
        Err(PushError::Refused(problem)) if matches!(problem.status, 401 | 403) => Check::red(
            "server",
            format!("{address} does not let us in: {}", problem.detail),
            "set TIDEGAUGE_TOKEN to the server's token",
        ),
        Err(PushError::Later { reason, .. }) => Check::red(
            "server",
            reason,
            "start it, or name another with server= or TIDEGAUGE_SERVER; until then snapshots wait in the outbox",
        ),
        Err(error) => Check::red(
            "server",
            error.to_string(),
            "name a Tidegauge server with server= or TIDEGAUGE_SERVER",
        ),
    }
}

fn outbox_checks(settings: &Settings) -> Vec<Check> {
    let root = std::path::absolute(&settings.outbox).unwrap_or_else(|_| settings.outbox.clone());
    let waiting = match outbox::waiting(&root) {
        Ok(waiting) => waiting,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Waiting::default(),
        Err(error) => {
            let says = format!("{} cannot be read: {error}", root.display());
            return vec![Check::red("outbox", says, ANOTHER_OUTBOX)];
        }
    };
    let mut checks = vec![outbox_check(settings, &root, waiting)];
    if waiting.n_abandoned > 0 {
        checks.push(Check::red(
            "left behind",
            format!("{} of processes that are gone", counted(waiting.n_abandoned, "snapshot")),
            &format!(
                "tidegauge push --outbox {} --server {}, or start the next training of their run",
                root.display(),
                settings.server.address()
            ),
        ));
    }
    if waiting.n_rejected > 0 {
        checks.push(Check::red(
            "refused",
            format!("{} that a server did not want", counted(waiting.n_rejected, "snapshot")),
            &format!(
                "{} has a sentence beside each: send them by hand, or delete them",
                root.join(".rejected").display()
            ),
        ));
    }
    checks
}

const ANOTHER_OUTBOX: &str = "give a folder that can be written with outbox= or TIDEGAUGE_OUTBOX";

fn outbox_check(settings: &Settings, root: &Path, waiting: Waiting) -> Check {
    let Some(there) = root.ancestors().find(|folder| folder.is_dir()) else {
        return Check::red("outbox", format!("{} has no folder above it", root.display()), ANOTHER_OUTBOX);
    };
    if let Err(error) = tempfile::tempfile_in(there) {
        let says = format!("{} cannot be written: {error}", there.display());
        return Check::red("outbox", says, ANOTHER_OUTBOX);
    }
    let free = fs4::available_space(there).ok();
    let waits = if waiting.n_snapshots == 1 { "snapshot waits" } else { "snapshots wait" };
    let live = if waiting.n_alive == 1 { "process uses" } else { "processes use" };
    let says = format!(
        "{}: {} {waits} ({} of {}), {} {live} it, {} free on its disk",
        root.display(),
        count(waiting.n_snapshots),
        size(waiting.bytes),
        size(settings.outbox_max_bytes),
        count(waiting.n_alive),
        free.map_or("an unknown amount".to_owned(), size)
    );
    match free {
        _ if waiting.bytes >= settings.outbox_max_bytes => {
            Check::red("outbox", format!("{says}: it is full"), "send what is in it, or raise outbox_bytes")
        }
        Some(free) if free < MIN_FREE_BYTES => {
            Check::red("outbox", says, "make room on that disk, or give another folder with outbox=")
        }
        _ => Check::fine("outbox", says),
    }
}

impl From<InForce> for Setting {
    fn from(InForce { name, value, source }: InForce) -> Self {
        Self { name, value, source: source.as_str() }
    }
}

impl Check {
    fn new(name: &'static str, state: State, says: String) -> Self {
        Self { name, state, says, what_to_do: None }
    }

    fn fine(name: &'static str, says: String) -> Self {
        Self::new(name, State::Fine, says)
    }

    fn red(name: &'static str, says: String, what_to_do: &str) -> Self {
        Self { what_to_do: Some(what_to_do.to_owned()), ..Self::new(name, State::Red, says) }
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Red => "RED",
            Self::Untested => "untested",
            Self::Skipped => "skipped",
        }
    }
}

impl Report {
    fn text(&self, style: Style) -> String {
        let mut text = String::new();
        if !self.settings.is_empty() {
            text += &format!("{}\n", style.bold("Settings"));
        }
        for Setting { name, value, source } in &self.settings {
            let line = format!("  {name:<14} {value}");
            text += &match *source {
                "default" => format!("{}\n", style.dim(&line)),
                source => format!("{line}  ({source})\n"),
            };
        }
        text += &format!("{}\n", style.bold("Checks"));
        for Check { name, state, says, what_to_do } in &self.checks {
            let word = format!("{:<9}", state.word());
            let word = if *state == State::Fine { word } else { style.warning(&word) };
            text += &format!("  {word} {name:<12} {says}\n");
            if let Some(what_to_do) = what_to_do {
                text += &format!("{:25}→ {what_to_do}\n", "");
            }
        }
        let n_red = self.checks.iter().filter(|check| check.state == State::Red).count() as u64;
        text + &match n_red {
            0 => "Nothing is red\n".to_owned(),
            n => format!(
                "{} red\n",
                if n == 1 { "1 line is".to_owned() } else { format!("{} lines are", count(n)) }
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegauge_capture_agent::backend::Recording;

    use super::*;

    #[test]
    fn a_ring_that_does_not_fit_into_memory_twice_is_red() {
        let recording =
            Recording { context: "all".to_owned(), stacks: "python".to_owned(), max_entries: 1_000_000 };
        let cost = Cost::of(&recording);
        let check = cost_check(&cost, Some(1 << 30));
        assert_eq!((check.state, check.what_to_do.as_deref()), (State::Red, Some("lower max_entries")));
        assert!(
            check.says.ends_with("two at once do not fit into the 1.00 GiB that are available"),
            "{}",
            check.says
        );
        assert_eq!(cost_check(&cost, Some(2 << 30)).state, State::Fine);
        assert_eq!(cost_check(&cost, None).state, State::Fine);
    }

    #[test]
    fn only_red_makes_a_report_red() {
        let all = [State::Fine, State::Untested, State::Skipped]
            .map(|state| Check::new("a", state, "b".to_owned()));
        let mut report = Report { is_fine: true, settings: Vec::new(), checks: all.into(), cost: None };
        assert!(report.text(Style::plain()).ends_with("Nothing is red\n"));
        report.checks.push(Check::red("server", "it is away".to_owned(), "start it"));
        report.checks.push(Check::red("outbox", "it is full".to_owned(), "send what is in it"));
        let text = report.text(Style::plain());
        assert!(
            text.contains("  RED       server       it is away\n                         → start it\n"),
            "{text}"
        );
        assert!(text.ends_with("2 lines are red\n"), "{text}");
    }

    #[test]
    fn a_setting_is_a_known_name_and_a_text() {
        assert_eq!(setting("steps=a=b"), Ok(("steps", "a=b".to_owned())));
        assert!(
            setting("steps").is_err() && setting("stepz=1").unwrap_err().contains("no setting \"stepz\"")
        );
    }
}
