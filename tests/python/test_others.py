"""Somebody else records: the agent looks on, says so, and notices what becomes of the history."""

import json

ROUND = """
    import json, torch, tidegauge
    memory = torch.cuda.memory
    torch.cuda.init()
    {first}
    tidegauge.start(steps=[1, 2, 3])
    model = torch.cuda.alloc(3 << 20, "model")
    for n in range(1, 4):
        torch.cuda.free(torch.cuda.alloc(1 << 20, f"step {{n}}"), f"step {{n}}")
        {amid}
        tidegauge.step()
    tidegauge.stop()
    print(json.dumps([torch.cuda.calls, torch.cuda.allocator.is_recording, len(torch.cuda.allocator.trace)]))
"""
THEIRS = 'memory._record_memory_history("all", max_entries=1000); torch.cuda.alloc(2 << 20, "before")'


def ended(done):
    return json.loads(done.printed)


def stacks_from(snapshot, start):
    return [event["frames"][0]["name"] for event in snapshot.content["device_traces"][0][start:]]


def test_their_history_is_read_and_neither_cleared_nor_switched_off(train, receiver):
    done = train(ROUND.format(first=THEIRS, amid="pass"))
    calls, is_recording, _ = ended(done)
    assert len(calls) == 1 and is_recording
    assert "somebody else records already: looking on" in done.said
    assert receiver.labels() == ["1", "2", "3"]
    assert [s.sidecar["recording"] for s in receiver.snapshots] == [{"by": "somebody else"}] * 3


def test_where_each_window_starts_in_their_history_is_stated(train, receiver):
    train(ROUND.format(first=THEIRS, amid="pass"))
    first, second, third = receiver.snapshots
    assert "window_starts" not in first.sidecar
    assert set(stacks_from(first, 0)) == {"before", "model", "step 1"}
    # Each reading leaves its mark at the beginning of what comes after it.
    for snapshot, step in ((second, "step 2"), (third, "step 3")):
        start = snapshot.sidecar["window_starts"]["0"]
        assert list(dict.fromkeys(stacks_from(snapshot, start))) == ["snapshot", step]


def test_it_is_stated_also_where_events_have_no_time_and_every_step_is_the_same(train, receiver):
    script = """
        import torch, torch_npu, tidegauge
        npu = torch.npu
        npu.memory._record_memory_history("all", max_entries=1000)
        tidegauge.start(steps=[2, 4, 6])
        for n in range(1, 7):
            npu.free(npu.alloc(1 << 20, "step"), "step")
            tidegauge.step()
    """
    train(script)
    starts = [s.sidecar.get("window_starts", {}).get("0", 0) for s in receiver.snapshots]
    lengths = [len(s.content["device_traces"][0]) for s in receiver.snapshots]
    # What the reading before held, and no more.
    assert starts == [0, *lengths[:-1]]


def test_a_window_whose_beginning_their_ring_has_lost_is_said_to_be_torn(train, receiver):
    done = train(ROUND.format(first=THEIRS.replace("1000", "4"), amid="pass"))
    assert [s.sidecar.get("torn_windows") for s in receiver.snapshots] == [None, ["0"], ["0"]]
    assert done.said.count("events of this window may be missing") == 2 and "1 more time:" in done.said


def test_takeover_records_as_chosen_and_switches_off_at_the_end(train, receiver):
    done = train(ROUND.format(first=THEIRS, amid="pass"), TIDEGAUGE_TAKEOVER="1")
    calls, is_recording, _ = ended(done)
    # Ours began and cleared, cleared thrice, and ended.
    assert [call["max_entries"] for call in calls[1:6]] == [100_000] * 5 and calls[6]["enabled"] is None
    assert "before" not in stacks_from(receiver.snapshots[0], 0)
    assert not is_recording and "somebody else" not in done.said


def test_stop_disables_what_the_agent_enabled(train):
    calls, is_recording, _ = ended(train(ROUND.format(first="pass", amid="pass")))
    assert not is_recording and calls[-1]["enabled"] is None


def test_events_that_somebody_clears_are_counted_and_said_once(train, receiver):
    amid = 'torch.cuda.allocator.trace.clear()'
    done = train(ROUND.format(first="pass", amid=amid))
    assert done.said.count("events are missing: somebody else cleared the history") == 2
    assert "2 more times: at least" in done.said
    assert [s.sidecar["missing"]["0"]["events_at_least"] for s in receiver.snapshots] == [4, 3, 3]


def test_off_and_on_by_somebody_else_is_such_a_clear(train, receiver):
    amid = 'memory._record_memory_history(None); memory._record_memory_history("all", max_entries=1000)'
    train(ROUND.format(first="pass", amid=amid))
    assert receiver.snapshots[0].sidecar["missing"] == {"0": {"events_at_least": 4}}


def test_recording_that_somebody_switches_off_is_said_and_goes_on(train, receiver):
    amid = 'n == 2 and memory._record_memory_history(None)'
    done = train(ROUND.format(first="pass", amid=amid))
    assert done.said.count("somebody else switched recording off; it is on again from here") == 1
    assert "missing" in receiver.snapshots[1].sidecar
    assert stacks_from(receiver.snapshots[2], 0) == ["step 3"] * 3


def test_peaks_and_counts_of_the_program_survive(train):
    train(
        """
        import torch, tidegauge
        tidegauge.start(steps="all", growth=1.5)
        torch.cuda.free(torch.cuda.alloc(64 << 20))
        for n in range(20):
            torch.cuda.free(torch.cuda.alloc(1 << 20))
            tidegauge.step()
        tidegauge.stop()
        stats = torch.cuda.memory_stats()
        assert torch.cuda.allocator.n_resets == 0 and stats["allocated_bytes.all.peak"] == 64 << 20
        assert stats["allocation.all.allocated"] == 21
        """
    )


def test_a_full_ring_is_stated_with_what_it_pushed_out(train, receiver):
    train(
        """
        import torch, tidegauge
        tidegauge.start(steps=[1, 2], max_entries=30)
        for _ in range(20):
            torch.cuda.free(torch.cuda.alloc(1 << 20))
        tidegauge.step()
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
        """
    )
    # 60 events of allocations and frees, and a segment's, which is not counted.
    assert [s.sidecar.get("dropped") for s in receiver.snapshots] == [{"0": {"events_at_least": 30}}, None]
