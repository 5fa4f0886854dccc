//! Where the agent's lines go: to Python's `logging`, as "tidegauge", where the program has set that up, and to
//! standard error where it has not.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::{intern, prelude::*};
use tidegauge_capture_agent::notices::Level;

use crate::agent;

/// Set when the process ends: from then on threads of ours leave Python alone.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Says a line.
pub(crate) fn say(level: Level, line: &str) {
    // The ending process itself, which is inside a call of ours, may still speak Python.
    let may_log = !IS_ENDING.load(Ordering::Relaxed) || agent::is_inside();
    let is_logged =
        may_log && Python::try_attach(|py| log(py, level, line).unwrap_or(false)).unwrap_or(false);
    if !is_logged {
        print(line);
    }
}

/// The process is about to end.
pub(crate) fn ending() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// Whether somebody takes it. `logging` is not imported for it: who has not, has set up no handlers.
fn log(py: Python<'_>, level: Level, line: &str) -> PyResult<bool> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    let Ok(logging) = modules.get_item("logging") else { return Ok(false) };
    let logger = logging.call_method1("getLogger", ("tidegauge",))?;
    if !logger.call_method0("hasHandlers")?.is_truthy()? {
        return Ok(false);
    }
    let level = match level {
        Level::Info => "info",
        Level::Warning => "warning",
    };
    // The logger's name says who speaks.
    let line = line.strip_prefix("tidegauge: ").unwrap_or(line);
    logger.call_method1(level, ("%s", line))?;
    Ok(true)
}

#[expect(clippy::print_stderr, reason = "people read the agent's notices beside their training log")]
fn print(line: &str) {
    eprintln!("{line}");
}
