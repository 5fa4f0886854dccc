//! Everything that is known of torch: where its backends are and how they are called.

use std::collections::BTreeMap;

use pyo3::{
    intern,
    prelude::*,
    types::{PyDict, PyNone},
};
use serde_json::Value;
use tidegauge_api::Sidecar;
use tidegauge_capture_agent::{
    backend::{Argument, BACKENDS, Backend, Call, Recording, TorchVersion},
    recorder::{Group, Recorder, RecorderError, Statistics, Unwritten},
};

use crate::pickling::Snapshot;

/// A backend of torch that keeps a memory history.
pub(crate) struct Torch {
    backend: &'static Backend,
    /// `torch.cuda`, `torch.npu`
    module: Py<PyAny>,
    version: TorchVersion,
    /// "torch", "torch_npu", "python"
    versions: BTreeMap<String, String>,
}

impl Torch {
    /// The backend of this process. Vendor packages are used when the program has imported them, and only then.
    ///
    /// # Errors
    /// A sentence, when there is none.
    pub(crate) fn find(py: Python<'_>) -> Result<Self, String> {
        let torch = py.import("torch").map_err(|error| format!("torch cannot be imported: {error}"))?;
        let version_text = version_of(&torch).unwrap_or_default();
        let version = TorchVersion::from_text(&version_text)
            .ok_or_else(|| format!("torch has the version {version_text:?}, which is no number"))?;
        let loaded =
            |name: &str| py.import("sys").and_then(|sys| sys.getattr("modules")?.get_item(name)).ok();
        for backend in BACKENDS {
            let Some(package) = loaded(backend.package) else { continue };
            let Ok(module) = torch.getattr(backend.module.trim_start_matches("torch.")) else { continue };
            let is_available = module.call_method0("is_available").and_then(|answer| answer.is_truthy());
            if is_available.unwrap_or(false) {
                let mut versions = BTreeMap::from([
                    ("torch".to_owned(), version_text),
                    (
                        "python".to_owned(),
                        Python::version_str().split(' ').next().unwrap_or_default().to_owned(),
                    ),
                ]);
                versions.extend(version_of(&package).map(|version| (backend.package.to_owned(), version)));
                return Ok(Self { backend, module: module.unbind(), version, versions });
            }
        }
        let names: Vec<_> = BACKENDS.iter().map(|backend| backend.name).collect();
        Err(format!("torch {version_text} finds no accelerator with a memory history ({})", names.join(", ")))
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            backend: self.backend,
            module: self.module.clone_ref(py),
            version: self.version,
            versions: self.versions.clone(),
        }
    }

    /// Whether the program has used the device.
    pub(crate) fn is_initialized(&self, py: Python<'_>) -> PyResult<bool> {
        self.module.bind(py).call_method0("is_initialized")?.is_truthy()
    }

    /// Calls `callback` when the program first uses the device. To record earlier would use it, perhaps before
    /// the program says which of its devices it wants.
    pub(crate) fn when_initialized(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        self.module.bind(py).call_method1("_lazy_call", (callback,))?;
        Ok(())
    }

    /// Python stacks are read with this module; its first import takes two seconds, which the first snapshot
    /// would spend in the middle of training.
    pub(crate) fn warm_up(&self, py: Python<'_>) {
        // Torch does without it, too.
        py.import("torch._inductor.codecache").ok();
    }

    fn record_memory_history(&self, py: Python<'_>, calls: &[Call]) -> PyResult<()> {
        for call in calls {
            let keywords = PyDict::new(py);
            for (name, argument) in call {
                match argument {
                    Argument::None => keywords.set_item(name, PyNone::get(py))?,
                    Argument::Text(text) => keywords.set_item(name, text)?,
                    Argument::Number(number) => keywords.set_item(name, number)?,
                    Argument::Flag(flag) => keywords.set_item(name, flag)?,
                }
            }
            self.memory(py)?.call_method("_record_memory_history", (), Some(&keywords))?;
        }
        Ok(())
    }

    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.module.bind(py).getattr(intern!(py, "memory"))
    }

    fn statistics(&self, py: Python<'_>) -> PyResult<Statistics> {
        let module = self.module.bind(py);
        let mut statistics = Statistics::default();
        for device in 0..module.call_method0("device_count")?.extract::<u32>()? {
            let stats = module.call_method1("memory_stats", (device,))?;
            let stats = json_from_flat_dict(stats.cast()?);
            // To ask a device that was never used for its memory would make a context on it.
            if stats.get("allocation.all.allocated").and_then(Value::as_u64).unwrap_or(0) == 0 {
                continue;
            }
            if let Ok(info) = module.call_method1("mem_get_info", (device,))
                && let Ok((free, total)) = info.extract()
            {
                statistics.mem_get_info.insert(device.to_string(), [free, total]);
            }
            statistics.memory_stats.insert(device.to_string(), stats);
        }
        Ok(statistics)
    }
}

