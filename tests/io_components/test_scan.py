"""Scan of data files: Polars gives what pyarrow reads, bit by bit, or pyarrow reads it."""

import base64
import contextlib
import datetime
import decimal
import math
import os
import struct
import subprocess
import sys

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.expressions import AllOf, to_tree
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components import scan
from kartothek_cube.io_components.scan import Scan, read_file, run_scans
from tests.support.cubes import memory, parquet_bytes
from tests.support.object_server import Answer, running
from tests.support.predicates import COMPARE, KINDS, NULLS, brute_force, rows_of
from tests.support.servers import s3_url

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_BEEF))[0]
DAY = datetime.date
#: values that a careless conversion changes
VALUES = {
    pa.bool_(): [True, False],
    **{getattr(pa, f"int{n}")(): [-(2 ** (n - 1)), 2 ** (n - 1) - 1] for n in (8, 16, 32)},
    **{getattr(pa, f"uint{n}")(): [0, 2**n - 1] for n in (8, 16, 32)},
    pa.int64(): [-(2**63), 2**53 + 1, 2**63 - 1],
    pa.uint64(): [0, 2**63, 2**64 - 1],
    pa.float16(): [np.float16(-0.0), np.float16(1.5)],
    pa.float32(): [-0.0, 1.5, math.inf, NAN],
    pa.float64(): [-0.0, 5e-324, -math.inf, NAN],
    pa.decimal128(38, 10): [decimal.Decimal("-1234567890123456789012345678.0123456789"), decimal.Decimal(0)],
    pa.decimal128(5, 2): [decimal.Decimal("1.10")],
    pa.decimal256(60, 3): [decimal.Decimal("1e50")],
    pa.string(): ["", "a\0b", "ü😀", "x" * 100],
    pa.large_string(): ["", "ü"],
    pa.binary(): [b"", b"\xff\x00"],
    pa.binary(3): [b"abc"],
    pa.date32(): [DAY(1, 1, 1), DAY(1582, 10, 15), DAY(9999, 12, 31)],
    pa.date64(): [DAY(1970, 1, 2)],
    pa.time32("ms"): [datetime.time(23, 59, 59, 999_000)],
    pa.time64("us"): [datetime.time(0, 0, 0, 1)],
    pa.timestamp("us"): [datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1, 1, 1, 1, 7)],
    pa.timestamp("ms"): [datetime.datetime(2024, 2, 29)],
    pa.timestamp("us", "UTC"): [datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)],
    pa.timestamp("us", "Europe/Berlin"): [datetime.datetime(2024, 10, 27, 1, tzinfo=datetime.UTC)],
    pa.list_(pa.int8()): [[], [1, None], [2, 3]],
    pa.list_(pa.list_(pa.string())): [[["a"], []], []],
    pa.struct([("a", pa.int8()), ("b", pa.string())]): [{"a": 1, "b": None}, {"a": None, "b": "x"}],
    pa.map_(pa.string(), pa.int64()): [[("k", 1)], []],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", "a"],
    pa.null(): [None],
}


def buffers(table):
    """Types and values, floats by their bits."""
    columns = []
    for column in table.columns:
        if pa.types.is_floating(column.type):
            bits = f"u{column.type.bit_width // 8}"
            mask = column.combine_chunks().is_null().to_pylist()
            values = column.combine_chunks().fill_null(0).to_numpy().view(bits)
            columns.append([None if m else int(v) for m, v in zip(mask, values, strict=True)])
        else:
            columns.append(column.to_pylist())
    return table.schema.remove_metadata(), columns


@pytest.fixture
def local(tmp_path):
    (tmp_path / "d").mkdir()
    return open_blobs(f"hfs://{tmp_path}")


@pytest.fixture(params=["disk", "memory"])
def blobs(request, local):
    return local if request.param == "disk" else open_blobs(memory())


def put(blobs, *tables, **options):
    """Write a file per table, and return their keys: d/a.parquet, d/b.parquet, ..."""
    keys = [f"d/{name}.parquet" for name, _ in zip("abcde", tables)]
    for key, table in zip(keys, tables, strict=True):
        table = table if isinstance(table, pa.Table) else pa.table(table)
        blobs.put(key, parquet_bytes(table, **options))
    return keys


