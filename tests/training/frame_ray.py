"""Two workers of verl as actors of Ray, each with an environment as verl gives it, and their driver.

usage: frame_ray.py N_STEPS WITNESS.jsonl

The driver hands on what TIDEGAUGE_* says, as the configuration in docs/guide/verl-on-ray.md does.
"""

import os
import sys


def without_the_stand_in():
    """Ray asks the driver of the device for more than the stand-in knows: only the workers shall have that."""
    stand_in = {name: os.environ[name] for name in ("LD_PRELOAD", "LD_LIBRARY_PATH") if name in os.environ}
    if "TRAINING_STAND_IN" not in os.environ:
        environment = {name: value for name, value in os.environ.items() if name not in stand_in}
        environment["TRAINING_STAND_IN"] = "\n".join(f"{name}={value}" for name, value in stand_in.items())
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    return dict(line.split("=", 1) for line in os.environ["TRAINING_STAND_IN"].splitlines())


def main():
    n_steps, witness = int(sys.argv[1]), sys.argv[2]
    for_workers = without_the_stand_in()
    import ray

    ours = {name: value for name, value in os.environ.items() if name.startswith("TIDEGAUGE_")}
    ray.init(
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=80 << 20,
        _temp_dir=os.path.join(os.path.dirname(witness), "ray"),
        runtime_env={"env_vars": ours},
    )

    @ray.remote
    class Worker:
        def train(self):
            import frame_verl

            frame_verl.train(n_steps, witness)

    here = os.path.dirname(os.path.abspath(__file__))
    for_workers["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    for_workers.update(WG_PREFIX="x8Kq2b", TRAINING_ROLES="actor_rollout", FAKECUDA_DEVICES="2")
    workers = []
    for rank in range(2):
        environment = {**for_workers, "RANK": str(rank), "WORLD_SIZE": "2"}
        options = {"name": f"x8Kq2bWorkerDict_0:{rank}", "runtime_env": {"env_vars": environment}}
        workers.append(Worker.options(**options).remote())
    ray.get([worker.train.remote() for worker in workers])
    for worker in workers:
        worker.__ray_terminate__.remote()
    # Its own exit code, whatever becomes of the agent.
    sys.exit(7)


if __name__ == "__main__":
    main()
