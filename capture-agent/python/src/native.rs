//! The native way in this process: whether it may be gone, and the thread that goes it.
//!
//! ```text
//! Off ←─ refused without a trial ── prepare ── trial in a child ─→ Asking ── proved ─→ Ready
//!  ↑                                                                 │
//!  └──────────────────────── refused, died, hung ────────────────────┘
//! ```
//! Until it is ready, and whenever it is not, snapshots are taken the Python way.

use std::{
    fmt::{self, Display, Formatter},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pyo3::{
    prelude::*,
    types::{PyCFunction, PyDict},
};
use tidegauge_capture_agent::{
    beside::{Beside, Pending},
    proof::{self, Verdict},
    recorder::{RecorderError, Way},
    settings::WayChoice,
};

use crate::{agent::notices, torch::Torch};

/// The longest that a fork waits for a snapshot that is being read. Past that it goes on: the child is harmed only if
/// it uses the device, which CUDA does not let it anyway.
const FORK_PATIENCE: Duration = Duration::from_secs(10);

/// The longest that emptying or ending a history waits for snapshots of it that are still being read.
const READ_PATIENCE: Duration = Duration::from_secs(60);

/// What the child runs.
const TRIAL: &str = "import sys, tidegauge._agent as agent; agent._prove(int(sys.argv[1]))";

/// The native way of a process, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct NativeWay(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    choice: Option<(WayChoice, PathBuf)>,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody asked yet.
    #[default]
    Unknown,
    Asking,
    Ready(Arc<Beside>),
    Off(String),
}

impl NativeWay {
    /// What was chosen, and the folder that remembers proofs.
    pub(crate) fn choose(&self, choice: WayChoice, folder: &Path) {
        self.lock().choice = Some((choice, folder.to_owned()));
    }

    /// Finds out whether the way can be gone, on another thread. Waits for that only where it was chosen so.
    pub(crate) fn prepare(self: &Arc<Self>, py: Python<'_>, torch: &Torch) {
        let Some((choice, folder)) = self.lock().choice.clone() else { return };
        let trial = match Trial::of(py, torch, choice, folder) {
            Ok(trial) => trial,
            Err(reason) => {
                if choice == WayChoice::Native {
                    say(&reason);
                }
                return self.settle(State::Off(reason));
            }
        };
        self.settle(State::Asking);
        let way = Arc::clone(self);
        let thread =
            thread::Builder::new().name("tidegauge-prove".to_owned()).spawn(move || way.settle(trial.make()));
        match thread {
            Ok(thread) if choice == WayChoice::Native => {
                // A panic was said by itself, and leaves the Python way.
                py.detach(|| thread.join().ok());
            }
            Ok(_) => {}
            Err(error) => self.settle(State::Off(format!("no thread to try it on: {error}"))),
        }
    }

    pub(crate) fn way(&self) -> Way {
        match &self.lock().state {
            State::Ready(beside) if beside.failure().is_none() => Way::Native,
            _ => Way::Python,
        }
    }

    /// Has the history read by the thread.
    pub(crate) fn read(&self) -> Result<Pending, RecorderError> {
        let beside = match &self.lock().state {
            State::Ready(beside) => Arc::clone(beside),
            _ => return Err(RecorderError("the native way is not there".to_owned())),
        };
        // Reading needs the interpreter where stacks become text.
        Python::attach(|py| py.detach(|| beside.begin()))
    }

    /// Waits until what was asked for is read: the history is about to go.
    pub(crate) fn drain(&self) {
        let beside = match &self.lock().state {
            State::Ready(beside) => Arc::clone(beside),
            _ => return,
        };
        Python::attach(|py| py.detach(|| beside.drain(READ_PATIENCE)));
    }

