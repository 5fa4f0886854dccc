//! Python's collector of cyclic garbage, kept away from the million objects of a snapshot.
//!
//! None of them is garbage, and the collector would run through all of them again and again: while they are made, which
//! then takes twice as long, and later, in the middle of training, for tens of milliseconds at a time.

use std::sync::{Mutex, PoisonError};

use pyo3::{intern, prelude::*, types::PyAny};

/// How many [`Aside`] there are.
static N_ASIDE: Mutex<u32> = Mutex::new(0);

/// As long as one exists, the collector does not look at what was there when it was made (`gc.freeze()`): the
/// snapshot, and everything else, which is looked at again afterwards.
pub(crate) struct Aside(());

/// Does some work without the collector, and puts aside what is there when it is done, unless the program has the
/// collector switched off or uses `gc.freeze()` itself.
pub(crate) fn without<'py, T>(
    py: Python<'py>,
    work: impl FnOnce() -> PyResult<T>,
) -> PyResult<(T, Option<Aside>)> {
    let collector = py.import(intern!(py, "gc"))?;
    if !collector.call_method0(intern!(py, "isenabled"))?.is_truthy()? {
        return Ok((work()?, None));
    }
    collector.call_method0(intern!(py, "disable"))?;
    let done = work();
    let aside = done.is_ok().then(|| Aside::put(&collector)).flatten();
    collector.call_method0(intern!(py, "enable"))?;
    Ok((done?, aside))
}

impl Aside {
    fn put(collector: &Bound<'_, PyAny>) -> Option<Self> {
        let py = collector.py();
        let mut n_aside = N_ASIDE.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = || -> PyResult<bool> {
            Ok(collector.call_method0(intern!(py, "get_freeze_count"))?.extract::<u64>()? == 0)
        };
        if *n_aside == 0 && !is_free().unwrap_or(false) {
            return None;
        }
        collector.call_method0(intern!(py, "freeze")).ok()?;
        *n_aside += 1;
        Some(Self(()))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // Where Python has ended there is nothing to give back to.
        Python::try_attach(|py| {
            let collector = py.import(intern!(py, "gc"));
            let mut n_aside = N_ASIDE.lock().unwrap_or_else(PoisonError::into_inner);
            *n_aside -= 1;
            if *n_aside == 0 {
                collector.and_then(|collector| collector.call_method0(intern!(py, "unfreeze"))).ok();
            }
        });
    }
}
