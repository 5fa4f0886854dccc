"""Steps of Megatron-Bridge: `pretrain(…, callbacks=[TidegaugeCallback(steps=[1, 5, 10])])`."""

import functools
from typing import Any

from megatron.bridge.training.callbacks import Callback, CallbackManager

from . import _agent
from ._frames import quietly

__all__ = ["TidegaugeCallback"]

_NAME = "megatron_bridge"


class _StepCallback(Callback):
    @quietly(_NAME)
    def on_train_start(self, context):
        _agent.steps_from(_NAME)

    @quietly(_NAME)
    def on_train_step_end(self, context):
        # The counter moves on after the callbacks.
        _agent.step_by(context.state.train_state.step + 1, _NAME)


class TidegaugeCallback(_StepCallback):
    """Starts the agent with the settings of `tidegauge.start`, unless it runs, and says where steps end."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        _agent.start_unless_running(**settings)


@quietly(_NAME)
def install(callbacks):
    """Gives every training the callback: for `tidegauge run`. `callbacks` is the module of them."""
    normalize = callbacks.normalize_callbacks

    @functools.wraps(normalize)
    def with_ours(given):
        manager = normalize(given)
        if manager is None:
            manager = CallbackManager()
        manager.add(_StepCallback())
        return manager

    callbacks.normalize_callbacks = with_ours
