//! What the sidecar says of devices and of the environment.

use pyo3::prelude::*;
use serde_json::{Map, Value, json};
use tidegauge_api::Sidecar;

/// Variables that change how memory is used. Nothing else of the environment leaves the process: it may hold
/// secrets.
const VARIABLES: &[&str] = &[
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_NO_NPU_MEMORY_CACHING",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "MUSA_VISIBLE_DEVICES",
    "MLU_VISIBLE_DEVICES",
    "TASK_QUEUE_ENABLE",
    "MULTI_STREAM_MEMORY_REUSE",
    "OOM_SNAPSHOT_ENABLE",
    "OOM_SNAPSHOT_PATH",
    "CUDA_LAUNCH_BLOCKING",
];

/// The longest value that is kept, bytes of it.
const MAX_VALUE_BYTES: usize = 400;

/// Writes the allowed part of the environment into a sidecar. What is no text is left out.
pub(crate) fn describe_environment(sidecar: &mut Sidecar) {
    let kept = VARIABLES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
    let kept: Map<_, _> = kept.map(|(name, value)| (name.to_owned(), shortened(&value).into())).collect();
    if !kept.is_empty() {
        sidecar.more.insert("environment".to_owned(), Value::Object(kept));
    }
}

fn shortened(value: &str) -> &str {
    let end = (0..=MAX_VALUE_BYTES).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
    if value.len() > MAX_VALUE_BYTES { &value[..end] } else { value }
}

/// Writes what is known of each used device into a sidecar: which one it is, and what of its memory is neither free
/// nor this allocator's. That is the context, the libraries, and everybody else on the device.
pub(crate) fn describe_devices(module: &Bound<'_, PyAny>, sidecar: &mut Sidecar) {
    let mut devices = Map::new();
    for (device, stats) in &sidecar.memory_stats {
        let mut said = Map::new();
        if let Ok(ordinal) = device.parse::<u32>()
            && let Ok(properties) = module.call_method1("get_device_properties", (ordinal,))
        {
            for name in ["name", "uuid"] {
                if let Ok(value) = properties.getattr(name) {
                    said.insert(name.to_owned(), value.to_string().into());
                }
            }
        }
        let reserved = stats.get("reserved_bytes.all.current").and_then(Value::as_u64);
        if let (Some([free, total]), Some(reserved)) = (sidecar.mem_get_info.get(device), reserved) {
            said.insert("total_bytes".to_owned(), json!(total));
            said.insert("free_bytes".to_owned(), json!(free));
            let outside = total.saturating_sub(*free).saturating_sub(reserved);
            said.insert("outside_bytes".to_owned(), json!(outside));
        }
        if !said.is_empty() {
            devices.insert(device.clone(), Value::Object(said));
        }
    }
    if !devices.is_empty() {
        sidecar.more.insert("devices".to_owned(), Value::Object(devices));
    }
}
