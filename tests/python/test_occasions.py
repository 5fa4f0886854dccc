"""Snapshots that no step asks for: memory that runs out, an exception, SIGTERM, the exit."""

import signal

import pytest

OOM = """
    import os, sys, torch, tidegauge
    tidegauge.start(steps=[1])
    kept = torch.cuda.alloc(8 << 20, "model")
    tidegauge.step()
    torch.cuda.alloc(4 << 20, "activations")
    {body}
"""
RUN_OUT = 'torch.cuda.alloc(100 << 20, "too much")'
LIMIT = dict(DOUBLE_LIMIT=str(64 << 20))


def stacks(snapshot):
    return [event["frames"][0]["name"] for event in snapshot.content["device_traces"][0]]


def in_order(receiver):
    """As they were taken: one that cannot wait is written before others that can."""
    return sorted(receiver.snapshots, key=lambda s: s.sidecar["captured_at_us"])


def reasons(receiver):
    return [s.sidecar["reason"] for s in in_order(receiver)]


def test_memory_that_runs_out_is_raised_as_before_and_its_snapshot_arrives(train, receiver):
    done = train(OOM.format(body=RUN_OUT), status=1, **LIMIT)
    assert "OutOfMemoryError: out of memory. Tried to allocate 100 MiB" in done.said
    step, oom = in_order(receiver)
    assert (oom.sidecar["reason"], oom.label, oom.sidecar["rank"]) == ("oom", "2", 0)
    trace = oom.content["device_traces"][0]
    assert trace[-1]["action"] == "oom" and trace[-1]["size"] == 100 << 20
    # No event is in two snapshots.
    assert "model" in stacks(step) and "model" not in stacks(oom) and "activations" in stacks(oom)


def test_it_is_on_the_disk_before_the_error_goes_on(train, receiver, tmp_path):
    body = f"""
    try:
        {RUN_OUT}
    except torch.OutOfMemoryError:
        print(os.listdir(next(os.scandir({str(tmp_path / "outbox/run")!r})).path), flush=True)
    os._exit(9)
    """
    nobody = "http://127.0.0.1:1"
    done = train(OOM.format(body=body), status=9, TIDEGAUGE_SERVER=nobody, **LIMIT)
    assert "rank0_step2_oom.json" in done.printed and "rank0_step2_oom.pickle.zst" in done.printed


def test_it_uses_no_device_and_resets_no_statistics(train):
    body = f"""
    before = list(torch.cuda.calls)
    try:
        {RUN_OUT}
    except torch.OutOfMemoryError:
        pass
    assert "synchronize" not in torch.cuda.calls and torch.cuda.allocator.n_resets == 0
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 12 << 20
    """
    train(OOM.format(body=body), **LIMIT)


def test_frameworks_that_try_again_get_one_snapshot_and_a_count(train, receiver):
    body = f"""
    for _ in range(10):
        try:
            {RUN_OUT}
        except torch.OutOfMemoryError:
            pass
    tidegauge.snapshot("after")
    """
    done = train(OOM.format(body=body), **LIMIT)
    assert reasons(receiver) == ["step", "oom", "after"]
    assert in_order(receiver)[-1].sidecar["agent"] == {"taken": 3, "failed": 0, "skipped": 0, "oom_skipped": 9}
    assert done.said.count("memory ran out again, without a snapshot") == 2
    assert "8 more times: memory ran out again" in done.said


def test_switched_off_it_takes_nothing(train, receiver):
    train(OOM.format(body=RUN_OUT), status=1, TIDEGAUGE_ALSO="none", **LIMIT)
    assert reasons(receiver) == ["step"]


def test_a_rank_that_is_not_chosen_shows_what_is_there_without_a_history(train, receiver):
    done = train(OOM.format(body=RUN_OUT), status=1, TIDEGAUGE_RANKS="0", RANK="3", **LIMIT)
    [oom] = receiver.snapshots
    assert (oom.sidecar["reason"], oom.sidecar["rank"], oom.sidecar["recording"]) == ("oom", 3, {"by": "nobody"})
    assert oom.content["device_traces"] == [[], []]
    assert sum(s["allocated_size"] for s in oom.content["segments"]) == 12 << 20
    assert "OutOfMemoryError" in done.said


def test_memory_that_runs_out_in_a_thread_is_taken_there(train, receiver):
    body = f"""
    import threading
    def work():
        {RUN_OUT}
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    """
    train(OOM.format(body=body), **LIMIT)
    assert reasons(receiver) == ["step", "oom"]


def test_without_an_observer_it_is_seen_when_nobody_catches_it(train, receiver):
    script = """
        import threading, torch, tidegauge
        tidegauge.start(steps="none")
        torch.xpu.alloc(8 << 20, "model")
        {body}
    """
    env = dict(DOUBLE_TORCH="2.11.0", DOUBLE_XPU="1", DOUBLE_CUDA="0", **LIMIT)
    body = "torch.xpu.alloc(100 << 20)"
    done = train(script.format(body=body), status=1, **env)
    assert reasons(receiver) == ["oom"] and "OutOfMemoryError" in done.said
    receiver.snapshots.clear()
    body = "thread = threading.Thread(target=torch.xpu.alloc, args=(100 << 20,)); thread.start(); thread.join()"
    done = train(script.format(body=body), **env)
    assert reasons(receiver) == ["oom"] and "OutOfMemoryError" in done.said
    receiver.snapshots.clear()
    # Other errors are none of its business unless chosen.
    train(script.format(body="1 / 0"), status=1, **env)
    assert reasons(receiver) == []


