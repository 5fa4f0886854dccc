"""Steps of accelerate's optimizers, for loops that are written by hand around an `Accelerator`."""

import weakref

from . import _agent
from ._frames import quietly, tell_of_steps

__all__ = ["install"]

_NAME = "accelerate"

_first = None


def install(optimizer=None):
    """Has accelerate's optimizers tell when they step. `optimizer` is the module accelerate.optimizer."""
    if optimizer is None:
        import accelerate.optimizer as optimizer
    quietly(_NAME)(tell_of_steps)(_NAME, optimizer.AcceleratedOptimizer, _stepped)


@quietly(_NAME)
def _stepped(optimizer):
    """The first optimizer counts, when its step was one: gradients were synchronized, and finite."""
    global _first
    if not optimizer.gradient_state.sync_gradients or optimizer.step_was_skipped:
        return
    if _first is None or _first() is None:
        _first = weakref.ref(optimizer)
    if _first() is optimizer:
        _agent.step_by(None, _NAME)
