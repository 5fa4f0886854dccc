"""A loop around torch alone that knows nothing of tidegauge, with an optimizer that steps within its step.

usage: frame_none.py N_STEPS WITNESS.jsonl

With TRAINING_STEPS set it does know, and says its steps itself.
"""

import os
import sys

import torch
from torch import nn

from witness import allocations_so_far


class Averaging(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    if os.environ.get("TRAINING_STEPS"):
        import tidegauge
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
    optimizer, other = Averaging(model[0].parameters(), lr=1e-3), torch.optim.SGD(model[2].parameters(), lr=1e-3)
    for n in range(1, n_steps + 1):
        for _ in range(2):
            model(torch.randn(4, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        if os.environ.get("TRAINING_STEPS"):
            tidegauge.step()
        allocations_so_far(witness, n)
        other.step()
        optimizer.zero_grad()
        other.zero_grad()
    # Its own exit code, whatever becomes of the agent.
    sys.exit(7)


if __name__ == "__main__":
    main()
