"""Samples between snapshots: cheap, of every step and every rank, and never in training's way."""

import pytest

TRAIN = """
    import sys, time, torch, tidegauge
    tidegauge.start()
    torch.{device}.init()
    for step in range(1, 4):
        torch.{device}.alloc(step << 20)
        tidegauge.step()
        time.sleep(0.011)
    print("trained")
"""


def train_on(train, device="cuda", **env):
    script = TRAIN.format(device=device)
    return train(script if device == "cuda" else script.replace("torch,", "torch, torch_npu,"), **env)


def columns(receiver):
    """The columns of all batches, one after the other."""
    names = {name for batch in receiver.batches for name in batch["samples"]}
    return {name: [v for batch in receiver.batches for v in batch["samples"].get(name, [])] for name in names}


# cuda's counters come nested, npu's here as one flat dict.
@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_the_allocator_s_counters_are_sent_for_each_step(train, receiver, device):
    train_on(train, device, RANK="3", TIDEGAUGE_STEPS="none")
    batch = receiver.batches[-1]
    assert (batch["run"], batch["rank"], batch["n_dropped"], batch["n_lost"]) == ("run", 3, 0, 0)
    samples = columns(receiver)
    assert samples["step"] == [1, 2, 3]
    assert samples["device"] == [0, 0, 0]
    mib = [n / (1 << 20) for n in samples["allocated"]]
    assert mib == [1, 3, 6]
    assert samples["allocated_peak"] == samples["allocated"] == samples["requested"]
    assert all(reserved >= n for reserved, n in zip(samples["reserved"], samples["allocated"]))
    assert samples["n_ooms"] == [0, 0, 0]
    # The driver is asked once a second.
    assert samples["device_total"] == [64 << 30, None, None]
    assert samples["step_us"][0] is None and samples["step_us"][1] >= 10_000
    assert samples["at_us"] == sorted(samples["at_us"])


def test_a_rank_that_does_not_record_is_sampled(train, receiver):
    train_on(train, RANK="1", TIDEGAUGE_RANKS="0")
    assert receiver.snapshots == []
    assert columns(receiver)["step"] == [1, 2, 3]


@pytest.mark.parametrize("off", [{"TIDEGAUGE_SAMPLES": "0"}, {"TIDEGAUGE_SAMPLE_RANKS": "0"}])
def test_switched_off_there_is_no_sample_and_no_thread(train, receiver, off):
    script = TRAIN.format(device="cuda") + """
    import os
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    print([name for name in names if "sampl" in name])
    """
    assert "[]" in train(script, RANK="1", **off).printed
    assert receiver.batches == []
    assert receiver.labels() == ["1"]


def test_a_server_that_takes_none_costs_nothing_and_is_not_talked_about(train, receiver):
    receiver.status = 500
    done = train_on(train, TIDEGAUGE_STEPS="none", TIDEGAUGE_FLUSH_SECS="1")
    assert done.printed == "trained\n"
    assert "sample" not in done.said


def test_a_forked_child_sends_no_samples(train, receiver):
    train(
        """
        import os, torch, tidegauge
        tidegauge.start(steps="none")
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
        if os.fork() == 0:
            tidegauge.step()
            os._exit(0)
        os.wait()
        """
    )
    assert columns(receiver)["step"] == [1]


def test_counters_that_cannot_be_read_are_said_once_and_snapshots_go_on(train, receiver):
    script = TRAIN.format(device="cuda").replace(
        "tidegauge.start()", "torch.cuda.current_device = lambda: 1 / 0; tidegauge.start(steps='all')"
    )
    done = train(script)
    assert done.said.count("no samples are taken any more: ZeroDivisionError: division by zero") == 1
    assert receiver.batches == [] and len(receiver.snapshots) == 3


def test_a_snapshot_that_was_given_up_is_told_to_the_server(train, receiver):
    done = train_on(train, RANK="2", TIDEGAUGE_STEPS="1,3", TIDEGAUGE_OUTBOX_BYTES="10")
    assert receiver.snapshots == [] and "rank2_step3 is lost" in done.said
    lost = [lost for batch in receiver.batches for lost in batch.get("lost", [])]
    assert [(one["first_step"], one["last_step"]) for one in lost] == [(1, 1), (2, 3)]
    assert all("the outbox is full" in one["why"] for one in lost)
    assert receiver.batches[-1]["n_lost"] == 2 and receiver.batches[-1]["rank"] == 2
