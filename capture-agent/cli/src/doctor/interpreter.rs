//! The interpreter that trains, asked from outside: what it has, and whether recording works in it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{self, Read},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;
use tidegauge_capture_agent::{
    backend::{BACKENDS, Backend, Recording, TorchVersion, UNTESTED},
    frameworks::FRAMEWORKS,
    outbox::{self, Found},
    settings::WayChoice,
};
use tidegauge_snapshot::read;

const PROBE: &str = include_str!("probe.py");
const TRIAL: &str = include_str!("trial.py");
const MARKER: &str = "tidegauge-doctor ";

/// The longest that the interpreter may take. Importing torch from a slow disk takes a minute at worst; a driver
/// that hangs takes for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// The most that is kept of what it prints, bytes; the rest is read and forgotten.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// What an interpreter has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Interpreter {
    pub(super) python: String,
    pub(super) executable: String,
    /// By package.
    pub(super) versions: BTreeMap<String, String>,
    /// What keeps an installed package from being imported.
    pub(super) broken: BTreeMap<String, String>,
    /// Packages of vendors that importing torch brings along.
    pub(super) comes_with_torch: Vec<String>,
    /// Kinds of device that are there.
    pub(super) available: Vec<String>,
    pub(super) is_rocm: bool,
    /// Releases of frameworks with an adapter, by their name on PyPI.
    pub(super) frameworks: BTreeMap<String, String>,
    /// Whether it looks at TIDEGAUGE_AUTO when it starts.
    pub(super) has_auto: bool,
}

/// What a trial recorded.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) n_events: u64,
    pub(super) bytes: u64,
    /// Milliseconds that training would have stood still.
    pub(super) stood_still_ms: f64,
    /// "native" or "python".
    pub(super) way: String,
    /// What the agent found out about the native way.
    pub(super) native: String,
}

impl Interpreter {
    /// # Errors
    /// When it does not start, does not end, or answers nothing.
    pub(super) fn ask(program: &Path) -> Result<Self> {
        let packages: Vec<_> = BACKENDS.iter().map(|backend| backend.package).collect();
        let devices: Vec<_> =
            BACKENDS.iter().map(|backend| backend.name).chain(UNTESTED.iter().copied()).collect();
        let frameworks: Vec<_> = FRAMEWORKS.iter().map(|framework| framework.package).collect();
        let asked = json!({ "packages": packages, "devices": devices, "frameworks": frameworks }).to_string();
        let said = run(Command::new(program).args(["-c", PROBE, &asked]))?;
        let answer = said.stdout.lines().find_map(|line| line.strip_prefix(MARKER));
        let Some(answer) = answer else { bail!("it answered nothing: {}", last_line(&said.stderr)) };
        serde_json::from_str(answer).context("its answer cannot be read")
    }

    /// The backend that the agent would use, if the program imports its package.
    pub(super) fn backend(&self) -> Option<&'static Backend> {
        let version = self.versions.get("torch").and_then(|torch| TorchVersion::from_text(torch));
        let is_there = |backend: &&Backend| {
            self.available.iter().any(|name| name == backend.name)
                && self.versions.contains_key(backend.package)
                && version.is_none_or(|version| version >= backend.since)
        };
        BACKENDS.iter().find(is_there)
    }

    /// Records for a moment with `recording` on `backend`, and reads what came of it.
    ///
    /// # Errors
    /// With what the agent or the interpreter said.
    pub(super) fn try_recording(
        &self,
        program: &Path,
        backend: &Backend,
        recording: &Recording,
        way: WayChoice,
    ) -> Result<Trial> {
        // Whoever does not mind the way shall know which it will be: that waits for the proof.
        let way = if way == WayChoice::Auto { WayChoice::Native } else { way };
        let folder = TempDir::new().context("no folder for the trial")?;
        let asked = json!({
            "package": backend.package,
            "device": backend.name,
            "settings": {
                "steps": "1",
                "ranks": "all",
                "enabled": true,
                "outbox": folder.path(),
                // Nobody listens there, and nothing is waited for.
                "server": "http://127.0.0.1:9",
                "flush_secs": 0,
                "context": recording.context,
                "stacks": recording.stacks,
                "max_entries": recording.max_entries,
                "way": way.as_str(),
            },
        });
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(name)) {
            command.env_remove(name);
        }
        let said = run(command.args(["-c", TRIAL, &asked.to_string()]))?;
        let found = outbox::folders(folder.path()).context("the outbox of the trial cannot be read")?;
        let items = found.into_iter().filter_map(|found| match found {
            Found::Abandoned(folder) => folder.items().into_iter().next(),
            Found::HandedOver(_) | Found::InUse(_) => None,
        });
        let Some(item) = items.into_iter().next() else {
            bail!("no snapshot came of it: {}", last_line(&said.stderr))
        };
        let snapshot = read::open(File::open(&item.snapshot)?).context("its snapshot cannot be read")?;
        let sidecar = item.sidecar().unwrap_or_default();
        let n_events = snapshot.trace.len() as u64;
        if n_events == 0 {
            bail!("its snapshot holds no event: the allocator did not record");
        }
        let said = |name: &str| {
            let value = sidecar.recording.as_ref().and_then(|recording| recording.get(name)?.as_str());
            value.unwrap_or("unknown").to_owned()
        };
        Ok(Trial {
            n_events,
            bytes: item.bytes,
            stood_still_ms: sidecar.capture_ms.values().sum(),
            way: said("way"),
            native: said("native"),
        })
    }
}

fn is_setting(name: &OsString) -> bool {
    name.to_string_lossy().starts_with("TIDEGAUGE_")
}

struct Said {
    stdout: String,
    stderr: String,
}

/// Runs a program to its end, or kills it when that does not come.
fn run(command: &mut Command) -> Result<Said> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("it does not start")?;
    let stdout = child.stdout.take().map(|stream| thread::spawn(move || text(stream)));
    let stderr = child.stderr.take().map(|stream| thread::spawn(move || text(stream)));
    wait(&mut child)?;
    let joined = |reading: Option<thread::JoinHandle<String>>| {
        reading.and_then(|reading| reading.join().ok()).unwrap_or_default()
    };
    Ok(Said { stdout: joined(stdout), stderr: joined(stderr) })
}

fn wait(child: &mut Child) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().context("it cannot be waited for")?.is_none() {
        if Instant::now() > deadline {
            // One that ended just now is as good as killed.
            child.kill().ok();
            child.wait().ok();
            bail!("it did not end within {} s: a driver or a disk may hang", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn text(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    // What could be read until something failed is what there is to show.
    stream.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).ok();
    io::copy(&mut stream, &mut io::sink()).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The line with the reason: tracebacks end with it, and the agent says one thing at a time.
fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing")
}
