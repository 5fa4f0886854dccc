"""The wheel in an environment with nothing else: imported, recording on a stand-in for torch, sending, and as a program.

Runs under the interpreter that it is to look at, with the standard library alone. Prints a closing line as pytest does.
"""

import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent

TRAIN = """
import sys, torch, tidegauge
tidegauge.start("run", steps=[1, 2])
for size in (1 << 20, 2 << 20):
    torch.cuda.alloc(size)
    tidegauge.step()
sys.exit(7)
"""


class Receiver(http.server.BaseHTTPRequestHandler):
    received = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        details = {
            "id": "1", "run_id": "1", "run_name": "run", "place": {}, "seq": 0, "state": "received", "problem": None,
            "file_name": None, "bytes": len(body), "digest": "", "received_at": "", "inspection": None, "sidecar": None,
        }  # fmt: skip
        if self.path.startswith("/api/v1/snapshots"):
            self.received.append(body)
        answer = json.dumps(details).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def python(*arguments, folder, **env):
    environment = {"PATH": os.environ["PATH"], "HOME": folder, **env}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def it_trains_sends_and_keeps_the_exit_code(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    env = {
        "TIDEGAUGE_SERVER": address,
        "TIDEGAUGE_OUTBOX": os.path.join(folder, "outbox"),
        "TIDEGAUGE_FLUSH_SECS": "60",
        "PYTHONPATH": str(HERE / "doubles"),
    }
    done = python("-c", TRAIN, folder=folder, **env)
    server.shutdown()
    server.server_close()
    assert done.returncode == 7, done.stderr
    assert len(Receiver.received) == 2, done.stderr
    # zstd's magic number.
    assert all(body[:4] == b"\x28\xb5\x2f\xfd" for body in Receiver.received)


def it_brings_the_program(folder):
    program = pathlib.Path(sys.executable).with_name("tidegauge")
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60)
    module = python("-c", "import tidegauge; print(tidegauge.__version__)", folder=folder)
    assert done.stdout.split() == ["tidegauge", module.stdout.strip()], (done, module)


def it_brings_its_types_and_does_not_import_torch(folder):
    import tidegauge

    package = pathlib.Path(tidegauge.__file__).parent
    assert (package / "py.typed").is_file() and (package / "__init__.pyi").is_file()
    done = python("-c", "import sys, tidegauge; print('torch' in sys.modules)", folder=folder)
    assert done.stdout.strip() == "False", done


def main():
    checks = [
        it_trains_sends_and_keeps_the_exit_code,
        it_brings_the_program,
        it_brings_its_types_and_does_not_import_torch,
    ]
    n_failed, started = 0, time.monotonic()
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(folder)
            except Exception as error:  # noqa: BLE001  whatever it is, it is said and counted
                n_failed += 1
                print(f"{check.__name__}: {error!r}")
    n_passed = len(checks) - n_failed
    print(f"==== {n_passed} passed, {n_failed} failed in {time.monotonic() - started:.1f}s ====")
    sys.exit(n_failed)


if __name__ == "__main__":
    main()
