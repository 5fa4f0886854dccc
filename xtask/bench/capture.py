"""What a snapshot costs training, and whether windows lose events: `cargo xtask bench capture` runs it.

usage: capture.py cost native|python|dump | exact native|python UNPACK | off

UNPACK is the program that unpacks what waits in an outbox.

Ratios are taken between neighbors in one run, so that a busy minute of the machine is everyone's.
"""

import gc
import json
import os
import pathlib
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

# Events in the history while a snapshot is taken.
EVENTS = 200_000
TURNS = 5
WINDOWS = 50
# Nobody listens there: what is taken stays in the outbox.
NOWHERE = {"server": "http://127.0.0.1:9", "flush_secs": 0, "steps": "none"}


def waiting(outbox):
    return sorted(pathlib.Path(outbox).glob("*/*/*.pickle.zst"))


class Training:
    """A loop that allocates and frees, as fast as it can."""

    def __init__(self, torch):
        self.torch, self.alive, self.n = torch, [], 0

    def deep(self, depth):
        return self.deep(depth - 1) if depth else self.torch.empty(1000, device="cuda")

    def iterate(self):
        self.n += 1
        self.alive.append(self.deep(self.n % 20))
        if len(self.alive) > 200:
            self.alive.pop(random.randrange(200))

    def until(self, is_over, first=None):
        """Iterations a second until then, and the longest of them in milliseconds; `first` is done before them and
        counts as one."""
        began, longest, n = time.perf_counter(), 0.0, 0
        if first:
            first()
            longest = time.perf_counter() - began
        while not is_over():
            # Asking whether it is over is none of training's work: it is done once in a while.
            for _ in range(50):
                before = time.perf_counter()
                self.iterate()
                longest = max(longest, time.perf_counter() - before)
                n += 1
        return n / (time.perf_counter() - began), longest * 1e3

    def idle(self):
        end = time.perf_counter() + 1
        return self.until(lambda: time.perf_counter() > end)