def test_an_observer_that_fails_does_not_take_the_errors_place(train, receiver, tmp_path):
    done = train(OOM.format(body=RUN_OUT), status=1, DOUBLE_SNAPSHOT_FAILS="1", **LIMIT)
    assert "OutOfMemoryError: out of memory" in done.said
    assert "no snapshot: RuntimeError: the device is lost" in done.said
    assert receiver.snapshots == []


def test_an_exception_nobody_caught_is_an_occasion_and_hooks_before_ours_are_called(train, receiver):
    script = """
        import sys, torch, tidegauge
        sys.excepthook = lambda kind, error, trace: print("theirs", kind.__name__)
        tidegauge.start(steps="none")
        torch.cuda.alloc(1 << 20)
        raise {error}
    """
    done = train(script.format(error="ValueError()"), status=1, TIDEGAUGE_ALSO="oom,exception")
    assert done.printed == "theirs ValueError\n"
    assert reasons(receiver) == ["exception"]
    train(script.format(error="SystemExit(4)"), status=4, TIDEGAUGE_ALSO="oom,exception")
    done = train(script.format(error="KeyboardInterrupt()"), status=-signal.SIGINT, TIDEGAUGE_ALSO="exception")
    assert reasons(receiver) == ["exception"]


def test_one_death_is_one_snapshot_though_it_is_seen_twice(train, receiver):
    train(OOM.format(body=RUN_OUT), status=1, TIDEGAUGE_ALSO="oom,exception,exit", **LIMIT)
    assert reasons(receiver) == ["step", "oom", "exit"]


def test_the_exit_is_an_occasion_of_its_own(train, receiver):
    body = "tidegauge.step(); tidegauge.step(); sys.exit(5)"
    train(OOM.format(body=body).replace("steps=[1]", "steps=[1], also=['oom', 'exit']"), status=5)
    assert [(s.label, s.sidecar["reason"]) for s in in_order(receiver)] == [("1", "step"), ("2-3", "exit")]


TERMINATED = """
    import os, signal, sys, time, torch, tidegauge
    {before}
    tidegauge.start(steps=[1])
    torch.cuda.alloc(8 << 20, "model")
    tidegauge.step()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)
    print("goes on")
"""


def test_sigterm_takes_a_snapshot_and_ends_as_it_would_have(train, receiver):
    done = train(TERMINATED.format(before=""), status=-signal.SIGTERM, TIDEGAUGE_ALSO="sigterm")
    assert done.printed == ""
    assert reasons(receiver) == ["step", "sigterm"]


def test_a_handler_that_was_there_decides_what_happens(train, receiver):
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    done = train(TERMINATED.format(before=before), status=3, TIDEGAUGE_ALSO="sigterm")
    assert done.printed == "" and reasons(receiver) == ["step", "sigterm"]
    receiver.snapshots.clear()
    before = "signal.signal(signal.SIGTERM, lambda number, frame: print('theirs', number, frame is not None))"
    done = train(TERMINATED.format(before=before), TIDEGAUGE_ALSO="sigterm")
    assert done.printed == f"theirs {signal.SIGTERM.value} True\ngoes on\n" and reasons(receiver) == ["step", "sigterm"]
    receiver.snapshots.clear()
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    done = train(TERMINATED.format(before=before), TIDEGAUGE_ALSO="sigterm")
    assert done.printed == "goes on\n" and reasons(receiver) == ["step"]
    assert "SIGTERM is not followed: it is ignored here" in done.said


def test_sigterm_amid_a_snapshot_waits_for_its_end(train, receiver):
    script = """
        import os, signal, sys, torch, tidegauge
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        tidegauge.start(steps=[1])
        torch.cuda.alloc(8 << 20)
        take = torch.cuda.memory._snapshot
        def snapshot():
            os.kill(os.getpid(), signal.SIGTERM)
            return take()
        torch.cuda.memory._snapshot = snapshot
        tidegauge.step()
        for _ in range(1000):
            pass
        print("never", flush=True)
    """
    done = train(script, status=3, TIDEGAUGE_ALSO="sigterm")
    assert done.printed == "" and reasons(receiver) == ["step", "sigterm"]


@pytest.mark.parametrize("also", ["oom", "oom,exception,exit"])
def test_sigterm_and_sigint_are_left_alone_unless_asked_for(train, also):
    train(
        """
        import signal, torch, tidegauge
        before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        tidegauge.start()
        torch.cuda.alloc(1 << 20)
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
        """,
        TIDEGAUGE_ALSO=also,
    )


def test_in_a_thread_python_sets_no_handlers_and_that_is_said(train):
    done = train(
        """
        import threading, torch, tidegauge
        thread = threading.Thread(target=tidegauge.start)
        thread.start(); thread.join()
        """,
        TIDEGAUGE_ALSO="sigterm",
    )
    assert "SIGTERM is not followed: start() was called in a thread" in done.said
