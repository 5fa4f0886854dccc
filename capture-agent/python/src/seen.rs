//! What a snapshot's traces hold, counted beside the training thread's work: lengths, and where a reading goes on.
//!
//! Where the history is not ours to clear, a trace holds the events of earlier windows, too. They are found by
//! the last event of the reading before, looked for from the end: whatever the ring has pushed out since, and
//! whatever else somebody takes.

use std::collections::BTreeMap;

use pyo3::{
    intern,
    prelude::*,
    types::{PyDict, PyList},
};
use tidegauge_capture_agent::reckoning::{Seen, SeenTrace};

/// The last reading, and the one before.
#[derive(Default)]
pub(crate) struct LastSeen {
    /// `device_traces` of the last reading, until somebody asked.
    traces: Option<Py<PyList>>,
    /// By device: the last event of the reading before.
    ends: BTreeMap<usize, Option<Mark>>,
}

/// What tells an event from others. NPUs have no times.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    action: String,
    address: Option<u64>,
    size: Option<u64>,
    time_us: Option<i64>,
}

impl LastSeen {
    /// A snapshot was read. What is no list of traces is not counted.
    pub(crate) fn read(&mut self, snapshot: &Bound<'_, PyAny>) {
        let traces = snapshot.get_item(intern!(snapshot.py(), "device_traces")).ok();
        self.traces = traces.and_then(|traces| traces.cast_into::<PyList>().ok()).map(Bound::unbind);
    }

    /// What it holds.
    pub(crate) fn seen(&mut self, py: Python<'_>, is_continued: bool) -> PyResult<Seen> {
        let Some(traces) = self.traces.take() else { return Ok(Seen::new()) };
        let mut seen = Seen::new();
        for (device, trace) in traces.bind(py).iter().enumerate() {
            let trace = trace.cast_into::<PyList>()?;
            let n_older = is_continued.then(|| self.n_older(device, &trace)).flatten();
            seen.insert(device.to_string(), SeenTrace { n_events: trace.len() as u64, n_older });
            match trace.iter().next_back() {
                Some(last) => self.ends.insert(device, mark(&last)),
                None => self.ends.remove(&device),
            };
        }
        Ok(seen)
    }

    /// Nothing when the last event of the reading before is not in it any more.
    fn n_older(&self, device: usize, trace: &Bound<'_, PyList>) -> Option<u64> {
        let Some(end) = self.ends.get(&device) else { return Some(0) };
        let end = end.as_ref()?;
        let mut follower: Option<Mark> = None;
        for (n_newer, event) in trace.iter().rev().enumerate() {
            let mark = mark(&event);
            // Without times a loop's events repeat; the reading itself left a mark behind its last event.
            let is_certain = || end.time_us.is_some() || follower.as_ref().is_some_and(Mark::is_of_a_reading);
            if mark.as_ref() == Some(end) && is_certain() {
                return Some((trace.len() - n_newer) as u64);
            }
            follower = mark;
        }
        None
    }
}

impl Mark {
    fn is_of_a_reading(&self) -> bool {
        self.action == "snapshot"
    }
}

fn mark(event: &Bound<'_, PyAny>) -> Option<Mark> {
    let (py, event) = (event.py(), event.cast::<PyDict>().ok()?);
    let item = |name| event.get_item(name).ok().flatten();
    Some(Mark {
        action: item(intern!(py, "action"))?.extract().ok()?,
        address: item(intern!(py, "addr")).and_then(|address| address.extract().ok()),
        size: item(intern!(py, "size")).and_then(|size| size.extract().ok()),
        time_us: item(intern!(py, "time_us")).and_then(|time| time.extract().ok()),
    })
}
