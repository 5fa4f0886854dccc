//! A snapshot's Python objects as a pickle, written from a thread of ours.
//!
//! Python's own pickler does it, into a file-like object of ours: it hands over 64 KiB at a time, and while
//! these are compressed and written the interpreter is free for the training thread. Protocol 4, because
//! pytorch.org/memory_viz does not read 5.

use std::{
    io::{self, Write as _},
    sync::{Mutex, PoisonError},
    thread,
};

use pyo3::{
    exceptions::PyOSError,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};
use tidegauge_api::Sidecar;
use tidegauge_capture_agent::{outbox::Draft, recorder::Unwritten};

use crate::collector::Aside;

const PROTOCOL: u8 = 4;

/// Events whose objects are freed before the interpreter is let go of once more: well under a millisecond.
const FREED_AT_ONCE: usize = 1000;

/// What `_snapshot()` returned, and its place out of the collector's way.
pub(crate) struct Snapshot {
    objects: Py<PyAny>,
    /// Goes when the objects are gone.
    aside: Option<Aside>,
}

impl Snapshot {
    pub(crate) fn new(objects: Py<PyAny>, aside: Option<Aside>) -> Self {
        Self { objects, aside }
    }
}

impl Unwritten for Snapshot {
    fn write(self: Box<Self>, draft: Draft, _: &mut Sidecar) -> io::Result<Draft> {
        let Self { objects, aside } = *self;
        let written = Python::try_attach(|py| {
            let snapshot = objects.into_bound(py);
            let draft = pickle(&snapshot, draft);
            free_piecemeal(&snapshot);
            drop((snapshot, aside));
            draft.map_err(|error| io::Error::other(error.to_string()))
        });
        written.unwrap_or_else(|| Err(io::Error::other("Python has ended")))
    }
}

fn pickle(snapshot: &Bound<'_, PyAny>, draft: Draft) -> PyResult<Draft> {
    let py = snapshot.py();
    let sink = Bound::new(py, Sink(Mutex::new(Some(draft))))?;
    let pickler = py.import("pickle")?.getattr("Pickler")?.call1((&sink, PROTOCOL))?;
    pickler.call_method1("dump", (snapshot,))?;
    let draft = sink.get().0.lock().unwrap_or_else(PoisonError::into_inner).take();
    draft.ok_or_else(|| PyOSError::new_err("the pickle was not written to its end"))
}

/// To free a million small objects at once would stop training for as long as it takes.
fn free_piecemeal(snapshot: &Bound<'_, PyAny>) {
    let py = snapshot.py();
    let traces =
        snapshot.cast::<PyDict>().ok().and_then(|dict| dict.get_item("device_traces").ok().flatten());
    let Some(traces) = traces.and_then(|traces| traces.cast_into::<PyList>().ok()) else { return };
    for trace in traces.iter() {
        let Ok(trace) = trace.cast_into::<PyList>() else { continue };
        while !trace.is_empty() {
            let n = trace.len();
            if trace.del_slice(n.saturating_sub(FREED_AT_ONCE), n).is_err() {
                break;
            }
            py.detach(thread::yield_now);
        }
    }
}

/// The pickler's file: passes bytes on to the draft.
#[pyclass(frozen)]
struct Sink(Mutex<Option<Draft>>);

#[pymethods]
impl Sink {
    fn write(&self, py: Python<'_>, bytes: &Bound<'_, PyBytes>) -> PyResult<usize> {
        let bytes = bytes.as_bytes();
        py.detach(|| {
            let mut draft = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(writer) = &mut *draft else { return Err(io::Error::other("the draft is gone")) };
            // A draft that failed once is not finished.
            writer.write_all(bytes).inspect_err(|_| *draft = None)
        })?;
        Ok(bytes.len())
    }
}
