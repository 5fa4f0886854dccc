//! The one session of this process, and the walls around it.
//!
//! Nothing leaves: errors are said, panics are caught and end the session. A forked child (a data loader's
//! worker) inherits the session but not its threads, and stays silent unless it starts one of its own. It cannot
//! trust the locks it inherits, one of which another thread of its parent may have held: each generation of
//! forked processes has its own.

use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pyo3::{
    prelude::*,
    sync::MutexExt as _,
    types::{PyCFunction, PyDict, PyTuple},
};
use tidegauge_capture_agent::{
    notices::{Level, Notices},
    occasions::Occasions,
    session::{Process, Session},
    settings::Settings,
};

use crate::{life, log, torch::Torch};

/// How deep forks may be nested that each start a session. Nobody forks so deep; the next child stays silent.
const MAX_GENERATIONS: usize = 16;

/// A generation's session, and what it says.
struct Generation {
    session: Mutex<Option<Session>>,
    notices: LazyLock<Arc<Notices>>,
}

static GENERATIONS: [Generation; MAX_GENERATIONS] = [const {
    Generation {
        session: Mutex::new(None),
        notices: LazyLock::new(|| Arc::new(Notices::with_levels(log::say))),
    }
}; MAX_GENERATIONS];
static GENERATION: AtomicUsize = AtomicUsize::new(0);
/// The process that started the session; 0 before any did.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The backend, where it cannot tell when its device is first used.
static WAITING: Mutex<Option<Device>> = Mutex::new(None);
static IS_WAITING: AtomicBool = AtomicBool::new(false);

/// The longest wait for a thread that is busy with the session when memory runs out or the process must end.
const SOON: Duration = Duration::from_secs(10);

thread_local! {
    /// A signal handler or a finalizer may call us while we call Python.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn generation() -> &'static Generation {
    let n = GENERATION.load(Ordering::Relaxed).min(MAX_GENERATIONS - 1);
    &GENERATIONS[n]
}

/// What this process says.
pub(crate) fn notices() -> &'static Arc<Notices> {
    &generation().notices
}

/// Whether a session of this very process runs.
fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// Whether this thread is in a call of ours.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.get()
}

