"""A process that allocates from several threads, on any release of PyTorch: settings from TIDEGAUGE_*.

usage: alone.py N_STEPS WITNESS.jsonl

At the end all that is still in the history goes to WITNESS.jsonl.pickle. TRAINING_WAY says what else happens:
  steps   nothing (the default)
  exit    the program ends in the middle of its last snapshot
  fork    it forks in the middle of one, and the witness is told what time the thread that reads had meanwhile
"""

import json
import os
import pickle
import random
import sys
import threading
import time

import torch

import tidegauge

# So that a snapshot takes its time.
MANY = 60_000


def worker(ends):
    alive = []
    while not ends.is_set():
        time.sleep(0.0005)
        alive.append(torch.empty(random.choice([1000, 70_000, 3 << 20]), dtype=torch.uint8, device="cuda"))
        if len(alive) > 50:
            alive.pop(random.randrange(len(alive)))


def a_step(n_allocations):
    alive = []
    for n in range(n_allocations):
        alive.append(torch.empty(1000 * (n % 9 + 1), device="cuda"))
        if len(alive) > 100:
            alive.pop(random.randrange(len(alive)))


def ticks_of_reader():
    """The processor's time that the agent's thread that reads has had, in hundredths of a second."""
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/stat") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
        if name == "tidegauge-read":
            return sum(map(int, rest.split()[11:13]))
    return None


def main():
    n_steps, witness, way = int(sys.argv[1]), sys.argv[2], os.environ.get("TRAINING_WAY", "steps")
    ticks = []

    def right_before_the_fork():
        before = ticks_of_reader()
        time.sleep(0.2)
        ticks.append(ticks_of_reader() - before)

    # What was registered first is called last.
    os.register_at_fork(before=right_before_the_fork)
    torch.cuda.init()
    torch.empty(1, device="cuda")
    tidegauge.start()
    ends = threading.Event()
    workers = [threading.Thread(target=worker, args=(ends,)) for _ in range(2 if way == "steps" else 0)]
    for thread in workers:
        thread.start()
    for n in range(1, n_steps + 1):
        a_step(500 if way == "steps" else MANY)
        tidegauge.step()
        if way == "fork" and n == 1:
            child = os.fork()
            if child == 0:
                tidegauge.step()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            with open(witness, "a") as file:
                print(json.dumps({"ticks": ticks[0]}), file=file)
    if way != "exit":
        ends.set()
        for thread in workers:
            thread.join()
        with open(witness + ".pickle", "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
    sys.exit(7)


if __name__ == "__main__":
    main()
