//! What each check looks at, and what it says of that.

use std::{env, fs, io, path::Path};

use anyhow::Result;
use tidegauge_capture_agent::{
    backend::{Backend, Driven, TorchVersion, UNTESTED},
    outbox::{self, Waiting},
    push::PushError,
    settings::{NAMES, Settings, WayChoice, variable},
};
use tidegauge_snapshot::words::{count, counted, size};

use crate::run::AUTO;

use super::{
    Check, State,
    cost::Cost,
    interpreter::{Interpreter, Trial},
};

const ANOTHER_OUTBOX: &str = "give a folder that can be written with outbox= or TIDEGAUGE_OUTBOX";

pub(super) fn settings(settings: &Settings) -> Check {
    // Not said to be wrong: other programs of ours have variables, too.
    let ours: Vec<_> = NAMES
        .iter()
        .map(|name| variable(name))
        .chain(["TIDEGAUGE_PYTHON", AUTO].map(str::to_owned))
        .collect();
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

pub(super) fn no_python(program: &Path, error: &anyhow::Error) -> Check {
    let says = format!("{}: {error:#}", program.display());
    Check::red("python", says, "name the interpreter that trains with --python")
}

pub(super) fn python(interpreter: &Interpreter) -> Check {
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

pub(super) fn no_torch(interpreter: &Interpreter) -> Check {
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

/// The backend, and what is there beside it.
pub(super) fn backend(interpreter: &Interpreter, torch: &str) -> Vec<Check> {
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
        }
    }
    for name in UNTESTED.iter().filter(|name| interpreter.available.iter().any(|there| there == *name)) {
        let says = format!("{name} is there; nothing is recorded on it, since no test drove it");
        checks.push(Check::new("backend", State::Untested, says));
    }
    checks
}

/// In which way snapshots are taken. A trial tells; without one the agent finds out when it starts.
pub(super) fn mode(
    interpreter: &Interpreter,
    backend: &Backend,
    choice: WayChoice,
    tried: Option<&Result<Trial>>,
) -> Option<Check> {
    let version = TorchVersion::from_text(interpreter.versions.get("torch")?)?;
    let python = format!(
        "Python: _snapshot(), cleared by {}, pickled beside training",
        match backend.clearing(version) {
            "off and on" => "going off and on, in which events of other threads can be lost",
            "same call" => "the same call once more",
            clearing => clearing,
        }
    );
    let has_native = backend.name == "cuda" && !interpreter.is_rocm && choice != WayChoice::Python;
    Some(match tried {
        Some(Ok(trial)) if trial.way == "native" => {
            let says = "native: read beside training by PyTorch's own C++ function, proved with this build";
            Check::fine("mode", says.to_owned())
        }
        Some(Ok(trial)) if has_native => Check::fine(
            "mode",
            format!(
                "{python}; training waits for each snapshot, so choose few steps; the native way is {}",
                trial.native
            ),
        ),
        _ if has_native => Check::fine(
            "mode",
            format!(
                "native once a trial has proved it with this build (--try makes it now), until then {python}"
            ),
        ),
        _ => Check::fine("mode", python),
    })
}

/// What came of a trial, if there was one.
pub(super) fn recording(tried: Option<Result<Trial>>) -> Check {
    match tried {
        None => {
            let says = "not tried; --try records for a moment on the device".to_owned();
            Check::new("recording", State::Skipped, says)
        }
        Some(Ok(Trial { n_events, bytes, stood_still_ms, .. })) => Check::fine(
            "recording",
            format!(
                "works: {} in a file of {}, training stood still for {stood_still_ms:.1} ms",
                counted(n_events, "event"),
                size(bytes)
            ),
        ),
        Some(Err(error)) => Check::red(
            "recording",
            format!("{error:#}"),
            "see to what it says; a training here would say the same and go on without recording",
        ),
    }
}

/// Twice the memory: one snapshot may be written while the next is taken.
pub(super) fn cost(cost: &Cost, available_bytes: Option<u64>) -> Check {
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
pub(super) fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

pub(super) fn server(settings: &Settings) -> Check {
    let address = settings.server.address();
    let token = if settings.server.has_token() { "the token is accepted" } else { "it asks for no token" };
    match settings.server.check() {
        Ok(()) => Check::fine("server", format!("{address} takes snapshots, {token}")),
        Err(PushError::Refused(problem)) if matches!(problem.status, 401 | 403) => Check::red(
            "server",
            format!("{address} does not let us in: {}", problem.detail),
            "set TIDEGAUGE_TOKEN to the server's token, or TIDEGAUGE_TOKEN_FILE to a file with it",
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

pub(super) fn outbox(settings: &Settings) -> Vec<Check> {
    let root = std::path::absolute(&settings.outbox).unwrap_or_else(|_| settings.outbox.clone());
    let waiting = match outbox::waiting(&root) {
        Ok(waiting) => waiting,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Waiting::default(),
        Err(error) => {
            let says = format!("{} cannot be read: {error}", root.display());
            return vec![Check::red("outbox", says, ANOTHER_OUTBOX)];
        }
    };
    let mut checks = vec![room(settings, &root, waiting)];
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

fn room(settings: &Settings, root: &Path, waiting: Waiting) -> Check {
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
        size(settings.room.max_bytes),
        count(waiting.n_alive),
        free.map_or("an unknown amount".to_owned(), size)
    );
    match free {
        _ if waiting.bytes >= settings.room.max_bytes => {
            Check::red("outbox", format!("{says}: it is full"), "send what is in it, or raise outbox_bytes")
        }
        Some(free) if free <= settings.room.min_free_bytes => Check::red(
            "outbox",
            format!("{says}, and {} are to stay free", size(settings.room.min_free_bytes)),
            "make room on that disk, give another folder with outbox=, or lower outbox_free",
        ),
        _ => Check::fine("outbox", says),
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
        let predicted = Cost::of(&recording);
        let check = cost(&predicted, Some(1 << 30));
        assert_eq!((check.state, check.what_to_do.as_deref()), (State::Red, Some("lower max_entries")));
        assert!(
            check.says.ends_with("two at once do not fit into the 1.00 GiB that are available"),
            "{}",
            check.says
        );
        assert_eq!(cost(&predicted, Some(2 << 30)).state, State::Fine);
        assert_eq!(cost(&predicted, None).state, State::Fine);
    }
}
