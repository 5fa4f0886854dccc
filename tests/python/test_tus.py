"""Uploads in parts at the real server: by a client of other people's, and by ours when everything is killed."""

import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import pytest
import tusclient.client

FIXTURE = pathlib.Path(__file__).parents[2] / "snapshot/fixtures/streams_2dev_lag40.pickle"


def test_another_peoples_client_uploads_in_parts_and_goes_on_after_a_cut(server):
    client = tusclient.client.TusClient(server.address + "/api/v1/uploads")
    metadata = {"run": "gpt", "rank": "3", "step": "5", "filename": FIXTURE.name}
    first = client.uploader(str(FIXTURE), chunk_size=50_000, metadata=metadata)
    first.upload_chunk()
    first.upload_chunk()
    assert first.offset == 100_000
    server.kill()
    server.start()
    # Somebody who knows nothing but the address.
    second = client.uploader(str(FIXTURE), chunk_size=50_000, url=first.url)
    assert second.offset == 100_000
    second.upload()
    details, original = server.only_snapshot()
    assert (details["place"]["rank"], details["place"]["last_step"]) == (3, 5)
    assert details["file_name"] == FIXTURE.name
    assert original == FIXTURE.read_bytes()
    assert server.unfinished() == []


def test_what_a_client_is_refused_it_hears_as_an_error(server):
    client = tusclient.client.TusClient(server.address + "/api/v1/uploads")
    with pytest.raises(tusclient.exceptions.TusCommunicationError, match="400"):
        client.uploader(str(FIXTURE), metadata={"rank": "three"}).upload()


def test_an_upload_survives_the_death_of_its_sender_and_of_the_server(server, tmp_path):
    events = [{"action": "alloc", "addr": i, "size": 512, "stream": 0, "frames": [], "note": os.urandom(8).hex()}
              for i in range(300_000)]  # fmt: skip
    content = pickle.dumps({"segments": [], "device_traces": [events]}, protocol=4)
    assert len(content) > 12 << 20
    folder = tmp_path / "outbox/gpt/host-1"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "000001_rank3_step5.pickle.zst").write_bytes(content)
    (folder / "000001_rank3_step5.json").write_text(json.dumps({"sidecar": 1, "run": "gpt", "rank": 3, "last_step": 5}))

    def push(*more):
        command = [sys.executable, "-m", "tidegauge", "push", "--outbox", tmp_path / "outbox"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
        return subprocess.Popen([*command, "--server", server.address, *more], env=environment, stderr=subprocess.PIPE, text=True)

    # The first part arrives, the second is on its way.
    sender = push("--rate", str(8 << 20))
    deadline = time.monotonic() + 60
    while not any(path.suffix == ".part" and path.stat().st_size >= 8 << 20 for path in server.unfinished()):
        assert time.monotonic() < deadline and sender.poll() is None
        time.sleep(0.01)
    sender.send_signal(signal.SIGKILL)
    sender.communicate()
    server.kill()
    assert (folder / "000001_rank3_step5.upload").exists()
    [part] = [path for path in server.unfinished() if path.suffix == ".part"]
    n_bytes_then, inode = part.stat().st_size, part.stat().st_ino
    assert 8 << 20 <= n_bytes_then < len(content)

    server.start()
    assert [path.name for path in server.unfinished() if path.suffix == ".part"] == [part.name]
    sender = push()
    said = sender.communicate(timeout=60)[1]
    assert sender.returncode == 0 and "1 snapshot sent" in said, said
    details, original = server.only_snapshot()
    assert original == content and details["place"]["rank"] == 3
    # It went on with the very file.
    [kept] = [path for path in (tmp_path / "data/originals").rglob("*") if path.is_file()]
    assert kept.stat().st_ino == inode
    assert server.unfinished() == [] and list((tmp_path / "outbox").iterdir()) == []
