"""Processes that come from others: forked, spawned, started twice; locks that another thread held meanwhile."""

START = """
    import multiprocessing, os, signal, sys, threading, time, torch, tidegauge
    tidegauge.start(steps="all")
    torch.cuda.alloc(1 << 20)
"""


def test_children_of_multiprocessing_are_silent_though_they_inherit_the_rank(train, receiver):
    script = START + """
    def work():
        tidegauge.step(); tidegauge.snapshot("child"); tidegauge.stop()
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start(); process.join()
        assert process.exitcode == 0
    tidegauge.step()
    """
    done = train(script, RANK="0")
    assert receiver.labels() == ["1"] and done.said.count("tidegauge:") == 1


def test_a_child_of_multiprocessing_that_starts_sends_before_it_leaves(train, receiver, tmp_path):
    """Such children leave without Python's exit handlers, and training in them is how torch spawns ranks."""
    script = tmp_path / "ranks.py"
    script.write_text(
        "import multiprocessing, sys, torch, tidegauge\n"
        "def work(rank):\n"
        "    tidegauge.start(steps=[1], rank=rank)\n"
        "    torch.cuda.alloc(1 << 20)\n"
        "    tidegauge.step()\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context(sys.argv[1])\n"
        "    ranks = [context.Process(target=work, args=(rank,)) for rank in range(2)]\n"
        "    [rank.start() for rank in ranks]\n"
        "    [rank.join() for rank in ranks]\n"
        "    assert [rank.exitcode for rank in ranks] == [0, 0]\n"
    )
    for method in ("fork", "spawn"):
        train(f"import runpy, sys; sys.argv = ['x', '{method}']; runpy.run_path({str(script)!r}, run_name='__main__')"
              if method == "fork"
              else f"import subprocess, sys; subprocess.run([sys.executable, {str(script)!r}, 'spawn'], check=True)")
        assert sorted(s.sidecar["rank"] for s in receiver.snapshots) == [0, 1], method
        receiver.snapshots.clear()
        assert list((tmp_path / "outbox").iterdir()) == []


def test_a_fork_while_another_thread_is_amid_a_snapshot_hangs_nobody(train, receiver):
    """The child inherits locks that nobody will open: it stays silent, and may start a session of its own."""
    script = START + """
    take, is_inside, may_go_on = torch.cuda.memory._snapshot, threading.Event(), threading.Event()
    def snapshot():
        if os.getpid() == parent:
            is_inside.set()
            may_go_on.wait()
        return take()
    parent, torch.cuda.memory._snapshot = os.getpid(), snapshot
    thread = threading.Thread(target=tidegauge.step)
    thread.start()
    is_inside.wait()
    if (child := os.fork()) == 0:
        signal.alarm(60)
        tidegauge.step(); tidegauge.snapshot("silent"); tidegauge.stop()
        tidegauge.start(steps="all", role="child")
        tidegauge.step()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    may_go_on.set()
    thread.join()
    """
    train(script)
    assert sorted((s.sidecar.get("role", ""), s.label) for s in receiver.snapshots) == [("", "1"), ("child", "1")]


def test_grandchildren_may_start_too(train, receiver):
    script = START + """
    depth = 0
    while depth < 3 and os.fork() == 0:
        depth += 1
        tidegauge.start(steps="all", role=str(depth))
    tidegauge.step()
    if depth < 3:
        assert os.wait()[1] == 0
    """
    train(script)
    assert sorted(s.sidecar.get("role", "") for s in receiver.snapshots) == ["", "1", "2", "3"]


def test_a_forked_child_ends_when_told_to(train, receiver):
    script = START + """
    if (child := os.fork()) == 0:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        time.sleep(60)
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM
    tidegauge.step()
    """
    done = train(script, TIDEGAUGE_ALSO="sigterm")
    assert receiver.labels() == ["1"]


def test_parent_and_child_that_both_start_do_not_get_in_each_others_way(train, receiver, tmp_path):
    script = START + """
    if (child := os.fork()) == 0:
        tidegauge.start(steps="all", role="child")
        for _ in range(5):
            tidegauge.step()
        sys.exit(0)
    for _ in range(5):
        tidegauge.step()
    assert os.waitpid(child, 0)[1] == 0
    """
    train(script)
    per_role = {role: [] for role in ("", "child")}
    for snapshot in receiver.snapshots:
        per_role[snapshot.sidecar.get("role", "")].append(snapshot.label)
    assert per_role == {"": list("12345"), "child": list("12345")}
    assert list((tmp_path / "outbox").iterdir()) == []


def test_exit_in_the_middle_of_a_snapshot_still_writes_and_sends_it(train, receiver):
    script = START + """
    for _ in range(20_000):
        torch.cuda.free(torch.cuda.alloc(1 << 20))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    tidegauge.step()
    sys.exit(6)
    """
    train(script, status=6)
    assert len(receiver.snapshots[0].content["device_traces"][0]) > 50_000


def test_a_process_that_leaves_without_a_word_is_adopted_by_the_next(train, receiver, tmp_path):
    script = START + """
    tidegauge.step()
    while not list(__import__("pathlib").Path(os.environ["TIDEGAUGE_OUTBOX"]).glob("run/*/*.pickle.zst")):
        time.sleep(0.005)
    os._exit(8)
    """
    train(script, status=8, TIDEGAUGE_SERVER="http://127.0.0.1:1")
    assert receiver.snapshots == []
    train(START + "    tidegauge.step()\n", TIDEGAUGE_ROLE="next", TIDEGAUGE_FLUSH_SECS="30")
    assert sorted(s.sidecar.get("role", "") for s in receiver.snapshots) == ["", "next"]
    assert list((tmp_path / "outbox").iterdir()) == []


def test_what_is_called_while_the_interpreter_ends_does_nothing(train, receiver):
    script = START + """
    class Late:
        def __del__(self):
            import tidegauge
            tidegauge.step(); tidegauge.snapshot("late")
    sys.late = Late()
    tidegauge.step()
    """
    done = train(script)
    assert receiver.labels() == ["1"] and "Exception ignored" not in done.said
