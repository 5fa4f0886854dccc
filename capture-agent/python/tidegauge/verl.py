"""verl's `torch_memory` profiler, with the agent in the place of its files.

verl says which steps, roles and ranks are profiled (`global_profiler`, `….profiler`); the agent records, clears and
sends. What changes: ranks and roles that are not profiled do not record; the history is cleared without a gap and
without resetting the job's peak statistics; a step's window begins where verl starts it; a process that plays several
roles has one history, hence one snapshot a step, with all of them in its role; and what is taken when memory runs out
is the agent's matter (`also`). Nothing is written to
`save_path`.
"""

import functools

from . import _agent
from ._frames import quietly

__all__ = ["install"]

_NAME = "verl"

# What people call what verl calls by its kind of model.
_ROLES = {"value_model": "critic"}

# Profilers of this process that were started and not stopped, by id: which step that was, and whose role they have.
_started: dict = {}


def install(module):
    """Puts the agent into one of the two modules of `verl.utils.profiler` that matter."""
    if hasattr(module, "TorchMemoryProfiler"):
        _take_over(module)
    if hasattr(module, "DistProfiler"):
        _note_roles(module.DistProfiler)


@quietly(_NAME)
def _take_over(module):
    profiler_class = module.TorchMemoryProfiler
    if hasattr(profiler_class, "is_tidegauges"):
        return
    profiler_class.is_tidegauges = True
    # Both are the agent's from now on: recording, and snapshots when memory runs out.
    profiler_class._memory_history_enabled = profiler_class._oom_observer_attached = True
    module.enable_memory_visualize = module.clear_memory_history = _nothing
    construct, start = profiler_class.__init__, profiler_class.start

    @functools.wraps(construct)
    def constructed(self, *arguments, **keywords):
        construct(self, *arguments, **keywords)
        _constructed(self)

    @functools.wraps(start)
    def started(self, **keywords):
        start(self, **keywords)
        _start(self)

    profiler_class.__init__, profiler_class.start = constructed, started


@quietly(_NAME)
def _note_roles(dispatcher_class):
    if hasattr(dispatcher_class, "is_tidegauges"):
        return
    dispatcher_class.is_tidegauges = True
    construct = dispatcher_class.__init__

    @functools.wraps(construct)
    def constructed(self, *arguments, **keywords):
        construct(self, *arguments, **keywords)
        profiler = getattr(self, "_impl", None)
        if isinstance(getattr(profiler, "sampler", None), _Sampler):
            role = getattr(self, "save_file_prefix", None)
            profiler.sampler.role = _ROLES.get(role, role)

    dispatcher_class.__init__ = constructed


def _nothing(*arguments, **keywords):
    """The agent records and clears."""


class _Sampler:
    """In the place of verl's: it is asked for a file when a window is complete."""

    def __init__(self, profiler):
        self.profiler = profiler
        self.role = None

    @quietly(_NAME)
    def dump_memory_snapshot(self, out_dir="", tag="", sub_dir=None, synchronize=True):
        _started.pop(id(self.profiler), None)
        # Another role of this process is not at the end of its step yet: its window is the same.
        if not _started:
            _agent.step_by(self.profiler._window_end_step, _NAME)


@quietly(_NAME)
def _constructed(profiler):
    profiler.sampler = _Sampler(profiler)
    # Before the model is there, so that its allocations have stacks; but not for a role that is never started.
    if getattr(profiler.config, "enable", False):
        _record(profiler)


def _record(profiler):
    if profiler._should_profile_this_rank():
        _agent.start_unless_running(
            # verl starts the steps it wants, and these only.
            steps="all",
            window="step",
            max_entries=profiler.trace_alloc_max_entries,
            rank=profiler.rank,
        )


@quietly(_NAME)
def _start(profiler):
    if not profiler.this_step:
        return
    _record(profiler)
    step = profiler._window_end_step
    if step is not None:
        # One that was never stopped must not keep the others waiting.
        for other in [other for other, (started_at, _) in _started.items() if started_at < step]:
            del _started[other]
    is_first = not _started and profiler._steps_in_window == 0
    _started[id(profiler)] = (step or 0, profiler.sampler.role)
    roles = [role for _, role in _started.values() if role]
    if roles:
        _agent.plays("+".join(dict.fromkeys(roles)), _NAME)
    _agent.steps_from(_NAME)
    if is_first and step is not None:
        _agent.begin_step(step, _NAME)
