//! What the adapters in `tidegauge/` call: they know a framework, and nothing else.

use std::collections::BTreeMap;

use pyo3::{prelude::*, types::PyDict};
use tidegauge_capture_agent::{frameworks::StepsBy, settings::variable};

use crate::{agent, keywords};

/// Start the session unless this process has one. What an adapter sets is a default: a variable wins over it.
/// `is_used` says that torch is just making the device usable.
#[pyfunction]
#[pyo3(signature = (is_used=false, **settings))]
pub(crate) fn start_unless_running(py: Python<'_>, is_used: bool, settings: Option<Bound<'_, PyDict>>) {
    agent::quietly(|| {
        if agent::is_running(py) {
            return;
        }
        let is_unset = |name: &str| std::env::var_os(variable(name)).is_none_or(|value| value.is_empty());
        let settings: BTreeMap<_, _> = keywords::texts(None, settings, agent::notices())
            .into_iter()
            .filter(|(name, _)| is_unset(name))
            .collect();
        agent::start_when(py, &settings, is_used);
    });
}

/// Whether this process has a session.
#[pyfunction]
pub(crate) fn is_running(py: Python<'_>) -> bool {
    let mut is_running = false;
    agent::quietly(|| is_running = agent::is_running(py));
    is_running
}

/// A framework's adapter, or the optimizer's hook, will say where steps end.
#[pyfunction]
pub(crate) fn steps_from(py: Python<'_>, by: &str) {
    agent::quietly(|| with(by, |by| agent::with_session(py, |session| session.steps_from(by))));
}

/// A framework says that step `n` ended, or the one after the last.
#[pyfunction]
pub(crate) fn step_by(py: Python<'_>, n: Option<u64>, by: &str) {
    agent::quietly(|| with(by, |by| agent::with_session(py, |session| session.step_by(n, by))));
}

/// A framework says that step `n` begins and what was before does not belong to it.
#[pyfunction]
pub(crate) fn begin_step(py: Python<'_>, n: u64, by: &str) {
    agent::quietly(|| with(by, |by| agent::with_session(py, |session| session.begin_step(n, by))));
}

/// A framework says which role this process plays.
#[pyfunction]
pub(crate) fn plays(py: Python<'_>, role: &str, by: &str) {
    agent::quietly(|| agent::with_session(py, |session| session.plays(role, by)));
}

/// An adapter met something that it does not know; said once, and training goes on without it.
#[pyfunction]
pub(crate) fn framework_failed(by: &str, error: &str) {
    agent::quietly(|| {
        agent::notices().say_once("framework", format_args!("the adapter for {by} does nothing: {error}"));
    });
}

fn with(word: &str, work: impl FnOnce(StepsBy)) {
    match StepsBy::from_word(word) {
        Some(by) => work(by),
        None => agent::notices().say_once("steps-from", format_args!("nobody called {word:?} tells steps")),
    }
}
