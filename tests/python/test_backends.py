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
    "cuda": dict(name="cuda", imports="", clearing="clear_history", env={}),
    "cuda 2.7": dict(name="cuda", imports="", clearing="off and on", env={"DOUBLE_TORCH": "2.7.1"}),
    "cuda 2.1": dict(name="cuda", imports="", clearing="off and on", env={"DOUBLE_TORCH": "2.1.2"}),
    "npu": dict(name="npu", imports="import torch_npu", clearing="same call", env={}),
    "musa": dict(name="musa", imports="import torch_musa", clearing="off and on", env={}),
    "mlu": dict(name="mlu", imports="import torch_mlu", clearing="clear_history", env={}),
    "xpu": dict(
        name="xpu",
        imports="",
        clearing="clear_history",
        env={"DOUBLE_TORCH": "2.11.0+xpu", "DOUBLE_XPU": "1", "DOUBLE_CUDA": "0"},
    ),
    "mtia": dict(name="mtia", imports="", clearing="off and on", env={"DOUBLE_MTIA": "1", "DOUBLE_CUDA": "0"}),
}


@pytest.fixture(params=list(BACKENDS))
def backend(request):
    loop, name = LOOP.format(**BACKENDS[request.param]), BACKENDS[request.param]["name"]
    if name == "mtia":
        # It tells nobody that it is used for the first time: the end of a step shows it.
        loop = loop.replace("    for n in", "    tidegauge.step(0)\n    for n in")
    return request.param, loop, BACKENDS[request.param]["env"]


def settings(call):
    return {key: call.get(key) for key in ("context", "stacks", "max_entries")}


def recordings(done):
    return [c for c in json.loads(done.printed) if c != "synchronize" and c["enabled"] is not None]


def steps_in(snapshot):
    stacks = [e["frames"][0]["name"] for trace in snapshot.content["device_traces"] for e in trace if "frames" in e]
    return list(dict.fromkeys(stacks))


def test_context_stacks_and_max_entries_are_equal_before_and_after_a_clear(train, backend):
    name, loop, env = backend
    done = train(loop, **env)
    calls = recordings(done)
    # The one that began, and one for each of three clears.
    assert len(calls) == 4
    for call in calls:
        context = None if name == "mtia" else "alloc"
        assert settings(call) == {"context": context, "stacks": "python", "max_entries": 5000}
    assert "does not know" not in done.said


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
        ["step 1"] if name == "mtia" else ["model", "step 1"],
        ["step 2", "step 3", "step 4", "step 5"],
        ["step 6", "step 7", "step 8", "step 9", "step 10"],
    ]


def test_a_window_of_one_step_holds_that_step_only(train, receiver, backend):
    name, loop, env = backend
    train(loop, TIDEGAUGE_WINDOW="step", **env)
    assert receiver.labels() == ["1", "5", "10"]
    first = ["step 1"] if name == "mtia" else ["model", "step 1"]
    assert [steps_in(s) for s in receiver.snapshots] == [first, ["step 5"], ["step 10"]]


def test_the_sidecar_says_how_it_was_recorded(train, receiver, backend):
    name, loop, env = backend
    train(loop, **env)
    sidecar = receiver.snapshots[1].sidecar
    expected = {
        "enabled": "all",
        "context": "alloc",
        "stacks": "python",
        "max_entries": 5000,
        "clearing": BACKENDS[name]["clearing"],
    }
    if name == "mtia":
        del expected["context"]
    recording = sidecar["recording"]
    assert {key: recording.get(key) for key in (*expected, "way")} == {**expected, "way": "python"}
    assert ("context" in recording) == ("context" in expected)
    assert sidecar["backend"] == name.split()[0]
    assert sidecar["versions"]["torch"] == env.get("DOUBLE_TORCH", "2.9.1+cu128")
    for package in ("torch_npu", "torch_musa", "torch_mlu"):
        assert (package in sidecar["versions"]) == (package == f"torch_{name}")
    assert list(sidecar["memory_stats"]) == ["0"]
    if name == "mtia":
        assert sidecar["memory_stats"]["0"]["dram"]["allocated_bytes"] == 3 << 20
        assert "mem_get_info" not in sidecar
    else:
        assert sidecar["memory_stats"]["0"]["allocated_bytes.all.current"] == 3 << 20
        assert sidecar["mem_get_info"] == {"0": [60 << 30, 64 << 30]}
    assert sidecar["gap_us"] >= 0 and sidecar["gap_events_at_most"] == 0
    assert set(sidecar["capture_ms"]) == {"settle", "statistics", "snapshot", "clear"}
    assert "dropped" not in sidecar and "missing" not in sidecar


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


