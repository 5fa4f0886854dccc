"""How quickly a server takes samples in and shows them: 1,024 ranks of 976 steps, which is what a run keeps whole.

usage: samples.py SERVER    the program; it serves a folder of this script's own
"""

import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

N_RANKS, N_STEPS, N_AT_ONCE = 1_024, 976, 61
# A page asks for 64 rows, in as many columns as a screen shows.
QUESTIONS = [(64, 64), (128, 128), (128, 512)]
N_TURNS = 9
MIB = 1 << 20


def batch(rank, steps):
    dice = random.Random(rank * 100_003 + steps[0])
    allocated = [(40_000 + step) * MIB + dice.randrange(MIB) * 512 for step in steps]
    peak = [(60_000 + step) * MIB + rank * 512 for step in steps]
    of_each = {
        "step": steps,
        "at_us": [1_764_500_000_000_000 + step * 1_000_000 for step in steps],
        "device": [rank % 8] * len(steps),
        "step_us": [900_000 + dice.randrange(200_000) for _ in steps],
        "inactive_split": [dice.randrange(1 << 30) for _ in steps],
        "n_ooms": [0] * len(steps),
        "n_alloc_retries": [step // 300 for step in steps],
        "device_free": [5 << 30] * len(steps),
        "device_total": [80 << 30] * len(steps),
    }
    for level in ("allocated", "active", "reserved", "requested"):
        of_each[level], of_each[f"{level}_peak"] = allocated, peak
    return {"run": "large", "rank": rank, "host": f"node{rank // 8}", "pid": rank, "samples": of_each}


class Caller:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def call(self, method, path, body=None):
        begun = time.perf_counter()
        self.connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            sys.exit(f"{method} {path}: {answer.status} {content.decode()}")
        return content, time.perf_counter() - begun


def fill(port, at_once, first, last):
    """Eight callers send these steps of all ranks; batches, bytes and seconds."""
    counts = [0, 0]

    def send(ranks):
        caller = Caller(port)
        for begin in range(first, last + 1, at_once):
            for rank in ranks:
                body = json.dumps(batch(rank, list(range(begin, min(begin + at_once, last + 1))))).encode()
                caller.call("POST", "/api/v1/samples", body)
                counts[0] += 1
                counts[1] += len(body)

    threads = [threading.Thread(target=send, args=(range(i, N_RANKS, 8),)) for i in range(8)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return *counts, time.perf_counter() - begun


def say_filling(what, n_batches, n_bytes, seconds, n_steps):
    print(
        f"{what}: {n_batches} batches, {n_bytes / 1e6:.1f} MB of JSON in {seconds:.1f} s: "
        f"{n_batches / seconds:.0f} batches and {N_RANKS * n_steps / seconds:,.0f} samples a second"
    )


def main():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.argv[1], "--listen", "127.0.0.1:0", "--data", folder]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            line = next(line for line in server.stdout if line.startswith("listening on "))
            port = int(line.rstrip().rstrip("/").rpartition(":")[2])
            say_filling("a few steps each", *fill(port, 5, 1, 15), 15)
            say_filling("many steps each", *fill(port, N_AT_ONCE, 16, N_STEPS), N_STEPS - 15)
            caller = Caller(port)
            n_bytes = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            run = json.loads(caller.call("GET", "/api/v1/runs")[0])["runs"][0]
            print(f"{run['n_samples']:,} samples, {n_bytes / 1e6:.0f} MB on disk")
            content, seconds = caller.call("GET", f"/api/v1/runs/{run['id']}/grid")
            print(f"the grid: {len(content) / 1e3:.0f} KB, {seconds * 1e3:.0f} ms")
            for n_rows, n_columns in QUESTIONS:
                answers = []
                for turn in range(N_TURNS):
                    part = f"first_row={turn * 64}&n_rows={n_rows}&n_columns={n_columns}"
                    answers.append(caller.call("GET", f"/api/v1/runs/{run['id']}/samples?{part}"))
                n_bytes = statistics.median(len(content) for content, _ in answers)
                millis = sorted(seconds * 1e3 for _, seconds in answers)
                print(
                    f"{n_rows} rows in {len(json.loads(answers[0][0])['columns'])} columns: "
                    f"{n_bytes / 1e3:.0f} KB, {statistics.median(millis):.0f} ms, at worst {millis[-1]:.0f} ms"
                )
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
