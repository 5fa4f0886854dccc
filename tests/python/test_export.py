"""What `tidegauge export` writes, opened by the programs that it is written for."""

import gzip
import json
import pathlib
import pickle
import subprocess
import sys

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

TIDEGAUGE = pathlib.Path(sys.executable).with_name("tidegauge")
FIXTURES = pathlib.Path(__file__).parents[2] / "snapshot" / "fixtures"
# Two devices, several streams, pending frees.
SNAPSHOT = FIXTURES / "streams_2dev_lag40.pickle"
TABLES = ["allocations", "events", "levels", "segments", "blocks", "stacks", "frames", "annotations"]

TEXT = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
TIME = pyarrow.timestamp("us", tz="UTC")


class Exporter:
    """Exports into a folder, each file once."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, to, table=None, *more, snapshot=SNAPSHOT):
        path = self.folder / f"{'-'.join(filter(None, [snapshot.stem, table, *more]))}.{to}"
        if not path.exists():
            table = ["--table", table] if table else []
            subprocess.run([TIDEGAUGE, "export", snapshot, "--to", to, *table, *more, "-o", path], check=True)
        return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return Exporter(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def original():
    return pickle.loads(SNAPSHOT.read_bytes())


def inspected(snapshot=SNAPSHOT):
    shown = subprocess.run([TIDEGAUGE, "inspect", "--json", snapshot], check=True, capture_output=True)
    return json.loads(shown.stdout)


def listed(value):
    """A value with lists for tuples, as JSON has it."""
    if isinstance(value, dict):
        return {key: listed(value) for key, value in value.items()}
    return [listed(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", ["streams_2dev_lag40", "pools_graphs_mempool", "oom_expandable_2gib"])
def test_a_pickle_and_json_have_every_field_of_the_original(exported, name):
    snapshot = FIXTURES / f"{name}.pickle"
    original = pickle.loads(snapshot.read_bytes())
    assert pickle.loads(exported("pickle", snapshot=snapshot).read_bytes()) == original
    assert json.loads(exported("json", snapshot=snapshot).read_bytes()) == listed(original)


def test_events_are_those_of_the_pickle_to_the_last_bit(exported, original):
    table = pyarrow.parquet.read_table(exported("parquet", "events"))
    events = [event for trace in original["device_traces"] for event in trace]
    assert table["action"].to_pylist() == [event["action"] for event in events]
    assert table["address"].to_pylist() == [event["addr"] for event in events]
    assert table["size_bytes"].to_pylist() == [event["size"] for event in events]
    assert table["stream"].to_pylist() == [event["stream"] for event in events]
    assert table["time"].cast(pyarrow.int64()).to_pylist() == [event["time_us"] for event in events]
    assert table["event"].to_pylist() == [n for trace in original["device_traces"] for n in range(len(trace))]


def test_types_need_no_explanation(exported):
    schema = pyarrow.parquet.read_schema(exported("parquet", "allocations"))
    types = {name: schema.field(name).type for name in schema.names}
    assert types["address"] == pyarrow.uint64()
    assert types["size_bytes"] == types["from_event"] == types["device"] == pyarrow.int64()
    assert types["is_older_than_trace"] == pyarrow.bool_()
    assert types["from_time"] == TIME
    assert types["pool"] == types["site"] == types["stack"] == TEXT


@pytest.mark.parametrize("table", TABLES)
def test_parquet_and_arrow_hold_the_same(exported, table):
    parquet = pyarrow.parquet.read_table(exported("parquet", table))
    arrow = pyarrow.feather.read_table(exported("arrow", table))
    arrow.validate(full=True)
    assert parquet.schema.equals(arrow.schema)
    decoded = lambda table: table.select(table.schema.names).to_pylist()
    assert decoded(parquet) == decoded(arrow)


@pytest.mark.parametrize("table", TABLES)
def test_csv_holds_the_same(exported, table):
    parquet = pyarrow.parquet.read_table(exported("parquet", table))
    texts = {field.name: pyarrow.string() for field in parquet.schema if field.type == TEXT}
    types = {field.name: field.type for field in parquet.schema if field.type != TEXT} | texts
    csv = pyarrow.csv.read_csv(
        exported("csv", table),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types, null_values=[""], quoted_strings_can_be_null=False, strings_can_be_null=True
        ),
    )
    left_out = set() if table == "stacks" else {"stack"}
    assert csv.schema.names == [name for name in parquet.schema.names if name not in left_out]
    for name in csv.schema.names:
        assert csv[name].to_pylist() == parquet[name].to_pylist(), name


def test_pandas_knows_the_columns(exported):
    allocations = pandas.read_parquet(exported("parquet", "allocations"))
    assert str(allocations["address"].dtype) == "uint64"
    assert str(allocations["size_bytes"].dtype) == "int64"
    assert str(allocations["stack"].dtype) == "category"
    assert str(allocations["from_time"].dt.tz) == "UTC"
    waste = allocations["requested_bytes"] - allocations["size_bytes"]
    assert str(waste.dtype) == "int64" and waste.max() <= 0
    blocks = pandas.read_feather(exported("arrow", "blocks"))
    for device in inspected()["devices"]:
        of_device = blocks[blocks["device"] == device["device"]]
        assert of_device["size_bytes"].sum() == device["reserved"]["end"]
        in_use = of_device[of_device["state"] == "active_allocated"]
        assert in_use["size_bytes"].sum() == device["allocated"]["end"]


def test_duckdb_sums_up_the_peak_by_stack(exported):
    allocations, levels = exported("parquet", "allocations"), exported("parquet", "levels")
    for device in inspected()["devices"]:
        alive = f"""
            from '{allocations}' where device = {device["device"]}
            and coalesce(from_event, -1) <= {device["peak_event"]}
            and coalesce(free_requested_event, 1e18) > {device["peak_event"]}
        """
        peak = device["allocated"]["peak"]
        assert duckdb.sql(f"select sum(size_bytes) {alive}").fetchall() == [(peak,)]
        by_stack = duckdb.sql(f"select stack, sum(size_bytes) s {alive} group by stack order by s desc").fetchall()
        assert sum(size for _, size in by_stack) == peak and len(by_stack) > 1
        highest = f"select max(allocated_bytes), max(reserved_bytes) from '{levels}' where device = {device['device']}"
        assert duckdb.sql(highest).fetchall() == [(peak, device["reserved"]["peak"])]


def test_duckdb_guesses_the_types_of_csv(exported):
    described = duckdb.sql(f"describe select * from read_csv('{exported('csv', 'levels')}')").fetchall()
    types = {name: kind for name, kind, *_ in described}
    assert types["allocated_bytes"] == "BIGINT"
    assert types["time"] == "TIMESTAMP WITH TIME ZONE"


def test_polars_knows_the_columns(exported):
    levels = polars.read_ipc(exported("arrow", "levels"))
    assert levels.schema["allocated_bytes"] == polars.Int64
    assert levels.schema["time"] == polars.Datetime("us", "UTC")
    events = polars.read_parquet(exported("parquet", "events"))
    assert events.schema["address"] == polars.UInt64
    assert events.schema["action"] in (polars.Categorical, polars.Enum, polars.String)
    counts = dict(events.group_by(polars.col("action").cast(polars.String)).len().iter_rows())
    expected = {}
    for device in inspected()["devices"]:
        for action, count in device["actions"].items():
            expected[action] = expected.get(action, 0) + count
    assert counts == expected


def test_addresses_beyond_a_float_survive_every_reader(tmp_path):
    address = 2**63 + 512
    event = {"action": "alloc", "addr": address, "size": 512, "stream": 0, "time_us": 1_700_000_000_000_001}
    block = {"address": address, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}
    segment = {
        "device": 0,
        "address": address,
        "total_size": 512,
        "allocated_size": 512,
        "active_size": 512,
        "requested_size": 512,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": [block],
    }
    oom = {"action": "oom", "device_free": 7, "size": 1 << 30, "stream": 0, "time_us": 1_700_000_000_000_002}
    mapped = event | {"action": "segment_map"}
    snapshot = tmp_path / "far.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[mapped, event, oom]]}))
    export = Exporter(tmp_path)
    expected = [address, address, 0]
    parquet = export("parquet", "events", snapshot=snapshot)
    assert pandas.read_parquet(parquet)["address"].tolist() == expected
    assert [row[0] for row in duckdb.sql(f"select address from '{parquet}' order by event").fetchall()] == expected
    assert polars.read_parquet(parquet)["address"].to_list() == expected
    assert pandas.read_csv(export("csv", "events", snapshot=snapshot))["address"].tolist() == expected
    assert pandas.read_feather(export("arrow", "allocations", snapshot=snapshot))["address"].tolist() == [address]


def varint(data, at):
    number, shift = 0, 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(data):
    """The fields of a message of Protocol Buffers, as pairs of number and value."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found.append((key >> 3, value))
    return found


def packed(data):
    at, numbers = 0, []
    while at < len(data):
        number, at = varint(data, at)
        numbers.append(number)
    return numbers


def test_pprof_adds_up_to_the_peak(exported):
    profile = fields(gzip.decompress(exported("pprof").read_bytes()))
    samples = [dict(fields(value)) for number, value in profile if number == 2]
    strings = [value.decode() for number, value in profile if number == 6]
    assert strings[0] == "" and "inuse_space" in strings
    space = sum(packed(sample[2])[1] for sample in samples)
    assert space == sum(device["allocated"]["peak"] for device in inspected()["devices"])
    locations = {dict(fields(value))[1] for number, value in profile if number == 4}
    assert all(location in locations for sample in samples for location in packed(sample[1]))


def test_speedscope_and_collapsed_add_up_to_the_end(exported):
    end = sum(device["allocated"]["end"] for device in inspected()["devices"])
    speedscope = json.loads(exported("speedscope", None, "--at", "end").read_text())
    weights = [p["weights"] for p in speedscope["profiles"] if p["unit"] == "bytes"]
    assert sum(map(sum, weights)) == end
    collapsed = exported("collapsed", None, "--at", "end").read_text().splitlines()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in collapsed) == end
