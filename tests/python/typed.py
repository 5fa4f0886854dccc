"""Not run: looked at by a type checker, in test_stubs.py."""

import pathlib

import tidegauge

version: str = tidegauge.__version__

tidegauge.start()
tidegauge.start("gpt-small", server="http://127.0.0.1:8642", token="t", steps=[1, 5, 10], ranks="all")
tidegauge.start(run="gpt-small", steps=range(0, 1000, 100), ranks=["0", range(8, 16), "sample:8"])
tidegauge.start(steps="first:3,every:100", window="step", growth=1.2, growth_pause=50)
tidegauge.start(growth="off", stacks="all", context="alloc", max_entries=1_000_000)
tidegauge.start(strip_paths=["/home/me/"], paths="hash", outbox=pathlib.Path("/tmp/outbox"), outbox_bytes=1 << 30)
tidegauge.start(also=["oom", "exit"], takeover=True, max_capture_percent=20)
tidegauge.start(also="oom,sigterm")
tidegauge.start(role="actor", rank=3, flush_secs=10, insecure=False, enabled=True)

for n in range(3):
    tidegauge.step()
    tidegauge.step(n)
tidegauge.snapshot()
tidegauge.snapshot("validation")
tidegauge.own(model=object(), optimizer=object())
tidegauge.stop()

tidegauge.start(steps=1.5)  # type: ignore[arg-type]
tidegauge.start(window="wide")  # type: ignore[arg-type]
tidegauge.start(paths="secret")  # type: ignore[arg-type]
tidegauge.start(also=["sigint"])  # type: ignore[list-item]
tidegauge.own(object())  # type: ignore[call-arg]
tidegauge.start(stepz=[1])  # type: ignore[call-arg]
tidegauge.step("five")  # type: ignore[arg-type]
tidegauge.snapshot(5)  # type: ignore[arg-type]
