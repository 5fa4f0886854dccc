//! A snapshot's Python objects as a pickle, written from a thread of ours.
//!
//! Python's own pickler holds the interpreter for tens of milliseconds at a time: when its memo grows, and when it is
//! freed with a million entries in it. Ours knows what a snapshot is made of, keeps in mind only what is shared (frames and
//! texts), and lets go of the interpreter every millisecond; what was written meanwhile is compressed then.
//! Protocol 4, because pytorch.org/memory_viz does not read 5.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    thread,
    time::{Duration, Instant},
};

use pyo3::{
    exceptions::{PyOSError, PyRecursionError},
    intern,
    prelude::*,
    types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};
use tidegauge_api::Sidecar;
use tidegauge_capture_agent::{outbox::Draft, recorder::Unwritten};

use crate::collector::Aside;

/// The longest that the interpreter is held at a time.
const SLICE: Duration = Duration::from_millis(1);

/// How long it is left alone then. Whoever waits for it needs a moment to wake up; taken back sooner, it is asked for only
/// after five milliseconds (`sys.getswitchinterval`), again and again.
const PAUSE: Duration = Duration::from_millis(1);

/// Values that are written between two looks at the clock.
const VALUES_BETWEEN_LOOKS: u32 = 64;

/// Items of a list or dict that wait on a reader's stack at once, as with Python's pickler.
const BATCH: usize = 1000;

/// Lists in dicts in lists: a snapshot has six.
const MAX_DEPTH: u32 = 64;

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
    let mut pickler = Pickler {
        draft,
        written: Vec::new(),
        memo: HashMap::new(),
        held_since: Instant::now(),
        until_look: VALUES_BETWEEN_LOOKS,
        depth: 0,
        is_in_stack: false,
    };
    pickler.written.extend_from_slice(b"\x80\x04");
    pickler.value(snapshot)?;
    pickler.written.push(b'.');
    pickler.let_go(snapshot.py())?;
    Ok(pickler.draft)
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
            py.detach(|| thread::sleep(PAUSE / 4));
        }
    }
}

/// Whether a key's value is a stack: "frames", and "forward_frames".
fn is_stack(key: &Bound<'_, PyAny>) -> bool {
    key.cast_exact::<PyString>().is_ok_and(|key| key.to_cow().is_ok_and(|key| key.ends_with("frames")))
}

struct Pickler {
    draft: Draft,
    /// What was written since the interpreter was last let go of: about a hundred kilobytes.
    written: Vec<u8>,
    /// Numbers of frames and texts by their addresses, which stay: the snapshot keeps its objects alive.
    memo: HashMap<usize, u32>,
    held_since: Instant,
    until_look: u32,
    depth: u32,
    /// Dicts are frames, of which many stacks share each.
    is_in_stack: bool,
}

