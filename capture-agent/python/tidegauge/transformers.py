"""Steps of transformers' Trainer: `Trainer(…, callbacks=[TidegaugeCallback(steps=[1, 5, 10])])`."""

from typing import Any

from transformers import TrainerCallback

from . import _agent
from ._frames import quietly

__all__ = ["TidegaugeCallback"]

_NAME = "transformers"


class _StepCallback(TrainerCallback):
    """Says where steps end: after the optimizer's step, however many batches its gradients came from."""

    @quietly(_NAME)
    def on_train_begin(self, args, state, control, **kwargs):
        _agent.steps_from(_NAME)

    @quietly(_NAME)
    def on_step_end(self, args, state, control, **kwargs):
        _agent.step_by(state.global_step, _NAME)


class TidegaugeCallback(_StepCallback):
    """Starts the agent with the settings of `tidegauge.start`, unless it runs, and says where steps end."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        _agent.start_unless_running(**settings)


@quietly(_NAME)
def install(trainer):
    """Gives every Trainer the callback: for `tidegauge run`. `trainer` is the module transformers.trainer."""
    if _StepCallback not in trainer.DEFAULT_CALLBACKS:
        trainer.DEFAULT_CALLBACKS.append(_StepCallback)
