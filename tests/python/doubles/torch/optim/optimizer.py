"""An optimizer, as far as its hooks see it: they are called after each step of each class that has one."""

_hooks = []


def register_optimizer_step_post_hook(hook):
    _hooks.append(hook)


def _hooked(step):
    def wrapper(self, *arguments, **keywords):
        step(self, *arguments, **keywords)
        for hook in _hooks:
            hook(self, arguments, keywords)

    return wrapper


class Optimizer:
    @_hooked
    def step(self):
        pass


class Averaging(Optimizer):
    @_hooked
    def step(self):
        super().step()
