"""Snapshots that no plan chose: asked for from outside, and called for by growth."""

import concurrent.futures
import pathlib
import subprocess
import sys
import time

import pytest


def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


@pytest.fixture
def take(tmp_path):
    """Runs `tidegauge take` as a person beside the training would."""

    def take(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "tidegauge", "take", "--outbox", str(tmp_path / "outbox"), *arguments],
            capture_output=True,
            text=True,
            env={},
            timeout=60,
        )

    return take


def test_every_rank_takes_a_snapshot_when_asked_and_once(train, receiver, take, tmp_path):
    script = """
        import os, pathlib, time, torch, tidegauge
        tidegauge.start(steps="none")
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
        pathlib.Path("ready-" + os.environ["RANK"]).touch()
        deadline = time.monotonic() + 60
        while not pathlib.Path("enough").exists() and time.monotonic() < deadline:
            tidegauge.step()
            time.sleep(0.01)
    """
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ranks = [pool.submit(train, script, RANK=str(rank), WORLD_SIZE="3") for rank in range(3)]
        wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 3, "three ranks train")
        for n_asked in (1, 2):
            done = take()
            assert (done.returncode, done.stdout) == (0, "run: 3 processes asked\n"), done.stderr
            wait_for(lambda: len(receiver.snapshots) >= 3 * n_asked, "three snapshots arrive")
        other = take("--run", "another")
        assert other.returncode == 1 and "no process of run another records with the outbox" in other.stderr
        # Long enough for another look.
        time.sleep(1.5)
        pathlib.Path(tmp_path / "enough").touch()
        for rank in ranks:
            rank.result()
    assert sorted(s.sidecar["rank"] for s in receiver.snapshots) == [0, 0, 1, 1, 2, 2]
    assert {s.sidecar["reason"] for s in receiver.snapshots} == {"on-demand"}
    for rank in range(3):
        first, second = [s.sidecar for s in receiver.snapshots if s.sidecar["rank"] == rank]
        assert first["first_step"] == 1 and second["first_step"] == first["last_step"] + 1


def test_without_a_training_take_says_that_nobody_is_there(take, tmp_path):
    (tmp_path / "outbox").mkdir()
    done = take()
    assert done.returncode == 1 and "no process records with the outbox" in done.stderr
    assert list((tmp_path / "outbox").iterdir()) == []


GROW = """
    import torch, tidegauge
    {imports}
    tidegauge.start(steps="none", growth=1.5, growth_pause=4)
    for n in range(1, 13):
        torch.{name}.alloc(1 << 20 if n < 10 else 64 << 20)
        for segment in torch.{name}.allocator.segments[:-1]:
            if segment["block"]:
                torch.{name}.free(segment["address"])
        tidegauge.step()
"""


@pytest.mark.parametrize("name, imports", [("cuda", ""), ("npu", "import torch_npu")])
def test_memory_that_grows_calls_for_a_snapshot(train, receiver, name, imports):
    done = train(GROW.format(name=name, imports=imports))
    assert [(s.label, s.sidecar["reason"]) for s in receiver.snapshots] == [("1-10", "growth")]
    assert "allocated memory reached 65.0 MiB, the median of recent steps is" in done.said


def test_growth_is_off_by_default_and_then_statistics_are_read_with_snapshots_only(train, receiver):
    train(
        """
        import torch, tidegauge
        tidegauge.start(steps=[9])
        torch.cuda.alloc(1 << 20)
        n_read, memory_stats = 0, torch.cuda.memory_stats
        def counted(*arguments):
            global n_read
            n_read += 1
            return memory_stats(*arguments)
        torch.cuda.memory_stats = counted
        for n in range(1, 9):
            torch.cuda.alloc(1 << (20 + n))
            tidegauge.step()
        assert n_read == 0
        """
    )
