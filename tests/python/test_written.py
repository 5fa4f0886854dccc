"""What `tidegauge export --to pickle` writes: the original, field by field, in opcodes that torch's own viewer reads."""

import json
import pathlib
import pickletools
import re
import subprocess
import sys

import pytest

from reference import load
from test_reading import FIXTURES, SNAPSHOTS, content

TIDEGAUGE = pathlib.Path(sys.executable).with_name("tidegauge")

# What the unpickler of memory_viz knows, as far as a pickle of protocol 4 needs it.
OPCODES = {
    "PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "TUPLE", "BINGET", "LONG_BINGET", "MEMOIZE",
    "SHORT_BINUNICODE", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE",
    "STOP",
}  # fmt: skip
# It spreads the items of one APPENDS over a call, which fails at some hundred thousand.
MOST_ITEMS = 1000


def exported(path, to, folder):
    out = folder / f"out.{to}"
    subprocess.run([TIDEGAUGE, "export", path, "--to", to, "-o", out], check=True, capture_output=True)
    return out.read_bytes()


def first_difference(a, b, where="snapshot"):
    """Where two values differ, or nothing; the order of keys counts."""
    if type(a) is not type(b):
        return f"{where}: {type(a).__name__} and {type(b).__name__}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: keys {list(a)} and {list(b)}"
        parts = ((a[key], b[key], f"{where}[{key!r}]") for key in a)
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} and {len(b)} items"
        parts = ((x, y, f"{where}[{at}]") for at, (x, y) in enumerate(zip(a, b)))
    else:
        return None if a == b else f"{where}: {a!r} and {b!r}"
    return next(filter(None, (first_difference(*part) for part in parts)), None)


# Of a run with many ranks, one is enough.
DIFFERENT = [path for path in SNAPSHOTS if not re.search(r"llama8b_fsdp8_rank[1-7]", path.name)]


@pytest.mark.parametrize("path", DIFFERENT, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_a_pickle_written_again_is_the_original(path, tmp_path):
    original = load(content(path))
    written = exported(path, "pickle", tmp_path)
    assert first_difference(original, load(written)) is None
    if len(written) < 300_000:
        as_lists = json.loads(json.dumps(original))
        assert first_difference(as_lists, json.loads(exported(path, "json", tmp_path))) is None


def test_it_uses_only_what_the_viewer_of_torch_reads(tmp_path):
    written = exported(FIXTURES / "settings_default.pickle", "pickle", tmp_path)
    opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(written)]
    assert {name for name, _ in opcodes} <= OPCODES
    assert opcodes[0] == ("PROTO", 4)
    # Items of the longest list go in in parts: at least one APPENDS for each thousand events.
    n_events = len(load(written)["device_traces"][0])
    assert n_events > 2 * MOST_ITEMS
    assert sum(name == "APPENDS" for name, _ in opcodes) > n_events // MOST_ITEMS


ODD = {
    "ints": [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**127, 2**300],
    "negative": [-1, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1, -(2**127), -(2**300)],
    "floats": [0.0, -0.5, 1e300, float("inf")],
    "texts": ["", "é", "x" * 255, "x" * 256, "x" * 70_000, "\ud800 alone", "a\0b"],
    "plain": [None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, [[]], [{}]],
    "strange": [b"bytes", {1, 2}, 1j, range(3)],
    "long": list(range(2500)),
    "wide": {str(n): n for n in range(2500)},
    "frames": [{"name": "f", "filename": "a.py", "line": 1}] * 3,
}


def test_whatever_a_snapshot_holds_arrives_as_it_is(train, receiver):
    train(
        f"""
        import torch, tidegauge
        inf = float("inf")
        take = torch.cuda.memory._snapshot
        torch.cuda.memory._snapshot = lambda device=None: {{**take(), "odd": {ODD!r}}}
        tidegauge.start(steps=[1])
        torch.cuda.alloc(1 << 20)
        tidegauge.step()
        """
    )
    [snapshot] = receiver.snapshots
    assert snapshot.content["odd"] == ODD
    assert snapshot.protocol == 4
