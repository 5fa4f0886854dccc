//! The Python face of the capture agent: `import tidegauge`.
//!
//! Names and conversions. What to do is decided in `tidegauge-capture-agent`; torch is touched in [`torch`] and
//! nowhere else. No function raises: see [`agent::quietly`].

mod agent;
mod life;
mod log;
mod keywords;
mod frames;
mod torch;
mod seen;
mod device;
mod ownership;
mod native;
mod neighbors;
mod pickling;
mod collector;

use pyo3::prelude::*;

/// The native half of the package `tidegauge`, whose stub documents the functions.
#[pymodule]
mod _agent {
    use pyo3::{prelude::*, types::PyDict};

    use crate::{agent, keywords, ownership};

    #[pymodule_export]
    use crate::frames::{
        begin_step, framework_failed, is_running, plays, start_unless_running, step_by, steps_from,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Begin to record the memory history of this process.
    #[pyfunction]
    #[pyo3(signature = (run=None, **settings))]
    fn start(py: Python<'_>, run: Option<Bound<'_, PyAny>>, settings: Option<Bound<'_, PyDict>>) {
        agent::quietly(|| agent::start(py, &keywords::texts(run, settings, agent::notices())));
    }

    /// Mark the end of step `n`, or of the one after the last; the first is step 1.
    #[pyfunction]
    #[pyo3(signature = (n=None))]
    fn step(py: Python<'_>, n: Option<Bound<'_, PyAny>>) {
        agent::quietly(|| match n.map(|n| n.extract::<u64>()) {
            None => agent::step(py, None),
            Some(Ok(n)) => agent::step(py, Some(n)),
            Some(Err(error)) => {
                agent::notices().say_once("step", format_args!("step(): {error}; it is ignored"))
            }
        });
    }

    /// Take a snapshot now, amid a step, named for its reason.
    #[pyfunction]
    #[pyo3(signature = (reason=None))]
    fn snapshot(py: Python<'_>, reason: Option<Bound<'_, PyAny>>) {
        agent::quietly(|| {
            let reason = reason.map(|reason| reason.to_string());
            agent::with_session(py, |session| session.snapshot(reason.as_deref()));
        });
    }

    /// Let snapshots say what memory belongs to this model and this optimizer.
    #[pyfunction]
    #[pyo3(signature = (*, model=None, optimizer=None))]
    fn own(model: Option<Bound<'_, PyAny>>, optimizer: Option<Bound<'_, PyAny>>) {
        use ownership::Kind;

        agent::quietly(|| {
            let model = model.iter().map(|model| (Kind::Model, model));
            for (kind, owner) in model.chain(optimizer.iter().map(|optimizer| (Kind::Optimizer, optimizer))) {
                if let Err(error) = ownership::watch(kind, owner) {
                    agent::notices().say_once("own", format_args!("own(): {error}; it is ignored"));
                }
            }
        });
    }

    /// End recording and send what is left.
    #[pyfunction]
    fn stop(py: Python<'_>) {
        agent::quietly(|| agent::stop(py));
    }

    /// Tries the native way in this process, which is a child made for that, and prints the verdict.
    #[pyfunction]
    #[pyo3(name = "_prove")]
    fn prove(py: Python<'_>, device: u32) -> PyResult<()> {
        let line = crate::native::prove(py, device).to_line();
        py.import("builtins")?.call_method1("print", (line,))?;
        Ok(())
    }

    /// Runs the program `tidegauge` and returns its exit status.
    #[pyfunction]
    fn command_line(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
        py.detach(|| tidegauge_cli::run(arguments))
    }
}
