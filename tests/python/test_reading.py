"""The reader beside CPython's: the same files, opened by `pickle` and replayed in Python, say the same."""

import collections
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys

import pytest
import zstandard

from reference import Replay, load

FIXTURES = pathlib.Path(__file__).parents[2] / "snapshot" / "fixtures"
SNAPSHOTS = sorted(path for path in FIXTURES.rglob("*.pickle*"))
LEVELS = ("requested", "allocated", "active", "reserved")

# What `cargo xtask test --only python` builds: it prints the levels after every event.
BENCH = os.environ.get("TIDEGAUGE_TEST_BENCH")
needs_bench = pytest.mark.skipif(not BENCH, reason="needs TIDEGAUGE_TEST_BENCH, which `cargo xtask test` sets")


def content(path):
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    return path.read_bytes()


def inspected(path):
    program = pathlib.Path(sys.executable).parent / "tidegauge"
    done = subprocess.run([program, "inspect", "--json", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def replayed(path):
    """The levels at every state, by device."""
    done = subprocess.run([BENCH, "levels", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    devices = {}
    for line in done.stdout.splitlines():
        if line.startswith("device "):
            states = devices.setdefault(int(line.removeprefix("device ")), [])
        else:
            states.append(tuple(map(int, line.split())))
    return devices


def devices_of(snapshot):
    with_events = [device for device, trace in enumerate(snapshot.get("device_traces") or []) if trace]
    return sorted({segment["device"] for segment in snapshot["segments"]}.union(with_events))


def compare(path, snapshot):
    """Every level of every device; returns how many states were compared."""
    said, counted = replayed(path), inspected(path)
    devices = devices_of(snapshot)
    assert sorted(said) == devices
    assert [device["device"] for device in counted["devices"]] == devices
    assert counted["annotations"] == len(snapshot.get("external_annotations") or [])
    n_states = 0
    for summary in counted["devices"]:
        device = summary["device"]
        expected = Replay(snapshot, device)
        assert expected.odd == 0
        check_counts(summary, snapshot, expected)
        states = said[device]
        assert len(states) == len(expected.states)
        for state, (ours, theirs) in enumerate(zip(states, expected.states)):
            near = expected.open_bytes
            assert (ours[0], ours[3]) == (theirs[0], theirs[3]), f"device {device}, state {state}"
            assert all(abs(ours[at] - theirs[at]) <= near for at in (1, 2)), f"device {device}, state {state}"
        for at, level in enumerate(LEVELS):
            column = [state[at] for state in states]
            assert summary[level] == {"head": column[0], "peak": max(column), "end": column[-1]}
        assert states[-1] == expected.states[-1]
        n_states += len(states)
    return n_states


def check_counts(summary, snapshot, expected):
    actions = collections.Counter(event["action"] for event in expected.events)
    assert summary["actions"] == dict(actions)
    assert summary["events"] == len(expected.events)
    assert summary["segments"] == len(expected.segments)
    assert summary["blocks"] == sum(len(segment["blocks"]) for segment in expected.segments)


@needs_bench
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_a_committed_snapshot_has_the_levels_that_python_works_out(path):
    snapshot = load(content(path))
    if "kineto" in path.parts:
        pytest.skip("a converted profile knows tensors, not the blocks they lie in")
    if "skip_actions" in path.name:
        pytest.skip("the recorder left out events that this replay goes by")
    assert compare(path, snapshot) > 0


# Rewritten into something odd and no less true, these are small enough to be rewritten often.
MODELS = ["oom_plain_2gib", "oom_expandable_2gib", "streams_2dev_lag40", "pools_graphs_mempool"]

ODD_VALUES = [
    None,
    True,
    0,
    -1,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    float("inf"),
    float("nan"),
    "",
    "a" * 300,
    "μ\n\\\0\u2028",
    "\ud800 alone",
    (),
    (1,),
    (1, 2, 3, 4),
]


# Numbers of any size, in the protocols that write them as bytes.
LARGE_VALUES = [2**200, -(2**200)]


def rewrite(snapshot, dice, protocol):
    """The same snapshot as another program might have written it."""
    values = ODD_VALUES + LARGE_VALUES if protocol >= 2 else ODD_VALUES
    shared = {"deep": [{"list": [dice.choice(values) for _ in range(dice.randrange(5))]}] * 3}

    def extra():
        numbers = list(range(dice.choice([3, 1000, 2500])))
        return dice.choice([dice.choice(values), shared, [shared, shared], numbers])

    def rekeyed(row, droppable):
        items = [(key, value) for key, value in row.items() if not (key in droppable and dice.random() < 0.3)]
        if dice.random() < 0.3:
            items.append((f"unknown_{dice.randrange(4)}", extra()))
        if dice.random() < 0.3:
            dice.shuffle(items)
        return dict(items)

    def frame(row):
        row = dict(row)
        row["line"] = dice.choice([row["line"], 2**64 - 1, 0, 2**31])
        long = "x" * 70_000 if dice.random() < 0.001 else "??"
        row["name"] = dice.choice([row["name"], row["name"], "f\ud800", 'f\0<b>"', long])
        return row

    frames = {}

    def stack(of):
        # Some frames are shared, some are written again.
        kept = dice.random() < 0.8
        return [frames.setdefault(json.dumps(one), frame(one)) if kept else dict(one) for one in of]

    def event(row):
        row = rekeyed(row, {"frames", "stream", "compile_context"})
        if "frames" in row:
            row["frames"] = stack(row["frames"])
        return row

    def segment(row):
        row = rekeyed(row, {"frames", "segment_type", "segment_pool_id", "active_size", "allocated_size"})
        row["blocks"] = [rekeyed(block, {"frames", "address"}) for block in row["blocks"]]
        return row

    rewritten = dict(snapshot)
    rewritten["segments"] = [segment(row) for row in snapshot["segments"]]
    rewritten["device_traces"] = [[event(row) for row in trace] for trace in snapshot["device_traces"]]
    if dice.random() < 0.5:
        rewritten["unknown"] = extra()
    return rekeyed(rewritten, {"external_annotations"})


@needs_bench
@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("model", MODELS)
def test_a_snapshot_written_oddly_has_the_same_levels(model, protocol, tmp_path):
    snapshot = load((FIXTURES / f"{model}.pickle").read_bytes())
    path = tmp_path / "odd.pickle"
    for seed in range(3):
        dice = random.Random(f"{model} {protocol} {seed}")
        path.write_bytes(pickle.dumps(rewrite(snapshot, dice, protocol), protocol=protocol))
        assert compare(path, load(path.read_bytes())) > 0


@needs_bench
def test_what_other_picklers_write_has_the_same_levels(tmp_path):
    snapshot = load((FIXTURES / "oom_plain_2gib.pickle").read_bytes())
    path = tmp_path / "python.pickle"
    # Python's own pickler frames and memoizes differently from C's.
    with open(path, "wb") as file:
        pickle._Pickler(file, protocol=4).dump(snapshot)
    assert compare(path, snapshot) > 0
    with open(path, "wb") as file:
        fast = pickle.Pickler(file, protocol=2)
        fast.fast = True
        fast.dump(snapshot)
    assert compare(path, snapshot) > 0
