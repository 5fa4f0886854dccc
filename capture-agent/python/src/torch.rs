//! Everything that is known of torch: where its backends are and how they are called.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CStr,
    path::PathBuf,
    sync::Arc,
};

use pyo3::{
    exceptions::{PyKeyError, PyTypeError},
    intern,
    prelude::*,
    types::{PyDict, PyNone},
};
use serde_json::{Value, json};
use tidegauge_api::{Sidecar, samples::Sample};
use tidegauge_capture_agent::{
    backend::{Argument, BACKENDS, Backend, Call, Recording, TorchVersion, not_understood},
    beside::Pending,
    neighbors::Neighbors,
    notices::Notices,
    reckoning::Seen,
    recorder::{Group, Recorder, RecorderError, Statistics, Unwritten, Way},
};

use crate::{collector, device, native::NativeWay, neighbors, ownership, pickling::Snapshot, seen::LastSeen};

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
    notices: Arc<Notices>,
    /// Keywords that turned out not to be known.
    not_understood: BTreeSet<&'static str>,
    last_seen: LastSeen,
    /// Shared with all clones.
    native: Arc<NativeWay>,
}

impl Torch {
    /// The backend of this process. Vendor packages are used when the program has imported them, and only then.
    ///
    /// # Errors
    /// A sentence, when there is none.
    pub(crate) fn find(py: Python<'_>, notices: &Arc<Notices>) -> Result<Self, String> {
        let torch = py.import("torch").map_err(|error| format!("torch cannot be imported: {error}"))?;
        let version_text = version_of(&torch).unwrap_or_default();
        let version = TorchVersion::from_text(&version_text)
            .ok_or_else(|| format!("torch has the version {version_text:?}, which is no number"))?;
        let loaded = |name: &str| loaded(py, name).ok();
        let mut unsupported = Vec::new();
        for backend in BACKENDS {
            let Some(package) = loaded(backend.package) else { continue };
            let Ok(module) = torch.getattr(backend.module.trim_start_matches("torch.")) else { continue };
            let is_available = module.call_method0("is_available").and_then(|answer| answer.is_truthy());
            if is_available.unwrap_or(false) {
                if version < backend.since || !records(py, backend) {
                    unsupported.push(backend.name);
                    continue;
                }
                let mut versions = BTreeMap::from([
                    ("torch".to_owned(), version_text),
                    (
                        "python".to_owned(),
                        Python::version_str().split(' ').next().unwrap_or_default().to_owned(),
                    ),
                ]);
                versions.extend(version_of(&package).map(|version| (backend.package.to_owned(), version)));
                return Ok(Self {
                    backend,
                    module: module.unbind(),
                    version,
                    versions,
                    notices: Arc::clone(notices),
                    not_understood: BTreeSet::new(),
                    last_seen: LastSeen::default(),
                    native: Arc::default(),
                });
            }
        }
        if !unsupported.is_empty() {
            return Err(format!(
                "unsupported: {} with torch {version_text} keeps no memory history",
                unsupported.join(", ")
            ));
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
            notices: Arc::clone(&self.notices),
            not_understood: self.not_understood.clone(),
            last_seen: LastSeen::default(),
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
        let allocator: String = self.home(py)?.call_method0("get_allocator_backend")?.extract()?;
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
        let snapshot = self.home(py)?.call_method0(intern!(py, "_snapshot"))?;
        py.import("pickle")?.call_method1("dumps", (snapshot, 4))?.extract()
    }

    /// Whether the program has used the device.
    pub(crate) fn is_initialized(&self, py: Python<'_>) -> PyResult<bool> {
        self.module.bind(py).call_method0("is_initialized")?.is_truthy()
    }

    /// Calls `callback` when the program first uses the device. To record earlier would use it, perhaps before
    /// the program says which of its devices it wants.
    ///
    /// False where nobody calls: mtia has no such thing, and is looked at when steps end.
    pub(crate) fn when_initialized(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(lazy_call) = self.module.bind(py).getattr("_lazy_call") else { return Ok(false) };
        lazy_call.call1((callback,))?;
        Ok(true)
    }

    /// Has `observer` called when memory runs out, in the failing thread and before the error is raised. False
    /// where this backend, or the allocator in its place, has no such thing. Observers add up and stay.
    pub(crate) fn observe_oom(&self, py: Python<'_>, observer: &Bound<'_, PyAny>) -> bool {
        let Some((module, name)) = self.backend.calls.observe_oom else { return false };
        loaded(py, module).and_then(|module| module.call_method1(name, (observer,))).is_ok()
    }

    /// Python stacks are read with this module; its first import takes two seconds, which the first snapshot
    /// would spend in the middle of training.
    pub(crate) fn warm_up(&self, py: Python<'_>) {
        // Torch does without it, too.
        py.import("torch._inductor.codecache").ok();
    }

    fn record_memory_history(&mut self, py: Python<'_>, calls: Vec<Call>) -> PyResult<()> {
        calls.into_iter().try_for_each(|call| self.call_record(py, call))
    }

    /// Releases differ in their keywords, and builds of vendors more so: one that is not known is left away, and
    /// that is said.
    fn call_record(&mut self, py: Python<'_>, mut call: Call) -> PyResult<()> {
        loop {
            call.retain(|(name, _)| !self.not_understood.contains(name));
            let keywords = PyDict::new(py);
            for (name, argument) in &call {
                match argument {
                    Argument::None => keywords.set_item(name, PyNone::get(py))?,
                    Argument::Text(text) => keywords.set_item(name, text)?,
                    Argument::Number(number) => keywords.set_item(name, number)?,
                    Argument::Flag(flag) => keywords.set_item(name, flag)?,
                }
            }
            let called = self.home(py)?.call_method(self.backend.calls.record, (), Some(&keywords));
            let Err(error) = called else { return Ok(()) };
            let unknown = error.is_instance_of::<PyTypeError>(py).then(|| error.value(py).to_string());
            let Some(unknown) = unknown.and_then(|message| not_understood(&message, &call)) else {
                return Err(error);
            };
            self.not_understood.insert(unknown);
            self.notices.say(format_args!(
                "{} {} does not know {unknown}=; it records without",
                self.backend.calls.home, self.backend.calls.record
            ));
        }
    }

    fn home<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        home(py, self.backend)
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
            let stats = json_from_dict(stats.cast()?);
            // To ask a device that was never used for its memory would make a context on it.
            if !is_used(&stats) {
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
        let calls = vec![self.backend.record(recording)];
        attached(|py| {
            self.record_memory_history(py, calls)?;
            self.native.prepare(py, self);
            Ok(())
        })
    }

    fn is_recording(&mut self) -> Option<bool> {
        let (module, name) = self.backend.calls.is_recording?;
        attached(|py| loaded(py, module)?.call_method0(name)?.is_truthy()).ok()
    }

    fn seen(&mut self, is_continued: bool) -> Seen {
        attached(|py| self.last_seen.seen(py, is_continued)).unwrap_or_default()
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
            let home = self.home(py)?;
            let (snapshot, aside) =
                collector::without(py, || home.call_method0(self.backend.calls.snapshot))?;
            self.last_seen.read(&snapshot);
            Ok(Box::new(Snapshot::new(snapshot.unbind(), aside)) as Box<dyn Unwritten>)
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
        let is_misunderstood = |torch: &Self| torch.not_understood.contains("clear_history");
        let had_to = is_misunderstood(self);
        let calls = match had_to {
            true => self.backend.clear_by_off_and_on(recording),
            false => self.backend.clear(self.version, recording),
        };
        attached(|py| {
            self.record_memory_history(py, calls)?;
            match !had_to && is_misunderstood(self) {
                // It did not clear, then.
                true => self.record_memory_history(py, self.backend.clear_by_off_and_on(recording)),
                false => Ok(()),
            }
        })
    }

    fn stop(&mut self) -> Result<(), RecorderError> {
        self.native.drain();
        attached(|py| self.record_memory_history(py, vec![self.backend.stop()]))
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
        if !self.not_understood.is_empty()
            && let Some(recording) = &mut sidecar.recording
        {
            recording["not_understood"] = json!(self.not_understood);
            if self.not_understood.contains("clear_history") {
                recording["clearing"] = "off and on".into();
            }
        }
        device::describe_environment(sidecar);
        // What cannot be told is left out.
        attached(|py| {
            device::describe_devices(self.module.bind(py), sidecar);
            ownership::describe(py, self.backend.name, sidecar);
            Ok(())
        })
        .ok();
    }
}

fn home<'py>(py: Python<'py>, backend: &Backend) -> PyResult<Bound<'py, PyAny>> {
    let mut names = backend.calls.home.split('.').skip(1);
    names.try_fold(py.import("torch")?.into_any(), |module, name| module.getattr(name))
}

