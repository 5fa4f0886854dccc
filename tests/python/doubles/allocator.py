"""A caching allocator that keeps a memory history, as torch's does, without a device or torch.

One segment per size class; a freed block's segment is used again. What differs between cuda and npu is said when
it is made: whether events have a time, and whether a workspace shows up in snapshots.
"""

import os
import pathlib
import sys
import time

SEGMENT = 2 << 20


class OutOfMemoryError(RuntimeError):
    """torch's, which is a RuntimeError, too."""


class Waits:
    """An object whose pickling does not end, and says so by a file: whoever kills its process knows when."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        wait_for_ever(self.path)


def wait_for_ever(path):
    pathlib.Path(path).touch()
    while True:
        time.sleep(1)


class Allocator:
    def __init__(self, has_time, has_workspace):
        self.has_time = has_time
        self.has_workspace = has_workspace
        self.is_recording = False
        self.settings = None
        self.trace = []
        self.segments = []
        self.workspace = []
        self.counts = {"allocated": 0, "freed": 0}
        self.peaks = {}
        self.next_address = 0x7F0000000000
        self.limit = int(os.environ.get("DOUBLE_LIMIT", 1 << 60))
        self.observers = []
        self.n_resets = 0

    # What a program does

    def alloc(self, size, stack="train"):
        segment = next((s for s in self.segments if s["block"] is None and s["size"] >= size), None)
        if segment is None and self.levels()["reserved_bytes"] + size > self.limit:
            self.run_out(size, stack)
        if segment is None:
            segment = {"address": self.next_address, "size": -(-size // SEGMENT) * SEGMENT, "block": None}
            self.next_address += segment["size"]
            self.segments.append(segment)
            self.note("segment_alloc", segment["address"], segment["size"], stack)
        block = {"address": segment["address"], "size": -(-size // 512) * 512, "requested": size, "stack": stack}
        segment["block"] = block
        self.note("alloc", block["address"], block["size"], stack)
        self.counts["allocated"] += 1
        self.peaks = {key: max(self.peaks.get(key, 0), now) for key, now in self.levels().items()}
        return block["address"]

    def free(self, address, stack="train"):
        segment = next(s for s in self.segments if s["block"] and s["address"] == address)
        for action in ("free_requested", "free_completed"):
            self.note(action, address, segment["block"]["size"], stack)
        segment["block"] = None
        self.counts["freed"] += 1

    def run_out(self, size, stack):
        """Observers are called in the failing thread before the error is raised; one that raises replaces it."""
        free = self.limit - self.levels()["reserved_bytes"]
        self.note("oom", free, size, stack)
        for observer in self.observers:
            observer(0, size, self.limit - free, free)
        raise OutOfMemoryError(f"out of memory. Tried to allocate {size >> 20} MiB")

    def reset_peak(self):
        self.n_resets += 1
        self.peaks = {}

    def use_workspace(self, size):
        """Memory of operators, which the caching allocator does not know and a snapshot shows nevertheless."""
        self.workspace.append({"address": 0x7E0000000000 + len(self.workspace) * (64 << 20), "size": size})

    # What a recorder does

    def record(self, enabled, settings):
        """Any call empties the history; who calls decides whether to come here."""
        self.is_recording = enabled is not None
        self.settings = settings if self.is_recording else None
        self.trace.clear()

    def note(self, action, address, size, stack):
        if not self.is_recording:
            return
        event = {"action": action, "addr": address, "size": size, "stream": 0}
        if self.has_time:
            event["time_us"] = time.time_ns() // 1000
        # Without context there is no key at all.
        if self.settings["context"] is not None:
            event["frames"] = self.frames(stack)
        self.trace.append(event)
        del self.trace[: -self.settings["max_entries"] or sys.maxsize]

    def frames(self, stack):
        return [{"filename": "train.py", "line": 1, "name": stack}]

    def snapshot(self, n_devices):
        segments = [self.segment(s) for s in self.segments]
        trace = [dict(event) for event in self.trace]
        if self.has_workspace:
            for block in self.workspace:
                segments.append(
                    self.segment({**block, "block": {**block, "requested": block["size"], "stack": "workspace"}})
                )
                event = {"addr": block["address"], "size": block["size"], "stream": 0}
                trace[:0] = [{"action": a, **event} for a in ("workspace_snapshot", "segment_alloc", "alloc")]
        # This call's own mark is seen in the next snapshot only.
        self.note("snapshot", 0, sum(s["size"] for s in self.segments), "snapshot")
        snapshot = {"segments": segments, "device_traces": [trace] + [[] for _ in range(n_devices - 1)]}
        if path := os.environ.get("DOUBLE_PICKLING_WAITS"):
            snapshot["waits"] = Waits(path)
        return snapshot

    def segment(self, segment):
        block, size = segment["block"], segment["size"]
        blocks = []
        if block:
            frames = self.frames(block["stack"])
            blocks.append(
                {
                    "address": block["address"],
                    "size": block["size"],
                    "requested_size": block["requested"],
                    "state": "active_allocated",
                    "frames": frames,
                }
            )
        used = block["size"] if block else 0
        if used < size:
            free = {"address": segment["address"] + used, "size": size - used, "requested_size": 0}
            blocks.append({**free, "state": "inactive", "frames": []})
        return {
            "device": 0,
            "address": segment["address"],
            "total_size": size,
            "allocated_size": used,
            "active_size": used,
            "requested_size": block["requested"] if block else 0,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }

    def levels(self):
        blocks = [s["block"] for s in self.segments if s["block"]]
        used = sum(b["size"] for b in blocks)
        return {
            "requested_bytes": sum(b["requested"] for b in blocks),
            "allocated_bytes": used,
            "active_bytes": used,
            "reserved_bytes": sum(s["size"] for s in self.segments),
        }

    def memory_stats(self):
        stats = {f"{key}.all.current": now for key, now in self.levels().items()}
        stats.update({f"{key}.all.peak": peak for key, peak in self.peaks.items()})
        stats.update({f"allocation.all.{key}": n for key, n in self.counts.items()})
        stats["active.all.freed"] = self.counts["freed"]
        stats.update({"num_ooms": 0, "num_alloc_retries": 0})
        return stats
