"""A training process that is a process, and a server that is a list."""

import base64
import http.client
import http.server
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import threading
import types

import pytest
import zstandard

import gauge

HERE = pathlib.Path(__file__).parent

# Sidecars travel in a header of up to 256 KiB; Python's server takes 64 KiB by itself.
http.client._MAXLINE = 300_000


class Receiver(http.server.ThreadingHTTPServer):
    """Takes snapshots in as the server does, and remembers them."""

    def __init__(self):
        self.snapshots = []
        self.batches = []
        self.status = 201
        self.before_answer = None
        self.token = None
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"

    def labels(self):
        return [s.label for s in self.snapshots]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = b""
        if self.path == "/api/v1/samples":
            if self.server.status == 201:
                self.server.batches.append(json.loads(body))
                answer = b'{"run_id": "1", "n_new": 1}'
        elif self.server.status == 201:
            header = self.headers["Tidegauge-Sidecar"]
            sidecar = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
            content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)).read()
            first, last = sidecar.get("first_step"), sidecar.get("last_step")
            self.server.snapshots.append(
                types.SimpleNamespace(
                    sidecar=sidecar,
                    protocol=content[1],
                    content=pickle.loads(content),
                    label=f"{first}-{last}" if first != last else str(last),
                )
            )
            answer = json.dumps(
                {
                    "id": "1",
                    "run_id": "1",
                    "run_name": "r",
                    "place": {},
                    "seq": 0,
                    "state": "received",
                    "problem": None,
                    "file_name": None,
                    "bytes": len(body),
                    "digest": "",
                    "received_at": "",
                    "inspection": None,
                    "sidecar": None,
                }
            ).encode()
        kind = "application/json"
        if 400 <= self.server.status < 500:
            # A refusal of the server's, and not of a proxy's before it.
            kind = "application/problem+json"
            problem = {"type": "refused", "title": "Refused", "status": self.server.status, "detail": "it is refused"}
            answer = json.dumps(problem).encode()
        if self.server.before_answer:
            self.server.before_answer()
        self.send_response(self.server.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        try:
            self.wfile.write(answer)
        except BrokenPipeError:
            # Whoever asked is gone.
            self.close_connection = True

    def do_GET(self):
        is_known = self.server.token in (None, self.headers.get("Authorization", "").removeprefix("Bearer "))
        status, kind, answer = 200, "application/json", b"[]"
        if self.path == "/readyz":
            kind, answer = "text/plain", b"ready\n"
        elif not is_known:
            problem = {"type": "no-token", "title": "A token is needed", "status": 401, "detail": "it asks for its token"}
            status, kind, answer = 401, "application/problem+json", json.dumps(problem).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """The real server, on a free port of its own."""
    server = gauge.Server(tmp_path / "data")
    yield server
    server.kill()


@pytest.fixture
def receiver():
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def train(receiver, tmp_path):
    """Runs a training script to its end, with the doubles in torch's place, and says what it said."""

    def train(script, status=0, doubles=True, **env):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "TIDEGAUGE_SERVER": receiver.address,
            "TIDEGAUGE_OUTBOX": str(tmp_path / "outbox"),
            "TIDEGAUGE_RUN": "run",
            **env,
        }
        if doubles:
            environment["PYTHONPATH"] = str(HERE / "doubles")
        # No -I: it would hide the doubles. The script's folder is empty, so nothing else is found by accident.
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, done.stderr
        return types.SimpleNamespace(said=done.stderr, printed=done.stdout)

    return train