def scan_one(blobs, keys, columns=None, schema=None, **options):
    schema = schema or pq.read_schema(pa.BufferReader(blobs.get(keys[0])))
    (rows,) = run_scans(blobs, [Scan(keys, columns, schema, **options)])
    return rows


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_types(dtype, blobs):
    table = pa.table({"x": pa.array([*VALUES[dtype], None], dtype), "row": range(len(VALUES[dtype]) + 1)})
    keys = put(blobs, table, table)
    schema = pq.read_schema(pa.BufferReader(blobs.get(keys[0])))
    found = scan_one(blobs, keys, ["row", "x"], schema)
    expected = pa.concat_tables([read_file(blobs, key, ["row", "x"], schema=schema) for key in keys])
    assert buffers(found.table) == buffers(expected)
    assert found.lengths.tolist() == [len(table)] * 2


@pytest.mark.parametrize(
    "narrow, wide",
    [
        (pa.int8(), pa.int64()),
        (pa.uint8(), pa.uint64()),
        (pa.float32(), pa.float64()),
        (pa.null(), pa.string()),
        (pa.null(), pa.int64()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.timestamp("ms"), pa.timestamp("ns")),
        # kartothek typed objects by the values of each file
        (pa.int64(), pa.float64()),
        (pa.decimal128(1, 0), pa.decimal128(7, 3)),
        (pa.list_(pa.int64()), pa.list_(pa.float64())),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", ["narrow", "wide"])
def test_files_of_different_types(local, narrow, wide, first):
    sample = {"string": ["a", None], "list<item: double>": [[1], None]}.get(str(wide), [1, None])
    narrow_sample = [None, None] if pa.types.is_null(narrow) else sample
    tables = [pa.table({"x": pa.array(narrow_sample, narrow)}), pa.table({"x": pa.array(sample, wide)})]
    tables = tables if first == "narrow" else tables[::-1]
    found = scan_one(local, put(local, *tables), schema=pa.schema([("x", wide)]))
    assert found.table.schema.types == [wide]
    assert found.table["x"].to_pylist() == tables[0]["x"].to_pylist() + tables[1]["x"].to_pylist()


@pytest.mark.parametrize("order", [1, -1])
def test_files_of_other_writers_beside_far_times(local, order):
    """Views of texts, as Polars writes them, and nanoseconds, which do not reach the times of other files."""
    other = pa.table({"n": pa.array([1], pa.int8()), "x": pa.array(["a"], pa.string_view())})
    own = pa.table({"n": [2], "x": ["b"]})
    times = pa.array([datetime.datetime(2024, 2, 29)], pa.timestamp("ns"))
    far = pa.array([datetime.datetime(9999, 1, 1)], pa.timestamp("us"))
    tables = [other.append_column("t", times), own.append_column("t", far)][::order]
    found = scan_one(local, put(local, *tables), schema=own.append_column("t", far).schema)
    assert found.table.to_pylist() == [row for table in tables for row in table.to_pylist()]


def test_files_with_equal_filters_are_one_scan():
    literal = ("x", "in", [1])
    filters = [AllOf((literal,)), AllOf((literal, ("y", "==", 1))), AllOf((literal,)), None, None]
    scan = Scan([f"d/{number}.parquet" for number in range(5)], ["x"], pa.schema([]), filters)
    assert scan.split_by_filter() == [[0, 2], [1], [3, 4]]


def test_each_file_has_its_own_filter(local):
    keys = put(local, *({"x": range(number, number + 4)} for number in range(0, 50, 10)))
    low, high = AllOf((("x", "<", 12),)), AllOf((("x", ">", 21),))
    found = scan_one(local, keys, ["x"], filters=[low, high, low, high, None])
    assert found.table["x"].to_pylist() == [0, 1, 2, 3, 30, 31, 32, 33, 40, 41, 42, 43]
    assert found.lengths.tolist() == [4, 0, 0, 4, 4]
    assert scan_one(local, keys, [], filters=[low] * 5).lengths.tolist() == [4, 2, 0, 0, 0]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"timestamp_ns"}))
