//! The one session of this process, and the walls around it.
//!
//! Nothing leaves: errors are said, panics are caught and end the session. A forked child (a data loader's
//! worker) inherits the session but not its threads, and stays silent unless it starts one of its own.

use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use pyo3::{prelude::*, sync::MutexExt as _, types::PyCFunction};
use tidegauge_capture_agent::{
    notices::Notices,
    session::{Process, Session},
    settings::Settings,
};

use crate::torch::Torch;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);
/// The process that started the session; 0 before any did.
static OWNER: AtomicU32 = AtomicU32::new(0);
static IS_AT_EXIT_REGISTERED: AtomicBool = AtomicBool::new(false);
static NOTICES: LazyLock<Arc<Notices>> = LazyLock::new(|| Arc::new(Notices::new(say)));

thread_local! {
    /// A signal handler or a finalizer may call us while we call Python.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

#[expect(clippy::print_stderr, reason = "people read the agent's notices beside their training log")]
fn say(line: &str) {
    eprintln!("{line}");
}

/// What this process says.
pub(crate) fn notices() -> &'static Arc<Notices> {
    &NOTICES
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
    if is_running(py) {
        return notices().say_once("started-twice", "start() again is ignored: it records already");
    }
    match prepare(py, keywords) {
        Ok(Some((session, torch))) => begin(py, session, &torch, is_used),
        Ok(None) => {}
        Err(sentence) => notices().say(format_args!("nothing is recorded: {sentence}")),
    }
}

/// Whether this process has a session, be it of a rank that records or not.
pub(crate) fn is_running(py: Python<'_>) -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
        && SESSION.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).is_some()
}

fn prepare(py: Python<'_>, keywords: &BTreeMap<&str, String>) -> Result<Option<(Session, Torch)>, String> {
    let settings = Settings::new(keywords, &env).map_err(|error| error.to_string())?;
    if !settings.enabled {
        return Ok(None);
    }
    let torch = Torch::find(py)?;
    torch.native().choose(settings.way, &settings.outbox);
    let process = process(py).map_err(|error| error.to_string())?;
    let session = Session::new(settings, Box::new(torch.clone_ref(py)), process, Arc::clone(notices()));
    Ok(Some((session, torch)))
}

fn begin(py: Python<'_>, session: Session, torch: &Torch, is_used: bool) {
    if session.is_chosen() {
        torch.warm_up(py);
    }
    // What a forked child inherited ends here; its threads are its parent's.
    *SESSION.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) = Some(session);
    OWNER.store(std::process::id(), Ordering::Relaxed);
    let begun = register_at_exit(py).and_then(|()| {
        let begin = |py: Python<'_>| quietly(|| with_session(py, Session::begin));
        match is_used || torch.is_initialized(py)? {
            true => begin(py),
            false => {
                let callback =
                    PyCFunction::new_closure(py, None, None, move |arguments, _| begin(arguments.py()))?;
                torch.when_initialized(py, callback.as_any())?;
            }
        }
        Ok(())
    });
    if let Err(error) = begun {
        notices().say(format_args!("nothing is recorded: {error}"));
    }
}

/// Does something with the session of this process, if it has one.
pub(crate) fn with_session(py: Python<'_>, work: impl FnOnce(&mut Session)) {
    if OWNER.load(Ordering::Relaxed) != std::process::id() || IS_INSIDE.replace(true) {
        return;
    }
    if let Some(session) = &mut *SESSION.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) {
        work(session);
    }
    IS_INSIDE.set(false);
}

/// Ends the session of this process.
pub(crate) fn stop(py: Python<'_>) {
    with_session(py, Session::stop);
    if OWNER.load(Ordering::Relaxed) == std::process::id() {
        *SESSION.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn register_at_exit(py: Python<'_>) -> PyResult<()> {
    if IS_AT_EXIT_REGISTERED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let at_exit = PyCFunction::new_closure(py, None, None, |arguments, _| quietly(|| stop(arguments.py())))?;
    py.import("atexit")?.call_method1("register", (at_exit,))?;
    Ok(())
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
