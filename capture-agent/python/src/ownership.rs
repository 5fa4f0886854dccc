//! What memory belongs to, from the program itself: addresses of parameters, gradients, optimizer state and buffers
//! with the names of their modules, at the moment of a snapshot.
//!
//! Models and optimizers are held by weak references, so that nothing lives longer because it is watched. Nothing
//! here allocates on a device: tensors are asked where they lie, and nothing of what is in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use pyo3::{
    prelude::*,
    types::{PyDict, PyWeakrefReference},
};
use serde_json::json;
use tidegauge_api::Sidecar;

/// Storages that a sidecar lists, the largest.
const MAX_OWNED: usize = 1000;
/// Bytes that this list may take: a sidecar travels in a header of 256 KiB, a third of which is its encoding, and the
/// statistics of sixteen devices take 80.
const MAX_LIST_BYTES: usize = 96 * 1024;
/// What a row takes beside its name, bytes.
const ROW_BYTES: usize = 64;
/// Tensors that are looked at: a model has a hundred thousand of them at most, and its optimizer thrice that.
const MAX_LOOKED_AT: usize = 400_000;
/// Models and optimizers that are watched.
const MAX_OWNERS: usize = 64;
/// The longest name, characters.
const MAX_NAME_CHARS: usize = 200;

static OWNERS: Mutex<Vec<Owner>> = Mutex::new(Vec::new());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Model,
    Optimizer,
}

struct Owner {
    kind: Kind,
    of: Py<PyWeakrefReference>,
}

/// A storage and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owned {
    kind: &'static str,
    name: String,
    device: i64,
    address: u64,
    bytes: u64,
}

/// What was found.
#[derive(Default)]
struct Found {
    owned: Vec<Owned>,
    /// Device and address: a storage is its first owner's.
    known: BTreeSet<(i64, u64)>,
    n_looked_at: usize,
}

/// From now on snapshots say what belongs to this model or optimizer.
///
/// # Errors
/// When there can be no weak reference to it, or too many are watched already.
pub(crate) fn watch(kind: Kind, owner: &Bound<'_, PyAny>) -> Result<(), String> {
    let py = owner.py();
    let of = PyWeakrefReference::new(owner).map_err(|error| error.to_string())?.unbind();
    let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    owners.retain(|owner| owner.of.bind(py).upgrade().is_some());
    let is_known =
        owners.iter().any(|known| known.of.bind(py).upgrade().is_some_and(|known| known.is(owner)));
    match owners.len() {
        _ if is_known => {}
        MAX_OWNERS.. => return Err(format!("{MAX_OWNERS} models and optimizers are watched already")),
        _ => owners.push(Owner { kind, of }),
    }
    Ok(())
}