/// Whether this build has what records.
fn records(py: Python<'_>, backend: &Backend) -> bool {
    home(py, backend).is_ok_and(|home| home.hasattr(backend.calls.record).unwrap_or(false))
}

/// A module that the program has imported; no name brings one in.
fn loaded<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("sys")?.getattr("modules")?.get_item(name)
}

/// Whether anything was ever allocated there, as far as these statistics tell. mtia's do not count.
fn is_used(stats: &Value) -> bool {
    match stats.get("allocation.all.allocated") {
        Some(n) => n.as_u64().unwrap_or(0) > 0,
        None => stats.as_object().is_some_and(|stats| !stats.is_empty()),
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

/// `memory_stats()` holds numbers; mtia's holds dicts of them.
fn json_from_dict(dict: &Bound<'_, PyDict>) -> Value {
    let value = |value: Bound<'_, PyAny>| match (value.extract::<i64>(), value.extract::<f64>()) {
        (Ok(number), _) => Value::from(number),
        (_, Ok(number)) => Value::from(number),
        _ => match value.cast::<PyDict>() {
            Ok(inner) => {
                inner.iter().map(|(name, number)| (name.to_string(), inner_value(&number))).collect()
            }
            Err(_) => Value::from(value.to_string()),
        },
    };
    dict.iter().map(|(name, number)| (name.to_string(), value(number))).collect()
}

fn inner_value(value: &Bound<'_, PyAny>) -> Value {
    value.extract::<i64>().map_or_else(|_| Value::from(value.to_string()), Value::from)
}
