"""A training run on the double of an NPU, with a workspace: settings from TIDEGAUGE_*.

usage: npu.py N_STEPS WITNESS.jsonl
"""

import json
import sys

import torch
import torch_npu  # noqa: F401  puts itself in as torch.npu, as the real one does

import tidegauge
from witness import described

npu = torch.npu


def witnessed(path):
    take = npu.memory._snapshot

    def snapshot(*arguments, **keywords):
        taken = take(*arguments, **keywords)
        with open(path, "a") as file:
            print(json.dumps({**described(taken), "calls": npu.calls}), file=file)
        return taken

    npu.memory._snapshot = snapshot


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    witnessed(witness)
    tidegauge.start()
    npu.alloc(48 << 20, "weights")
    npu.allocator.use_workspace(32 << 20)
    for n in range(1, n_steps + 1):
        activations = [npu.alloc((n + i) << 20, f"step {n}") for i in range(20)]
        for address in reversed(activations):
            npu.free(address, f"step {n}")
        tidegauge.step()
    sys.exit(7)


if __name__ == "__main__":
    main()
