"""Datasets with several tables, as early versions of kartothek wrote them: one unit in all respects."""

import json

import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.io.arrow import read_dataset_as_record_batches, read_table_arrow
from tests.support.cubes import parquet_bytes
from tests.support.paths import DATA
from tests.support.stored_files import all_rows, header, keys, rows, snapshot

GOLDEN = DATA / "golden" / "stores" / "states"
UUID = "two-tables"


@pytest.fixture
def tables(memory):
    """Tables `core` (key, num) and `helper` (info), partitioned by `part`, with an index on `key`."""
    store = memory()
    content = json.loads((GOLDEN / f"{UUID}.by-dataset-metadata.json").read_bytes())
    files = {key for part in content["partitions"].values() for key in part["files"].values()}
    schemas = {f"{UUID}/{table}/_common_metadata" for table in ("core", "helper")}
    for key in {f"{UUID}.by-dataset-metadata.json", *files, *schemas, *content["indices"].values()}:
        store.put(key, (GOLDEN / key).read_bytes())
    return memory


def test_tables(io, tables):
    assert api.DatasetMetadata.load_from_store(UUID, tables).tables == ["core", "helper"]
    core, helper = (api.read_table(UUID, tables, table_name=name) for name in ("core", "helper"))
    assert set(core.columns) != set(helper.columns)
    for name, df in (("core", core), ("helper", helper)):
        frames = io.read(tables, UUID, table_name=name)
        pdt.assert_frame_equal(pd.concat(frames, ignore_index=True)[df.columns], df)
        assert read_table_arrow(UUID, tables, table_name=name).num_rows == len(df)
        assert read_dataset_as_record_batches(UUID, tables, table_name=name).read_all().num_rows == len(df)
    dataset = api.DatasetMetadata.load_from_store(UUID, tables)
    with pytest.warns(DeprecationWarning, match="table_meta"):
        schemas = dataset.copy().table_meta
    assert {name: set(found.names) for name, found in schemas.items()} == {
        "core": {*core},
        "helper": {*helper},
    }
    with pytest.raises(RuntimeError, match=r"several tables.*core, helper"):
        io.read(tables, UUID)
    with pytest.raises(RuntimeError, match="unknown table cor; did you mean core"):
        io.read(tables, UUID, table_name="cor")
    with pytest.raises(ValueError, match="unknown column info"):
        io.read(tables, UUID, table_name="core", columns=["info"])


@pytest.mark.parametrize("table", ["core", "helper"])
def test_groups(io, tables, table):
    expected = api.read_table(UUID, tables, table_name=table)
    frames = io.read(tables, UUID, table_name=table, dispatch_by="part")
    assert [df["part"].unique().tolist() for df in frames] == [[p] for p in sorted(set(expected["part"]))]
    assert sum(map(len, frames)) == len(expected)


def test_changes_are_refused(io, tables):
    df = api.read_table(UUID, tables, table_name="core")
    before = snapshot(tables)
    with pytest.raises(RuntimeError, match="several tables"):
        io.update(tables, [df], UUID, table_name="core")
    with pytest.raises(RuntimeError, match="several tables"):
        api.write_single_partition(tables, UUID, df, table_name="core")
    with pytest.raises(RuntimeError, match="several tables"):
        api.commit_dataset(tables, UUID, metadata={"m": 1})
    with pytest.raises(RuntimeError, match="several tables"):
        api.update_dataset_from_dataframes([], tables, UUID, delete_scope=[{}])
    assert snapshot(tables) == before


def test_copy(tables):
    api.copy_dataset(UUID, tables, "v")
    for name in ("core", "helper"):
        found, expected = (api.read_table(uuid, tables, table_name=name) for uuid in ("v", UUID))
        pdt.assert_frame_equal(found, expected)
    files = [key.split("/", 1) for key in keys(tables) if "/" in key]
    assert sorted(name for uuid, name in files if uuid == "v") == sorted(n for u, n in files if u == UUID)


def test_garbage(tables):
    before = keys(tables)
    stray = [f"{UUID}/{place}/stray" for place in ("core", "helper", "indices/key", "other")]
    for key in stray:
        tables().put(key, b"")
    api.garbage_collect_dataset(UUID, tables)
    assert keys(tables) == before | {f"{UUID}/other/stray"}


def test_delete(tables):
    tables().put(f"{UUID}/helper/stray", b"")
    api.delete_dataset(UUID, tables)
    assert keys(tables) == set()


def test_indices(tables):
    loaded = api.build_dataset_indices(tables, UUID, ["num", "info"]).load_all_indices(tables)
    assert set(loaded.indices) >= {"num", "info", "key", "part"}
    for column, name in (("num", "core"), ("info", "helper")):
        other = {"core": "helper", "helper": "core"}[name]
        assert column not in api.read_table(UUID, tables, table_name=other)
        values = api.read_table(UUID, tables, table_name=name)[column].dropna().unique()
        assert sorted(loaded.indices[column].index_dct) == sorted(values)
    assert sorted(keys(tables)) == sorted(api.DatasetMetadata.storage_keys(UUID, tables))


def test_index_on_a_column_of_both_tables(memory):
    store = memory()
    partitions = {}
    for number, content in enumerate([([1, 2], [2, 3]), ([4], [1])]):
        files = {}
        for name, values in zip(("a", "b"), content):
            files[name] = f"u/{name}/l{number}.parquet"
            store.put(files[name], parquet_bytes(pa.table({"x": values})))
        partitions[f"l{number}"] = {"files": files}
    for name in ("a", "b"):
        store.put(f"u/{name}/_common_metadata", parquet_bytes(pa.schema([("x", pa.int64())]).empty_table()))
    content = {"dataset_metadata_version": 4, "dataset_uuid": "u"}
    content |= {"partitions": partitions, "partition_keys": []}
    store.put("u.by-dataset-metadata.json", json.dumps(content).encode())
    index = api.build_dataset_indices(memory, "u", "x").load_all_indices(memory).indices["x"]
    found = {value: sorted(labels) for value, labels in index.index_dct.items()}
    assert found == {1: ["l0", "l1"], 2: ["l0"], 3: ["l0"], 4: ["l1"]}
    assert header(memory)["partitions"] == partitions
    found = api.read_table("u", memory, table_name="b", predicates=[[("x", "==", 1)]])
    assert rows(found) == {"x": [1]}
    assert all_rows([api.read_table("u", memory, table_name="a")]) == [{"x": [1, 2, 4]}]
