"""What a sidecar says beside the snapshot: devices, environment, and whose memory it is."""

import json

TENSORS = """
    import gc, json, sys, torch, tidegauge

    class Device:
        def __init__(self, kind, index=0):
            self.type, self.index = kind, index

    class Tensor:
        # Asked for its bytes it would fail: only its place may be looked at.
        grad = None
        def __init__(self, address, size, offset=0, kind="cuda"):
            self.address, self.size, self.offset, self.device = address, size, offset, Device(kind)
        def const_data_ptr(self): return self.address + self.offset
        def data_ptr(self): raise AssertionError("it would copy")
        def storage_offset(self): return self.offset // 4
        def element_size(self): return 4
        def untyped_storage(self): return self
        def nbytes(self): return self.size

    class Sharded:
        grad = None
        def __init__(self, local): self._local_tensor = local
        def __getattr__(self, name): raise AssertionError(f"{name} of a sharded tensor gathers it")

    class Model:
        def __init__(self, parameters, buffers=()):
            self.parameters, self.buffers = dict(parameters), dict(buffers)
        def named_parameters(self): yield from self.parameters.items()
        def named_buffers(self): yield from self.buffers.items()

    class Optimizer:
        def __init__(self, state): self.state = state

    def owned():
        tidegauge.snapshot("now")

    tidegauge.start(steps="none")
    torch.cuda.alloc(1 << 20)
"""


def ownership(receiver, n=-1):
    return receiver.snapshots[n].sidecar["ownership"]


def test_parameters_gradients_optimizer_state_and_buffers_are_named_largest_first(train, receiver):
    script = TENSORS + """
    weight, bias, cpu = Tensor(1000, 400, offset=8), Sharded(Tensor(2000, 40)), Tensor(9000, 9, kind="cpu")
    weight.grad = Tensor(3000, 200)
    tied = Tensor(1000, 400)
    model = Model({"layer.weight": weight, "layer.bias": bias, "head.weight": tied, "cpu": cpu}, {"mean": Tensor(4000, 4)})
    optimizer = Optimizer({weight: {"step": 3, "exp_avg": Tensor(5000, 401)}, bias: {"exp_avg": Tensor(6000, 41)}})
    tidegauge.own(model=model, optimizer=optimizer)
    tidegauge.own(model=model)
    tidegauge.snapshot("now")
    """
    done = train(script)
    assert ownership(receiver) == {
        "columns": ["kind", "name", "device", "address", "bytes"],
        "owned": [
            ["optimizer", "layer.weight.exp_avg", 0, 5000, 401],
            ["parameter", "layer.weight", 0, 1000, 400],
            ["gradient", "layer.weight", 0, 3000, 200],
            ["optimizer", "layer.bias.exp_avg", 0, 6000, 41],
            ["parameter", "layer.bias", 0, 2000, 40],
            ["buffer", "mean", 0, 4000, 4],
        ],
        "left_out": 0,
        "left_out_bytes": 0,
    }
    assert done.said.count("tidegauge:") == 1


def test_more_than_a_sidecar_holds_is_left_out_and_counted(train, receiver):
    script = TENSORS + """
    model = Model({f"p{n}": Tensor(n * 100, n) for n in range(1, 1501)})
    tidegauge.own(model=model)
    tidegauge.snapshot("now")
    """
    train(script)
    told = ownership(receiver)
    assert len(told["owned"]) == 1000 and told["owned"][0] == ["parameter", "p1500", 0, 150_000, 1500]
    assert receiver.snapshots[-1].sidecar["capture_ms"]["ownership"] > 0
    assert (told["left_out"], told["left_out_bytes"]) == (500, sum(range(1, 501)))


def test_long_names_leave_room_for_the_rest_of_the_sidecar(train, receiver):
    script = TENSORS + """
    model = Model({"layer." * 40 + str(n): Tensor(n * 100, n) for n in range(1, 1001)})
    tidegauge.own(model=model)
    tidegauge.snapshot("now")
    """
    train(script)
    told = ownership(receiver)
    assert 300 < len(told["owned"]) < 500 and told["left_out"] == 1000 - len(told["owned"])
    assert len(json.dumps(told)) < 100 * 1024 and "left_out" not in receiver.snapshots[-1].sidecar


def test_nothing_lives_longer_because_it_is_watched(train, receiver):
    script = TENSORS + """
    import weakref
    model = Model({"p": Tensor(100, 1)})
    gone = weakref.ref(model)
    tidegauge.own(model=model)
    del model
    assert gone() is None
    tidegauge.snapshot("now")
    """
    train(script)
    assert "ownership" not in receiver.snapshots[-1].sidecar


def test_what_cannot_be_watched_or_fails_is_said_and_not_raised(train, receiver):
    script = TENSORS + """
    tidegauge.own(model=3)
    tidegauge.own(model=Device("cuda"))
    class Broken(Model):
        def named_parameters(self): raise RuntimeError("no")
    broken = Broken({})
    tidegauge.own(model=broken, optimizer=None)
    tidegauge.snapshot("now")
    """
    done = train(script)
    assert "own(): TypeError: cannot create weak reference to 'int' object; it is ignored" in done.said
    assert ownership(receiver)["owned"] == []


def test_devices_are_named_with_what_is_neither_free_nor_torchs(train, receiver):
    train(TENSORS + "    tidegauge.snapshot()\n")
    assert receiver.snapshots[0].sidecar["devices"] == {
        "0": {
            "name": "Double cuda",
            "uuid": "00000000-0000-0000-cuda",
            "total_bytes": 64 << 30,
            "free_bytes": 60 << 30,
            "outside_bytes": (4 << 30) - (2 << 20),
        }
    }


def test_of_the_environment_only_what_changes_memory_leaves_the_process(train, receiver):
    train(
        TENSORS + "    tidegauge.snapshot()\n",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
        CUDA_VISIBLE_DEVICES="3",
        WANDB_API_KEY="secret",
        # No text at all.
        PYTORCH_ALLOC_CONF=b"\xff",
        ANY=b"\xfe",
        TIDEGAUGE_TOKEN="secret",
    )
    sidecar = receiver.snapshots[0].sidecar
    assert sidecar["environment"] == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUDA_VISIBLE_DEVICES": "3"}
    assert "secret" not in json.dumps(sidecar)


def test_lines_go_to_logging_where_the_program_has_set_it_up(train, receiver):
    script = """
        import logging, torch, tidegauge
        {setup}
        tidegauge.start(steps="none")
        torch.cuda.alloc(1 << 20)
        tidegauge.start()
    """
    setup = 'logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level="INFO")'
    done = train(script.format(setup=setup))
    assert done.said.splitlines() == [
        f"INFO tidegauge: recording run run, steps none, to {receiver.address}",
        "WARNING tidegauge: start() again is ignored: it records already",
    ]
    done = train(script.format(setup="logging.getLogger('tidegauge').addFilter(lambda _: 1 / 0)"))
    assert "tidegauge: recording run run" in done.said and "ZeroDivisionError" not in done.said
