"""What is in a snapshot, said in few words: for comparing what torch returned with what the server has.

usage: witness.py FILE…    prints the same for pickles, and how many events are in more than one of them
       witness.py --of WHOLE FILE…    says whether the files' events, one file after the other, are the first of WHOLE's
"""

import collections
import hashlib
import json
import os
import pickle
import sys


def events(snapshot):
    for device, trace in enumerate(snapshot["device_traces"]):
        for event in trace:
            yield device, event


def described(snapshot):
    """Number of events, allocations among them, and a digest of all events with all their fields."""
    digest, texts = hashlib.sha256(), {}
    n_events = n_allocations = 0
    for device, event in events(snapshot):
        n_events += 1
        n_allocations += event["action"] == "alloc"
        for name in sorted(event):
            value = event[name]
            if name == "frames":
                # Events share their stacks: each is spelled once.
                text = texts.get(id(value)) or texts.setdefault(id(value), repr([sorted(f.items()) for f in value]))
            else:
                text = repr(value)
            digest.update(f"{device} {name} {text}\n".encode())
    segments = repr([sorted((k, repr(v)) for k, v in s.items()) for s in snapshot["segments"]])
    digest.update(segments.encode())
    return {"events": n_events, "allocations": n_allocations, "digest": digest.hexdigest()}


def allocations_so_far(witness, step):
    """Tells a witness how many allocations there were by then."""
    import torch

    n = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
    testify(witness, {"step": step, "allocations_so_far": n})


def testify(witness, what):
    """Tells this rank's witness something; `witness` is that of rank 0."""
    witness = witness.replace("-0.jsonl", f"-{os.environ.get('RANK', '0')}.jsonl")
    with open(witness, "a") as file:
        print(json.dumps(what), file=file)


# Torch measures its clock anew for each snapshot; the same event may be a microsecond off.
MAX_TIME_DIFFERENCE_US = 1000


def load(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def same(one, other):
    names = (set(one) | set(other)) - {"time_us"}
    is_same_time = abs(one.get("time_us", 0) - other.get("time_us", 0)) <= MAX_TIME_DIFFERENCE_US
    return is_same_time and all(one.get(name) == other.get(name) for name in names)


def windows_of(whole, paths):
    """Of each device: events of the windows and of the whole, and where the first difference is."""
    traces = [[event for path in paths for event in load(path)["device_traces"][device]]
              for device in range(len(whole["device_traces"]))]
    for trace, all_events in zip(traces, whole["device_traces"]):
        differs = next((n for n, pair in enumerate(zip(trace, all_events)) if not same(*pair)), None)
        yield {"events": len(trace), "of": len(all_events), "differs": differs}


def main():
    if sys.argv[1] == "--of":
        print(json.dumps(list(windows_of(load(sys.argv[2]), sys.argv[3:]))))
        return
    snapshots = []
    for path in sys.argv[1:]:
        snapshots.append(load(path))
    for snapshot in snapshots:
        print(json.dumps(described(snapshot)))
    seen = collections.Counter()
    for snapshot in snapshots:
        seen.update({(d, e.get("time_us"), e["action"], e.get("addr"), e["size"]) for d, e in events(snapshot)})
    print(json.dumps({"in_two": sum(n > 1 for n in seen.values())}))


if __name__ == "__main__":
    main()