impl Recorder for Torch {
    fn record(&mut self, recording: &Recording) -> Result<(), RecorderError> {
        let calls = [self.backend.record(recording)];
        attached(|py| self.record_memory_history(py, &calls))
    }

    fn settle(&mut self) -> Result<(), RecorderError> {
        if !self.backend.synchronizes {
            return Ok(());
        }
        attached(|py| self.module.bind(py).call_method0("synchronize").map(drop))
    }

    fn statistics(&mut self) -> Result<Statistics, RecorderError> {
        attached(|py| Torch::statistics(self, py))
    }

    fn peak_bytes(&mut self) -> Result<u64, RecorderError> {
        attached(|py| {
            let stats = self.module.bind(py).call_method0(intern!(py, "memory_stats"))?;
            // A device that was not used yet has no statistics.
            match stats.cast::<PyDict>()?.get_item(intern!(py, "allocated_bytes.all.peak"))? {
                Some(peak) => peak.extract(),
                None => Ok(0),
            }
        })
    }

    fn read(&mut self) -> Result<Box<dyn Unwritten>, RecorderError> {
        attached(|py| {
            let snapshot = self.memory(py)?.call_method0(intern!(py, "_snapshot"))?;
            Ok(Box::new(Snapshot::new(snapshot.unbind())) as Box<dyn Unwritten>)
        })
    }

    fn clear(&mut self, recording: &Recording) -> Result<(), RecorderError> {
        let calls = self.backend.clear(self.version, recording);
        attached(|py| self.record_memory_history(py, &calls))
    }

    fn stop(&mut self) -> Result<(), RecorderError> {
        attached(|py| self.record_memory_history(py, &[self.backend.stop()]))
    }

    fn group(&mut self) -> Option<Group> {
        let group = attached(|py| {
            let distributed = py.import("sys")?.getattr("modules")?.get_item("torch.distributed")?;
            let is_true = |name| distributed.call_method0(name).and_then(|answer| answer.is_truthy());
            if !(is_true("is_available")? && is_true("is_initialized")?) {
                return Ok(None);
            }
            let number = |name| distributed.call_method0(name)?.extract::<u32>();
            Ok(Some(Group { rank: number("get_rank")?, world_size: number("get_world_size")? }))
        });
        group.ok().flatten()
    }

    fn describe(&self, recording: &Recording, sidecar: &mut Sidecar) {
        self.backend.describe(self.version, recording, sidecar);
        sidecar.versions.extend(self.versions.clone());
    }
}

fn attached<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, RecorderError> {
    Python::attach(|py| work(py).map_err(|error| RecorderError(error.to_string())))
}

fn version_of(module: &Bound<'_, PyAny>) -> Option<String> {
    Some(module.getattr("__version__").ok()?.to_string())
}

/// `memory_stats()` is flat, and its values are numbers.
fn json_from_flat_dict(dict: &Bound<'_, PyDict>) -> Value {
    let value = |value: Bound<'_, PyAny>| match (value.extract::<i64>(), value.extract::<f64>()) {
        (Ok(number), _) => Value::from(number),
        (_, Ok(number)) => Value::from(number),
        _ => Value::from(value.to_string()),
    };
    dict.iter().map(|(name, number)| (name.to_string(), value(number))).collect()
}