    fn settle(&self, state: State) {
        let old = std::mem::replace(&mut self.lock().state, state);
        end(old);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Display for NativeWay {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match &self.lock().state {
            State::Unknown => out.write_str("not looked for"),
            State::Asking => out.write_str("being tried"),
            State::Ready(beside) => match beside.failure() {
                None => out.write_str("proved"),
                Some(failure) => write!(out, "failed: {failure}"),
            },
            State::Off(reason) => write!(out, "refused: {reason}"),
        }
    }
}

impl Drop for NativeWay {
    fn drop(&mut self) {
        end(std::mem::take(&mut self.lock().state));
    }
}

fn say(why: &str) {
    let line = format_args!("snapshots are taken the Python way, which training waits for: {why}");
    notices().say_once("native-way", line);
}

/// Ends a thread that may need the interpreter for its last call, so that must be free meanwhile.
fn end(state: State) {
    if matches!(state, State::Ready(_)) {
        let mut state = Some(state);
        Python::try_attach(|py| {
            let state = state.take();
            py.detach(|| drop(state));
        });
    }
}

/// What is to be found out, put together while the interpreter is there.
struct Trial {
    folder: PathBuf,
    key: String,
    child: Command,
}

impl Trial {
    /// # Errors
    /// Why the Python way is to be gone without one.
    fn of(py: Python<'_>, torch: &Torch, choice: WayChoice, folder: PathBuf) -> Result<Self, String> {
        if choice == WayChoice::Python {
            return Err("the Python way was chosen".to_owned());
        }
        let refuses = torch.refuses_native(py).unwrap_or_else(|error| Some(error.to_string()));
        if let Some(reason) = refuses {
            return Err(reason);
        }
        if tidegauge_native::SHIM.is_empty() {
            return Err(format!("the agent was built without it: {}", tidegauge_native::LEFT_OUT));
        }
        let put_together = || -> PyResult<Self> {
            let shim = blake3::hash(tidegauge_native::SHIM).to_hex();
            let key = format!("{}, shim {}", torch.build(py)?, &shim[..16]);
            let executable: PathBuf = py.import("sys")?.getattr("executable")?.extract()?;
            let mut child = Command::new(executable);
            child.args(["-c", TRIAL, &torch.own_device(py)?.to_string()]);
            // Nothing of ours starts in it by itself.
            child.env("TIDEGAUGE_ENABLED", "0");
            register_at_fork(py)?;
            Ok(Self { folder, key, child })
        };
        put_together().map_err(|error| format!("it cannot be tried: {error}"))
    }

    fn make(mut self) -> State {
        let off = |why: String| {
            say(&why);
            State::Off(why)
        };
        match proof::judge(&self.folder, &self.key, &mut self.child) {
            Verdict::Proven => match begin(&self.folder) {
                Ok(beside) => State::Ready(beside),
                Err(why) => off(why),
            },
            Verdict::Refused(why) | Verdict::Open(why) => off(why),
        }
    }
}

#[cfg(target_os = "linux")]
fn load(folder: &Path) -> Result<tidegauge_native::Native, tidegauge_native::NativeError> {
    tidegauge_native::Native::load(tidegauge_native::Function::of_torch()?, folder)
}

/// The thread, once the way is proved.
#[cfg(target_os = "linux")]
fn begin(folder: &Path) -> Result<Arc<Beside>, String> {
    let native = load(folder).map_err(|error| error.to_string())?;
    let read = move || native.take().map_err(|error| error.to_string());
    let beside =
        Arc::new(Beside::start(Box::new(read)).map_err(|error| format!("no thread to read with: {error}"))?);
    *FORKING.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&beside);
    Ok(beside)
}

#[cfg(not(target_os = "linux"))]
fn begin(_: &Path) -> Result<Arc<Beside>, String> {
    Err("there is no native way on this system".to_owned())
}

/// Tries the native way in this process.
#[cfg(target_os = "linux")]
pub(crate) fn prove(py: Python<'_>, device: u32) -> Verdict {
    let made = || -> Result<Verdict, String> {
        let said = |error: PyErr| error.to_string();
        let torch = Torch::find(py, notices())?;
        // Kept alive until both snapshots are there.
        let _alive = torch.exercise(py, device).map_err(said)?;
        let native = match load(&std::env::temp_dir()) {
            Ok(native) => native,
            Err(error) => return Ok(Verdict::Refused(error.to_string())),
        };
        // From another thread and without the interpreter, as in training.
        let taken = py.detach(|| thread::scope(|scope| scope.spawn(|| native.take()).join()));
        let native = match taken {
            Ok(Ok(native)) => native,
            Ok(Err(error)) => return Ok(Verdict::Refused(error.to_string())),
            Err(_) => return Ok(Verdict::Refused("a mistake of the agent's own".to_owned())),
        };
        Ok(proof::compare(&native, &torch.pickled_snapshot(py).map_err(said)?))
    };
    made().unwrap_or_else(|why| Verdict::Open(format!("its trial could not be made: {why}")))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn prove(_: Python<'_>, _: u32) -> Verdict {
    Verdict::Refused("there is no native way on this system".to_owned())
}

/// The thread that a fork waits for.
static FORKING: Mutex<Weak<Beside>> = Mutex::new(Weak::new());
static IS_AT_FORK_REGISTERED: AtomicBool = AtomicBool::new(false);

fn forking() -> Option<Arc<Beside>> {
    FORKING.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
}

/// No fork amid a call: the child would inherit the allocator's lock, held by a thread that it does not have.
fn register_at_fork(py: Python<'_>) -> PyResult<()> {
    if IS_AT_FORK_REGISTERED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let before = PyCFunction::new_closure(py, None, None, |arguments, _| {
        if let Some(beside) = forking() {
            arguments.py().detach(|| beside.pause(FORK_PATIENCE));
        }
    })?;
    let after = PyCFunction::new_closure(py, None, None, |_, _| {
        if let Some(beside) = forking() {
            beside.resume();
        }
    })?;
    let keywords = PyDict::new(py);
    keywords.set_item("before", before)?;
    keywords.set_item("after_in_parent", after)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&keywords))?;
    Ok(())
}
