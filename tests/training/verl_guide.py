"""Holds the configuration in docs/guide/verl-on-ray.md against verl as published, line by line.

usage: verl_guide.py    (the arguments of the other trainings are ignored)
"""

import os
import pathlib
import re
import subprocess
import sys

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.profiler import DistProfiler, ProfilerConfig
from verl.utils.profiler.torch_memory_profile import TorchMemoryProfiler

GUIDE = pathlib.Path(__file__).parents[2] / "docs/guide/verl-on-ray.md"
N_RANKS = 64
RANKS = [0, 8, 16, 24, 32, 40, 48, 56]


def overrides():
    """The arguments of the only command that trains."""
    [command] = re.findall(r"python -m verl\.trainer\.main_ppo \\\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return [line.strip().rstrip("\\").strip() for line in command.splitlines()]


def check_profiler(role, section):
    """verl itself makes of it what the guide says: it profiles these ranks, and no others."""
    profiler_config = omega_conf_to_dataclass(section, dataclass_type=ProfilerConfig)
    tool_config = omega_conf_to_dataclass(section.tool_config.torch_memory)
    assert tool_config.trace_alloc_max_entries == 200_000, role
    selected = []
    for rank in range(N_RANKS):
        profiler = DistProfiler(rank=rank, config=profiler_config, tool_config=tool_config)
        assert isinstance(profiler._impl, TorchMemoryProfiler), role
        if profiler.check_enable() and profiler.check_this_rank() and profiler._impl._should_profile_this_rank():
            selected.append(rank)
    assert selected == RANKS, (role, selected)


def main():
    given = overrides()
    folder = pathlib.Path(verl.__file__).parent / "trainer/config"
    with initialize_config_dir(str(folder), version_base=None):
        # An override of a key that verl does not have is an error here.
        config = compose("ppo_trainer", overrides=given)
        defaults = compose("ppo_trainer")
    for override in given:
        key = override.partition("=")[0]
        is_new = OmegaConf.select(defaults, key.lstrip("+"), throw_on_missing=False) is None
        # With "+" hydra takes anything: only variables, which verl cannot know, may need it.
        assert key.startswith("+") == key.lstrip("+").startswith("ray_kwargs.ray_init.runtime_env.env_vars."), key
        assert not key.startswith("+") or is_new, key

    # As the task runner does first of all.
    OmegaConf.resolve(config)
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == N_RANKS
    assert list(config.global_profiler.steps) == [2, 10, 50]
    actor_rollout_ref = config.actor_rollout_ref
    check_profiler("actor", actor_rollout_ref.actor.profiler)
    check_profiler("ref", actor_rollout_ref.ref.profiler)
    check_profiler("critic", config.critic.profiler)

    # As main_ppo puts them together for ray.init.
    runtime_env = OmegaConf.merge(get_ppo_ray_runtime_env(config), config.ray_kwargs.ray_init.runtime_env)
    variables = OmegaConf.to_container(runtime_env)["env_vars"]
    ours = {name: value for name, value in variables.items() if name.startswith("TIDEGAUGE_")}
    assert sorted(ours) == [f"TIDEGAUGE_{name}" for name in ("AUTO", "OUTBOX", "RUN", "SERVER", "TOKEN_FILE")], ours
    assert len(variables) > len(ours), "verl's own variables are still there"
    # And the agent understands them.
    from tidegauge import __main__ as tidegauge

    environment = {**os.environ, **ours, "TIDEGAUGE_TOKEN_FILE": str(GUIDE)}
    program = [sys.executable, "-m", tidegauge.__name__, "run", "--", "true"]
    subprocess.run(program, env=environment, check=True)
    print(f"{len(given)} overrides are verl's")


if __name__ == "__main__":
    main()
