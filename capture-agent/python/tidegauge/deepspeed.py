"""Steps of a DeepSpeed engine, as its `global_steps` counts them."""

import functools

from . import _agent
from ._frames import quietly

__all__ = ["install"]

_NAME = "deepspeed"


def install(engine=None):
    """Has DeepSpeed's engines tell when they step. `engine` is the module deepspeed.runtime.engine."""
    if engine is None:
        import deepspeed.runtime.engine as engine
    _wrap(engine.DeepSpeedEngine)


@quietly(_NAME)
def _wrap(engine_class):
    step = engine_class.step
    if hasattr(step, "is_tidegauges"):
        return

    @functools.wraps(step)
    def told(self, *arguments, **keywords):
        # Before torch's optimizers can say so: ZeRO 3 steps one for each of its groups.
        _agent.steps_from(_NAME)
        returned = step(self, *arguments, **keywords)
        _stepped(self)
        return returned

    told.is_tidegauges = True
    engine_class.step = told


@quietly(_NAME)
def _stepped(engine):
    # It stands still while gradients accumulate; a number that was said before changes nothing.
    if engine.global_steps > 0:
        _agent.step_by(engine.global_steps, _NAME)