def test_each_operator_means_what_it_means_in_python(local, kind):
    """With each value on each cell, on nulls, and on NaN, which is null here and a number for Polars."""
    dtype, cells, values = KINDS[kind]
    nulls = NULLS.get(kind, [None] if "int" not in kind else [])
    table = pa.table({"x": pa.array([*cells, None], dtype, from_pandas=False), "row": range(len(cells) + 1)})
    keys = put(local, table)
    literals = [("x", op, value) for op in COMPARE for value in values]
    literals += [("x", op, null) for op in ("==", "!=") for null in nulls]
    literals += [("x", op, [*values[:2], *more]) for op in ("in", "not in") for more in ([], [None])]
    schema = pq.read_schema(pa.BufferReader(local.get(keys[0])))
    scans = [Scan(keys, ["row"], schema, [to_tree([[literal]])]) for literal in literals]
    found = [(repr(x), rows.table["row"].to_pylist()) for x, rows in zip(literals, run_scans(local, scans))]
    assert found == [(repr(literal), brute_force(rows_of(table), [[literal]])) for literal in literals]


def test_schemas_are_cached_by_file():
    blobs = open_blobs(s3_url())
    x, y = put(blobs, {"x": [1]}, {"y": [1]})
    assert [scan.read_columns(blobs, key).names for key in (x, y, x)] == [["x"], ["y"], ["x"]]


def test_types_of_a_file_that_other_software_has_replaced(local):
    for dtype in (pa.int8(), pa.int64()):
        keys = put(local, {"x": pa.array([7], dtype)})
        assert scan_one(local, keys, ["x"]).table.to_pylist() == [{"x": 7}]


def test_no_files(local):
    (rows,) = run_scans(local, [Scan([], ["x"], pa.schema([("x", pa.int8()), ("y", pa.string())]))])
    assert rows.table.schema == pa.schema([("x", pa.int8())])
    assert rows.lengths.tolist() == []


KEYS = st.sampled_from([0.0, -0.0, 1.5, math.nan, None])


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 300, None]), KEYS), max_size=6),
    st.lists(st.tuples(st.sampled_from([0, 1, 300, None]), KEYS), max_size=6),
    st.sampled_from([pa.int16(), pa.int64()]),
)
def test_rows_of_cells_are_never_missing(rows, cells, dtype):
    blobs = open_blobs(memory())
    columns = [pa.array([row[i] for row in rows], dtype) for i, dtype in enumerate([dtype, pa.float32()])]
    keys = put(blobs, pa.table(columns, ["x", "y"]))
    other = [pa.array([row[i] for row in cells], dtype) for i, dtype in enumerate([pa.int64(), pa.float64()])]
    found = scan_one(blobs, keys, ["x", "y"], cells=[pa.table(other, ["x", "y"])])

    def key(row):
        return tuple("nan" if isinstance(v, float) and math.isnan(v) else v for v in row)

    wanted = set(map(key, cells))
    remaining = list(map(key, zip(*found.table.to_pydict().values(), strict=True)))
    for row in map(key, rows):
        assert row not in wanted or row in remaining


def test_cells_drop_most_other_rows(local):
    keys = put(local, {"x": range(1000), "t": [str(n) for n in range(1000)]})
    cells = pa.table({"x": pa.array([3, 5], pa.int8()), "t": ["3", "0"]})
    assert scan_one(local, keys, ["x", "t"], cells=[cells]).table["x"].to_pylist() == [3]


@pytest.fixture
def by_polars(monkeypatch):
    """Numbers of files of the scans by Polars."""
    counts: list[int] = []
    original = polars.scan_parquet

    def scan_parquet(source, **options):
        counts.append(len(source) if isinstance(source, list) else 1)
        return original(source, **options)

    monkeypatch.setattr(polars, "scan_parquet", scan_parquet)
    return counts


def test_polars_reads_local_files_at_once(local, by_polars):
    scan_one(local, put(local, *[{"x": [1]}] * 3))
    assert by_polars == [3]


