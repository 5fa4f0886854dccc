"""A loop around accelerate that knows nothing of tidegauge: two optimizers, and steps of two batches each.

usage: frame_accelerate.py N_STEPS WITNESS.jsonl
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn

from witness import allocations_so_far


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    actor, critic = (nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)) for _ in range(2))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (actor, critic)]
    data = torch.utils.data.DataLoader(torch.randn(400, 64), batch_size=4)
    actor, critic, *optimizers, data = accelerator.prepare(actor, critic, *optimizers, data)
    n = 0
    for batch in data:
        with accelerator.accumulate(actor, critic):
            accelerator.backward(actor(batch).square().mean() + critic(batch).square().mean())
            optimizers[0].step()
            if accelerator.sync_gradients:
                n += 1
                allocations_so_far(witness, n)
            optimizers[1].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        if n == n_steps:
            break
    # Its own exit code, whatever becomes of the agent.
    sys.exit(7)


if __name__ == "__main__":
    main()
