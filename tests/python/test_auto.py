"""Trainings that know nothing of tidegauge: what TIDEGAUGE_AUTO does to a process, and what it leaves alone."""

import os
import subprocess
import sys

TRAIN = """
    import sys
    import torch
    from torch.optim.optimizer import Averaging, Optimizer
    actor, critic = Averaging(), Optimizer()
    for n in range(3):
        torch.cuda.alloc(1 << 20)
        actor.step()
        critic.step()
    print("trained")
    sys.exit(7)
"""

# At the end of a process that is to have noticed nothing.
NOTHING = "\nimport sys\nprint([name for name in sys.modules if 'tidegauge' in name and name != '_tidegauge_auto'])"


def steps_by(receiver):
    return [snapshot.sidecar.get("steps_by") for snapshot in receiver.snapshots]


def test_steps_of_the_first_optimizer_are_counted_where_nobody_says_better(train, receiver):
    done = train(TRAIN, status=7, TIDEGAUGE_AUTO="1", TIDEGAUGE_STEPS="all")
    assert done.printed == "trained\n"
    # Not those of the second, and not twice for a step that calls its base class's.
    assert receiver.labels() == ["1", "2", "3"]
    assert steps_by(receiver) == ["opt_step"] * 3
    assert done.said.splitlines() == [f"tidegauge: recording run run, steps all, to {receiver.address}"]


def test_without_the_variable_nothing_of_ours_is_imported(train, receiver):
    done = train("import torch; torch.cuda.alloc(1 << 20)\nimport sys\nprint('_tidegauge_auto' in sys.modules)" + NOTHING)
    assert (done.printed, done.said) == ("False\n[]\n", "")


def test_a_program_that_never_trains_costs_nothing_and_says_nothing(train, receiver, tmp_path):
    done = train("print('copied')" + NOTHING, doubles=False, TIDEGAUGE_AUTO="1")
    assert (done.printed, done.said) == ("copied\n[]\n", "")
    # A launcher imports torch, too, and so does a data loader's worker.
    done = train("import torch" + NOTHING, TIDEGAUGE_AUTO="1")
    assert (done.printed, done.said) == ("[]\n", "")
    done = train("import torch" + NOTHING, TIDEGAUGE_AUTO="1", DOUBLE_CUDA="0")
    assert (done.printed, done.said) == ("[]\n", "")
    assert not (tmp_path / "outbox").exists()


def test_a_script_that_says_its_steps_is_believed_before_its_optimizer(train, receiver):
    done = train(
        """
        import torch, tidegauge
        from torch.optim.optimizer import Optimizer
        optimizer = Optimizer()
        for n in range(101, 104):
            torch.cuda.alloc(1 << 20)
            optimizer.step()
            optimizer.step()
            tidegauge.step(n)
        """,
        TIDEGAUGE_AUTO="1",
        TIDEGAUGE_STEPS="all",
    )
    assert receiver.labels() == ["101", "102", "103"]
    assert steps_by(receiver) == ["tidegauge.step"] * 3
    assert len(done.said.splitlines()) == 1


def test_a_script_that_speaks_late_numbers_the_steps_from_then_on(train, receiver):
    done = train(
        """
        import torch
        from torch.optim.optimizer import Optimizer
        optimizer = Optimizer()
        for n in range(1, 4):
            torch.cuda.alloc(1 << 20)
            optimizer.step()
            optimizer.step()
            import tidegauge
            tidegauge.step()
        """,
        TIDEGAUGE_AUTO="1",
        TIDEGAUGE_STEPS="2-3",
    )
    assert receiver.labels() == ["1-2", "1-2", "3"]
    assert steps_by(receiver) == ["opt_step", "tidegauge.step", "tidegauge.step"]
    assert "tidegauge.step numbers the steps from now on, not opt_step" in done.said


def test_an_adapter_that_does_not_know_its_framework_does_nothing_and_says_so(train, receiver, tmp_path):
    framework = tmp_path / "frameworks" / "transformers"
    framework.mkdir(parents=True)
    (framework / "__init__.py").write_text("class TrainerCallback:\n    pass\n")
    (framework / "trainer.py").write_text("CALLBACKS = []\n")
    script = f"import sys; sys.path.insert(0, {str(framework.parent)!r})\nimport transformers.trainer\nprint('trained')"
    done = train(script, TIDEGAUGE_AUTO="1")
    assert done.printed == "trained\n"
    [line] = done.said.splitlines()
    assert line.startswith("tidegauge: the adapter for transformers does nothing: AttributeError")


def test_only_what_is_asked_for_is_waited_for(train, receiver):
    done = train(TRAIN, status=7, TIDEGAUGE_AUTO="verl,transformers")
    assert (done.said, receiver.labels()) == ("", [])


def test_a_spawned_rank_and_not_its_parent_records(train, receiver):
    done = train(
        """
        import os, subprocess, sys, torch
        child = "import torch; from torch.optim.optimizer import Optimizer; torch.cuda.alloc(1 << 20); Optimizer().step()"
        for rank in range(2):
            subprocess.run([sys.executable, "-c", child], env={**os.environ, "RANK": str(rank)}, check=True)
        """,
        TIDEGAUGE_AUTO="1",
        TIDEGAUGE_STEPS="1",
    )
    assert [snapshot.sidecar["rank"] for snapshot in receiver.snapshots] == [0, 1]
    assert receiver.snapshots[1].sidecar["identity"]["rank"] == "RANK"
    assert "nothing is recorded" not in done.said


