"""Puts the agent into a training that knows nothing of it, where TIDEGAUGE_AUTO asks for it.

tidegauge_auto.pth runs `install` in each Python process that has the variable; without it, that is one look at the
environment. Nothing is imported here: an import that the program makes itself is waited for, and its end tells us.
The agent, and its native half, are loaded when torch first uses a device, or when a framework with an adapter is
imported. A process that does neither (a launcher, a driver, a data loader's worker) never notices.

TIDEGAUGE_AUTO is "1" for everything, or names what is to be looked for: "verl", "torch,transformers".
"""

import os
import sys
from importlib.machinery import SourceFileLoader

# What is waited for, the word in TIDEGAUGE_AUTO, and the adapter that is told; "torch" is told here.
_MODULES = {
    "torch": ("torch", None),
    "torch_npu": ("torch", None),
    "torch_musa": ("torch", None),
    "torch_mlu": ("torch", None),
    "accelerate.optimizer": ("accelerate", "tidegauge.accelerate"),
    "deepspeed.runtime.engine": ("deepspeed", "tidegauge.deepspeed"),
    "transformers.trainer": ("transformers", "tidegauge.transformers"),
    "megatron.bridge.training.callbacks": ("megatron_bridge", "tidegauge.megatron_bridge"),
    "verl.utils.profiler.profile": ("verl", "tidegauge.verl"),
    "verl.utils.profiler.torch_memory_profile": ("verl", "tidegauge.verl"),
}

# Where torch keeps the devices whose first use we ask to be told of.
_DEVICES = ("cuda", "npu", "xpu", "mtia", "musa", "mlu")

# Whether the package tidegauge was first imported for an adapter, not by the script.
_is_ours = False
_has_begun = False


def is_asked_for(word):
    """Whether TIDEGAUGE_AUTO asks for the agent, or for an adapter, and TIDEGAUGE_ENABLED does not forbid it."""
    if os.environ.get("TIDEGAUGE_ENABLED", "").lower() in ("0", "no", "off", "false"):
        return False
    names = {name.strip() for name in os.environ.get("TIDEGAUGE_AUTO", "").lower().split(",")}
    return bool(names & {"1", "yes", "on", "true", "all", word})


class _Finder:
    """Finds nothing by itself: lets the others find, and has the module's loader tell when it is done."""

    def __init__(self, waiting):
        self._waiting = waiting

    def find_spec(self, name, path=None, target=None):
        adapter = self._waiting.get(name, self)
        if adapter is self:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                # Other loaders are shared by many modules; none of those waited for has one.
                if type(spec.loader) is SourceFileLoader:
                    _tell_when_executed(spec.loader, lambda module: _imported(name, adapter, module))
                return spec
        return None


def _tell_when_executed(loader, tell):
    execute = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        execute(module)
        _quietly(lambda: tell(module))

    loader.exec_module = exec_module


def _imported(name, adapter, module):
    if adapter is not None:
        _load(adapter).install(module)
        return
    torch = sys.modules["torch"]
    for device in _DEVICES:
        when_used = getattr(getattr(torch, device, None), "_lazy_call", None)
        if when_used is not None:
            when_used(_device_is_used)


def _load(name):
    global _is_ours
    _is_ours = _is_ours or "tidegauge" not in sys.modules
    __import__(name)
    return sys.modules[name]


def _device_is_used():
    """Called by torch, which makes an error of every exception: nothing may leave."""
    global _has_begun
    # verl's own profiler says which of its processes record: tidegauge.verl.
    if _has_begun or "verl" in sys.modules:
        return
    _has_begun = True
    # A script that imports tidegauge says where its steps end.
    is_scripts = "tidegauge" in sys.modules and not _is_ours
    _quietly(lambda: _load("tidegauge._frames").begin(counts_optimizer_steps=not is_scripts))


def _quietly(work):
    try:
        return work()
    except Exception as error:
        print(f"tidegauge: nothing is recorded: {error!r}", file=sys.stderr)


def install():
    """Begins to wait; for what is imported already there is nothing to wait for."""
    if any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        return
    waiting = {name: adapter for name, (word, adapter) in _MODULES.items() if is_asked_for(word)}
    sys.meta_path.insert(0, _Finder(waiting))
    for name in [name for name in waiting if name in sys.modules]:
        _quietly(lambda: _imported(name, waiting[name], sys.modules[name]))


def lightning_callbacks():
    """What Lightning's trainers ask of installed packages; nothing, unless it is asked for."""
    return _callbacks_of("lightning.pytorch")


def pytorch_lightning_callbacks():
    """The same for the package by its other name."""
    return _callbacks_of("pytorch_lightning")


def _callbacks_of(package):
    if not is_asked_for("lightning"):
        return []
    return _quietly(lambda: _load("tidegauge.lightning").callbacks(sys.modules[package])) or []