/// Writes whose memory is whose on devices of this kind into a sidecar, if anybody asked for it.
pub(crate) fn describe(py: Python<'_>, device_kind: &str, sidecar: &mut Sidecar) {
    let mut found = Found::default();
    let owners: Vec<_> = {
        let owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        owners.iter().filter_map(|owner| Some((owner.kind, owner.of.bind(py).upgrade()?))).collect()
    };
    if owners.is_empty() {
        return;
    }
    let started = Instant::now();
    let mut names = BTreeMap::new();
    let is_kind = |kind| move |(of, _): &&(Kind, Bound<'_, PyAny>)| *of == kind;
    for (_, model) in owners.iter().filter(is_kind(Kind::Model)) {
        // A model that cannot be walked through is left out.
        found.add_model(device_kind, model, &mut names).ok();
    }
    for (_, optimizer) in owners.iter().filter(is_kind(Kind::Optimizer)) {
        found.add_optimizer(device_kind, optimizer, &names).ok();
    }
    let Found { mut owned, .. } = found;
    owned.sort_by_key(|owned| (std::cmp::Reverse(owned.bytes), owned.address));
    let left_out = owned.split_off(n_listed(&owned));
    let row = |owned: &Owned| json!([owned.kind, owned.name, owned.device, owned.address, owned.bytes]);
    sidecar.more.insert(
        "ownership".to_owned(),
        json!({
            "columns": ["kind", "name", "device", "address", "bytes"],
            "owned": owned.iter().map(row).collect::<Vec<_>>(),
            "left_out": left_out.len(),
            "left_out_bytes": left_out.iter().map(|owned| owned.bytes).sum::<u64>(),
        }),
    );
    sidecar.capture_ms.insert("ownership".to_owned(), started.elapsed().as_secs_f64() * 1e3);
}

/// How many of these are listed.
fn n_listed(owned: &[Owned]) -> usize {
    let bytes_so_far = owned.iter().scan(0, |bytes, owned| {
        *bytes += owned.name.len() + ROW_BYTES;
        Some(*bytes)
    });
    bytes_so_far.take(MAX_OWNED).take_while(|bytes| *bytes <= MAX_LIST_BYTES).count()
}

impl Found {
    fn add_model(
        &mut self,
        device_kind: &str,
        model: &Bound<'_, PyAny>,
        names: &mut BTreeMap<usize, String>,
    ) -> PyResult<()> {
        for pair in model.call_method0("named_parameters")?.try_iter()? {
            let (name, parameter) = pair?.extract::<(String, Bound<'_, PyAny>)>()?;
            names.insert(parameter.as_ptr() as usize, name.clone());
            self.add("parameter", &name, device_kind, &parameter);
            if let Ok(gradient) = parameter.getattr("grad")
                && !gradient.is_none()
            {
                self.add("gradient", &name, device_kind, &gradient);
            }
        }
        for pair in model.call_method0("named_buffers")?.try_iter()? {
            let (name, buffer) = pair?.extract::<(String, Bound<'_, PyAny>)>()?;
            self.add("buffer", &name, device_kind, &buffer);
        }
        Ok(())
    }

    fn add_optimizer(
        &mut self,
        device_kind: &str,
        optimizer: &Bound<'_, PyAny>,
        names: &BTreeMap<usize, String>,
    ) -> PyResult<()> {
        // A defaultdict, which is a dict: to iterate adds nothing to it.
        let state = optimizer.getattr("state")?;
        for (n, (parameter, of_parameter)) in state.cast::<PyDict>()?.iter().enumerate() {
            let known = names.get(&(parameter.as_ptr() as usize)).cloned();
            let name = known.unwrap_or_else(|| format!("parameter {n}"));
            let Ok(of_parameter) = of_parameter.cast::<PyDict>() else { continue };
            for (key, tensor) in of_parameter.iter() {
                self.add("optimizer", &format!("{name}.{key}"), device_kind, &tensor);
            }
        }
        Ok(())
    }

    /// Whatever is no tensor on such a device is passed over.
    fn add(&mut self, kind: &'static str, name: &str, device_kind: &str, tensor: &Bound<'_, PyAny>) {
        self.n_looked_at += 1;
        if self.n_looked_at > MAX_LOOKED_AT {
            return;
        }
        let Ok(Some((device, address, bytes))) = storage(device_kind, tensor) else { return };
        if bytes > 0 && self.known.insert((device, address)) {
            let name = name.chars().take(MAX_NAME_CHARS).collect();
            self.owned.push(Owned { kind, name, device, address, bytes });
        }
    }
}

/// Device, address and bytes of the storage below a tensor; of a sharded one, its local part.
fn storage(device_kind: &str, tensor: &Bound<'_, PyAny>) -> PyResult<Option<(i64, u64, u64)>> {
    let local = tensor.getattr("_local_tensor").unwrap_or_else(|_| tensor.clone());
    let device = local.getattr("device")?;
    if device.getattr("type")?.extract::<String>()? != device_kind {
        return Ok(None);
    }
    // `data_ptr` of a tensor that is copied on writing would make the copy.
    let ask = if local.hasattr("const_data_ptr")? { "const_data_ptr" } else { "data_ptr" };
    let begin: u64 = local.call_method0(ask)?.extract()?;
    let offset = local.call_method0("storage_offset")?.extract::<u64>()?
        * local.call_method0("element_size")?.extract::<u64>()?;
    let bytes = local.call_method0("untyped_storage")?.call_method0("nbytes")?.extract()?;
    let ordinal = device.getattr("index")?.extract::<Option<i64>>()?.unwrap_or(0);
    Ok(Some((ordinal, begin.saturating_sub(offset), bytes)))
}
