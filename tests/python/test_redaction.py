"""Paths that must not leave the machine."""

import pytest

TRAIN = """
    import torch, tidegauge
    tidegauge.start(steps=[1], {setting})
    torch.cuda.alloc(1 << 20)
    tidegauge.step()
"""


@pytest.mark.parametrize(
    ("setting", "filename", "said"),
    [
        ('strip_paths=["tra", "tr"]', "in.py", "2 prefixes stripped"),
        ('paths="drop"', "<dropped>", "paths dropped"),
        ('paths="hash"', "path-", "paths hashed"),
        ('paths="keep"', "train.py", None),
    ],
)
def test_paths_in_stacks_are_redacted_as_was_asked(train, receiver, setting, filename, said):
    train(TRAIN.format(setting=setting))
    [snapshot] = receiver.snapshots
    frames = [frame for event in snapshot.content["device_traces"][0] for frame in event["frames"]]
    frames += [frame for segment in snapshot.content["segments"] for block in segment["blocks"] for frame in block["frames"]]
    assert frames
    assert all(frame["filename"].startswith(filename) and frame["name"] == "train" for frame in frames)
    assert snapshot.sidecar.get("redaction") == said
