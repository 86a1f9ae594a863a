"""Datasets of random typed tables against what Python and pandas make of the same rows."""

import uuid
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.api import dataset as api
from kartothek_cube.core.arrow import number_bits, storage_type, widen
from kartothek_cube.serialization import ParquetSerializer
from tests.support.cubes import memory
from tests.support.predicates import KINDS, brute_force, plain, predicates_of, rows_of, tables
from tests.support.stored_files import check_integrity

#: files hold no nanoseconds
NAMES = sorted(set(KINDS) - {"timestamp_ns"})


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[str], list[pa.Table], dict[str, Any]]:
    """Names of columns, tables of these columns and the number ``n`` of each row, and options of a write."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    # labels say 0.1 for a narrow 0.1, as kartothek's do, which is another number when it is read
    possible = [name for name in names if name != "float"]
    keys = draw(st.lists(st.sampled_from(possible), max_size=2, unique=True)) if possible else []
    indices = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    found, start = [], 0
    for table in draw(st.lists(tables(names), min_size=1, max_size=3)):
        for key in keys:
            table = table.filter(pc.invert(pc.is_null(table.column(key), nan_is_null=True)))
        found.append(table.append_column("n", pa.array(range(start, start + len(table)), pa.int64())))
        start += len(table)
    options = {
        "partition_on": keys,
        "secondary_indices": [name for name in indices if name not in keys],
        "df_serializer": ParquetSerializer(chunk_size=draw(st.sampled_from([None, 1, 2]))),
        "metadata_storage_format": draw(st.sampled_from(["json", "msgpack"])),
    }
    return names, found, options


def canonical(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in sorted(row.items())} for row in rows]


@pytest.mark.slow("many random datasets")
@settings(max_examples=60)
@given(given_inputs=inputs())
def test_what_is_written_is_read(given_inputs):
    names, parts, options = given_inputs
    store = memory()
    dataset = api.store_dataframes_as_dataset(store, "u", parts, **options)
    assert dataset == api.DatasetMetadata.load_from_store("u", store)
    found = api.read_table_arrow("u", store)
    rows = sorted(rows_of(found), key=lambda row: row["n"])
    assert canonical(rows) == canonical(rows_of(pa.concat_tables(parts)))
    keys = options["partition_on"]
    assert found.column_names == [*keys, *sorted({"n", *names} - set(keys))]
    if len(found):
        for name in names:
            dtype = KINDS[name].dtype
            assert found.schema.field(name).type == storage_type(widen(dtype) if name in keys else dtype)
    stream = api.read_dataset_as_record_batches("u", store)
    # numbers are as wide as in files, which the header tells
    types = [found.schema.field(name).type for name in found.column_names]
    expected = [dtype if number_bits(dtype) else storage_type(widen(dtype)) for dtype in types]
    assert stream.schema.types == expected
    assert canonical(rows_of(stream.read_all())) == canonical(rows_of(found))


@settings(max_examples=25)
@given(given_inputs=inputs(), data=st.data())
def test_predicates(given_inputs, data):
    check_predicates(given_inputs, data)


@pytest.mark.slow("100 random datasets")
@settings(max_examples=100)
@given(given_inputs=inputs(), data=st.data())
def test_many_predicates(given_inputs, data):
    check_predicates(given_inputs, data)


def check_predicates(given_inputs, data):
    names, parts, options = given_inputs
    store = memory()
    api.store_dataframes_as_dataset(store, "u", parts, **options)
    rows = rows_of(pa.concat_tables(parts))
    for _ in range(3):
        predicates = data.draw(predicates_of(names))
        expected = [rows[position]["n"] for position in brute_force(rows, predicates)]
        pushdown = data.draw(st.booleans())
        reads = {"predicates": predicates, "predicate_pushdown_to_io": pushdown, "columns": ["n"]}
        assert sorted(api.read_table_arrow("u", store, **reads).column("n").to_pylist()) == expected
        parts_read = api.read_dataset_as_arrow("u", store, **reads)
        assert sorted(n for table in parts_read for n in table.column("n").to_pylist()) == expected


@pytest.mark.slow("many random datasets")
@settings(max_examples=60)
@given(given_inputs=inputs(), data=st.data())
def test_groups(given_inputs, data):
    _, parts, options = given_inputs
    indexed = [*options["partition_on"], *options["secondary_indices"]]
    if not indexed:
        return
    store = memory()
    api.store_dataframes_as_dataset(store, "u", parts, **options)
    by = data.draw(st.lists(st.sampled_from(indexed), min_size=1, max_size=2, unique=True))
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in rows_of(pa.concat_tables(parts)):
        key = tuple(plain(row[name]) for name in by)
        if None not in key:
            groups.setdefault(key, []).append(row["n"])
    found = api.read_dataset_as_arrow("u", store, dispatch_by=by, columns=["n"])
    numbers = [sorted(table.column("n").to_pylist()) for table in found]
    assert [group for group in numbers if group] == [groups[key] for key in sorted(groups)]


@st.composite
def small_frames(draw: st.DrawFn) -> list[pd.DataFrame]:
    """Frames of a partition key `p`, an indexed column `x`, and the number `n` of each row."""
    cells = st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", None]))
    frames, start = [], 0
    for rows in draw(st.lists(st.lists(cells, min_size=1, max_size=4), min_size=1, max_size=4)):
        df = pd.DataFrame(rows, columns=["p", "x"]).astype({"x": "str"})
        frames.append(df.assign(n=range(start, start + len(df))))
        start += len(df)
    return frames


scopes = st.lists(
    st.fixed_dictionaries({}, optional={"p": st.integers(0, 3), "x": st.sampled_from(["a", "b", "c"])}),
    max_size=3,
)


updates = st.lists(st.tuples(scopes, small_frames()), max_size=3)


@pytest.mark.slow("60 random datasets, updated three times")
@settings(max_examples=60)
@given(frames=small_frames(), steps=updates)
def test_removal(frames, steps):
    """A partition is the rows of one input with one key; it goes if all columns of a scope occur in it."""
    store = memory()
    api.store_dataframes_as_dataset(store, "u", frames, partition_on="p", secondary_indices="x")
    model = [part for df in frames for part in _parts(df)]
    for scope, new in steps:
        api.update_dataset_from_dataframes(new, store, "u", delete_scope=scope)
        gone = [any(all((part[c] == v).any() for c, v in s.items()) for s in scope) for part in model]
        model = [part for part, removed in zip(model, gone) if not removed]
        model += [part for df in new for part in _parts(df)]
        found = api.read_dataset_as_dataframes("u", store)
        assert [df["n"].tolist() for df in found] == [part["n"].tolist() for part in model]
        check_integrity(lambda: store)


def _parts(df: pd.DataFrame) -> list[pd.DataFrame]:
    return [part for _, part in df.groupby("p", sort=False)]


@pytest.mark.slow("many random datasets")
@settings(max_examples=30)
@given(frames=small_frames())
def test_pandas_groups_alike(frames):
    store, name = memory(), uuid.UUID(int=7).hex
    api.store_dataframes_as_dataset(store, name, frames, partition_on="p", secondary_indices="x")
    everything = api.read_table(name, store)
    for by in (["p"], ["x"], ["x", "p"]):
        expected = [group["n"].tolist() for _, group in everything.groupby(by)]
        found = api.read_dataset_as_dataframes(name, store, dispatch_by=by)
        assert [df["n"].tolist() for df in found if len(df)] == expected
