"""Killed at each stage of taking and sending: nothing half is sent, nothing whole is lost, nothing arrives twice."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import HERE

TRAIN = """
    import os, sys, time, torch, tidegauge
    tidegauge.start(steps="all", flush_secs=60)
    torch.cuda.alloc(1 << 20)
    tidegauge.step()
    {then}
"""
NOBODY = "http://127.0.0.1:1"


def until(what, true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


class Killable:
    """A training that goes on until it is killed, and its outbox."""

    def __init__(self, tmp_path, script, server, **env):
        self.outbox = tmp_path / "outbox"
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PYTHONPATH": str(HERE / "doubles"),
                "TIDEGAUGE_SERVER": server,
                "TIDEGAUGE_OUTBOX": str(self.outbox),
                "TIDEGAUGE_RUN": "run",
                **env,
            },
            stderr=subprocess.DEVNULL,
        )

    def files(self, ending):
        return sorted(path.name for path in self.outbox.glob(f"run/*/*{ending}"))

    def kill(self):
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL


@pytest.fixture
def killable(tmp_path):
    started = []

    def start(script, server=NOBODY, **env):
        started.append(Killable(tmp_path, script, server, **env))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def next_one(train, receiver, tmp_path):
    """The next process of the run: what it sends of its own has the role "next"."""

    def next_one():
        script = textwrap.dedent(TRAIN).format(then="")
        done = train(script, TIDEGAUGE_ROLE="next", TIDEGAUGE_FLUSH_SECS="60")
        assert list((tmp_path / "outbox").iterdir()) == [], done.said
        return [s for s in receiver.snapshots if s.sidecar.get("role") != "next"]

    return next_one


WAIT = "time.sleep(600)"


def test_before_the_history_is_read_nothing_is_left(killable, next_one, tmp_path):
    mark = tmp_path / "mark"
    one = killable(TRAIN.format(then=WAIT), DOUBLE_SNAPSHOT_WAITS=str(mark))
    until("the reading", mark.exists)
    one.kill()
    assert one.files("") == [] or one.files("") == ["lock"]
    assert next_one() == []


def test_while_it_is_written_the_half_is_swept_away_and_never_sent(killable, next_one, tmp_path):
    mark = tmp_path / "mark"
    one = killable(TRAIN.format(then=WAIT), DOUBLE_PICKLING_WAITS=str(mark))
    until("the writing", mark.exists)
    one.kill()
    assert one.files(".part") == [".000001_rank0_step1.part"] and one.files(".pickle.zst") == []
    assert next_one() == []


def test_written_but_without_its_sidecar_it_is_not_there_yet(killable, next_one, tmp_path):
    """The sidecar goes to a pipe that nobody reads: the bytes are on the disk, and nothing has its name."""
    then = "print(); " + WAIT
    script = TRAIN.format(then=then).replace(
        "    tidegauge.step()",
        "    folder = next(os.scandir(os.environ['TIDEGAUGE_OUTBOX'] + '/run')).path\n"
        "    os.mkfifo(folder + '/.000001_rank0_step1.json.part')\n"
        "    tidegauge.step()",
        1,
    )
    one = killable(script)

    def is_opening():
        stacks = [open(f"/proc/{one.process.pid}/task/{task}/wchan").read()
                  for task in os.listdir(f"/proc/{one.process.pid}/task")]
        return "wait_for_partner" in stacks or "fifo_open" in stacks

    until("the snapshot's bytes", lambda: one.files(".part") and is_opening())
    one.kill()
    assert one.files(".pickle.zst") == []
    # In life it is a file, and swept away as one.
    [pipe] = one.outbox.glob("run/*/.*.json.part")
    pipe.unlink()
    pipe.touch()
    assert next_one() == []


@pytest.mark.parametrize("n", range(5))
def test_about_to_get_its_name_it_is_whole_or_not_there(killable, next_one, n):
    """Killed as soon as the sidecar shows: the snapshot's own rename comes right before or after that."""
    one = killable(TRAIN.format(then=WAIT))
    until("the sidecar", lambda: one.files("1.json"))
    one.kill()
    is_there = one.files(".pickle.zst") != []
    arrived = next_one()
    assert [s.label for s in arrived] == (["1"] if is_there else [])


class Slow:
    """A server that takes a connection and reads until it has as many bytes as it wants; then it tells, and waits."""

    def __init__(self, n_bytes):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.has_enough = threading.Event()
        threading.Thread(target=self.serve, args=(n_bytes,), daemon=True).start()

    def serve(self, n_bytes):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.read, args=(connection, n_bytes), daemon=True).start()

    def read(self, connection, n_bytes):
        n_read = 0
        while n_read < n_bytes and (got := connection.recv(4096)):
            n_read += len(got)
        self.has_enough.set()
        threading.Event().wait()


def test_while_it_is_sent_it_stays_and_the_next_sends_it_once(killable, next_one):
    server = Slow(n_bytes=200)
    one = killable(TRAIN.format(then=WAIT), server.address)
    assert server.has_enough.wait(60)
    one.kill()
    assert len(one.files(".pickle.zst")) == 1
    assert [s.label for s in next_one()] == ["1"]


def test_after_the_server_took_it_it_is_sent_again_as_the_very_same(killable, next_one, receiver):
    """Killed by the server itself, which has it and has not answered. What is the same snapshot is told by place and
    content: the server keeps one of them."""
    receiver.before_answer = lambda: one.kill()
    one = killable(TRAIN.format(then=WAIT), receiver.address)
    until("the snapshot", lambda: one.process.poll() is not None)
    receiver.before_answer = None
    assert len(one.files(".pickle.zst")) == 1
    arrived = next_one()
    assert [s.label for s in arrived] == ["1", "1"]
    assert arrived[0].sidecar == arrived[1].sidecar and arrived[0].content == arrived[1].content
    assert arrived[0].sidecar["content_digest"]


def test_between_two_snapshots_what_is_whole_arrives_and_what_is_half_does_not(killable, next_one, tmp_path):
    mark = tmp_path / "mark"
    then = f"""
    while not list(__import__("pathlib").Path(os.environ["TIDEGAUGE_OUTBOX"]).glob("run/*/*.pickle.zst")):
        time.sleep(0.001)
    os.environ["DOUBLE_PICKLING_WAITS"] = {str(mark)!r}
    tidegauge.step()
    time.sleep(600)
    """
    one = killable(TRAIN.format(then=then))
    until("the second", mark.exists)
    one.kill()
    assert [s.label for s in next_one()] == ["1"]
