"""`tidegauge doctor`: what it finds before a training starts, with the doubles in torch's place."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

DOUBLES = pathlib.Path(__file__).parent / "doubles"


@pytest.fixture
def doctor(receiver, tmp_path):
    """Runs it on a machine with cuda, unless told otherwise, and gives its report."""
    doubles = tmp_path / "doubles"
    doubles.mkdir()
    for name in ("allocator.py", "backend.py", "torch"):
        (doubles / name).symlink_to(DOUBLES / name)

    def doctor(*arguments, path=doubles, json_too=True, **env):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(path),
            "TIDEGAUGE_SERVER": receiver.address,
            **env,
        }
        done = subprocess.run(
            [sys.executable, "-m", "tidegauge", "doctor", *(["--json"] if json_too else []), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if not json_too:
            return done
        assert done.stderr == "", done.stderr
        report = json.loads(done.stdout)
        assert done.returncode == (0 if report["is_fine"] else 1)
        return types.SimpleNamespace(
            is_fine=report["is_fine"],
            checks={check["name"]: check for check in report["checks"]},
            settings={setting["name"]: (setting["value"], setting["source"]) for setting in report["settings"]},
            cost=report.get("cost"),
        )

    return doctor


def reds(report):
    assert all(bool(check.get("what_to_do")) == (check["state"] == "red") for check in report.checks.values())
    return [name for name, check in report.checks.items() if check["state"] == "red"]


def test_where_all_is_fine_nothing_is_red_and_sources_are_named(doctor, tmp_path):
    report = doctor("steps=every:100", TIDEGAUGE_RANKS="node-first", TIDEGAUGE_TOKEN="a-secret")
    assert report.is_fine and reds(report) == []
    assert report.settings["steps"] == ("every 100", "argument")
    assert report.settings["ranks"] == ("the first of each node", "environment")
    assert report.settings["token"] == ("given", "environment")
    assert report.settings["max_entries"] == ("100000", "default")
    checks = report.checks
    assert checks["backend"]["says"] == "cuda, torch 2.9.1+cu128: tested with this release"
    assert "cleared by clear_history" in checks["mode"]["says"]
    assert checks["recording"]["state"] == "skipped"
    assert report.cost["host_bytes"] == 60_000_000
    outbox = tmp_path / ".local/state/tidegauge/outbox"
    assert checks["outbox"]["says"].startswith(f"{outbox}: 0 snapshots wait (0 B of 16.0 GiB), 0 processes use it")
    assert not outbox.exists()


def test_try_records_for_a_moment_and_leaves_nothing(doctor, receiver, tmp_path):
    report = doctor("--try", "stacks=all")
    assert reds(report) == []
    assert report.checks["recording"]["says"].startswith("works: 2 events in a file of ")
    assert receiver.snapshots == [] and not (tmp_path / ".local").exists()


def test_a_device_that_does_not_record_is_red_with_what_it_said(doctor):
    report = doctor("--try", DOUBLE_SNAPSHOT_FAILS="1")
    assert reds(report) == ["recording"]
    assert "no snapshot: RuntimeError: the device is lost" in report.checks["recording"]["says"]


def test_on_an_npu_machine_the_npu_is_found_and_tried(doctor):
    report = doctor("--try", path=DOUBLES)
    assert reds(report) == []
    says = report.checks["backend"]["says"]
    assert says.startswith("npu, torch 2.9.1+cu128, torch_npu 2.9.0: tested with a double")
    assert says.endswith("import torch_npu before tidegauge.start()")
    assert "the same call once more" in report.checks["mode"]["says"]
    assert report.checks["recording"]["says"].startswith("works: ")


def test_a_release_that_no_test_drove_is_untested_and_not_red(doctor):
    report = doctor(DOUBLE_TORCH="2.12.0")
    assert report.checks["backend"]["state"] == "untested"
    assert "no test drove it with this release" in report.checks["backend"]["says"]
    assert report.is_fine
    assert "off and on" in doctor(DOUBLE_TORCH="2.7.1").checks["mode"]["says"]


def test_without_torch_or_a_device_it_says_what_to_do(doctor, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    report = doctor(path=empty)
    assert reds(report) == ["torch"] and "not installed" in report.checks["torch"]["says"]
    (empty / "torch.py").write_text("raise ImportError('libcudart.so.12 is missing')\n")
    report = doctor(path=empty)
    assert reds(report) == ["torch"] and "libcudart.so.12 is missing" in report.checks["torch"]["says"]
    report = doctor(DOUBLE_CUDA="0")
    assert reds(report) == ["backend"] and "finds no device" in report.checks["backend"]["says"]


def test_an_interpreter_that_is_not_there_or_lacks_the_agent_is_red(doctor, tmp_path):
    report = doctor("--python", str(tmp_path / "no-python"))
    assert reds(report) == ["python"] and "does not start" in report.checks["python"]["says"]
    bare = tmp_path / "bare"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
    bare.chmod(0o755)
    report = doctor("--python", str(bare))
    assert reds(report) == ["python"] and "tidegauge is not installed" in report.checks["python"]["says"]


def test_a_server_that_is_away_wants_a_token_or_is_another_is_red(doctor, receiver):
    report = doctor("server=http://127.0.0.1:1")
    assert reds(report) == ["server"] and "no answer from http://127.0.0.1:1" in report.checks["server"]["says"]
    receiver.token = "right"
    report = doctor("token=wrong")
    assert reds(report) == ["server"] and "does not let us in" in report.checks["server"]["says"]
    assert doctor("token=right").checks["server"]["says"].endswith("takes snapshots, the token is accepted")


def test_what_waits_what_was_left_and_what_was_refused_is_counted(doctor, receiver, train, tmp_path):
    script = """
        import torch, tidegauge
        tidegauge.start(steps="all")
        torch.cuda.alloc(1 << 20)
        tidegauge.step(); tidegauge.step()
    """
    train(script, TIDEGAUGE_SERVER="http://127.0.0.1:1", TIDEGAUGE_FLUSH_SECS="0")
    outbox = tmp_path / "outbox"
    report = doctor(f"outbox={outbox}")
    assert report.checks["outbox"]["says"].startswith(f"{outbox}: 2 snapshots wait (")
    assert reds(report) == ["left behind"]
    assert report.checks["left behind"]["what_to_do"].startswith(f"tidegauge push --outbox {outbox} --server ")
    report = doctor(f"outbox={outbox}", "outbox_bytes=10")
    assert "it is full" in report.checks["outbox"]["says"]
    receiver.status = 413
    train("import tidegauge, torch; tidegauge.start(steps=[1]); torch.cuda.alloc(1); tidegauge.step()")
    assert doctor(f"outbox={outbox}").checks["refused"]["state"] == "red"


def test_a_choice_that_makes_no_sense_is_red_and_the_rest_is_still_looked_at(doctor):
    report = doctor(TIDEGAUGE_STEPS="every:0")
    assert reds(report) == ["settings"]
    assert report.checks["settings"]["says"].startswith('TIDEGAUGE_STEPS: "every:0" chooses nothing')
    assert report.checks["backend"]["state"] == "fine"
    assert reds(doctor(TIDEGAUGE_ENABLED="0")) == ["settings"]
    assert "TIDEGAUGE_STEP" in doctor(TIDEGAUGE_STEP="1").checks["settings"]["says"]


def test_people_read_a_table_and_each_red_line_says_what_to_do(doctor):
    done = doctor("steps=1,5", "server=http://127.0.0.1:1", json_too=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "  steps          1, 5  (argument)" in lines
    red = next(i for i, line in enumerate(lines) if line.startswith("  RED       server"))
    assert lines[red + 1].strip().startswith("→ start it")
    assert lines[-1] == "1 line is red"
    assert doctor("steps", json_too=False).returncode == 64
    assert 'there is no setting "stepz"' in doctor("stepz=1", json_too=False).stderr


def test_a_kind_is_found_from_the_release_on_in_which_it_keeps_a_history(doctor):
    xpu = dict(DOUBLE_CUDA="0", DOUBLE_XPU="1")
    report = doctor("--try", DOUBLE_TORCH="2.11.0+xpu", **xpu)
    assert reds(report) == []
    assert report.checks["backend"]["says"] == "xpu, torch 2.11.0+xpu: tested with a double of this release"
    assert report.checks["recording"]["says"].startswith("works: ")
    report = doctor(DOUBLE_TORCH="2.9.1+xpu", **xpu)
    assert reds(report) == ["backend"]
    assert "finds no device with a memory history" in report.checks["backend"]["says"]