/// This process was forked: nothing of its parent's is its own.
pub(crate) fn forked() {
    if OWNER.swap(0, Ordering::Relaxed) != 0 {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    IS_WAITING.store(false, Ordering::Relaxed);
    IS_INSIDE.set(false);
}

fn session(py: Python<'_>) -> MutexGuard<'static, Option<Session>> {
    generation().session.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
}

/// Runs one entry from Python. A panic ends the session, not the training.
pub(crate) fn quietly(entry: impl FnOnce()) {
    if panic::catch_unwind(AssertUnwindSafe(entry)).is_err() {
        OWNER.store(0, Ordering::Relaxed);
        IS_INSIDE.set(false);
        notices().say_once("panic", "stands down after a mistake of its own; training goes on without it");
    }
}

/// Starts the session, unless one runs already.
pub(crate) fn start(py: Python<'_>, keywords: &BTreeMap<&str, String>) {
    start_when(py, keywords, false);
}

/// The same; `is_used` says that the program uses the device already, or that torch is just making it usable. Torch
/// holds a lock then, so it cannot be asked.
pub(crate) fn start_when(py: Python<'_>, keywords: &BTreeMap<&str, String>, is_used: bool) {
    if !is_owner() && OWNER.load(Ordering::Relaxed) != 0 {
        // A fork that Python did not see.
        forked();
    }
    if GENERATION.load(Ordering::Relaxed) >= MAX_GENERATIONS {
        return log::say(Level::Warning, "tidegauge: nothing is recorded: forks are nested too deep");
    }
    if is_running(py) {
        return notices().say_once("started-twice", "start() again is ignored: it records already");
    }
    match prepare(py, keywords) {
        Ok(Some((session, torch, also))) => begin(py, session, Device { torch, also }, is_used),
        Ok(None) => {}
        Err(sentence) => notices().say(format_args!("nothing is recorded: {sentence}")),
    }
}

/// Whether this process has a session, be it of a rank that records or not.
pub(crate) fn is_running(py: Python<'_>) -> bool {
    is_owner() && session(py).is_some()
}

fn prepare(
    py: Python<'_>,
    keywords: &BTreeMap<&str, String>,
) -> Result<Option<(Session, Torch, Occasions)>, String> {
    let settings = Settings::new(keywords, &env).map_err(|error| error.to_string())?;
    if !settings.enabled {
        return Ok(None);
    }
    let (torch, also) = (Torch::find(py, notices())?, settings.also);
    torch.native().choose(settings.way, &settings.outbox);
    let process = process(py).map_err(|error| error.to_string())?;
    let session = Session::new(settings, Box::new(torch.clone_ref(py)), process, Arc::clone(notices()));
    Ok(Some((session, torch, also)))
}

fn begin(py: Python<'_>, new: Session, device: Device, is_used: bool) {
    if new.is_chosen() {
        device.torch.warm_up(py);
    }
    *session(py) = Some(new);
    OWNER.store(std::process::id(), Ordering::Relaxed);
    let begun = life::follow(py, device.also).and_then(|()| match is_used {
        true => {
            device.begin(py);
            Ok(())
        }
        false => device.begin_when_used(py),
    });
    if let Err(error) = begun {
        notices().say(format_args!("nothing is recorded: {error}"));
    }
}

/// A backend whose device the program may not have used yet.
struct Device {
    torch: Torch,
    also: Occasions,
}

impl Device {
    fn begin_when_used(self, py: Python<'_>) -> PyResult<()> {
        if self.torch.is_initialized(py)? {
            self.begin(py);
            return Ok(());
        }
        let used = Self { torch: self.torch.clone_ref(py), ..self };
        let callback = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            quietly(|| used.begin(arguments.py()));
        };
        let callback = PyCFunction::new_closure(py, None, None, callback)?;
        if !self.torch.when_initialized(py, callback.as_any())? {
            *WAITING.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) = Some(self);
            IS_WAITING.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn begin(&self, py: Python<'_>) {
        with_session(py, Session::begin);
        if let Err(error) = life::follow_out_of_memory(py, &self.torch, self.also) {
            notices().say(format_args!("running out of memory is not noticed: {error}"));
        }
    }
}

/// Begins now, where nobody tells when the program first uses its device and it has by now.
fn begin_if_used(py: Python<'_>) {
    if !IS_WAITING.load(Ordering::Relaxed) || !is_owner() {
        return;
    }
    let used = {
        let mut waiting = WAITING.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        waiting.take_if(|device| device.torch.is_initialized(py).unwrap_or(false))
    };
    if let Some(device) = used {
        IS_WAITING.store(false, Ordering::Relaxed);
        device.begin(py);
    }
}

/// The end of a step.
pub(crate) fn step(py: Python<'_>, n: Option<u64>) {
    with_session(py, |session| session.step(n));
    begin_if_used(py);
}

/// Does something with the session of this process, if it has one.
pub(crate) fn with_session(py: Python<'_>, work: impl FnOnce(&mut Session)) {
    if !is_owner() || IS_INSIDE.replace(true) {
        return;
    }
    if let Some(session) = &mut *session(py) {
        work(session);
    }
    IS_INSIDE.set(false);
    life::catch_up(py);
}

/// Does something with it soon, or not at all: another thread may be busy with it, and the process has not for
/// ever.
pub(crate) fn with_session_soon(py: Python<'_>, work: impl FnOnce(&mut Session)) {
    if !is_owner() || IS_INSIDE.replace(true) {
        return;
    }
    let deadline = Instant::now() + SOON;
    let session = loop {
        match generation().session.try_lock() {
            Ok(session) => break Some(session),
            Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > deadline => break None,
            Err(TryLockError::WouldBlock) => py.detach(|| thread::sleep(Duration::from_millis(5))),
        }
    };
    match session {
        Some(mut session) => {
            if let Some(session) = &mut *session {
                work(session);
            }
        }
        None => notices().say_once("busy", "no snapshot: another thread has been taking one for too long"),
    }
    IS_INSIDE.set(false);
    life::catch_up(py);
}

/// Ends the session of this process.
pub(crate) fn stop(py: Python<'_>) {
    with_session(py, Session::stop);
    if is_owner() && !is_inside() {
        *session(py) = None;
    }
}

fn process(py: Python<'_>) -> PyResult<Process> {
    let arguments: Vec<String> =
        py.import("sys")?.getattr("argv").and_then(|argv| argv.extract()).unwrap_or_default();
    Ok(Process {
        env,
        now_us,
        host: py.import("socket")?.call_method0("gethostname")?.extract()?,
        pid: std::process::id(),
        script: arguments.into_iter().next(),
        waiting: |wait| Python::attach(|py| py.detach(wait)),
    })
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn now_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}
