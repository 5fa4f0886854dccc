//! What can happen to a process, and how the agent hears of it: memory that runs out, an exception nobody caught,
//! SIGTERM, fork, exit.
//!
//! Everything here stands in somebody else's chain: what was there before is called afterwards, and its effect and
//! the process's exit code stay. SIGINT is left alone.

use std::{
    cell::RefCell,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use pyo3::{
    exceptions::PyException,
    prelude::*,
    types::{PyCFunction, PyDict, PyTuple, PyType},
};
use tidegauge_capture_agent::{
    occasions::{Occasion, Occasions},
    session::Session,
};

use crate::{
    agent::{self, notices, quietly, with_session_soon},
    log,
    torch::Torch,
};

/// A place in the process where something of ours is put, once. Forked children inherit both.
struct Once(AtomicBool);

impl Once {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

static AT_EXIT: Once = Once::new();
static AT_FORK: Once = Once::new();
static EXCEPTIONS: Once = Once::new();
static OUT_OF_MEMORY: Once = Once::new();

/// Ours, and what SIGTERM did before, while ours is in its place.
static HANDLERS: Mutex<Option<Handlers>> = Mutex::new(None);

struct Handlers {
    ours: Py<PyAny>,
    before: Py<PyAny>,
}

/// SIGTERM came while the main thread was inside a call of ours.
static IS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// Puts everything in place that `also` asks for and that needs no device.
///
/// # Errors
/// When Python lacks what it has had for ever.
pub(crate) fn follow(py: Python<'_>, also: Occasions) -> PyResult<()> {
    follow_exit(py)?;
    follow_forks(py)?;
    if also.contains(Occasion::Exception) {
        follow_exceptions(py)?;
    }
    if also.contains(Occasion::Sigterm) {
        follow_sigterm(py)?;
    }
    Ok(())
}

/// Children of `multiprocessing` leave without Python's exit handlers; they have others.
fn follow_exit(py: Python<'_>) -> PyResult<()> {
    let at_exit = || {
        PyCFunction::new_closure(py, None, None, |arguments: &Bound<'_, PyTuple>, _| {
            quietly(|| {
                log::ending();
                agent::stop(arguments.py());
            });
        })
    };
    if AT_EXIT.is_first() {
        py.import("atexit")?.call_method1("register", (at_exit()?,))?;
    }
    let modules = py.import("sys")?.getattr("modules")?;
    if let Ok(processes) = modules.get_item("multiprocessing.process")
        && !processes.call_method0("parent_process")?.is_none()
    {
        let keywords = PyDict::new(py);
        keywords.set_item("exitpriority", 0)?;
        let util = py.import("multiprocessing.util")?;
        util.call_method("Finalize", (py.None(), at_exit()?), Some(&keywords))?;
    }
    Ok(())
}

/// A child forgets signals that came before Python was ready in it. While our handler is in SIGTERM's place none comes
/// in that time: it waits until the child has its own handler back.
fn follow_forks(py: Python<'_>) -> PyResult<()> {
    if !AT_FORK.is_first() {
        return Ok(());
    }
    let hook = |work: fn(Python<'_>)| {
        PyCFunction::new_closure(py, None, None, move |arguments: &Bound<'_, PyTuple>, _| {
            quietly(|| work(arguments.py()));
        })
    };
    let keywords = PyDict::new(py);
    keywords.set_item("before", hook(|py| hold_sigterm(py).unwrap_or_default())?)?;
    keywords.set_item("after_in_parent", hook(|py| let_sigterm_go(py).unwrap_or_default())?)?;
    keywords.set_item("after_in_child", hook(forked)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&keywords))?;
    Ok(())
}

fn forked(py: Python<'_>) {
    agent::forked();
    IS_TERMINATED.store(false, Ordering::Relaxed);
    // A child that ends when told to is the child that its parent expects. What fails leaves it as its parent is.
    give_sigterm_back(py).ok();
    let_sigterm_go(py).ok();
}

thread_local! {
    /// The signals that were blocked in this thread before it forked.
    static BLOCKED: RefCell<Option<Py<PyAny>>> = const { RefCell::new(None) };
}

fn hold_sigterm(py: Python<'_>) -> PyResult<()> {
    if handlers().is_none() {
        return Ok(());
    }
    let signal = py.import("signal")?;
    let blocked = (signal.getattr("SIG_BLOCK")?, [signal.getattr("SIGTERM")?]);
    let before = signal.call_method1("pthread_sigmask", blocked)?.unbind();
    BLOCKED.with_borrow_mut(|blocked| *blocked = Some(before));
    Ok(())
}

fn let_sigterm_go(py: Python<'_>) -> PyResult<()> {
    let Some(before) = BLOCKED.with_borrow_mut(Option::take) else { return Ok(()) };
    let signal = py.import("signal")?;
    signal.call_method1("pthread_sigmask", (signal.getattr("SIG_SETMASK")?, before)).map(drop)
}

/// Has somebody tell when memory runs out: an observer, which runs in the failing thread before the error is raised,
/// or else whoever sees errors that nobody caught. Once the device is in use: to attach one may use it.
///
/// # Errors
/// When Python lacks what it has had for ever.
pub(crate) fn follow_out_of_memory(py: Python<'_>, torch: &Torch, also: Occasions) -> PyResult<()> {
    if !also.contains(Occasion::Oom) || !OUT_OF_MEMORY.is_first() {
        return Ok(());
    }
    let observer = PyCFunction::new_closure(py, None, None, |arguments: &Bound<'_, PyTuple>, _| {
        quietly(|| {
            with_session_soon(arguments.py(), |session| session.happened(Occasion::Oom));
        });
    })?;
    match torch.observe_oom(py, observer.as_any()) {
        true => Ok(()),
        false => follow_exceptions(py),
    }
}

