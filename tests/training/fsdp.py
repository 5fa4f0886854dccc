"""One rank of an FSDP training run: RANK, WORLD_SIZE and MASTER_* as torchrun sets them, settings from TIDEGAUGE_*.
With TRAINING_KIND=ddp it is DistributedDataParallel instead.

usage: fsdp.py N_STEPS WITNESS.jsonl

The witness is told what `_snapshot()` returned, a line each time, and how many allocations and bytes there were by
the end of each step.
At the end all that is still in the history goes to WITNESS.jsonl.pickle: where nothing empties it, that is all there
was. With TRAINING_WAITS set, the run waits after each of these steps ("1,5") for a line on standard input.
"""

import json
import os
import pickle
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import tidegauge
from witness import described

N_LAYERS, WIDTH, N_WORDS, LENGTH = 3, 256, 4000, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(N_WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(N_LAYERS))
        self.head = nn.Linear(WIDTH, N_WORDS, bias=False)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(model):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def witnessed(path):
    """Lets a witness see every snapshot that is taken. Gives back what takes one behind its back."""
    take = torch.cuda.memory._snapshot

    def snapshot(*arguments, **keywords):
        taken = take(*arguments, **keywords)
        tell(path, described(taken))
        return taken

    torch.cuda.memory._snapshot = snapshot
    return take


def tell(witness, what):
    with open(witness, "a") as file:
        print(json.dumps(what), file=file)


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    waits = {int(step) for step in os.environ.get("TRAINING_WAITS", "").split(",") if step}
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    take = witnessed(witness)
    # Before the device is chosen: recording must not choose it.
    tidegauge.start()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))

    model = Model().cuda()
    is_ddp = os.environ.get("TRAINING_KIND") == "ddp"
    model = DistributedDataParallel(model, device_ids=[rank]) if is_ddp else sharded(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    for n in range(1, n_steps + 1):
        # Ranks differ in their batches, as they do in life.
        words = torch.randint(0, N_WORDS, (2 + rank, LENGTH)).cuda(non_blocking=True)
        loss = F.cross_entropy(model(words).float().flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        stats = torch.cuda.memory_stats(rank)
        levels = {
            "allocated": stats["allocated_bytes.all.current"],
            "allocated_peak": stats["allocated_bytes.all.peak"],
            "reserved": stats["reserved_bytes.all.current"],
        }
        tell(witness, {"step": n, "allocations_so_far": stats["allocation.all.allocated"], "levels": levels})
        tidegauge.step()
        print(f"step {n}", flush=True)
        if n in waits:
            sys.stdin.readline()

    with open(witness + ".pickle", "wb") as file:
        pickle.dump(take(), file)
    dist.destroy_process_group()
    # Its own exit code, whatever becomes of the agent.
    sys.exit(7)


if __name__ == "__main__":
    main()
