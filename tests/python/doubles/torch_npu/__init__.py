"""Stands for torch_npu, as its releases 7.1 and later are:

* the signature is swallowed: `*args, **kwargs`, and no `__signature__`;
* there is no `clear_history`, and every call empties the history;
* events have no time, and a workspace shows up as triples at the head of the trace.
"""

import sys
import types

import torch
from allocator import Allocator
from backend import N_DEVICES, backend

__version__ = "2.9.0"

npu = backend("npu", Allocator(has_time=False, has_workspace=True), True)
npu.memory = types.ModuleType("torch_npu.npu.memory")


def _record_memory_history(enabled="all", *args, **kwargs):
    return _record_memory_history_impl(enabled, *args, **kwargs)


def _record_memory_history_impl(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
    if enabled not in (None, "state", "all"):
        raise TypeError(f"incompatible function arguments: {enabled!r}")
    npu.init()
    npu.calls.append({"enabled": enabled, "context": context, "stacks": stacks, "max_entries": max_entries})
    npu.allocator.record(enabled, {"context": context, "stacks": stacks, "max_entries": max_entries})


def _snapshot(device=None):
    return npu.allocator.snapshot(N_DEVICES)


npu.memory._record_memory_history = _record_memory_history
npu.memory._snapshot = _snapshot
torch.npu = npu
sys.modules["torch.npu"] = npu
