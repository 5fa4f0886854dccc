"""The real server, as a process."""

import json
import os
import subprocess
import urllib.request


class Server:
    """The real one, on a free port and, started again, on the same."""

    def __init__(self, data):
        self.data, self.port = data, 0
        self.start()

    def start(self):
        command = [os.environ["TIDEGAUGE_TEST_SERVER"], "--data", self.data, "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen([*command, "--min-free-bytes", "0"], stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split()[-1]
        self.port = int(self.address.rsplit(":", 1)[1])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(self.address + path) as answer:
            return answer.read()

    def only_snapshot(self):
        [run] = json.loads(self.get("/api/v1/runs"))["runs"]
        assert run["n_snapshots"] == 1
        [cell] = json.loads(self.get(f"/api/v1/runs/{run['id']}/grid"))["cells"]
        [snapshot] = cell["snapshots"]
        details = json.loads(self.get(f"/api/v1/snapshots/{snapshot}"))
        return details, self.get(f"/api/v1/snapshots/{snapshot}/original")

    def unfinished(self):
        return sorted((self.data / "unfinished").iterdir())
