"""A training with Lightning that knows nothing of tidegauge. Steps of two batches each.

usage: frame_lightning.py N_STEPS WITNESS.jsonl
"""

import sys

import lightning.pytorch as lightning
import torch
from torch import nn

from witness import allocations_so_far


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Witness(lightning.Callback):
    def __init__(self, path):
        self.path, self.done = path, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step > self.done:
            self.done = trainer.global_step
            allocations_so_far(self.path, self.done)


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=n_steps,
        accumulate_grad_batches=2,
        callbacks=[Witness(witness)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(400, 64), batch_size=4))
    # Its own exit code, whatever becomes of the agent.
    sys.exit(7)


if __name__ == "__main__":
    main()
