"""What is special about dask DataFrames as input and output of cubes: metadata, projection, shuffling."""

import datetime

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import SchemaConflictError
from kartothek_cube.io.dask.dataframe_cube import (
    append_to_cube_from_dataframe,
    build_cube_from_dataframe,
    query_cube_dataframe,
)
from tests.support import cubes
from tests.support.cube_facades import ddf_of
from tests.support.stores import CountingStore, Same

DATE = datetime.date


def write(store, data, **kwargs):
    kwargs = {"cube": cubes.CUBE, "store": store, **kwargs}
    return build_cube_from_dataframe(data, **kwargs).compute(scheduler="sync")


@pytest.fixture
def built(store):
    """A store with a cube of three datasets, which counts calls."""
    cubes.build(
        store,
        seed=cubes.frame(x=[0, 1, 2], p=[0, 0, 1], v1=[1.5, 2.5, 3.5], v2=["a", "b", "c"]),
        enrich=cubes.frame(x=[0, 2], p=[0, 1], v3=[DATE(2020, 1, 1), DATE(2020, 1, 2)], v4=[b"y", b"z"]),
        whole=cubes.frame(x=[1, 2], v5=[10, 20]),
    )
    return Same.of(CountingStore(store()))


def read_datasets(store):
    keys = [key for _, key in store().log if "/table/" in key and "_common" not in key]
    return {key.split("/")[0].split("++")[1] for key in keys}


@pytest.mark.parametrize("shuffle", [True, False])
def test_text_that_dask_converts_is_stored_as_pandas_has_it(store, shuffle):
    rows = cubes.frame(x=[0, 1], p=["a", "b"], v1=["ä", None])
    with dask.config.set({"dataframe.convert-string": True}):
        datasets = write(store, dd.from_pandas(rows, npartitions=1), shuffle=shuffle)
    columns = datasets["seed"].schema.pandas_metadata["columns"]
    assert {column["numpy_type"] for column in columns} == {"object", "int64"}
    assert cubes.rows(api.query_cube(cubes.CUBE, store))["v1"] == ["ä", None]


def test_metadata_have_the_types_of_the_result(built):
    options = {"payload_columns": ["v1", "v2", "v3"], "conditions": api.C("x") != 1}
    ddf = query_cube_dataframe(cubes.CUBE, built, **options)
    (expected,) = api.query_cube(cubes.CUBE, built, **options)
    pd.testing.assert_series_equal(ddf.dtypes, expected.dtypes)
    pd.testing.assert_frame_equal(ddf.compute(scheduler="sync"), expected)
    assert not ddf.known_divisions
    result = query_cube_dataframe(cubes.CUBE, built).compute(scheduler="sync")
    assert cubes.rows([result])["v4"] == [b"y", None, b"z"]
    assert cubes.rows([result])["v3"] == [pd.Timestamp("2020-01-01"), None, pd.Timestamp("2020-01-02")]
    ddf = query_cube_dataframe(cubes.CUBE, built, conditions=(api.C("v5") == 20) & (api.C("v2") > "a"))
    assert list(ddf["v1"].compute(scheduler="sync")) == [3.5]
    assert ddf["v1"].sum().compute(scheduler="sync") == 3.5
    assert len(ddf[["v2"]].compute(scheduler="sync")) == 1
    with dask.config.set(scheduler="sync"):
        assert len(query_cube_dataframe(cubes.CUBE, built)) == 3
        assert len(query_cube_dataframe(cubes.CUBE, built, payload_columns=[])) == 3
        assert len(query_cube_dataframe(cubes.CUBE, built, api.C("x") == 9)) == 0
    ddf = query_cube_dataframe(cubes.CUBE, built, api.C("x") == 9)
    assert ddf.npartitions == 1
    result = ddf.compute(scheduler="sync")
    assert list(result.columns) == ["p", "v1", "v2", "v3", "v4", "v5", "x"]
    assert len(result) == 0


@pytest.mark.parametrize(
    "columns, datasets",
    [
        (["v1"], {"seed"}),
        (["v2", "x"], {"seed"}),
        (["p"], {"seed"}),
        (["v4", "v1"], {"seed", "enrich"}),
        (["v5"], {"seed", "whole"}),
    ],
)
@pytest.mark.parametrize("partition_by", [None, "p"])
def test_only_the_columns_that_are_used_are_read(built, columns, datasets, partition_by):
    arguments = {"cube": cubes.CUBE, "store": built, "partition_by": partition_by}
    ddf = query_cube_dataframe(**arguments)[columns]
    built().reset()
    result = ddf.compute(scheduler="sync")
    assert read_datasets(built) == datasets
    expected = pd.concat(api.query_cube(**arguments))[columns]
    pd.testing.assert_frame_equal(result, expected, check_dtype=partition_by is None)


def test_groups_that_turn_out_to_be_empty_are_empty_partitions(store):
    seed = cubes.frame(x=[0, 1], p=[0, 0], i1=["a", "b"], v1=[1, 2])
    cubes.build(store, cubes.CUBE.copy(index_columns=["i1"]), seed=seed)
    ddf = query_cube_dataframe(cubes.CUBE, store, api.C("v1") == 1, partition_by="i1")
    parts = dask.compute(*ddf.to_delayed(), scheduler="sync")
    assert [len(part) for part in parts] == [1, 0]
    pd.testing.assert_series_equal(parts[1].dtypes, ddf.dtypes)


