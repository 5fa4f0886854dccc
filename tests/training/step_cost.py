"""What a step costs the training thread: `step()` with samples and without, beside `memory_stats()` itself.

usage: step_cost.py        settings from TIDEGAUGE_*; a server need not be there

Prints microseconds, the middle of many turns that take turns, and how many times as much as the cheapest it is.
"""

import os
import statistics
import time

import torch

import tidegauge

N_TURNS = 200
# A step that is sampled, and so many that come too soon after it.
PAUSE, N_SOON = 0.011, 100


def timed(work):
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e6


def soon():
    for _ in range(N_SOON):
        tidegauge.step()


def main():
    # Blocks of some hundred sizes, as a training leaves them.
    kept = [torch.empty(n << 10, dtype=torch.uint8, device="cuda") for n in range(1, 400)]
    samples = os.environ.get("TIDEGAUGE_SAMPLES", "1")
    tidegauge.start(steps="none", outbox="/tmp/step-cost-outbox", flush_secs=0)
    sampled, passed, stats, nested = [], [], [], []
    for _ in range(N_TURNS):
        time.sleep(PAUSE)
        sampled.append(timed(tidegauge.step))
        passed.append(timed(soon) / N_SOON)
        stats.append(timed(torch.cuda.memory_stats))
        nested.append(timed(torch.cuda.memory_stats_as_nested_dict))
    rows = {
        "memory_stats()": stats,
        "memory_stats_as_nested_dict()": nested,
        f"step(), samples={samples}, 11 ms after the one before": sampled,
        f"step(), samples={samples}, at once after another": passed,
    }
    for name, microseconds in rows.items():
        print(f"{name:55} {statistics.median(microseconds):8.2f} us, 1 in 20 {sorted(microseconds)[-N_TURNS // 20]:8.2f} us")
    del kept


if __name__ == "__main__":
    main()