@pytest.mark.parametrize("dtype", [pa.decimal256(50, 1), pa.date64(), pa.list_(pa.decimal256(50, 1))])
def test_types_that_pyarrow_reads(local, by_polars, dtype):
    keys = put(local, {"x": pa.array([None], dtype), "y": [1]})
    scan_one(local, keys)
    assert by_polars == []
    scan_one(local, keys, ["y"])
    assert by_polars == [1]


def test_checksums_of_pages(local, by_polars, monkeypatch):
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    keys = put(local, {"x": [2**40 + 1]}, write_page_checksum=True, **plain)
    content = bytearray(local.get("d/a.parquet"))
    content[bytes(content).index((2**40 + 1).to_bytes(8, "little"))] ^= 2
    local.put("d/a.parquet", bytes(content))
    assert scan_one(local, keys).table["x"].to_pylist() == [2**40 + 3]
    monkeypatch.setenv(scan.CHECK_PAGES, "1")
    with pytest.raises(CorruptDatasetError, match=r"d/a\.parquet"):
        scan_one(local, keys)
    assert by_polars == [1]


@pytest.mark.parametrize("writer, found", [("parquet-cpp-arrow", []), ("parquet-of-tests!", [1003])])
def test_statistics_of_other_writers_skip_no_row_groups(writer, found, local):
    keys = put(local, {"x": [1001, 1002, 1003]}, row_group_size=2)
    content = local.get("d/a.parquet")
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    wrong = content[start:].replace(struct.pack("<q", 1003), struct.pack("<q", 1002))
    local.put("d/a.parquet", content[:start] + wrong.replace(b"parquet-cpp-arrow", writer.encode()))
    filters = [AllOf((("x", "==", 1003),))]
    assert scan_one(local, keys, filters=filters).table["x"].to_pylist() == found


