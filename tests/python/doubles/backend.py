"""The module that torch.cuda and torch.npu have in common, as far as anybody here asks."""

import inspect
import os
import sys
import types

from allocator import wait_for_ever

N_DEVICES = 2


def backend(name, allocator, is_available):
    """`torch.cuda`, `torch.npu`: without its `memory` module, which differs."""
    module = types.ModuleType(f"torch.{name}")
    module.allocator = allocator
    module.calls = []
    waiting = []
    state = {"initialized": False, "initializing": False}

    def initialize():
        if not state["initialized"]:
            state["initializing"] = True
            for callback in waiting:
                callback()
            state.update(initialized=True, initializing=False)

    def lazy_call(callback):
        # The real one waits for a lock then, which it holds itself.
        assert not state["initializing"], "torch would wait for itself, for ever"
        if state["initialized"]:
            callback()
        else:
            waiting.append(callback)

    def alloc(size, stack="train"):
        initialize()
        return allocator.alloc(size, stack)

    module.is_available = lambda: is_available
    module.is_initialized = lambda: state["initialized"]
    module.init = initialize
    module._lazy_call = lazy_call
    module.device_count = lambda: N_DEVICES
    module.memory_stats = lambda device=0: allocator.memory_stats() if device == 0 else {}
    module.current_device = lambda: 0
    module.mem_get_info = lambda device=0: (60 << 30, 64 << 30)
    module.synchronize = lambda: module.calls.append("synchronize")
    module.alloc, module.free = alloc, allocator.free
    module.reset_peak_memory_stats = lambda device=None: allocator.reset_peak()
    properties = types.SimpleNamespace(name=f"Double {name}", uuid=f"00000000-0000-0000-{name}")
    module.get_device_properties = lambda device=None: properties
    return module


def internals(name, prefix, device):
    """The vendor's C module: whether anybody records, and who is told when memory runs out. To ask for that may use
    the device: who knows."""
    allocator = device.allocator

    def attach(observer):
        device.init()
        allocator.observers.append(observer)

    module = sys.modules.setdefault(name, types.ModuleType(name))
    setattr(module, f"_{prefix}_isHistoryEnabled", lambda: allocator.is_recording)
    if prefix != "xpu":
        setattr(module, f"_{prefix}_attach_out_of_memory_observer", attach)
    return module


def snapshot_of(allocator):
    def snapshot(device=None):
        if os.environ.get("DOUBLE_SNAPSHOT_FAILS"):
            raise RuntimeError("the device is lost")
        if path := os.environ.get("DOUBLE_SNAPSHOT_WAITS"):
            wait_for_ever(path)
        return allocator.snapshot(N_DEVICES)

    return snapshot


def in_the_image_of_cuda(name, allocator, keywords):
    """A vendor's `torch.NAME.memory`: cuda's calls with the keywords it knows, and cuda's way to empty the history."""
    module = backend(name, allocator, os.environ.get(f"DOUBLE_{name.upper()}", "1") == "1")
    module.memory = types.ModuleType(f"torch.{name}.memory")
    known = [word for word in keywords if word not in os.environ.get("DOUBLE_WITHOUT", "").split(",")]

    def record(enabled="all", **given):
        module.init()
        for word in given:
            if word not in known:
                raise TypeError(f"_record_memory_history() got an unexpected keyword argument '{word}'")
        settings = {"context": "all", "stacks": "all", "max_entries": sys.maxsize, **given}
        clears = settings.pop("clear_history", False)
        module.calls.append({"enabled": enabled, **given})
        if clears or enabled is None or not allocator.is_recording:
            allocator.record(enabled, settings)

    record.__signature__ = inspect.Signature(
        [inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY) for word in ("enabled", *known)]
    )
    module.memory._record_memory_history = record
    module.memory._snapshot = snapshot_of(allocator)
    return module
