"""Stands for torch: its version and whether it has cuda come from DOUBLE_TORCH and DOUBLE_CUDA."""

import os
import sys
import types

from allocator import Allocator
from backend import N_DEVICES, backend

__version__ = os.environ.get("DOUBLE_TORCH", "2.9.1+cu128")
_minor = int(__version__.split(".")[1])

cuda = backend("cuda", Allocator(has_time=True, has_workspace=False), os.environ.get("DOUBLE_CUDA", "1") == "1")
uint8 = "uint8"


def empty(size, dtype, device):
    """A tensor, as far as the allocator sees it."""
    return globals()[device].alloc(size)


cuda.memory = types.ModuleType("torch.cuda.memory")


def _nested(device=0):
    """What `memory_stats()` is made of."""
    nested = {}
    for name, number in (cuda.allocator.memory_stats() if device == 0 else {}).items():
        *path, last = name.split(".")
        within = nested
        for part in path:
            within = within.setdefault(part, {})
        within[last] = number
    return nested


cuda.memory_stats_as_nested_dict = _nested


def _record(enabled, context, stacks, max_entries, device, clear_history):
    cuda.calls.append({"enabled": enabled, "context": context, "stacks": stacks, "max_entries": max_entries})
    settings = {"context": context, "stacks": stacks, "max_entries": max_entries}
    # From off to on and back empties the history; on again while on does not, unless asked to.
    if clear_history or enabled is None or not cuda.allocator.is_recording:
        cuda.allocator.record(enabled, settings)


if _minor >= 8:

    def _record_memory_history(
        enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None, clear_history=False
    ):
        _record(enabled, context, stacks, max_entries, device, clear_history)

else:

    def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
        _record(enabled, context, stacks, max_entries, device, False)


def _snapshot(device=None):
    if os.environ.get("DOUBLE_SNAPSHOT_FAILS"):
        raise RuntimeError("the device is lost")
    return cuda.allocator.snapshot(N_DEVICES)


cuda.memory._record_memory_history = _record_memory_history
cuda.memory._snapshot = _snapshot
