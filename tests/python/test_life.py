"""The life of a process with the agent in it: whatever happens, training goes on and ends as it would."""

import json

TRAIN = """
    import os, sys, torch, tidegauge
    tidegauge.start(steps=[1])
    torch.cuda.alloc(1 << 20)
    tidegauge.step()
    print("trained")
    sys.exit(7)
"""


def test_training_ends_with_its_own_exit_code_and_at_exit_everything_is_sent(train, receiver):
    done = train(TRAIN, status=7)
    assert receiver.labels() == ["1"]
    assert done.said.splitlines() == [f"tidegauge: recording run run, steps 1, to {receiver.address}"]


def test_a_server_that_answers_500_costs_the_flush_and_no_more(train, receiver, tmp_path):
    receiver.status = 500
    done = train(TRAIN, status=7, TIDEGAUGE_FLUSH_SECS="1")
    assert done.printed == "trained\n"
    outbox = tmp_path / "outbox"
    assert f"tidegauge push --outbox {outbox} --server {receiver.address}" in done.said
    assert len(list(outbox.glob("run/*/*.pickle.zst"))) == 1


def test_the_program_that_comes_with_the_package_sends_what_is_left(train, receiver, tmp_path):
    receiver.status = 500
    train(TRAIN, status=7, TIDEGAUGE_FLUSH_SECS="0")
    receiver.status = 201
    command = f"""
        import runpy, sys
        sys.argv = ["tidegauge", "push", "--outbox", {str(tmp_path / "outbox")!r}]
        runpy.run_module("tidegauge", run_name="__main__")
    """
    done = train(command)
    assert receiver.labels() == ["1"]
    assert "1 snapshot sent" in done.said
    assert list((tmp_path / "outbox").iterdir()) == []


def test_a_snapshot_that_fails_does_not_reach_training(train, receiver):
    done = train(TRAIN, status=7, DOUBLE_SNAPSHOT_FAILS="1")
    assert "no snapshot: RuntimeError: the device is lost" in done.said
    assert receiver.snapshots == []


def test_without_torch_one_line_is_said_and_everything_does_nothing(train, receiver):
    done = train(
        """
        import tidegauge
        tidegauge.start(); tidegauge.step(); tidegauge.snapshot("x"); tidegauge.stop()
        """,
        doubles=False,
    )
    [line] = done.said.splitlines()
    assert line.startswith("tidegauge: nothing is recorded: torch cannot be imported")


def test_without_an_accelerator_one_line_is_said_and_everything_does_nothing(train, receiver):
    done = train(
        """
        import torch, tidegauge
        tidegauge.start(steps="all"); tidegauge.step(); tidegauge.snapshot(); tidegauge.stop()
        """,
        DOUBLE_CUDA="0",
        DOUBLE_TORCH="2.9.1+cpu",
    )
    [line] = done.said.splitlines()
    assert "torch 2.9.1+cpu finds no accelerator" in line


def test_disabled_it_does_not_even_import_torch(train):
    done = train(
        """
        import sys, threading, tidegauge
        tidegauge.start(steps="all"); tidegauge.step(); tidegauge.stop()
        assert "torch" not in sys.modules and threading.active_count() == 1
        """,
        TIDEGAUGE_ENABLED="0",
    )
    assert done.said == ""


def test_a_rank_that_is_not_chosen_does_not_record(train, receiver):
    script = """
        import json, torch, tidegauge
        tidegauge.start(steps="all", ranks=[0, 2])
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
        print(json.dumps(torch.cuda.calls))
    """
    assert json.loads(train(script, RANK="1").printed) == []
    assert len(json.loads(train(script, RANK="2").printed)) == 2
    assert [s.sidecar["rank"] for s in receiver.snapshots] == [2]


def test_recording_begins_when_the_device_is_used_and_does_not_use_it_itself(train):
    train(
        """
        import torch, tidegauge
        tidegauge.start()
        assert not torch.cuda.is_initialized() and torch.cuda.calls == []
        torch.cuda.alloc(1 << 20)
        assert torch.cuda.allocator.is_recording and len(torch.cuda.allocator.trace) == 2
        """
    )


def test_a_forked_child_is_silent(train, receiver):
    done = train(
        """
        import os, sys, torch, tidegauge
        tidegauge.start(steps="all")
        torch.cuda.alloc(1 << 20)
        if os.fork() == 0:
            # Runs its own exit handlers, too.
            tidegauge.step(); tidegauge.snapshot("child"); tidegauge.stop()
            sys.exit(0)
        os.wait()
        tidegauge.step()
        """
    )
    assert receiver.labels() == ["1"]
    assert done.said.count("tidegauge:") == 1


def test_a_forked_child_may_start_a_session_of_its_own(train, receiver):
    train(
        """
        import os, sys, torch, tidegauge
        tidegauge.start(steps="all")
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
        if os.fork() == 0:
            tidegauge.start(steps="all", role="child")
            tidegauge.step()
            sys.exit(0)
        os.wait()
        """
    )
    assert sorted(s.sidecar.get("role", "") for s in receiver.snapshots) == ["", "child"]


def test_started_twice_it_records_once_and_after_a_stop_again(train, receiver):
    done = train(
        """
        import torch, tidegauge
        torch.cuda.alloc(1 << 20)
        tidegauge.start(steps="all")
        tidegauge.start(steps="all")
        tidegauge.step()
        tidegauge.stop()
        tidegauge.step()
        tidegauge.start(steps="all", role="second")
        tidegauge.step()
        """
    )
    assert "start() again is ignored" in done.said
    assert [s.sidecar.get("role") for s in receiver.snapshots] == [None, "second"]