fn follow_exceptions(py: Python<'_>) -> PyResult<()> {
    if !EXCEPTIONS.is_first() {
        return Ok(());
    }
    chain(py, "sys", |arguments| arguments.get_item(0))?;
    if py.import("sys")?.getattr("modules")?.contains("threading")? {
        chain(py, "threading", |arguments| arguments.get_item(0)?.getattr("exc_type"))?;
    }
    Ok(())
}

/// Puts ours before `MODULE.excepthook`.
fn chain(
    py: Python<'_>,
    module: &str,
    kind: for<'py> fn(&Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let module = py.import(module)?;
    let previous = module.getattr("excepthook")?.unbind();
    let ours = PyCFunction::new_closure(py, None, None, move |arguments: &Bound<'_, PyTuple>, _| {
        let py = arguments.py();
        quietly(|| {
            if let Ok(kind) = kind(arguments)
                && let Some(is_out_of_memory) = death(&kind)
            {
                with_session_soon(py, |session| session.died(is_out_of_memory));
            }
        });
        previous.call1(py, arguments.clone())
    })?;
    module.setattr("excepthook", ours)
}

/// Whether memory ran out; nothing for exceptions by which people and programs end on purpose.
fn death(kind: &Bound<'_, PyAny>) -> Option<bool> {
    let kind = kind.cast::<PyType>().ok()?;
    if !kind.is_subclass_of::<PyException>().unwrap_or(false) {
        return None;
    }
    let name = kind.name().map(|name| name.to_string()).unwrap_or_default();
    // torch.OutOfMemoryError, and torch.cuda's before 2.5.
    Some(name == "OutOfMemoryError")
}

/// Only where it has an effect that Python knows, so that it can be had afterwards.
fn follow_sigterm(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    if !threading.call_method0("current_thread")?.is(&threading.call_method0("main_thread")?) {
        notices()
            .say("SIGTERM is not followed: start() was called in a thread, where Python sets no handlers");
        return Ok(());
    }
    let signal = py.import("signal")?;
    let number = signal.getattr("SIGTERM")?;
    let current = signal.call_method1("getsignal", (&number,))?;
    if current.is_none() || current.eq(signal.getattr("SIG_IGN")?)? {
        notices().say("SIGTERM is not followed: it is ignored here, or handled outside Python");
        return Ok(());
    }
    if handlers().is_some() {
        return Ok(());
    }
    let ours =
        PyCFunction::new_closure(py, None, None, |arguments: &Bound<'_, PyTuple>, _| terminated(arguments))?;
    signal.call_method1("signal", (number, &ours))?;
    *handlers() = Some(Handlers { ours: ours.into_any().unbind(), before: current.unbind() });
    Ok(())
}

fn handlers() -> MutexGuard<'static, Option<Handlers>> {
    HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler. Python calls it between two of its instructions, in the main thread: when that is inside a call of
/// ours, it waits for the end of that.
fn terminated(arguments: &Bound<'_, PyTuple>) -> PyResult<()> {
    let py = arguments.py();
    if agent::is_inside() {
        IS_TERMINATED.store(true, Ordering::Relaxed);
        return Ok(());
    }
    let before = handlers().as_ref().map(|handlers| handlers.before.clone_ref(py).into_bound(py));
    // Put back in the meantime, as in a child that was forked just now: the signal is for that one.
    let Some(before) = before else { return raise_sigterm(py) };
    quietly(|| with_session_soon(py, |session| session.happened(Occasion::Sigterm)));
    if before.is_callable() && !is_default(&before)? {
        return before.call1(arguments.clone()).map(drop);
    }
    // It ends the process without Python's exit handlers.
    quietly(|| with_session_soon(py, Session::stop));
    set_default(py)?;
    raise_sigterm(py)
}

fn set_default(py: Python<'_>) -> PyResult<()> {
    let signal = py.import("signal")?;
    signal.call_method1("signal", (signal.getattr("SIGTERM")?, signal.getattr("SIG_DFL")?)).map(drop)
}

fn is_default(handler: &Bound<'_, PyAny>) -> PyResult<bool> {
    handler.eq(handler.py().import("signal")?.getattr("SIG_DFL")?)
}

fn raise_sigterm(py: Python<'_>) -> PyResult<()> {
    let signal = py.import("signal")?;
    signal.call_method1("raise_signal", (signal.getattr("SIGTERM")?,)).map(drop)
}

/// Puts back what was there before ours, unless somebody has put theirs before ours since.
fn give_sigterm_back(py: Python<'_>) -> PyResult<()> {
    let signal = py.import("signal")?;
    let number = signal.getattr("SIGTERM")?;
    let current = signal.call_method1("getsignal", (&number,))?;
    let is_ours = handlers().as_ref().is_some_and(|handlers| current.is(&handlers.ours));
    match is_ours.then(|| handlers().take()).flatten() {
        Some(Handlers { before, .. }) => signal.call_method1("signal", (number, before)).map(drop),
        None => Ok(()),
    }
}

/// What had to wait while a call of ours went on.
pub(crate) fn catch_up(py: Python<'_>) {
    if IS_TERMINATED.swap(false, Ordering::Relaxed) && trip_sigterm(py).is_err() {
        // Before Python 3.10.
        raise_sigterm(py).ok();
    }
}

/// Has Python call the handler again once this call of ours has returned: what the handler raises is then raised in
/// the program, where it belongs.
fn trip_sigterm(py: Python<'_>) -> PyResult<()> {
    let number = py.import("signal")?.getattr("SIGTERM")?;
    py.import("_thread")?.call_method1("interrupt_main", (number,)).map(drop)
}
