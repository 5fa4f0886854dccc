"""Stands for torch: its version and which devices it has come from DOUBLE_TORCH, DOUBLE_CUDA, DOUBLE_XPU and
DOUBLE_MTIA.
"""

import os
import sys
import types

from allocator import Allocator, OutOfMemoryError
from backend import backend, in_the_image_of_cuda, internals, snapshot_of

__version__ = os.environ.get("DOUBLE_TORCH", "2.9.1+cu128")
_minor = int(__version__.split(".")[1])

cuda = backend("cuda", Allocator(has_time=True, has_workspace=False), os.environ.get("DOUBLE_CUDA", "1") == "1")
_C = internals("torch._C", "cuda", cuda)
uint8 = "uint8"
if _minor < 5:
    # Before 2.5 the error is cuda's.
    cuda.OutOfMemoryError = OutOfMemoryError
    del OutOfMemoryError


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

elif _minor >= 4:

    def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
        _record(enabled, context, stacks, max_entries, device, False)

else:

    def _record_memory_history(enabled="all", *args, **kwargs):
        if isinstance(enabled, bool):
            raise AssertionError("the legacy form records in another way")
        return _record_2_1(enabled, *args, **kwargs)

    def _record_2_1(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
        _record(enabled, context, stacks, max_entries, device, False)


cuda.memory._record_memory_history = _record_memory_history
cuda.memory._snapshot = snapshot_of(cuda.allocator)

xpu = backend("xpu", Allocator(has_time=True, has_workspace=False), False)
xpu.memory = types.ModuleType("torch.xpu.memory")
if os.environ.get("DOUBLE_XPU", "0") == "1":
    if _minor >= 11:
        xpu = in_the_image_of_cuda(
            "xpu", xpu.allocator, ("context", "stacks", "max_entries", "clear_history", "skip_actions")
        )
        internals("torch._C", "xpu", xpu)
    xpu.is_available = lambda: True

mtia = backend("mtia", Allocator(has_time=True, has_workspace=False), os.environ.get("DOUBLE_MTIA", "0") == "1")
# It tells nobody when it is first used, and says nothing of free memory.
del mtia._lazy_call, mtia.mem_get_info


def _mtia_stats(device=0):
    levels = mtia.allocator.levels()
    return {"dram": {"allocated_bytes": levels["allocated_bytes"]}} if mtia.is_initialized() and device == 0 else {}


def _mtia_record(enabled="all", stacks="python", max_entries=0):
    if not mtia.is_initialized():
        return
    mtia.calls.append({"enabled": enabled, "stacks": stacks, "max_entries": max_entries})
    if enabled is None or not mtia.allocator.is_recording:
        mtia.allocator.record(enabled, {"context": "all", "stacks": stacks, "max_entries": max_entries})


mtia.memory_stats = _mtia_stats
mtia.record_memory_history = _mtia_record
mtia.snapshot = snapshot_of(mtia.allocator)
mtia.attach_out_of_memory_observer = mtia.allocator.observers.append
sys.modules["torch.mtia"] = mtia
