"""One rank whose life takes a turn: settings from TIDEGAUGE_*, which turn from TRAINING_LIFE.

usage: life.py N_STEPS WITNESS.jsonl

    oom       memory runs out amid the step after the last
    waits     waits on standard input after the last step
    loader    trains from data loaders whose workers call the agent, forked and spawned
    guest     the program records by itself, before the agent does
    amid      the program switches its own recording off and on amid the last step
"""

import json
import os
import sys

import torch
from torch import nn

import tidegauge
from witness import described


class Data(torch.utils.data.Dataset):
    """What a worker says goes to the witness."""

    def __init__(self, witness):
        self.witness = witness

    def __len__(self):
        return 8

    def __getitem__(self, n):
        tidegauge.step()
        tidegauge.snapshot("worker")
        tidegauge.stop()
        tell(self.witness, {"worker": os.getpid() != int(os.environ["TRAINING_PID"])})
        return torch.full((64,), float(n))


def tell(witness, what):
    with open(witness, "a") as file:
        print(json.dumps(what), file=file)


def batches(turn, n_steps, witness):
    if turn == "loader":
        for method in ("fork", "spawn"):
            data = torch.utils.data.DataLoader(
                Data(witness), batch_size=4, num_workers=2, multiprocessing_context=method
            )
            yield from data
    else:
        for _ in range(n_steps):
            yield torch.randn(32, 64)


def witnessed(path):
    take = torch.cuda.memory._snapshot

    def snapshot(*arguments, **keywords):
        taken = take(*arguments, **keywords)
        n_events = [len(trace) for trace in taken["device_traces"]]
        tell(path, {**described(taken), "n_events": n_events})
        return taken

    torch.cuda.memory._snapshot = snapshot


def main():
    n_steps, witness, turn = int(sys.argv[1]), sys.argv[2], os.environ["TRAINING_LIFE"]
    os.environ["TRAINING_PID"] = str(os.getpid())
    torch.set_num_threads(1)
    witnessed(witness)
    if turn == "guest":
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=50_000)
        torch.ones(1 << 20, device="cuda")
    tidegauge.start()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tidegauge.own(model=model, optimizer=optimizer)

    for n, batch in enumerate(batches(turn, n_steps, witness), 1):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if turn == "amid" and n == n_steps:
            torch.cuda.memory._record_memory_history(None)
            torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=50_000)
        tidegauge.step()
        print(f"step {n}", flush=True)

    if turn == "oom":
        kept = []
        while True:
            kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    if turn == "waits":
        sys.stdin.readline()
    tell(witness, {"peak": torch.cuda.max_memory_allocated(), "records": torch._C._cuda_isHistoryEnabled()})
    sys.exit(7)


if __name__ == "__main__":
    main()
