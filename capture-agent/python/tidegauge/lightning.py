"""Steps of Lightning's Trainer: `Trainer(…, callbacks=[TidegaugeCallback(steps=[1, 5, 10])])`."""

import sys
from typing import Any

from . import _agent
from ._frames import quietly

__all__ = ["TidegaugeCallback"]

_NAME = "lightning"


class _Steps:
    """Says where steps end, as `trainer.global_step` counts them."""

    @quietly(_NAME)
    def on_train_start(self, trainer, pl_module):
        _agent.steps_from(_NAME)

    @quietly(_NAME)
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        # It stands still while gradients accumulate; a number that was said before changes nothing.
        if trainer.global_step > 0:
            _agent.step_by(trainer.global_step, _NAME)


class _Starts:
    """Starts the agent with the settings of `tidegauge.start`, unless it runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        _agent.start_unless_running(**settings)


def _classes(package):
    """The callbacks, made for one of the two packages that Lightning comes as."""
    base = package.Callback
    steps = type("TidegaugeSteps", (_Steps, base), {})
    return steps, type("TidegaugeCallback", (_Starts, _Steps, base), {"__doc__": _Starts.__doc__})


def callbacks(package):
    """The callbacks that `tidegauge run` gives every Trainer of `package`."""
    return [_classes(package)[0]()]


def __getattr__(name):
    if name == "TidegaugeCallback":
        package = sys.modules.get("lightning.pytorch") or sys.modules.get("pytorch_lightning")
        if package is None:
            import lightning.pytorch as package
        return _classes(package)[1]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