def recorded(torch, tidegauge, way, outbox):
    training = Training(torch)
    torch.empty(1, device="cuda")
    if way == "dump":
        # Python stacks are read with it, and its first import takes seconds.
        try:
            import torch._inductor.codecache  # noqa: F401
        except ImportError:
            pass
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=EVENTS)
    else:
        tidegauge.start("bench", way=way, outbox=outbox, max_entries=EVENTS, **NOWHERE)
    for _ in range(EVENTS // 3 + 400):
        training.iterate()
    return training


def while_dumped(torch, training, folder):
    """Beside training, as people do it."""
    def dump():
        with open(os.path.join(folder, "dump.pickle"), "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)

    thread = threading.Thread(target=dump)
    return training.until(lambda: not thread.is_alive(), thread.start)


def while_taken(tidegauge, training, outbox):
    before = len(waiting(outbox))
    return training.until(lambda: len(waiting(outbox)) > before, tidegauge.snapshot)


def bare(torch):
    """Seconds that `_snapshot()` takes by itself."""
    began = time.perf_counter()
    torch.cuda.memory._snapshot()
    return time.perf_counter() - began


def show_cost(way):
    import torch
    import tidegauge

    with tempfile.TemporaryDirectory() as folder:
        training = recorded(torch, tidegauge, way, folder)
        shares, stalls, called, alone, after = [], [], [], [], []
        for _ in range(TURNS):
            idle, _ = training.idle()
            if way == "python":
                gc.collect()
                alone.append(bare(torch))
                began = time.perf_counter()
                before = len(waiting(folder))
                tidegauge.snapshot()
                called.append(time.perf_counter() - began)
                rate, slice_ms = training.until(lambda: len(waiting(folder)) > before)
                after.append(slice_ms)
                # The next one begins with a full history, too.
                for _ in range(EVENTS // 3 + 400):
                    training.iterate()
            elif way == "dump":
                rate, stall = while_dumped(torch, training, folder)
                stalls.append(stall)
            else:
                rate, stall = while_taken(tidegauge, training, folder)
                stalls.append(stall)
            shares.append(rate / idle)
        middle = statistics.median
        print(f"{way}: {100 * middle(shares):.1f} % of the idle rate ({idle:.0f} iterations a second)", end="")
        if way == "python":
            print(f" while written; training waits {middle(called) * 1e3:.0f} ms, the longest {max(called) * 1e3:.0f}; "
                  f"{middle(c / a for c, a in zip(called, alone)):.2f} times the bare _snapshot(); "
                  f"longest stall while written {middle(after):.1f} ms")
        else:
            print(f", longest stall {middle(stalls):.1f} ms, of all turns {max(stalls):.1f}")
        if way == "native":
            sidecars = [json.loads(p.read_text()) for p in pathlib.Path(folder).glob("*/*/*.json")]
            ways = {sidecar["recording"]["way"] for sidecar in sidecars}
            assert ways == {"native"}, ways
        sys.stdout.flush()
        tidegauge.stop()


def allocate(torch, ends):
    alive = []
    while not ends.is_set():
        time.sleep(0.002)
        alive.append(torch.empty(random.choice([1000, 70_000, 3 << 20]), dtype=torch.uint8, device="cuda"))
        if len(alive) > 50:
            alive.pop(random.randrange(len(alive)))


def same(one, other):
    names = (set(one) | set(other)) - {"time_us"}
    return all(one.get(name) == other.get(name) for name in names)


def show_exactness(way, unpack):
    import torch
    import tidegauge

    with tempfile.TemporaryDirectory() as folder:
        torch.empty(1, device="cuda")
        settings = {**NOWHERE, "steps": "all", "way": way, "max_entries": 400_000, "outbox": folder}
        tidegauge.start("bench", **settings)
        ends = threading.Event()
        threads = [threading.Thread(target=allocate, args=(torch, ends)) for _ in range(3)]
        for thread in threads:
            thread.start()
        training = Training(torch)
        for n in range(WINDOWS):
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                time.sleep(0.0005)
                training.iterate()
            # At a rate that the writer can follow: a step that finds it busy goes into the next window.
            while len(waiting(folder)) < n:
                time.sleep(0.005)
            tidegauge.step()
        ends.set()
        for thread in threads:
            thread.join()
        whole = torch.cuda.memory._snapshot()["device_traces"][0] if way == "native" else []
        tidegauge.stop()

        events, sidecars = [], []
        for path in waiting(folder):
            pickled = path.with_suffix(".unpacked")
            subprocess.run([unpack, "unpack", path, pickled], check=True)
            with open(pickled, "rb") as file:
                events += pickle.load(file)["device_traces"][0]
            sidecars.append(json.loads(pathlib.Path(str(path).replace(".pickle.zst", ".json")).read_text()))
        ways = {sidecar["recording"]["way"] for sidecar in sidecars}
        assert ways == {way} and len(sidecars) == WINDOWS, (ways, len(sidecars))
        if way == "native":
            differs = next((n for n, pair in enumerate(zip(events, whole)) if not same(*pair)), None)
            assert len(events) <= len(whole)
            dropped = sum("dropped" in sidecar for sidecar in sidecars)
            print(f"native: {WINDOWS} windows of 4 threads hold {len(events)} events, which are the first of an uncleared"
                  f" recording: {'all, none lost and none doubled' if differs is None else f'up to {differs}'};"
                  f" dropped in {dropped} windows")
        else:
            gaps = [(sidecar["gap_us"], sidecar["gap_events_at_most"]) for sidecar in sidecars]
            print(f"python: {WINDOWS} windows of 4 threads hold {len(events)} events; gaps of"
                  f" {statistics.median(us for us, _ in gaps) / 1e3:.1f} ms each, with at most {sum(n for _, n in gaps)} events"
                  f" in all, at most {max(n for _, n in gaps)} in one")


def show_off():
    n_threads = threading.active_count()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"TIDEGAUGE_ENABLED": "0", "TIDEGAUGE_OUTBOX": os.path.join(folder, "outbox")})
        began = time.perf_counter()
        import tidegauge
        imported = time.perf_counter() - began
        tidegauge.start()
        n = 1_000_000
        began = time.perf_counter()
        for _ in range(n):
            tidegauge.step()
        step = (time.perf_counter() - began) / n
        assert "torch" not in sys.modules and threading.active_count() == n_threads
        assert len(os.listdir("/proc/self/task")) == 1 and not os.listdir(folder)
    print(f"switched off: import {imported * 1e3:.1f} ms, step() {step * 1e6:.2f} µs; no torch, no thread, no file")


def main():
    match sys.argv[1:]:
        case ["cost", way]:
            show_cost(way)
        case ["exact", way, unpack]:
            show_exactness(way, unpack)
        case ["off"]:
            show_off()


if __name__ == "__main__":
    main()
