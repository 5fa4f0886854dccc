"""A worker of verl, as far as its profiler sees it: RANK as verl sets it, and verl's own TorchMemoryProfiler.

usage: frame_verl.py N_STEPS WITNESS.jsonl

verl is told to profile rank 0 at steps 2 and 4. TRAINING_ROLES names the roles that this process plays: "actor_rollout",
or "actor_rollout,critic" for two of them in one process; TRAINING_PROFILES the folder for verl's files, and
TRAINING_FINISH_HOOK the command that verl runs after the last profiled step.
"""

import os
import sys

import torch
from verl.utils.profiler import DistProfiler, ProfilerConfig
from verl.utils.profiler.config import TorchMemoryToolConfig

from witness import allocations_so_far, testify

PROFILED = (2, 4)


def train(n_steps, witness):
    profiles = os.environ.get("TRAINING_PROFILES", f"{os.path.dirname(witness)}/profile")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.cuda.set_device(rank)
    profilers = [
        DistProfiler(
            rank=rank,
            config=ProfilerConfig(
                tool="torch_memory",
                enable=True,
                ranks=[0],
                save_path=profiles,
                finish_hook_cmd=os.environ.get("TRAINING_FINISH_HOOK"),
            ),
            tool_config=TorchMemoryToolConfig(trace_alloc_max_entries=54_321),
            save_file_prefix=role,
        )
        for role in os.environ["TRAINING_ROLES"].split(",")
    ]
    # The model, and the peak of the whole run.
    weights = torch.empty(1 << 20, device="cuda")
    del weights
    peak = torch.cuda.max_memory_allocated()
    for n in range(1, n_steps + 1):
        if n in PROFILED:
            for profiler in profilers:
                profiler.start(profile_step=n)
        kept = [torch.empty(1 << (10 + n), device="cuda") for _ in range(10)]
        del kept
        if n in PROFILED:
            for profiler in profilers:
                profiler.stop(run_command=n == PROFILED[-1])
        allocations_so_far(witness, n)
    end = {
        "is_recording": torch._C._cuda_isHistoryEnabled(),
        "is_peak_kept": torch.cuda.max_memory_allocated() == peak,
        "has_files": os.path.exists(profiles),
    }
    testify(witness, end)


def main():
    train(int(sys.argv[1]), sys.argv[2])
    # Its own exit code, whatever becomes of the agent.
    sys.exit(7)


if __name__ == "__main__":
    main()
