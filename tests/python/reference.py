"""What a snapshot says, worked out in Python: slowly, plainly, sharing nothing with the Rust reader."""

import bisect
import io
import pickle

ROUND = 512
SMALL = 1 << 20
EVERYWHERE = (0, 1 << 70)


class Refusing(pickle.Unpickler):
    """CPython's own unpickler, which runs nothing."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} is refused")


def load(content):
    return Refusing(io.BytesIO(content)).load()


class Rules:
    """How a request becomes a block, from the settings in the file."""

    def __init__(self, snapshot):
        settings = snapshot.get("allocator_settings") or {}
        divisions = settings.get("roundup_power2_divisions") or {}
        self.divisions = [divisions.get(str(1 << power), 0) for power in range(16)]
        limit = settings.get("max_split_size", -1)
        self.limit = limit if limit >= 0 else 1 << 70
        self.expandable = settings.get("expandable_segments") is True

    def round(self, requested):
        if requested < ROUND:
            return ROUND
        power = requested.bit_length() - 1
        divisions = self.divisions[min(max(power - 20, 0), 15)]
        if divisions > 1 and requested > ROUND * divisions:
            step = (1 << power) >> (divisions.bit_length() - 1)
            return -(-requested // step) * step if requested != 1 << power else requested
        return -(-requested // ROUND) * ROUND

    def splits(self, size, rest, in_expandable):
        if size <= SMALL or in_expandable or self.expandable:
            return rest >= ROUND
        return size < self.limit and rest > SMALL


class Ranges:
    """Free ranges, none touching another inside the same limits."""

    def __init__(self):
        self.starts = []
        self.ends = {}

    def add(self, start, end, limits):
        low, high = limits
        at = bisect.bisect_left(self.starts, start)
        if at < len(self.starts) and self.starts[at] == end < high:
            end = self.pop(end)
        if at > 0 and self.starts[at - 1] >= low and self.ends[self.starts[at - 1]] == start:
            start = self.starts[at - 1]
            self.pop(start)
        bisect.insort(self.starts, start)
        self.ends[start] = end

    def pop(self, start):
        del self.starts[bisect.bisect_left(self.starts, start)]
        return self.ends.pop(start)

    def covering(self, address):
        at = bisect.bisect_right(self.starts, address) - 1
        return self.starts[at] if at >= 0 and self.ends[self.starts[at]] > address else None


class Replay:
    """The levels of one device: `states[k]` is (requested, allocated, active, reserved) after k events.

    `open_bytes` bounds how far allocated and active may be off: blocks older than the trace and freed in it,
    whose real size the file does not tell. `odd` counts what does not fit together.
    """

    def __init__(self, snapshot, device):
        self.rules = Rules(snapshot)
        traces = snapshot.get("device_traces") or []
        self.events = traces[device] if device < len(traces) else []
        self.segments = [one for one in snapshot["segments"] if one["device"] == device]
        self.open_bytes = self.odd = 0
        self.head()
        self.place()
        self.states = [self.levels()]
        for event in self.events:
            getattr(self, event["action"], self.nothing)(event.get("addr", 0), event["size"])
            self.states.append(self.levels())

    def levels(self):
        return self.requested, self.allocated, self.active, self.reserved

    def head(self):
        """Backward from the segments: what was there before the first event."""
        self.plain, self.mapped, self.blocks = {}, [], {}
        for segment in self.segments:
            start, size = segment["address"], segment["total_size"]
            if segment.get("is_expandable"):
                self.map_before(start, size)
            else:
                self.plain[start] = size
            address = start
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    is_allocated = block["state"] == "active_allocated"
                    self.blocks[address] = [block["size"], block["requested_size"], is_allocated]
                address += block["size"]
        for event in reversed(self.events):
            action, address, size = event["action"], event.get("addr", 0), event["size"]
            if action == "alloc":
                self.blocks.pop(address, None)
            elif action == "free_completed":
                self.blocks[address] = [None, size, False]
            elif action == "free_requested" and address in self.blocks:
                self.blocks[address][2] = True
            elif action == "segment_alloc":
                self.plain.pop(address, None)
            elif action == "segment_free":
                self.plain[address] = size
            elif action == "segment_map":
                self.unmap_before(address, size)
            elif action == "segment_unmap":
                self.map_before(address, size)

    def map_before(self, start, size):
        ranges = sorted([*self.mapped, (start, start + size)])
        self.mapped = []
        for start, end in ranges:
            if self.mapped and self.mapped[-1][1] >= start:
                self.mapped[-1] = (self.mapped[-1][0], max(end, self.mapped[-1][1]))
            else:
                self.mapped.append((start, end))

    def unmap_before(self, start, size):
        end = start + size
        parts = [((a, min(b, start)), (max(a, end), b)) for a, b in self.mapped]
        self.mapped = [(a, b) for pair in parts for a, b in pair if a < b]

    def place(self):
        """Puts the blocks of the head into the segments of the head; what is between them is free."""
        self.free = Ranges()
        areas = [(start, start + size, False) for start, size in self.plain.items()]
        areas += [(start, end, True) for start, end in self.mapped]
        self.starts = sorted(self.plain)
        addresses = sorted(self.blocks)
        for start, end, is_expandable in areas:
            limits = EVERYWHERE if is_expandable else (start, end)
            inside = addresses[bisect.bisect_left(addresses, start) : bisect.bisect_left(addresses, end)]
            at = start
            for address, after in zip(inside, [*inside[1:], end]):
                block = self.blocks[address]
                if block[0] is None:
                    block[0] = self.rules.round(block[1])
                    gap = after - address - block[0]
                    if not is_expandable and block[0] > SMALL and gap > 0:
                        # A limit to splitting hands out whole segments.
                        self.open_bytes += gap if block[0] >= self.rules.limit else min(gap, SMALL)
                if at < address:
                    self.free.add(at, address, limits)
                at = address + block[0]
            if at < end:
                self.free.add(at, end, limits)
        self.requested = sum(block[1] for block in self.blocks.values())
        self.allocated = sum(block[0] for block in self.blocks.values() if block[2])
        self.active = sum(block[0] for block in self.blocks.values())
        self.reserved = sum(end - start for start, end, _ in areas)

    def limits(self, address):
        at = bisect.bisect_right(self.starts, address) - 1
        if at >= 0 and address < self.starts[at] + self.plain[self.starts[at]]:
            return self.starts[at], self.starts[at] + self.plain[self.starts[at]]
        return EVERYWHERE

    def nothing(self, address, size):
        pass

    def alloc(self, address, requested):
        limits, start = self.limits(address), self.free.covering(address)
        size = self.rules.round(requested)
        if start is None:
            self.odd += 1
        else:
            end = self.free.pop(start)
            if start < address:
                self.odd += 1
                self.free.add(start, address, limits)
            if not self.rules.splits(size, end - address - size, limits == EVERYWHERE):
                size = end - address
            if address + size < end:
                self.free.add(address + size, end, limits)
        self.blocks[address] = [size, requested, True]
        self.requested += requested
        self.allocated += size
        self.active += size

    def free_requested(self, address, requested):
        block = self.blocks[address]
        block[2] = False
        self.allocated -= block[0]

    def free_completed(self, address, requested):
        size, requested, _ = self.blocks.pop(address)
        self.requested -= requested
        self.active -= size
        self.free.add(address, address + size, self.limits(address))

    def segment_alloc(self, address, size):
        self.plain[address] = size
        bisect.insort(self.starts, address)
        self.free.add(address, address + size, (address, address + size))
        self.reserved += size

    def segment_free(self, address, size):
        self.free.pop(address)
        del self.plain[address]
        self.starts.remove(address)
        self.reserved -= size

    def segment_map(self, address, size):
        self.free.add(address, address + size, EVERYWHERE)
        self.reserved += size

    def segment_unmap(self, address, size):
        start = self.free.covering(address)
        end = self.free.pop(start)
        for part in ((start, address), (address + size, end)):
            if part[0] < part[1]:
                self.free.add(*part, EVERYWHERE)
        self.reserved -= size
