"""Steps of a DeepSpeed engine, as its `global_steps` counts them."""

from . import _agent
from ._frames import quietly, tell_of_steps

__all__ = ["install"]

_NAME = "deepspeed"


def install(engine=None):
    """Has DeepSpeed's engines tell when they step. `engine` is the module deepspeed.runtime.engine."""
    if engine is None:
        import deepspeed.runtime.engine as engine
    quietly(_NAME)(tell_of_steps)(_NAME, engine.DeepSpeedEngine, _stepped)


@quietly(_NAME)
def _stepped(engine):
    # It stands still while gradients accumulate; a number that was said before changes nothing.
    if engine.global_steps > 0:
        _agent.step_by(engine.global_steps, _NAME)
