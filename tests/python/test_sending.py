"""From a training process to the real server: over a network that breaks, and by an agent beside it."""

import contextlib
import http.client
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

N_STEPS = 100


class Network(http.server.ThreadingHTTPServer):
    """Stands before a server and has bad moments, in an order that is the same each time."""

    def __init__(self, server):
        self.behind, self.dice, self.moments = server.port, random.Random(7), []
        super().__init__(("127.0.0.1", 0), Passage)
        self.address = f"http://127.0.0.1:{self.server_port}"


class Passage(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self):
        moments = ["429", "500", "hang", "cut before", "cut in", "cut after"]
        moment = self.server.dice.choice(moments + ["fine"] * 3 * len(moments))
        self.server.moments.append(moment)
        self.close_connection = True
        length = int(self.headers.get("Content-Length", 0))
        if moment in ("429", "500"):
            return self.answer(int(moment), {"Retry-After": "0"} if moment == "429" else {}, b"")
        if moment == "hang":
            return time.sleep(1)
        if moment == "cut before":
            return None
        body = self.rfile.read(length // 2 if moment == "cut in" else length)
        if moment == "cut in":
            return None
        server = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        headers = {name: value for name, value in self.headers.items() if name not in ("Expect", "Host", "Connection")}
        server.request(self.command, self.path, body, headers)
        answer = server.getresponse()
        content = answer.read()
        if moment == "fine":
            self.answer(answer.status, dict(answer.getheaders()), content)

    do_GET = do_POST = do_HEAD = do_PATCH = pass_on


    def answer(self, status, headers, content):
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def network(server):
    network = Network(server)
    threading.Thread(target=network.serve_forever, daemon=True).start()
    yield network
    network.shutdown()
    network.server_close()


def steps_at(server):
    """The last step of each snapshot of the only run, sorted."""
    runs = json.loads(server.get("/api/v1/runs"))["runs"]
    if not runs:
        return []
    grid = json.loads(server.get(f"/api/v1/runs/{runs[0]['id']}/grid"))
    ids = [snapshot for cell in grid["cells"] for snapshot in cell["snapshots"]]
    details = (json.loads(server.get(f"/api/v1/snapshots/{id}")) for id in ids)
    return sorted(details["place"]["last_step"] for details in details)


def test_a_hundred_snapshots_arrive_once_over_a_network_that_breaks(train, server, network, tmp_path):
    done = train(
        f"""
        import pathlib, os, torch, tidegauge
        tidegauge.start(steps="all", flush_secs=110)
        for _ in range({N_STEPS}):
            torch.cuda.alloc(1 << 20)
            tidegauge.step()
        print(len(list(pathlib.Path(os.environ["TIDEGAUGE_OUTBOX"]).glob("run/*/*.pickle.zst"))))
        """,
        TIDEGAUGE_SERVER=network.address,
    )
    # Training was done long before.
    assert int(done.printed) > N_STEPS / 2
    assert steps_at(server) == list(range(1, N_STEPS + 1))
    assert set(network.moments) == {"429", "500", "hang", "cut before", "cut in", "cut after", "fine"}
    assert list((tmp_path / "outbox").iterdir()) == []
    # Once, and at the end how often more.
    waits = [line for line in done.said.splitlines() if line.endswith("sent as soon as that changes")]
    assert len([line for line in waits if " more times: " not in line]) == 1 and len(waits) <= 2, done.said


def test_an_agent_beside_a_training_does_all_the_sending_and_ends_when_it_is_told(train, server, tmp_path):
    outbox = tmp_path / "outbox"
    command = [sys.executable, "-m", "tidegauge", "agent", outbox, "--server", server.address, "--interval", "0.1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
    agent = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    script = """
        import time, torch, tidegauge
        tidegauge.start(steps="all", flush_secs=3600)
        torch.cuda.alloc(1 << 20)
        for _ in range(3):
            tidegauge.step()
            time.sleep(0.2)
    """
    # It does not know the server, and would not end if it waited for it.
    done = train(script, TIDEGAUGE_SEND="sidecar", TIDEGAUGE_SERVER="http://127.0.0.1:1")
    assert len(done.said.splitlines()) == 1, done.said
    agent.send_signal(signal.SIGTERM)
    printed, said = agent.communicate(timeout=60)
    assert agent.returncode == 0
    assert steps_at(server) == [1, 2, 3]
    assert len(printed.splitlines()) == 3, printed
    assert said.splitlines()[-1].startswith("health: 0 snapshots waiting (0 B), 0 processes alive, 3 sent"), said
    assert list(outbox.iterdir()) == []


def test_snapshots_that_found_no_room_are_told_to_the_server_and_shown_in_the_grid(train, server, tmp_path):
    done = train(
        """
        import torch, tidegauge
        tidegauge.start(steps=[1, 3], flush_secs=60)
        torch.cuda.alloc(1 << 20)
        for _ in range(3):
            tidegauge.step()
        print("trained")
        """,
        TIDEGAUGE_SERVER=server.address,
        TIDEGAUGE_OUTBOX_BYTES="10",
    )
    assert done.printed == "trained\n"
    assert done.said.count("the outbox is full (at most 10 B") == 2, done.said
    [run] = json.loads(server.get("/api/v1/runs"))["runs"]
    assert (run["n_snapshots"], run["n_lost"]) == (0, 2)
    grid = json.loads(server.get(f"/api/v1/runs/{run['id']}/grid"))
    assert len(grid["lost"]) == 2
    assert not list((tmp_path / "outbox").rglob("*.part"))
