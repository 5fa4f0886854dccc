"""Stands for torch_npu, as its releases 7.1 and later are:

* the signature is swallowed: `*args, **kwargs`, and no `__signature__`;
* there is no `clear_history`, and every call empties the history;
* events have no time, and a workspace shows up as triples at the head of the trace;
* `_dump_snapshot` litters, and is not to be called;
* with OOM_SNAPSHOT_ENABLE it records by itself;
* `transfer_to_npu` (here: DOUBLE_TRANSFER) puts it in cuda's place.
"""

import os
import sys
import types

import torch
from allocator import Allocator
from backend import backend, internals, snapshot_of

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


def _dump_snapshot(filename="dump_snapshot.pickle"):
    raise AssertionError("it writes files of its own and may start a profiler")


npu.memory._record_memory_history = _record_memory_history
npu.memory._snapshot = snapshot_of(npu.allocator)
npu.memory._dump_snapshot = _dump_snapshot
_C = internals("torch_npu._C", "npu", npu)
torch.npu = npu
sys.modules["torch.npu"] = npu

if os.environ.get("OOM_SNAPSHOT_ENABLE", "0") != "0":
    npu._lazy_call(lambda: npu.allocator.record("all", {"context": "all", "stacks": "all", "max_entries": sys.maxsize}))

if os.environ.get("DOUBLE_TRANSFER"):
    torch.cuda.memory._record_memory_history = _record_memory_history
    torch.cuda.memory._snapshot = npu.memory._snapshot
    torch.cuda.memory._dump_snapshot = _dump_snapshot
    torch.cuda.is_available = lambda: True
