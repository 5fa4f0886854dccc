"""A training with transformers' Trainer that knows nothing of tidegauge. Steps of two batches each.

usage: frame_transformers.py N_STEPS WITNESS.jsonl    as torchrun, or nobody, starts it

With TRAINING_CALLBACK set it is given the callback by hand instead.
"""

import os
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from witness import allocations_so_far

N_WORDS, LENGTH = 500, 32


class Witness(TrainerCallback):
    def __init__(self, path):
        self.path = path

    def on_step_end(self, args, state, control, **kwargs):
        allocations_so_far(self.path, state.global_step)


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    callbacks = [Witness(witness)]
    if os.environ.get("TRAINING_CALLBACK"):
        from tidegauge.transformers import TidegaugeCallback

        callbacks.append(TidegaugeCallback())
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=GPT2LMHeadModel(GPT2Config(vocab_size=N_WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2)),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=n_steps,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                # With it DDP asks whether memory is pinned, which the stand-in for CUDA does not know.
                ddp_find_unused_parameters=False,
            ),
            train_dataset=[{"input_ids": [i % N_WORDS] * LENGTH, "labels": [i % N_WORDS] * LENGTH} for i in range(400)],
            callbacks=callbacks,
        )
        trainer.train()
    # Its own exit code, whatever becomes of the agent; torchrun would kill the other ranks for it.
    sys.exit(0 if "TORCHELASTIC_RUN_ID" in os.environ else 7)


if __name__ == "__main__":
    main()
