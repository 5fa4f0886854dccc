"""The agent on a real device: what the tests say on a pretended one, held against the real one, with figures.

usage: python3 run.py WHEEL [PYTHON]

WHEEL is what `cargo xtask wheel` built; PYTHON the interpreter with PyTorch, this one by default. Nothing is installed: the
wheel is unpacked into a folder for temporary files, which goes at the end. One device is enough, and no network is
needed; it takes a few minutes. Prints what it found, and a closing line as pytest does.
"""

import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINING = ROOT / "tests/training"
BENCH = ROOT / "xtask/bench/capture.py"

# Longer than all of it should take.
LIMIT_SECS = 300

OOM = """
import sys, torch, tidegauge
tidegauge.start()
torch.empty(1, device="cuda")
torch.cuda.set_per_process_memory_fraction(0.01)
held = []
try:
    while True:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    sys.exit(9)
"""


class Device:
    """The interpreter with the wheel beside its PyTorch, and a folder to work in."""

    def __init__(self, wheel, python, folder):
        self.python, self.folder = python, pathlib.Path(folder)
        site = self.folder / "site"
        command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel]
        subprocess.run(command, check=True)
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("TIDEGAUGE_")},
            "PYTHONPATH": os.pathsep.join([str(site), str(TRAINING)]),
            "TIDEGAUGE_SERVER": "http://127.0.0.1:9",
            "TIDEGAUGE_FLUSH_SECS": "0",
            "TIDEGAUGE_SAMPLES": "0",
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, *arguments, status=0, **env):
        command = [self.python, *map(str, arguments)]
        environment = {**self.environment, **{name: str(text) for name, text in env.items()}}
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_SECS)
        said = "\n".join(done.stderr.splitlines()[-20:])
        assert status is None or done.returncode == status, f"{command} ended with {done.returncode}: {said}"
        return done.stdout

    def tidegauge(self, *arguments):
        return self.run("-m", "tidegauge", *arguments)

    def train(self, kind, way):
        """Six steps, with snapshots of 1, 3 and 5; gives the outbox's folder and the witness' file."""
        folder = self.folder / f"{kind}-{way}"
        folder.mkdir()
        witness = folder / "witness-0.jsonl"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.run(
            TRAINING / "fsdp.py", 6, witness, status=7, TRAINING_KIND=kind, TIDEGAUGE_WAY=way, TIDEGAUGE_STEPS="1,3,5",
            TIDEGAUGE_RUN="device", TIDEGAUGE_OUTBOX=folder / "outbox",
            RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
        )  # fmt: skip
        return folder / "outbox", witness

    def snapshots(self, outbox):
        """What waits in an outbox, in order: a plain pickle and the sidecar of each."""
        found = []
        for path in sorted(outbox.glob("*/*/*.pickle.zst")):
            plain = path.with_suffix("")
            self.tidegauge("export", path, "--to", "pickle", "-o", plain)
            found.append((plain, json.loads(pathlib.Path(str(plain).replace(".pickle", ".json")).read_text())))
        return found


def it_says_what_it_finds(device):
    # Red for one reason alone: there is no server.
    report = device.run("-m", "tidegauge", "doctor", "--try", status=None)
    print(report)
    assert report.rstrip().endswith("1 line is red")