def test_start_uses_no_device(train, backend):
    name, loop, env = backend
    loop = loop.replace("    model =", "    assert not device.is_initialized() and device.calls == []\n    model =")
    train(loop, TIDEGAUGE_ALSO="oom,exception,sigterm,exit", **env)


def test_memory_that_runs_out_is_seen_by_the_observer_of_each_kind(train, receiver, backend):
    name, loop, env = backend
    loop = loop.replace("    tidegauge.stop()", "    device.alloc(1 << 30)\n")
    loop = loop.replace("steps=[1, 5, 10]", 'steps="none"')
    done = train(loop, status=1, DOUBLE_LIMIT=str(64 << 20), **env)
    [oom] = receiver.snapshots
    assert (oom.sidecar["reason"], oom.label) == ("oom", "1-11")
    assert oom.content["device_traces"][0][-1]["action"] == "oom"
    assert "OutOfMemoryError" in done.said


@pytest.mark.parametrize("word, clearing", [("clear_history", "off and on"), ("stacks", "clear_history")])
def test_a_keyword_that_is_not_known_is_left_away_and_that_is_said_once(train, receiver, word, clearing):
    done = train(LOOP.format(**BACKENDS["mlu"]), DOUBLE_WITHOUT=word)
    assert done.said.count(f"torch.mlu.memory _record_memory_history does not know {word}=; it records without") == 1
    assert receiver.labels() == ["1", "2-5", "6-10"]
    assert [steps_in(s)[-1] for s in receiver.snapshots] == ["step 1", "step 5", "step 10"]
    assert "step 1" not in steps_in(receiver.snapshots[1])
    recording = receiver.snapshots[-1].sidecar["recording"]
    assert (recording["not_understood"], recording["clearing"]) == ([word], clearing)


def test_a_history_without_a_bound_is_not_begun(train, receiver):
    done = train(LOOP.format(**BACKENDS["mlu"]), DOUBLE_WITHOUT="max_entries")
    assert receiver.snapshots == [] and json.loads(done.printed) == []
    assert "stands down, nothing more is recorded: TypeError" in done.said and "max_entries" in done.said


def test_a_device_that_keeps_no_history_is_unsupported_and_training_goes_on(train, receiver):
    script = """
        import torch, tidegauge
        tidegauge.start(steps="all")
        torch.xpu.alloc(1 << 20)
        tidegauge.step()
        print("trained")
    """
    done = train(script, DOUBLE_TORCH="2.9.1+xpu", DOUBLE_XPU="1", DOUBLE_CUDA="0")
    [line] = done.said.splitlines()
    assert line.endswith("nothing is recorded: unsupported: xpu with torch 2.9.1+xpu keeps no memory history")
    assert done.printed == "trained\n"


def test_npu_in_cudas_place_is_recorded_once(train, receiver):
    """`transfer_to_npu` binds cuda's functions to npu's, and cuda says that it is there."""
    done = train(LOOP.format(**BACKENDS["npu"]), DOUBLE_TRANSFER="1")
    assert len(recordings(done)) == 4
    assert {s.sidecar["backend"] for s in receiver.snapshots} == {"npu"}
    assert receiver.labels() == ["1", "2-5", "6-10"]


def test_npu_that_records_by_itself_for_running_out_of_memory_is_noticed(train, receiver):
    done = train(LOOP.format(**BACKENDS["npu"]), OOM_SNAPSHOT_ENABLE="1")
    assert recordings(done) == []
    assert "somebody else records already (OOM_SNAPSHOT_ENABLE is set)" in done.said
    assert receiver.snapshots[0].sidecar["environment"] == {"OOM_SNAPSHOT_ENABLE": "1"}
    assert len(recordings(train(LOOP.format(**BACKENDS["npu"]), OOM_SNAPSHOT_ENABLE="1", TIDEGAUGE_TAKEOVER="1"))) == 5
