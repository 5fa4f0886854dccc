"""A loop around a DeepSpeed engine that knows nothing of tidegauge. Steps of two batches each.

usage: frame_deepspeed.py N_STEPS WITNESS.jsonl    with a MASTER_PORT
"""

import os
import sys

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")

import deepspeed
import torch
from torch import nn

from witness import allocations_so_far


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for n in range(1, n_steps + 1):
        for _ in range(2):
            loss = engine(torch.randn(4, 64, device=engine.device, dtype=torch.bfloat16)).square().mean()
            engine.backward(loss)
            engine.step()
        allocations_so_far(witness, n)
    # Its own exit code, whatever becomes of the agent.
    sys.exit(7)


if __name__ == "__main__":
    main()
