//! Everything that is known of torch: where its backends are and how they are called.

use std::{collections::BTreeMap, ffi::CStr, path::PathBuf, sync::Arc};

use pyo3::{
    exceptions::PyKeyError,
    intern,
    prelude::*,
    types::{PyDict, PyNone},
};
use serde_json::Value;
use tidegauge_api::{Sidecar, samples::Sample};
use tidegauge_capture_agent::{
    backend::{Argument, BACKENDS, Backend, Call, Recording, TorchVersion},
    beside::Pending,
    neighbors::Neighbors,
    recorder::{Group, Recorder, RecorderError, Statistics, Unwritten, Way},
};

use crate::{native::NativeWay, neighbors, pickling::Snapshot};

/// What a trial does on a device: blocks of several sizes, from several lines, some used on a second stream. Gives
/// back what is still alive.
const EXERCISE: &CStr = c"
def exercise(torch, module, device):
    module.set_device(device)
    module.memory._record_memory_history(enabled='all', context='all', stacks='python', max_entries=1000)
    side, alive = module.Stream(), []
    for n in range(60):
        block = torch.empty((n % 7 + 1) * 70_000, dtype=torch.uint8, device='cuda')
        if n % 5 == 0:
            block.record_stream(side)
        alive.append(block)
        if n % 3 == 0:
            del alive[0]
    del block
    return alive
";

