//! What other packages in this process know of it. None is imported here, and none is started.

use std::{
    thread,
    time::{Duration, Instant},
};

use pyo3::prelude::*;
use tidegauge_capture_agent::{
    neighbors::{AGREEMENT_PATIENCE, Neighbors},
    recorder::Group,
};

/// Megatron's `parallel_state`, wherever it is loaded from, and what its numbers are called.
const MEGATRON: &str = "megatron.core.parallel_state";
const MEGATRON_DIMENSIONS: [(&str, &str); 5] = [
    ("tp", "get_tensor_model_parallel_rank"),
    ("pp", "get_pipeline_model_parallel_rank"),
    ("dp", "get_data_parallel_rank"),
    ("cp", "get_context_parallel_rank"),
    ("ep", "get_expert_model_parallel_rank"),
];

/// Under this key of the process group's store stands what the run is called.
const AGREED_RUN: &str = "tidegauge/run";

/// Between two looks at the store: each is a question to rank 0's machine.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks all that are loaded.
pub(crate) fn neighbors(py: Python<'_>) -> Neighbors {
    let mut neighbors = Neighbors { wandb_run: wandb_run(py).ok(), ..Neighbors::default() };
    // Half an answer is an answer: whoever is not loaded, or not started, is passed over.
    ask_ray(py, &mut neighbors).ok();
    ask_megatron(py, &mut neighbors).ok();
    neighbors
}

/// Agrees with the other ranks on a name. Never waits in the store itself: there its lock would be held, which the
/// watchdog of NCCL needs, too.
pub(crate) fn agreed_run(py: Python<'_>, proposed: &str, group: Group) -> PyResult<Option<String>> {
    let store = loaded(py, "torch.distributed.distributed_c10d")?.call_method0("_get_default_store")?;
    if group.rank == 0 {
        store.call_method1("set", (AGREED_RUN, proposed))?;
        return Ok(Some(proposed.to_owned()));
    }
    let deadline = Instant::now() + AGREEMENT_PATIENCE;
    while !store.call_method1("check", ([AGREED_RUN],))?.is_truthy()? {
        if Instant::now() > deadline {
            return Ok(None);
        }
        py.detach(|| thread::sleep(PAUSE));
    }
    let name: Vec<u8> = store.call_method1("get", (AGREED_RUN,))?.extract()?;
    Ok(String::from_utf8(name).ok())
}

fn wandb_run(py: Python<'_>) -> PyResult<String> {
    // Absent until wandb.init().
    loaded(py, "wandb")?.getattr("run")?.getattr("id")?.extract()
}

fn ask_ray(py: Python<'_>, neighbors: &mut Neighbors) -> PyResult<()> {
    let ray = loaded(py, "ray")?;
    if !ray.call_method0("is_initialized")?.is_truthy()? {
        return Ok(());
    }
    let context = ray.call_method0("get_runtime_context")?;
    let text = |name: &str| context.call_method0(name).and_then(|id| id.extract::<String>());
    for (key, name) in [("job", "get_job_id"), ("node", "get_node_id"), ("actor", "get_actor_name")] {
        neighbors.ray.extend(text(name).ok().filter(|id| !id.is_empty()).map(|id| (key.to_owned(), id)));
    }
    neighbors.ray_job = neighbors.ray.get("job").map(|job| format!("ray-{job}"));
    Ok(())
}

fn ask_megatron(py: Python<'_>, neighbors: &mut Neighbors) -> PyResult<()> {
    let parallel_state = loaded(py, MEGATRON)?;
    if !parallel_state.call_method0("model_parallel_is_initialized")?.is_truthy()? {
        return Ok(());
    }
    for (dimension, name) in MEGATRON_DIMENSIONS {
        let number = parallel_state.call_method0(name).and_then(|number| number.extract::<u64>());
        neighbors.coordinates.extend(number.ok().map(|number| (dimension.to_owned(), number)));
    }
    Ok(())
}

fn loaded<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("sys")?.getattr("modules")?.get_item(name)
}