def test_mistakes_in_settings_and_arguments_are_said_and_not_raised(train, receiver):
    done = train(
        """
        import torch, tidegauge
        torch.cuda.alloc(1 << 20)
        tidegauge.start(steps="first")
        tidegauge.step()
        tidegauge.start(stepz=[1], steps=[1, 2])
        tidegauge.step("one")
        tidegauge.step(-1)
        tidegauge.step(1)
        tidegauge.step(2)
        tidegauge.step(1)
        """
    )
    assert 'steps: expected "all", "none" or parts such as 1,5,10-20,every:100,first:3, found "first"' in done.said
    assert 'there is no setting "stepz"' in done.said
    assert "step(): " in done.said
    assert "step(1) after step(2) is ignored" in done.said
    assert receiver.labels() == ["1", "2"]


def test_settings_come_from_keyword_then_environment(train, receiver):
    script = """
        import torch, tidegauge
        tidegauge.start({run}steps=range(2, 4))
        torch.cuda.alloc(1 << 20)
        for _ in range(4):
            tidegauge.step()
    """
    train(script.format(run=""), TIDEGAUGE_STEPS="1", TIDEGAUGE_RUN="from-env")
    train(script.format(run="'from-keyword', "), TIDEGAUGE_RUN="from-env")
    assert receiver.labels() == ["1-2", "3"] * 2
    assert [s.sidecar["run"] for s in receiver.snapshots] == ["from-env"] * 2 + ["from-keyword"] * 2


def test_a_snapshot_asked_for_is_named_for_its_reason(train, receiver):
    train(
        """
        import torch, tidegauge
        tidegauge.start(steps=[1])
        torch.cuda.alloc(1 << 20)
        tidegauge.snapshot()
        tidegauge.step()
        tidegauge.snapshot("validation")
        """
    )
    assert [s.sidecar["reason"] for s in receiver.snapshots] == ["startup", "step", "validation"]


def test_the_ring_keeps_to_max_entries(train, receiver):
    train(
        """
        import torch, tidegauge
        tidegauge.start(steps=[1], max_entries=10)
        for _ in range(20):
            torch.cuda.free(torch.cuda.alloc(1 << 20))
        tidegauge.step()
        """
    )
    assert len(receiver.snapshots[0].content["device_traces"][0]) == 10


def test_a_large_snapshot_is_written_while_training_goes_on(train, receiver):
    """Pickled in one piece, the writer would hold the interpreter from the step's end until it is done."""
    done = train(
        """
        import json, pathlib, os, time, torch, tidegauge
        tidegauge.start(steps=[1], max_entries=10**6)
        for _ in range(40_000):
            torch.cuda.free(torch.cuda.alloc(1 << 20))
        tidegauge.step()
        outbox, n_turns = pathlib.Path(os.environ["TIDEGAUGE_OUTBOX"]), 0
        while not list(outbox.glob("run/*/*.pickle.zst")):
            n_turns += 1
            time.sleep(0.001)
        print(n_turns)
        """,
        TIDEGAUGE_SERVER="http://127.0.0.1:1",
        TIDEGAUGE_FLUSH_SECS="0",
    )
    assert int(done.printed) > 20


def test_steps_are_chosen_by_list_range_stride_and_rule(train, receiver):
    script = """
        import itertools, torch, tidegauge
        tidegauge.start(steps={steps})
        torch.cuda.alloc(1 << 20)
        for _ in range(9):
            tidegauge.step()
    """
    chosen = {
        '"first:2,every:4"': ["1", "2", "3-4", "5-8"],
        "range(2, 10**12, 3)": ["1-2", "3-5", "6-8"],
        "range(8, 0, -4)": ["1-4", "5-8"],
        '[1, range(6, 8), "every:9"]': ["1", "2-6", "7", "8-9"],
    }
    for steps, labels in chosen.items():
        train(script.format(steps=steps))
        assert receiver.labels() == labels, steps
        receiver.snapshots.clear()
    for steps in ("range(0)", "[]", "0.5", "[-1]", "itertools.count()", '"every:0"'):
        done = train(script.format(steps=steps))
        [line] = done.said.splitlines()
        assert line.startswith("tidegauge: nothing is recorded: steps: "), (steps, line)
        assert receiver.snapshots == []


def test_ranks_are_chosen_by_node_and_by_sample(train, receiver):
    script = """
        import torch, tidegauge
        tidegauge.start(steps=[1])
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
    """
    for rank in range(4):
        around = dict(RANK=str(rank), LOCAL_RANK=str(rank % 2), WORLD_SIZE="4")
        train(script, TIDEGAUGE_RANKS="node-first", TIDEGAUGE_ROLE="node", **around)
        train(script, TIDEGAUGE_RANKS="1,sample:2", TIDEGAUGE_ROLE="sample", **around)
    ranks = {(s.sidecar["role"], s.sidecar["rank"]) for s in receiver.snapshots}
    assert ranks == {("node", 0), ("node", 2), ("sample", 0), ("sample", 1), ("sample", 2)}
    done = train(script, TIDEGAUGE_RANKS="node-first", RANK="0")
    assert "nothing tells the local rank (LOCAL_RANK), so rank 0 alone is chosen" in done.said


def test_the_garbage_collector_is_left_as_it_was_found(train, receiver):
    script = """
        import gc, torch, tidegauge
        {before}
        def state():
            return gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold()
        gc.set_threshold(701, 11, 13)
        found = state()
        tidegauge.start(steps=[1, 2])
        for _ in range(2):
            torch.cuda.alloc(1 << 20)
            tidegauge.step()
        tidegauge.stop()
        print(found == state())
    """
    for before in ("", "gc.freeze()", "gc.disable()"):
        receiver.snapshots.clear()
        done = train(script.format(before=before))
        assert (done.printed, receiver.labels()) == ("True\n", ["1", "2"]), before