impl Pickler {
    fn value(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = VALUES_BETWEEN_LOOKS;
            if self.held_since.elapsed() >= SLICE {
                self.let_go(value.py())?;
            }
        }
        if let Ok(text) = value.cast_exact::<PyString>() {
            return self.text(text);
        }
        if let Ok(number) = value.cast_exact::<PyInt>() {
            return self.int(number);
        }
        if value.is_none() {
            self.written.push(b'N');
            return Ok(());
        }
        if let Ok(flag) = value.cast_exact::<PyBool>() {
            self.written.push(if flag.is_true() { 0x88 } else { 0x89 });
            return Ok(());
        }
        if let Ok(number) = value.cast_exact::<PyFloat>() {
            self.written.push(b'G');
            self.written.extend_from_slice(&number.value().to_be_bytes());
            return Ok(());
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(PyRecursionError::new_err("the snapshot holds lists in lists without end"));
        }
        let done = self.container(value);
        self.depth -= 1;
        done
    }

    fn container(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(list) = value.cast_exact::<PyList>() {
            return self.list(list);
        }
        if let Ok(dict) = value.cast_exact::<PyDict>() {
            return self.dict(dict);
        }
        match value.cast_exact::<PyTuple>() {
            Ok(tuple) => self.tuple(tuple),
            Err(_) => self.stranger(value),
        }
    }

    fn list(&mut self, list: &Bound<'_, PyList>) -> PyResult<()> {
        self.written.push(b']');
        for first in (0..list.len()).step_by(BATCH) {
            self.written.push(b'(');
            for at in first..(first + BATCH).min(list.len()) {
                self.value(&list.get_item(at)?)?;
            }
            self.written.push(b'e');
        }
        Ok(())
    }

    fn dict(&mut self, dict: &Bound<'_, PyDict>) -> PyResult<()> {
        let is_frame = self.is_in_stack;
        if is_frame && self.recall(dict.as_any()) {
            return Ok(());
        }
        self.written.push(b'}');
        if is_frame {
            self.memoize(dict.as_any());
        }
        let mut n = 0;
        for (key, value) in dict.iter() {
            if n % BATCH == 0 {
                self.written.extend_from_slice(if n == 0 { b"(" } else { b"u(" });
            }
            self.value(&key)?;
            self.is_in_stack = is_frame || is_stack(&key);
            let done = self.value(&value);
            self.is_in_stack = is_frame;
            done?;
            n += 1;
        }
        if n > 0 {
            self.written.push(b'u');
        }
        Ok(())
    }

    fn tuple(&mut self, tuple: &Bound<'_, PyTuple>) -> PyResult<()> {
        // Of tuples memory_viz knows pairs, as pools are, and those after a mark.
        let end = match tuple.len() {
            2 => 0x86,
            _ => {
                self.written.push(b'(');
                b't'
            }
        };
        for item in tuple.iter_borrowed() {
            self.value(&item)?;
        }
        self.written.push(end);
        Ok(())
    }

    fn text(&mut self, text: &Bound<'_, PyString>) -> PyResult<()> {
        if self.recall(text.as_any()) {
            return Ok(());
        }
        // Half a pair of surrogates is no text elsewhere.
        let Ok(utf8) = text.to_cow() else { return self.stranger(text.as_any()) };
        match (u8::try_from(utf8.len()), u32::try_from(utf8.len())) {
            (Ok(short), _) => self.written.extend_from_slice(&[0x8c, short]),
            (_, Ok(long)) => {
                self.written.push(b'X');
                self.written.extend_from_slice(&long.to_le_bytes());
            }
            _ => return self.stranger(text.as_any()),
        }
        self.written.extend_from_slice(utf8.as_bytes());
        self.memoize(text.as_any());
        Ok(())
    }

    fn int(&mut self, number: &Bound<'_, PyInt>) -> PyResult<()> {
        let Ok(number) = number.extract::<i128>() else { return self.stranger(number.as_any()) };
        if let Ok(small) = u8::try_from(number) {
            self.written.extend_from_slice(&[b'K', small]);
        } else if let Ok(short) = u16::try_from(number) {
            self.written.push(b'M');
            self.written.extend_from_slice(&short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(number) {
            self.written.push(b'J');
            self.written.extend_from_slice(&int.to_le_bytes());
        } else {
            let bytes = number.to_le_bytes();
            // As many as are needed: the last one's highest bit is the sign.
            let filler = if number < 0 { 0xff } else { 0 };
            let mut n = bytes.len();
            while bytes[n - 1] == filler && (bytes[n - 2] ^ filler) < 0x80 {
                n -= 1;
            }
            self.written.extend_from_slice(&[0x8a, n as u8]);
            self.written.extend_from_slice(&bytes[..n]);
        }
        Ok(())
    }

    /// What no snapshot was seen to hold, by Python's own pickler: protocol 3 has no frames and `fast` no memo, so that
    /// it can stand amid ours.
    fn stranger(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        let sink = py.import(intern!(py, "io"))?.call_method0(intern!(py, "BytesIO"))?;
        let pickler = py.import(intern!(py, "pickle"))?.getattr("Pickler")?.call1((&sink, 3))?;
        pickler.setattr("fast", true)?;
        pickler.call_method1("dump", (value,))?;
        let bytes = sink.call_method0("getvalue")?.cast_into::<PyBytes>()?;
        let inner = bytes.as_bytes().strip_prefix(b"\x80\x03").and_then(|bytes| bytes.strip_suffix(b"."));
        let inner = inner.ok_or_else(|| PyOSError::new_err("Python's pickler wrote something unknown"))?;
        self.written.extend_from_slice(inner);
        Ok(())
    }

    fn recall(&mut self, object: &Bound<'_, PyAny>) -> bool {
        let Some(number) = self.memo.get(&(object.as_ptr() as usize)) else { return false };
        match u8::try_from(*number) {
            Ok(small) => self.written.extend_from_slice(&[b'h', small]),
            Err(_) => {
                self.written.push(b'j');
                self.written.extend_from_slice(&number.to_le_bytes());
            }
        }
        true
    }

    fn memoize(&mut self, object: &Bound<'_, PyAny>) {
        let next = self.memo.len() as u32;
        self.memo.insert(object.as_ptr() as usize, next);
        self.written.push(0x94);
    }

    /// Writes what there is while the interpreter is free for others.
    fn let_go(&mut self, py: Python<'_>) -> PyResult<()> {
        let Self { draft, written, .. } = self;
        py.detach(|| {
            let done = draft.write_all(written);
            thread::sleep(PAUSE);
            done
        })?;
        self.written.clear();
        self.held_since = Instant::now();
        Ok(())
    }
}
