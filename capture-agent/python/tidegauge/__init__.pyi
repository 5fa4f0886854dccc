import os
from collections.abc import Iterable
from typing import Literal, SupportsIndex

__all__ = ["__version__", "own", "snapshot", "start", "step", "stop"]

__version__: str

def start(
    run: str | None = None,
    *,
    server: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    steps: Iterable[int | str | range] | str | None = None,
    ranks: Iterable[int | str | range] | str | None = None,
    window: Literal["since_previous", "step"] | None = None,
    growth: float | Literal["off"] | None = None,
    growth_pause: int | None = None,
    also: str | Iterable[Literal["oom", "exception", "sigterm", "exit"]] | None = None,
    samples: int | Literal["off"] | None = None,
    sample_ranks: Iterable[int | str | range] | str | None = None,
    stacks: Literal["python", "all"] | None = None,
    context: Literal["all", "alloc", "state"] | None = None,
    max_entries: int | None = None,
    way: Literal["auto", "native", "python"] | None = None,
    strip_paths: Iterable[str] | str | None = None,
    paths: Literal["keep", "hash", "drop"] | None = None,
    takeover: bool | None = None,
    max_capture_percent: int | None = None,
    role: str | None = None,
    rank: int | None = None,
    outbox: str | os.PathLike[str] | None = None,
    outbox_bytes: int | None = None,
    outbox_free: int | None = None,
    send: Literal["self", "sidecar"] | None = None,
    flush_secs: int | None = None,
    rate: int | None = None,
    ca: str | os.PathLike[str] | None = None,
    client_cert: str | os.PathLike[str] | None = None,
    client_key: str | os.PathLike[str] | None = None,
    insecure: bool | None = None,
    enabled: bool | None = None,
) -> None:
    """Begin to record the memory history of this process.

    Each setting can also come from the environment as ``TIDEGAUGE_`` and its name in capitals; the keyword wins.
    Without an accelerator, or without torch, this says so once and all functions do nothing. Call it as early as
    you like: recording begins when the device is first used, and never makes it be used.

    run: Name of the run. Default: what tracks or launches it calls it, or a name that the ranks agree on.
    server: Where snapshots go. Default: http://127.0.0.1:8642.
    token: The server's token.
    token_file: A file with the token instead, read again when the server does not know it any more.
    steps: At the ends of which steps: ``[1, 5, 10]``, ``range(0, 1000, 100)``, ``"all"``, ``"none"`` or parts such as
        ``"1,5,10-20,every:100,first:3"``. Default: 1, 5 and 10.
    ranks: On which ranks; others do not record at all: a list, a range or parts such as
        ``"0,8-15,node-first,sample:8"``. Default: ``"all"``.
    window: What a snapshot covers: all steps since the previous one (the default), or its step alone.
    growth: A factor, such as 1.2: a step whose peak is that much above the median of recent steps takes a snapshot.
        Default: off.
    growth_pause: At most one snapshot of growth in so many steps. Default: 100.
    also: On which occasions beside steps: ``"oom"``, ``"exception"``, ``"sigterm"``, ``"exit"``, or ``"none"``.
        Default: ``"oom"``.
    samples: At the ends of steps whose number this divides the allocator's counters are read and sent, which is cheap;
        at most once in ten milliseconds. 0 or "off" for none. Default: 1, every step.
    sample_ranks: On which ranks, also those that do not record. Default: ``"all"``.
    stacks: "python" (the default), or "all" to add C++ frames, which makes snapshots very slow to take.
    context: For which events stacks are kept. Default: "all".
    max_entries: The most events that are kept for one snapshot. Default: 100000.
    takeover: Record as chosen here even if somebody else records already. Default: look on.
    max_capture_percent: Recording is switched off when snapshots take more of the time than this. Default: 10.
    strip_paths: Beginnings that are left out of the paths in stacks, before anything leaves the process:
        ``["/home/me/", "/opt/venv/lib/"]``. Default: none.
    paths: What becomes of the rest of each path: it stays, a hash stands for it, or nothing does. Default: "keep".
    way: How snapshots are taken: "native" beside training, by PyTorch's own C++ function; "python" by ``_snapshot()``,
        which training waits for. "auto", the default, is native once a trial in a child process has shown that both
        give the same with this build of PyTorch; "native" waits for that trial before recording begins.
    role: What this process does in the run: "actor", "critic".
    rank: Global rank. Default: torch.distributed's, RANK, or the launcher's variable.
    outbox: Folder for snapshots that are not sent yet. Default: ~/.local/state/tidegauge/outbox.
    outbox_bytes: The most it holds. Default: 16 GiB.
    outbox_free: What it leaves free on its disk, bytes. Default: 1 GiB.
    send: Who sends: this process, or ``tidegauge agent`` beside it. Default: "self".
    flush_secs: The longest wait for the network at exit. Default: 5.
    rate: The most that is sent, bytes a second. Default: no limit.
    ca: Certificates (PEM) that vouch for the server instead of the well-known ones.
    client_cert: A certificate with its chain (PEM) that vouches for this process.
    client_key: Its key (PEM).
    insecure: Send over plain http to another machine.
    enabled: False to do nothing at all.
    """

def step(n: SupportsIndex | None = None) -> None:
    """Mark the end of step ``n``, or of the one after the last; the first is step 1.

    Events before the first call belong to the first step; ``step(0)`` before the loop parts them from it.
    """

def snapshot(reason: str | None = None) -> None:
    """Take a snapshot now, amid a step, named for its reason ("validation")."""

def own(*, model: object = None, optimizer: object = None) -> None:
    """Let snapshots say which memory belongs to ``model`` and ``optimizer``, by the names of their modules.

    Both are held by weak references. At each snapshot their parameters, gradients, buffers and optimizer state are
    asked where they lie; nothing is allocated or copied for it. Call it again for further ones.
    """

def stop() -> None:
    """End recording and send what is left, for as long as ``flush_secs`` allows. Called at exit by itself."""
