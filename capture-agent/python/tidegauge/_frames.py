"""What the adapters share: walls around them, and the steps of the first optimizer where there is no adapter."""

import functools
import sys
import weakref

from . import _agent


def quietly(by):
    """Nothing that an adapter does may reach the training: what goes wrong is said, once."""

    def wrap(function):
        @functools.wraps(function)
        def called(*arguments, **keywords):
            try:
                return function(*arguments, **keywords)
            except Exception as error:
                _agent.framework_failed(by, repr(error))

        return called

    return wrap


def tell_of_steps(by, stepping_class, stepped):
    """Has a class's `step` tell that it is a step of `by`; `stepped` is given the object after each."""
    step = stepping_class.step
    if hasattr(step, "is_tidegauges"):
        return

    @functools.wraps(step)
    def told(self, *arguments, **keywords):
        # Before torch's optimizers can say the same: ZeRO 3 steps one for each of its groups.
        _agent.steps_from(by)
        returned = step(self, *arguments, **keywords)
        stepped(self)
        return returned

    told.is_tidegauges = True
    stepping_class.step = told


def begin(counts_optimizer_steps):
    """Starts the session of a process whose device torch is just making usable, unless its script did."""
    _agent.start_unless_running(is_used=True)
    if counts_optimizer_steps and _agent.is_running():
        count_optimizer_steps()


def count_optimizer_steps():
    """Takes a step of the first optimizer for a step of the training, as long as nobody knows better."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_FirstOptimizer().stepped)


class _FirstOptimizer:
    def __init__(self):
        self._first = None

    @quietly("opt_step")
    def stepped(self, optimizer, arguments, keywords):
        # Two up: past the wall around this, whoever calls the hooks.
        if _is_inside_another_step(sys._getframe(2)):
            return
        # With an actor and a critic there is a step when the actor's ends. One that is gone has a successor.
        if self._first is None or self._first() is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            _agent.step_by(None, "opt_step")


def _is_inside_another_step(caller):
    """A step that calls its base class's step is one step, and torch calls the hooks for both."""
    frame = caller.f_back
    while frame is not None and frame.f_code is not caller.f_code:
        frame = frame.f_back
    return frame is not None