def test_nulls_are_found_in_every_partition(store):
    ddf = ddf_of(cubes.frame(x=[0.0, 1.0, None, 3.0], p=[0, 0, 1, 1], v1=[1, 2, 3, 4]), 4)
    with pytest.raises(ValueError, match=r'dimension column "x"'):
        write(store, ddf)
    assert cubes.dataset_ids(store) == set()


def many_rows(n=600):
    rng = np.random.default_rng(1)
    df = cubes.frame(x=rng.permutation(n), p=rng.integers(0, 5, n).astype(str))
    df["k"] = pd.Categorical(rng.choice(["u", "v", "w"], n))
    return df.assign(d=[DATE(2020, 1, 1 + i % 3) for i in range(n)], v1=rng.normal(size=n))


def test_rows_that_are_equal_in_the_bucket_columns_are_in_the_same_file(store):
    df = many_rows()
    write(store, ddf_of(df, 5), shuffle=True, num_buckets=4, bucket_by=["k", "d"])
    labels = [label.split("/")[0] for label in cubes.file_keys(store, "cube++seed")]
    assert set(labels) == {f"p={p}" for p in range(5)}
    assert max(map(labels.count, labels)) == 4
    cubes.check_integrity(store)
    (result,) = api.query_cube(cubes.CUBE, store)
    assert cubes.rows([result])["v1"] == df.sort_values("x")["v1"].tolist()
    seen = {}
    for label, content in cubes.files(store, "cube++seed").items():
        assert sorted(content) == ["d", "k", "v1", "x"], "the bucket is not stored"
        for key in set(zip(content["k"], content["d"])):
            assert (label.split("/")[0], key) not in seen
            seen[label.split("/")[0], key] = label


@pytest.mark.parametrize("bucket_by", [None, "v2"])
@pytest.mark.parametrize("nested", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), None], ids=str)
def test_nested_columns(store, bucket_by, nested):
    """pandas cannot hash their values."""
    values = [{"a": 1}, {"a": 2}] if nested is not None and pa.types.is_struct(nested) else [[1, 2], [3]]
    cells = pd.Series([*values, None] * 4, dtype=object if nested is None else pd.ArrowDtype(nested))
    df = cubes.frame(x=range(12), p=[0] * 12).assign(v2=cells)
    # the last partition has no values, which is no reason for another bucket
    ddf = ddf_of(df.sort_values("v2", key=pd.isna), 3)
    write(store, ddf, shuffle=True, num_buckets=2, bucket_by=bucket_by)
    assert api.query_cube_table(cubes.CUBE, store)["v2"].to_pylist() == [*values, None] * 4
    contents = [set(map(repr, content["v2"])) for content in cubes.files(store, "cube++seed").values()]
    assert bucket_by is None or sum(map(len, contents)) == 3


def test_cells_of_several_partitions_of_the_input_may_be_equal(store):
    """They are versions of a cell, whether or not a shuffle brings them together."""
    seed = cubes.frame(x=[0, 0], p=[0, 0], v1=[1, 2])
    for shuffle in (False, True):
        write(store, ddf_of(seed, 2), shuffle=shuffle, overwrite=True)
        (result,) = api.query_cube(cubes.CUBE, store)
        assert result["x"].tolist() == [0]


def test_a_shuffled_dataset_without_rows_is_refused(store):
    ddf = ddf_of(cubes.frame(x=[0, 1], p=[0, 1], v1=[1, 2]))
    with pytest.raises(RuntimeError, match="empty datasets: seed"):
        write(store, ddf[ddf["x"] > 5], shuffle=True)


@pytest.mark.parametrize(
    "arguments, fragment",
    [
        ({"num_buckets": 1.5}, "1.5"),
        ({"bucket_by": ["v1", "b", "a"]}, "a, b"),
    ],
)
def test_wrong_arguments_of_a_shuffle(store, arguments, fragment):
    ddf = ddf_of(cubes.frame(x=[0], p=[0], v1=[1]))
    with pytest.raises(ValueError, match=fragment):
        build_cube_from_dataframe(ddf, cubes.CUBE, store, shuffle=True, **arguments)


def test_integers_with_gaps_are_known_by_their_values(store):
    """The graph has floats for them, of which only the tasks see whether all are whole numbers."""
    api.build_cube(pd.DataFrame({"x": [0], "p": 0, "n": [1]}), cubes.CUBE, store)
    more = pd.DataFrame({"x": [1, 2], "p": 0, "n": [2, None]})
    append = append_to_cube_from_dataframe
    append(ddf_of(more), cubes.CUBE, store).compute(scheduler="sync")
    found = api.query_cube_table(cubes.CUBE, store)["n"]
    assert (found.type, found.to_pylist()) == (pa.int64(), [1, 2, None])
    with pytest.raises(SchemaConflictError, match=r"n +int64 +double"):
        append(ddf_of(more.assign(n=[0.5, None])), cubes.CUBE, store).compute(scheduler="sync")
    with pytest.raises(SchemaConflictError, match=r"n +int64 +string"):
        append(ddf_of(more.assign(n=["a", "b"]).astype({"n": "string"})), cubes.CUBE, store)
    with pytest.raises(SchemaConflictError, match=r"x +int64 +double"):
        append(ddf_of(more.astype({"x": float})), cubes.CUBE, store)
    assert api.query_cube_table(cubes.CUBE, store)["n"].equals(found)
