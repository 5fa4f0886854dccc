"""The module that torch.cuda and torch.npu have in common, as far as anybody here asks."""

import types

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
    return module