/// A backend of torch that keeps a memory history.
pub(crate) struct Torch {
    backend: &'static Backend,
    /// `torch.cuda`, `torch.npu`
    module: Py<PyAny>,
    version: TorchVersion,
    /// "torch", "torch_npu", "python"
    versions: BTreeMap<String, String>,
    /// Shared with all clones.
    native: Arc<NativeWay>,
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
                let native = Arc::default();
                return Ok(Self { backend, module: module.unbind(), version, versions, native });
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
            native: Arc::clone(&self.native),
        }
    }

    /// The native way of this process.
    pub(crate) fn native(&self) -> &Arc<NativeWay> {
        &self.native
    }

    /// Why the native way is out of the question here, without a trial; a sentence.
    pub(crate) fn refuses_native(&self, py: Python<'_>) -> PyResult<Option<String>> {
        if self.backend.name != "cuda" {
            return Ok(Some(format!("the native way was not proved on {}", self.backend.name)));
        }
        let torch = py.import("torch")?;
        if !torch.getattr("version")?.getattr("hip")?.is_none() {
            return Ok(Some("the native way was not proved on ROCm".to_owned()));
        }
        // Set by the environment, or by the program before its first allocation.
        let allocator: String = self.memory(py)?.call_method0("get_allocator_backend")?.extract()?;
        Ok((allocator != "native").then(|| format!("the allocator {allocator} takes no snapshots")))
    }

    /// What tells one build of torch from another.
    pub(crate) fn build(&self, py: Python<'_>) -> PyResult<String> {
        let torch = py.import("torch")?;
        let git = torch
            .getattr("version")?
            .getattr("git_version")
            .map_or_else(|_| "no revision".to_owned(), |git| git.to_string());
        let file: PathBuf = torch.getattr("__file__")?.extract()?;
        let library = file.with_file_name("lib").join("libtorch_cuda.so").metadata()?;
        let changed =
            library.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let changed = changed.unwrap_or_default().as_secs();
        let version = self.versions.get("torch").map_or("", String::as_str);
        Ok(format!("torch {version} {git}, library {} {changed}", library.len()))
    }

    /// The device that a trial uses: this rank's own on its machine, or the one in use.
    pub(crate) fn own_device(&self, py: Python<'_>) -> PyResult<u32> {
        let module = self.module.bind(py);
        let n_devices: u32 = module.call_method0("device_count")?.extract()?;
        let local_rank = std::env::var("LOCAL_RANK").ok().and_then(|rank| rank.parse::<u32>().ok());
        match local_rank.filter(|_| n_devices > 0) {
            Some(local_rank) => Ok(local_rank % n_devices),
            None => module.call_method0("current_device")?.extract(),
        }
    }

    /// Records and allocates a little on a device. What is returned is to be kept until snapshots are taken.
    pub(crate) fn exercise(&self, py: Python<'_>, device: u32) -> PyResult<Py<PyAny>> {
        let names = PyDict::new(py);
        py.run(EXERCISE, Some(&names), None)?;
        let exercise = names.get_item("exercise")?.ok_or_else(|| PyKeyError::new_err("exercise"))?;
        Ok(exercise.call1((py.import("torch")?, self.module.bind(py), device))?.unbind())
    }

    /// `_snapshot()`, as a pickle.
    pub(crate) fn pickled_snapshot(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let snapshot = self.memory(py)?.call_method0(intern!(py, "_snapshot"))?;
        py.import("pickle")?.call_method1("dumps", (snapshot, 4))?.extract()
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

    fn sample(&self, py: Python<'_>, asks_device: bool) -> PyResult<Option<Sample>> {
        let module = self.module.bind(py);
        let device = module.call_method0(intern!(py, "current_device"))?;
        // As the allocator gives it. `memory_stats()` makes one flat, sorted dict of it first, which takes longer
        // than all the rest.
        let stats = match module.getattr_opt(intern!(py, "memory_stats_as_nested_dict"))? {
            Some(nested) => nested.call1((&device,))?,
            None => module.call_method1(intern!(py, "memory_stats"), (&device,))?,
        };
        let stats = Counters(stats.cast_into()?);
        let reserved = stats.level("reserved_bytes", "current")?;
        // Nothing is known, or nothing happened: the program has not used this device.
        if reserved.is_none() || stats.level("reserved_bytes", "peak")? == Some(0) {
            return Ok(None);
        }
        let mut sample = Sample {
            device: device.extract()?,
            reserved,
            reserved_peak: stats.level("reserved_bytes", "peak")?,
            allocated: stats.level("allocated_bytes", "current")?,
            allocated_peak: stats.level("allocated_bytes", "peak")?,
            active: stats.level("active_bytes", "current")?,
            active_peak: stats.level("active_bytes", "peak")?,
            requested: stats.level("requested_bytes", "current")?,
            requested_peak: stats.level("requested_bytes", "peak")?,
            inactive_split: stats.level("inactive_split_bytes", "current")?,
            n_ooms: stats.count("num_ooms")?,
            n_alloc_retries: stats.count("num_alloc_retries")?,
            ..Sample::default()
        };
        if asks_device {
            // Not every device tells it.
            let info = module.call_method1(intern!(py, "mem_get_info"), (&device,));
            if let Some((free, total)) = info.ok().and_then(|info| info.extract().ok()) {
                (sample.device_free, sample.device_total) = (Some(free), Some(total));
            }
        }
        Ok(Some(sample))
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
        attached(|py| {
            self.record_memory_history(py, &calls)?;
            self.native.prepare(py, self);
            Ok(())
        })
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

    fn sample(&mut self, asks_device: bool) -> Result<Option<Sample>, RecorderError> {
        attached(|py| Torch::sample(self, py, asks_device))
    }

    fn read(&mut self) -> Result<Box<dyn Unwritten>, RecorderError> {
        attached(|py| {
            let snapshot = self.memory(py)?.call_method0(intern!(py, "_snapshot"))?;
            Ok(Box::new(Snapshot::new(snapshot.unbind())) as Box<dyn Unwritten>)
        })
    }

    fn way(&mut self) -> Way {
        self.native.way()
    }

    fn read_beside(&mut self) -> Result<Pending, RecorderError> {
        self.native.read()
    }

    fn clear(&mut self, recording: &Recording) -> Result<(), RecorderError> {
        self.native.drain();
        let calls = self.backend.clear(self.version, recording);
        attached(|py| self.record_memory_history(py, &calls))
    }

    fn stop(&mut self) -> Result<(), RecorderError> {
        self.native.drain();
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

    fn neighbors(&mut self) -> Neighbors {
        Python::attach(neighbors::neighbors)
    }

    fn agreed_run(&mut self, proposed: &str, group: Group) -> Option<String> {
        // Without an agreement the run keeps the script's name.
        attached(|py| neighbors::agreed_run(py, proposed, group)).ok().flatten()
    }

    fn describe(&self, recording: &Recording, sidecar: &mut Sidecar) {
        self.backend.describe(self.version, recording, sidecar);
        sidecar.versions.extend(self.versions.clone());
        if let Some(Value::Object(recording)) = &mut sidecar.recording {
            recording.insert("native".to_owned(), self.native.to_string().into());
        }
    }
}

/// What an allocator counts, as nested dicts or as one flat one.
struct Counters<'py>(Bound<'py, PyDict>);

impl Counters<'_> {
    /// "current" or "peak" of a counter over all pools.
    fn level(&self, counter: &str, which: &str) -> PyResult<Option<u64>> {
        let Some(nested) = self.0.get_item(counter)? else {
            return self.count(&format!("{counter}.all.{which}"));
        };
        let pools = nested.cast_into::<PyDict>()?;
        let Some(all) = pools.get_item("all")? else { return Ok(None) };
        match all.cast_into::<PyDict>()?.get_item(which)? {
            // A level that fell below what was counted since a reset of the counters is none.
            Some(level) => Ok(u64::try_from(level.extract::<i64>()?).ok()),
            None => Ok(None),
        }
    }

    fn count(&self, counter: &str) -> PyResult<Option<u64>> {
        match self.0.get_item(counter)? {
            Some(count) => Ok(u64::try_from(count.extract::<i64>()?).ok()),
            None => Ok(None),
        }
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
