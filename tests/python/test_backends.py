"""Recording, clearing and reading on each backend."""

import json

import pytest

LOOP = """
    import json, torch
    {imports}
    import tidegauge
    device = torch.{name}
    tidegauge.start(steps=[1, 5, 10], stacks="python", context="alloc", max_entries=5000)
    model = device.alloc(3 << 20, "model")
    for n in range(1, 11):
        address = device.alloc(1 << 20, f"step {{n}}")
        device.free(address, f"step {{n}}")
        tidegauge.step()
    tidegauge.stop()
    print(json.dumps(device.calls))
"""

BACKENDS = {
    "cuda": dict(name="cuda", imports=""),
    "cuda before 2.8": dict(name="cuda", imports=""),
    "npu": dict(name="npu", imports="import torch_npu"),
}


@pytest.fixture(params=list(BACKENDS))
def backend(request):
    env = {"DOUBLE_TORCH": "2.7.1"} if request.param == "cuda before 2.8" else {}
    return request.param, LOOP.format(**BACKENDS[request.param]), env


def settings(call):
    return {key: call[key] for key in ("context", "stacks", "max_entries")}


def recordings(done):
    return [c for c in json.loads(done.printed) if c != "synchronize" and c["enabled"] is not None]


def steps_in(snapshot):
    stacks = [e["frames"][0]["name"] for trace in snapshot.content["device_traces"] for e in trace if "frames" in e]
    return list(dict.fromkeys(stacks))


def test_context_stacks_and_max_entries_are_equal_before_and_after_a_clear(train, backend):
    _, loop, env = backend
    calls = recordings(train(loop, **env))
    # The one that began, and one for each of three clears.
    assert len(calls) == 4
    for call in calls:
        assert settings(call) == {"context": "alloc", "stacks": "python", "max_entries": 5000}


def test_clearing_is_unconditional(train, receiver, backend, tmp_path):
    """It depends on nothing: not on the server, and not on whether the snapshot could be written."""
    _, loop, env = backend
    receiver.status = 500
    (tmp_path / "outbox").mkdir()
    done = train(loop, TIDEGAUGE_OUTBOX_BYTES="10", TIDEGAUGE_FLUSH_SECS="0", **env)
    assert len(recordings(done)) == 4
    assert done.said.count("the outbox is full") == 3


def test_cleared_windows_hold_only_their_own_events(train, receiver, backend):
    name, loop, env = backend
    train(loop, **env)
    assert receiver.labels() == ["1", "2-5", "6-10"]
    # The mark that a snapshot leaves in the trace is cleared with it.
    assert [steps_in(s) for s in receiver.snapshots] == [
        ["model", "step 1"],
        ["step 2", "step 3", "step 4", "step 5"],
        ["step 6", "step 7", "step 8", "step 9", "step 10"],
    ]


def test_a_window_of_one_step_holds_that_step_only(train, receiver, backend):
    _, loop, env = backend
    train(loop, TIDEGAUGE_WINDOW="step", **env)
    assert receiver.labels() == ["1", "5", "10"]
    assert [steps_in(s) for s in receiver.snapshots] == [["model", "step 1"], ["step 5"], ["step 10"]]


def test_the_sidecar_says_how_it_was_recorded(train, receiver, backend):
    name, loop, env = backend
    train(loop, **env)
    sidecar = receiver.snapshots[1].sidecar
    clearing = {"cuda": "clear_history", "cuda before 2.8": "off and on", "npu": "same call"}[name]
    assert sidecar["recording"] == {
        "enabled": "all",
        "context": "alloc",
        "stacks": "python",
        "max_entries": 5000,
        "clearing": clearing,
    }
    assert sidecar["backend"] == name.split()[0]
    assert sidecar["versions"]["torch"] == env.get("DOUBLE_TORCH", "2.9.1+cu128")
    assert ("torch_npu" in sidecar["versions"]) == (name == "npu")
    assert list(sidecar["memory_stats"]) == ["0"]
    assert sidecar["memory_stats"]["0"]["allocated_bytes.all.current"] == 3 << 20
    assert sidecar["mem_get_info"] == {"0": [60 << 30, 64 << 30]}
    assert sidecar["gap_us"] >= 0 and sidecar["gap_events_at_most"] == 0
    assert set(sidecar["capture_ms"]) == {"statistics", "snapshot", "clear"}


def test_snapshots_are_pickles_that_memory_viz_reads(train, receiver, backend):
    _, loop, env = backend
    train(loop, **env)
    assert {s.protocol for s in receiver.snapshots} == {4}


def test_npu_waits_for_its_task_queue_before_each_snapshot(train):
    done = train(LOOP.format(**BACKENDS["npu"]))
    assert json.loads(done.printed).count("synchronize") == 3


def test_npu_is_chosen_over_cuda_when_the_program_has_imported_it(train, receiver):
    train(LOOP.format(**BACKENDS["npu"]), DOUBLE_CUDA="1")
    assert receiver.snapshots[0].sidecar["backend"] == "npu"


def test_npu_has_a_workspace_in_every_snapshot(train, receiver):
    loop = LOOP.format(**BACKENDS["npu"]).replace("    model =", "    device.allocator.use_workspace(32 << 20)\n    model =")
    train(loop)
    for snapshot in receiver.snapshots:
        actions = [event["action"] for event in snapshot.content["device_traces"][0][:3]]
        assert actions == ["workspace_snapshot", "segment_alloc", "alloc"]
