//! Python's collector of cyclic garbage, kept away from the million objects of a snapshot.
//!
//! None of them is garbage, and the collector would run through all of them again and again: while they are made, which
//! then takes twice as long, and later, in the middle of training, for tens of milliseconds at a time.

use std::sync::{Mutex, PoisonError};

use pyo3::{intern, prelude::*, types::PyAny};

/// What there is aside.
static ALL: Mutex<All> = Mutex::new(All { n: 0, thresholds: None });

struct All {
    /// How many [`Aside`] there are.
    n: u32,
    /// The program's own thresholds.
    thresholds: Option<(i64, i64, i64)>,
}

/// After so many collections of the middle generation everything is looked through: never, as far as anybody can wait.
///
/// A full collection while all is put aside would find nothing, and conclude that there is nothing: then the next one
/// comes at once, in the middle of training, and takes tens of milliseconds.
const NEVER: i64 = i32::MAX as i64;

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
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = || -> PyResult<bool> {
            Ok(collector.call_method0(intern!(py, "get_freeze_count"))?.extract::<u64>()? == 0)
        };
        if all.n == 0 {
            if !is_free().unwrap_or(false) {
                return None;
            }
            let found = collector.call_method0(intern!(py, "get_threshold"));
            all.thresholds = found.and_then(|found| found.extract::<(i64, i64, i64)>()).ok();
            if let Some((young, middle, _)) = all.thresholds {
                collector.call_method1(intern!(py, "set_threshold"), (young, middle, NEVER)).ok();
            }
        }
        collector.call_method0(intern!(py, "freeze")).ok()?;
        all.n += 1;
        Some(Self(()))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // Where Python has ended there is nothing to give back to.
        Python::try_attach(|py| {
            let collector = py.import(intern!(py, "gc"));
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.n = all.n.saturating_sub(1);
            if all.n > 0 {
                return;
            }
            let Ok(collector) = collector else { return };
            collector.call_method0(intern!(py, "unfreeze")).ok();
            if let Some(thresholds) = all.thresholds.take() {
                collector.call_method1(intern!(py, "set_threshold"), thresholds).ok();
            }
        });
    }
}