def windows_hold_what_torch_recorded(device, kind, way):
    outbox, witness = device.train(kind, way)
    snapshots = device.snapshots(outbox)
    windows = [(sidecar.get("first_step"), sidecar["last_step"]) for _, sidecar in snapshots]
    assert [last for _, last in windows] == [1, 3, 5], windows
    ways = {sidecar["recording"]["way"] for _, sidecar in snapshots}
    assert ways == {way}, f"taken the way {ways}"
    told = [json.loads(line) for line in witness.read_text().splitlines()]
    files = [plain for plain, _ in snapshots]
    if way == "native":
        of = json.loads(device.run(TRAINING / "witness.py", "--of", f"{witness}.pickle", *files))
        assert all(trace["differs"] is None for trace in of) and of[0]["events"] > 0, of
    else:
        mine = [json.loads(line) for line in device.run(TRAINING / "witness.py", *files).splitlines()]
        seen = [line for line in told if "digest" in line]
        assert [line["digest"] for line in mine[:-1]] == [line["digest"] for line in seen[: len(files)]]
        assert mine[-1] == {"in_two": 0}, mine[-1]
    so_far = {line["step"]: line["allocations_so_far"] for line in told if "step" in line}
    for (plain, _), (before, last) in zip(snapshots[1:], [(1, 3), (3, 5)]):
        with open(plain, "rb") as file:
            traces = pickle.load(file)["device_traces"]
        n = sum(event["action"] == "alloc" for trace in traces for event in trace)
        assert n == so_far[last] - so_far[before], f"{n} allocations from step {before} to {last}: {so_far}"
    for plain, sidecar in snapshots:
        levels = json.loads(device.tidegauge("inspect", "--json", plain))["devices"][0]
        stats = sidecar["memory_stats"]["0"]
        for level in ("requested", "allocated", "active", "reserved"):
            assert levels[level]["end"] == stats[f"{level}_bytes.all.current"], (level, levels[level], stats)
    n_events = sum(len(trace) for plain in files for trace in pickle.loads(plain.read_bytes())["device_traces"])
    print(f"{kind}, {way}: 3 windows with {n_events} events, equal in every event and in the levels at their ends")


def running_out_of_memory_leaves_a_snapshot(device):
    outbox = device.folder / "oom"
    device.run("-c", OOM, status=9, TIDEGAUGE_RUN="device", TIDEGAUGE_OUTBOX=outbox, TIDEGAUGE_STEPS="none")
    [(plain, sidecar)] = device.snapshots(outbox)
    assert sidecar["reason"] == "oom", sidecar
    traces = pickle.loads(plain.read_bytes())["device_traces"]
    assert any(event["action"] == "oom" for trace in traces for event in trace)
    print("out of memory: its snapshot is on the disk, and the exit code is the program's")


def what_it_costs(device, *words):
    unpack = device.folder / "unpack"
    unpack.write_text(f'#!/bin/sh\nexec "{device.python}" -m tidegauge export "$2" --to pickle -o "$3"\n')
    unpack.chmod(0o755)
    print(device.run(BENCH, *(unpack if word == "UNPACK" else word for word in words)).strip())


CHECKS = [
    (it_says_what_it_finds,),
    *((windows_hold_what_torch_recorded, kind, way) for kind in ("ddp", "fsdp") for way in ("native", "python")),
    (running_out_of_memory_leaves_a_snapshot,),
    (what_it_costs, "off"),
    (what_it_costs, "cost", "native"),
    (what_it_costs, "cost", "python"),
    (what_it_costs, "cost", "dump"),
    (what_it_costs, "exact", "native", "UNPACK"),
    (what_it_costs, "exact", "python", "UNPACK"),
]


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    wheel, python = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) == 3 else sys.executable
    n_failed, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        device = Device(wheel, python, folder)
        print(device.run("-c", "import torch; print(torch.__version__, torch.cuda.get_device_name(0))").strip())
        for check, *words in CHECKS:
            started = time.monotonic()
            try:
                check(device, *words)
                outcome = "passed"
            except (AssertionError, subprocess.SubprocessError, OSError, LookupError, ValueError) as error:
                n_failed += 1
                outcome = f"FAILED: {error}"
            print(f"  {' '.join([check.__name__, *words])}: {outcome} ({time.monotonic() - started:.0f} s)", flush=True)
    n_passed = len(CHECKS) - n_failed
    print(f"==== {n_passed} passed, {n_failed} failed in {time.monotonic() - began:.1f}s ====")
    sys.exit(bool(n_failed))


if __name__ == "__main__":
    main()