def test_forked_processes_use_pyarrow(local):
    """The threads of Polars do not survive a fork."""
    put(local, {"x": [1, 2]})
    code = """
import os, sys, pyarrow as pa
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.scan import Scan, run_scans
def read():
    schema = pa.schema([("x", pa.int64())])
    (rows,) = run_scans(open_blobs(sys.argv[1]), [Scan(["d/a.parquet"], None, schema)])
    return len(rows.table)
assert read() == 2
child = os.fork()
if not child:
    os._exit(0 if read() == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    url = f"hfs://{local.root}"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code, url], timeout=60).returncode == 0


def damage(content, how):
    length = int.from_bytes(content[-8:-4], "little")
    if how == "empty":
        return b""
    if how == "cut":
        return content[: len(content) // 2]
    if how == "no footer":
        return content[: -8 - length] + b"\0" * length + content[-8:]
    if how == "first page":
        return content[:4] + b"\xff" * 30 + content[34:]
    return b"PAR1" + os.urandom(8) + b"PAR1"


@pytest.mark.parametrize("how", ["empty", "cut", "no footer", "first page", "noise"])
def test_damaged_files(blobs, how):
    keys = put(blobs, *[{"x": [1, 2, 3], "y": ["a", "b", "c"]}] * 3)
    blobs.put("d/b.parquet", damage(blobs.get("d/b.parquet"), how))
    with pytest.raises(CorruptDatasetError, match=r"d/b\.parquet"):
        scan_one(blobs, keys)


@pytest.mark.parametrize("missing", ["a", "b"])
def test_missing_files(blobs, missing):
    keys = put(blobs, {"x": [1]}, {"x": [1]})
    blobs.delete([f"d/{missing}.parquet"])
    with pytest.raises(MissingFileError, match=rf"d/{missing}\.parquet"):
        scan_one(blobs, keys, ["x"], pa.schema([("x", pa.int64())]))


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_column_that_a_file_lacks(local, lacking):
    keys = put(local, *({"x": [1]} if number == lacking else {"x": [1], "y": [2]} for number in (0, 1)))
    with pytest.raises(CorruptDatasetError, match=rf"{keys[lacking]}.*lacks columns of the dataset: y"):
        scan_one(local, keys, ["x", "y"], pa.schema([("x", pa.int64()), ("y", pa.int64())]))


@pytest.mark.parametrize("schema", [b"noise", base64.b64encode(b"\xff" * 40)], ids=["text", "base64"])
def test_a_damaged_schema_of_arrow(local, schema):
    table = pa.table({"x": pa.array([DAY(2024, 1, 1)])})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": schema})
    local.put("d/a.parquet", sink.getvalue().to_pybytes())
    # Polars refuses it, pyarrow goes without
    with contextlib.suppress(CorruptDatasetError):
        assert scan_one(local, ["d/a.parquet"], ["x"], table.schema).table.equals(table)


@pytest.mark.parametrize("name", ["", "*", "^.*$", "^x", "$"])
def test_names_are_not_patterns(name, local):
    keys = put(local, {"x": [1, 2, 3], "y": [4, 5, 6], name: [7, 8, 9]})
    filters, cells = [AllOf(((name, ">", 7), ("x", "<", 3)))], [pa.table({name: [8, 9]})]
    found = scan_one(local, keys, [name, "x"], filters=filters, cells=cells)
    assert found.table.to_pydict() == {name: [8], "x": [2]}


@pytest.mark.parametrize("chosen, then", [("16", "128"), ("5", "5")])
def test_object_stores_are_read_with_more_files_at_once_unless_the_user_has_chosen(chosen, then, monkeypatch):
    class Remote:
        is_local = False

        def remote_url(self, key):
            return f"s3://bucket/{key}", {}

    for name in scan._CONCURRENT_FILES:
        monkeypatch.setenv(name, chosen)
    scan._locate(Remote(), ["a", "b"])
    assert [os.environ[name] for name in scan._CONCURRENT_FILES] == [then, then]


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_files_that_polars_does_not_get_are_read_by_the_client_of_the_store(kind, monkeypatch):
    with running() as server:
        blobs, answer, refused = open_blobs(server.url(kind)), server.answer, "polars"

        def refuse(request):
            return Answer(403) if refused in request.headers["user-agent"] else answer(request)

        monkeypatch.setattr(server, "answer", refuse)
        keys, schema = put(blobs, {"x": [1]}, {"x": [2]}), pa.schema([("x", pa.int64())])
        assert scan_one(blobs, keys, ["x"], schema).table["x"].to_pylist() == [1, 2]
        refused = ""
        with pytest.raises(PermissionError, match="403"):
            scan_one(blobs, keys, ["x"], schema)


@pytest.mark.parametrize("kind, options", [("s3", ""), ("gs", "&bearer_token=token")])
def test_polars_has_the_credentials_and_the_region_of_the_store(kind, options, tmp_path, monkeypatch):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\nregion=eu-west-9\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with running() as server:
        blobs = open_blobs(server.url(kind, options=options).replace("&region=us-east-1", ""))
        keys = put(blobs, {"x": [1]}, {"x": [2]})
        assert scan_one(blobs, keys).table["x"].to_pylist() == [1, 2]
        agents = {request.headers["user-agent"].partition("/")[0] for request in server.requests}
        assert agents == {"object_store", "polars"}
        scopes = {request.headers.get("authorization", "").partition(",")[0] for request in server.requests}
        assert len(scopes - {""}) == 1


def test_polars_has_the_credentials_that_the_environment_has_now(monkeypatch):
    with running() as server:
        url = server.url().replace("&access_key_id=testing&secret_access_key=secret_of_tests", "")
        for name in ("ONE", "TWO"):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", name)
            blobs = open_blobs(url)
            scan_one(blobs, put(blobs, {"x": [1]}, {"x": [2]}))
            polars_requests = [r for r in server.requests if "polars" in r.headers["user-agent"]]
            assert f"Credential={name}/" in polars_requests[-1].headers["authorization"]


def test_types_of_files_that_do_not_fit_together_are_those_of_a_damaged_dataset(local):
    keys = put(local, {"x": [1]}, {"x": ["a"]})
    with pytest.raises(CorruptDatasetError, match="types that do not fit together") as caught:
        scan_one(local, keys)
    assert caught.value.key == keys[0]
    # pyarrow reads what Polars does not have
    keys = put(local, {"x": [1]}, {"x": pa.array([2], pa.decimal256(50, 0))})
    found = scan_one(local, keys, schema=pa.schema([("x", pa.decimal256(50, 0))]))
    assert list(map(int, found.table["x"].to_pylist())) == [1, 2]