def test_the_program_run_becomes_the_training(receiver, tmp_path):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.path.join(os.path.dirname(__file__), "doubles")}
    script = "import os, torch; from torch.optim.optimizer import Optimizer; torch.cuda.alloc(1); Optimizer().step()\n"
    program = [sys.executable, "-c", script + "print(os.getpid()); exit(3)"]
    settings = [f"server={receiver.address}", f"outbox={tmp_path}", "run=zero-code", "steps=1"]
    started = subprocess.Popen(
        [sys.executable, "-m", "tidegauge", "run", *settings, "--", *program],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    printed, _ = started.communicate(timeout=60)
    # One process from beginning to end: signals and exit statuses are the training's.
    assert (started.returncode, printed) == (3, f"{started.pid}\n")
    assert [snapshot.sidecar["run"] for snapshot in receiver.snapshots] == ["zero-code"]


def test_what_wandb_ray_and_megatron_know_is_in_the_sidecar(train, receiver):
    done = train(
        """
        import sys, types, torch, tidegauge

        def package(name, **members):
            sys.modules[name] = types.SimpleNamespace(**members)

        answers = {"get_job_id": "02000000", "get_node_id": "n1", "get_actor_name": "worker_0:1"}
        context = types.SimpleNamespace(**{name: lambda answer=answer: answer for name, answer in answers.items()})
        package("ray", is_initialized=lambda: True, get_runtime_context=lambda: context)
        package("wandb", run=types.SimpleNamespace(id="abc123"))
        package(
            "megatron.core.parallel_state",
            model_parallel_is_initialized=lambda: True,
            get_tensor_model_parallel_rank=lambda: 1,
            get_pipeline_model_parallel_rank=lambda: 3,
        )
        tidegauge.start(steps=[1])
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
        """,
        TIDEGAUGE_RUN="",
    )
    assert "nothing is recorded" not in done.said
    [snapshot] = receiver.snapshots
    assert (snapshot.sidecar["run"], snapshot.sidecar["identity"]["run"]) == ("abc123", "wandb.run.id")
    assert snapshot.sidecar["ray"] == {"job": "02000000", "node": "n1", "actor": "worker_0:1"}
    assert snapshot.sidecar["coordinates"] == {"tp": 1, "pp": 3}


DEEPSPEED = """
class DeepSpeedEngine:
    global_steps = 0
    batches = 0

    def step(self, lr_kwargs=None):
        from torch.optim.optimizer import Optimizer
        self.batches += 1
        if self.batches % 2 == 0:
            # As ZeRO 3 does: one optimizer, once for each of its groups.
            optimizer = Optimizer()
            optimizer.step()
            optimizer.step()
            self.global_steps += 1
"""

MEGATRON_BRIDGE = """
class Callback:
    def on_train_start(self, context):
        pass

    def on_train_step_end(self, context):
        pass


class CallbackManager:
    def __init__(self):
        self.callbacks = []

    def add(self, callback):
        self.callbacks.append(callback)

    def fire(self, event, context):
        for callback in self.callbacks:
            getattr(callback, event)(context)


def normalize_callbacks(callbacks):
    return callbacks
"""


def module(tmp_path, name, text):
    """A module where its framework would have it, in packages that are empty."""
    folder = tmp_path / "frameworks"
    *packages, file = name.split(".")
    for package in packages:
        folder = folder / package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{file}.py").write_text(text)
    return f"import sys; sys.path.insert(0, {str(tmp_path / 'frameworks')!r})\n"


def test_an_engine_like_deepspeeds_tells_its_global_steps(train, receiver, tmp_path):
    path = module(tmp_path, "deepspeed.runtime.engine", DEEPSPEED)
    script = path + (
        "import torch; from deepspeed.runtime.engine import DeepSpeedEngine\n"
        "torch.cuda.alloc(1 << 20); engine = DeepSpeedEngine()\n"
        "for n in range(6): engine.step()\n"
    )
    done = train(script, TIDEGAUGE_AUTO="1", TIDEGAUGE_STEPS="all")
    assert receiver.labels() == ["1", "2", "3"], done.said
    assert steps_by(receiver) == ["deepspeed"] * 3


def test_callbacks_like_megatron_bridges_tell_the_steps_of_its_loop(train, receiver, tmp_path):
    path = module(tmp_path, "megatron.bridge.training.callbacks", MEGATRON_BRIDGE)
    script = path + (
        "import torch, types; from megatron.bridge.training.callbacks import normalize_callbacks\n"
        "torch.cuda.alloc(1 << 20); manager = normalize_callbacks(None)\n"
        "train_state = types.SimpleNamespace(step=0)\n"
        "context = types.SimpleNamespace(state=types.SimpleNamespace(train_state=train_state))\n"
        "manager.fire('on_train_start', context)\n"
        "for n in range(2): manager.fire('on_train_step_end', context); train_state.step += 1\n"
    )
    done = train(script, TIDEGAUGE_AUTO="1", TIDEGAUGE_STEPS="all")
    assert receiver.labels() == ["1", "2"], done.said
    assert steps_by(receiver) == ["megatron_bridge"] * 2
