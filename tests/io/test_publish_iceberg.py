"""Datasets published as Iceberg tables, read by pyiceberg and Polars; by DuckDB in the soak tests."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.table import StaticTable

from kartothek_cube.api import cube as cubes
from kartothek_cube.api import dataset as datasets
from kartothek_cube.core.dataset_files import data_keys
from kartothek_cube.core.errors import PublicationWarning
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.maintenance import garbage
from kartothek_cube.io_components.publication import delta_log, iceberg, table
from tests.io.test_publish import COLUMNS, CUBE, KEYS, files_below, plain, seed
from tests.io.test_publish import rows as delta_rows
from tests.support.crash import stores_after_faults
from tests.support.cubes import memory, snapshot
from tests.support.servers import s3_url
from tests.support.stores import Same


@pytest.fixture(autouse=True)
def polars_plans_by_pyiceberg(monkeypatch):
    """Its own planner is another package."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def location(path: Path, uuid: str = "cube++seed") -> str:
    return f"{path / uuid}/_delta_log/_iceberg"


def by_pyiceberg(table: str) -> pa.Table:
    return StaticTable.from_metadata(table).scan().to_arrow()


def by_polars(table: str) -> pa.Table:
    version = Path(table, "metadata/version-hint.text").read_text()
    return pl.scan_iceberg(f"{table}/metadata/v{version}.metadata.json").collect().to_arrow()


READERS = {"pyiceberg": by_pyiceberg, "polars": by_polars}
#: what pyiceberg does not read, also from tables of others
UNREADABLE = {
    "fixed binary": ResolveError,
    "time zone": UnsupportedPyArrowTypeException,
    "null": ValueError,
    "empty lists": ValueError,
}


def rows(path: Path, read: Callable[[str], pa.Table] = by_pyiceberg, uuid: str = "cube++seed") -> list[dict]:
    return plain(read(location(path, uuid)))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", COLUMNS)
def test_types_of_columns(name, reader, url, path):
    data = pa.table({"x": [1, 2], name: COLUMNS[name]})
    datasets.store_dataframes_as_dataset(url, "u", [data])
    datasets.publish_dataset("u", url, format="iceberg")
    if reader == "pyiceberg" and name in UNREADABLE:
        with pytest.raises(UNREADABLE[name]):
            rows(path, by_pyiceberg, "u")
        return
    stored = datasets.read_table_arrow("u", url)
    # a column without any value has no type so far
    shown = stored.drop_columns([name]) if name in ("null", "empty lists") else stored
    assert plain(READERS[reader](location(path, "u")).select(shown.column_names)) == plain(shown)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", [name for name in KEYS if name not in ("float", "infinite")])
def test_partition_keys(name, reader, url, path):
    """Values that files do not have, as they are in paths."""
    data = pa.table({"x": [1, 2], name: KEYS[name]})
    datasets.store_dataframes_as_dataset(url, "u", [data], partition_on=[name])
    datasets.publish_dataset("u", url, format="iceberg")
    read = READERS[reader](location(path, "u"))
    assert plain(read.select(["x", name])) == plain(datasets.read_table_arrow("u", url).select(["x", name]))


def test_each_publication_is_a_snapshot(url, path):
    cubes.build_cube(seed(), CUBE, url)
    assert cubes.publish_cube(CUBE, url, format="iceberg")["seed"]["version"] == 0
    cubes.append_to_cube(pd.DataFrame({"x": [2], "p": [2]}), CUBE, url)
    cubes.remove_partitions(CUBE, url, cubes.C("p") == 1)
    # what is an Iceberg table stays one
    assert cubes.publish_cube(CUBE, url)["seed"] == {"version": 1, "files": 2, "added": 1, "removed": 1}
    before = files_below(path)
    cubes.publish_cube(CUBE, url, format="iceberg")
    assert files_below(path) == before
    shown = StaticTable.from_metadata(location(path))
    assert [snapshot.summary["total-data-files"] for snapshot in shown.snapshots()] == ["2", "2"]
    assert shown.current_snapshot().summary["deleted-data-files"] == "1"
    assert len(shown.inspect.manifests()) == 3
    assert [row["x"] for row in rows(path)] == [0, 2]
    assert [row["x"] for row in plain(shown.scan(row_filter="p = 2").to_arrow())] == [2]
    assert len(shown.scan(snapshot_id=shown.snapshots()[0].snapshot_id).to_arrow()) == 2
    assert [row["x"] for row in delta_rows(path / "cube++seed")] == [0, 2]


def test_a_published_dataset_becomes_an_iceberg_table(url, path):
    """Its log shows the state already, and gets no version for that."""
    cubes.build_cube(seed(), CUBE, url)
    cubes.publish_cube(CUBE, url)
    found = cubes.publish_cube(CUBE, url, format="iceberg")["seed"]
    assert found == {"version": 0, "files": 2, "added": 0, "removed": 0}
    assert len(rows(path)) == 2


@pytest.mark.parametrize("reader", READERS)
def test_columns_that_older_files_lack_or_have_beside(reader, url, path):
    cubes.build_cube(seed(a=[1, 2], b=[1, 2]), CUBE, url)
    cubes.publish_cube(CUBE, url, format="iceberg")
    datasets.update_dataset_schema("cube++seed", url, add={"new": "string"}, drop="b")
    cubes.append_to_cube(pd.DataFrame({"x": [2], "p": [2], "a": [3], "new": ["n"]}), CUBE, url)
    cubes.publish_cube(CUBE, url)
    assert rows(path, READERS[reader]) == [
        {"p": 0, "a": 1, "new": None, "x": 0},
        {"p": 1, "a": 2, "new": None, "x": 1},
        {"p": 2, "a": 3, "new": "n", "x": 2},
    ]


def test_other_types_and_partition_keys(url, path):
    datasets.store_dataframes_as_dataset(url, "u", [seed(v=[1, 2])], partition_on=["p"])
    datasets.publish_dataset("u", url, format="iceberg")
    table_uuid = StaticTable.from_metadata(location(path, "u")).metadata.table_uuid
    datasets.store_dataframes_as_dataset(url, "u", [seed(v=["a", "b"])], partition_on=["v"], overwrite=True)
    datasets.publish_dataset("u", url)
    assert rows(path, uuid="u") == [{"v": "a", "p": 0, "x": 0}, {"v": "b", "p": 1, "x": 1}]
    assert StaticTable.from_metadata(location(path, "u")).metadata.table_uuid == table_uuid


def test_a_dataset_without_rows(url, path):
    datasets.store_dataframes_as_dataset(url, "u", [seed()], partition_on=["p"])
    datasets.publish_dataset("u", url, format="iceberg")
    datasets.update_dataset_from_dataframes([], url, "u", delete_scope=[{}])
    datasets.publish_dataset("u", url)
    assert rows(path, uuid="u") == []


def test_each_commit_publishes(url, path):
    cubes.build_cube(seed(), CUBE, url, metadata={"seed": {"kartothek_cube_publish": "iceberg"}})
    cubes.append_to_cube(pd.DataFrame({"x": [2], "p": [2]}), CUBE, url)
    assert len(rows(path)) == 3
    with pytest.warns(PublicationWarning, match="newer version"):
        cubes.append_to_cube(pd.DataFrame({"x": [2], "p": [2]}), CUBE, url)
    assert len(rows(path)) == 3


def test_readers_of_object_stores():
    url = s3_url(prefix="/some/where")
    cubes.build_cube(seed().assign(p=["a b%c", "d"]), CUBE, url)
    cubes.publish_cube(CUBE, url, format="iceberg")
    parts = urlsplit(url)
    properties = {
        "s3.endpoint": parse_qs(parts.query)["endpoint"][0],
        "s3.region": "us-east-1",
        "s3.access-key-id": "testing",
        "s3.secret-access-key": "secret_of_tests",
    }
    folder = f"s3://{parts.netloc}/some/where/cube++seed/_delta_log/_iceberg"
    shown = StaticTable.from_metadata(f"{folder}/metadata/v1.metadata.json", properties)
    assert plain(shown.scan().to_arrow()) == [{"p": "a b%c", "x": 0}, {"p": "d", "x": 1}]


def test_a_store_without_locations():
    store = memory()
    cubes.build_cube(seed(), CUBE, Same.of(store))
    before = set(store.keys())
    with pytest.raises(ValueError, match="Iceberg tables name their files by absolute paths, and this store"):
        cubes.publish_cube(CUBE, Same.of(store), format="iceberg")
    assert set(store.keys()) == before


def test_floating_point_numbers_as_partition_key(url, path):
    """pyiceberg and Polars would round 0.1; no other dataset is published either."""
    data = {"seed": seed(), "more": seed(f=[0.1, 0.2])}
    cubes.build_cube(data, CUBE, url, partition_on={"more": ["p", "f"]})
    with pytest.raises(ValueError, match="partition key f is a floating point number"):
        cubes.publish_cube(CUBE, url, format="iceberg")
    assert not [name for name in files_below(path) if "_delta_log" in name]


def test_without_pyiceberg(url, path, monkeypatch):
    cubes.build_cube(seed(), CUBE, url)
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'kartothek_cube\[iceberg\]'"):
        cubes.publish_cube(CUBE, url, format="iceberg")
    assert not [name for name in files_below(path) if "_delta_log" in name]


def test_cleanups_and_the_end(url, path, tmp_path):
    cubes.build_cube(seed(), CUBE, url)
    cubes.publish_cube(CUBE, url, format="iceberg")
    cubes.remove_partitions(CUBE, url, cubes.C("p") == 1)
    cubes.cleanup_cube(CUBE, url)
    assert [row["x"] for row in rows(path)] == [0, 1]
    cubes.publish_cube(CUBE, url)
    cubes.cleanup_cube(CUBE, url)
    assert [row["x"] for row in rows(path)] == [0]
    other = f"hfs://{tmp_path}/other?create_if_missing=true"
    cubes.copy_cube(CUBE, url, other)
    assert not [name for name in files_below(tmp_path / "other") if "_iceberg" in name]
    cubes.unpublish_cube(CUBE, url)
    assert not [name for name in files_below(path) if "_delta_log" in name]
    cubes.publish_cube(CUBE, url, format="iceberg")
    assert len(rows(path)) == 1
    cubes.delete_cube(CUBE, url)
    assert files_below(path) == set()


def test_verify_tells_that_the_iceberg_table_is_older(url, path):
    cubes.build_cube(seed(), CUBE, url)
    cubes.publish_cube(CUBE, url, format="iceberg")
    newest = path / "cube++seed/_delta_log/_iceberg/metadata/v1.metadata.json"
    content = newest.read_text()
    newest.write_text(content.replace(json.loads(content)["properties"]["kartothek_cube.state"], "other"))
    assert [problem.kind for problem in cubes.verify_cube(CUBE, url).problems] == ["publication"]
    cubes.publish_cube(CUBE, url)
    assert cubes.verify_cube(CUBE, url).ok
    newest.with_name("v2.metadata.json").write_text("{")
    assert [problem.kind for problem in cubes.verify_cube(CUBE, url).problems] == ["publication-log"]
    cubes.unpublish_cube(CUBE, url)
    cubes.publish_cube(CUBE, url, format="iceberg")
    assert cubes.verify_cube(CUBE, url).ok


@pytest.mark.parametrize("fault", ["die", "fail"])
def test_a_publisher_that_dies(monkeypatch, fault):
    """At each request: collections keep what the Iceberg table shows; a repetition shows the newest state."""
    monkeypatch.setattr(delta_log, "store_location", lambda blobs, uuid: "memory://")
    build = memory()
    datasets.store_dataframes_as_dataset(Same.of(build), "u", [seed()], partition_on=["p"])
    datasets.publish_dataset("u", Same.of(build), format="iceberg")
    datasets.update_dataset_from_dataframes([seed()], Same.of(build), "u", delete_scope=[{}])
    content = snapshot(Same.of(build))
    stores = stores_after_faults(content, lambda faulty: datasets.publish_dataset("u", faulty), fault)
    assert len(stores) >= 15
    for store in stores:
        blobs = open_blobs(store)
        assert shown_keys(store) <= delta_log.published_keys(blobs, "u")
        assert datasets.publish_dataset("u", Same.of(store))["version"] == 1
        assert (
            shown_keys(store)
            == delta_log.published_keys(blobs, "u")
            == {*data_keys(datasets.DatasetMetadata.load_from_store("u", store))}
        )


@pytest.mark.parametrize("deletes", ["log", "dataset"])
def test_a_deletion_that_dies_shows_no_older_metadata(deletes):
    """At each request: readers that look for the newest metadata find these, or none."""
    content = {delta_log.iceberg_key("u", version): b"" for version in range(1, 12)}

    def delete(dying):
        if deletes == "log":
            delta_log.delete_log(open_blobs(dying), "u")
        else:
            garbage.delete_garbage(dying, content)

    stores = stores_after_faults(content, delete)
    found = [delta_log.newest_iceberg(delta_log.list_log(open_blobs(store), "u")) for store in stores]
    assert found.count(11) >= 11
    assert set(found) == {11, 0}


def test_the_hint_names_the_newest_version(monkeypatch):
    """Also if a slower publisher writes its own."""
    monkeypatch.setattr(delta_log, "store_location", lambda blobs, uuid: "memory://")
    store = memory()
    datasets.store_dataframes_as_dataset(Same.of(store), "u", [seed()], partition_on=["p"])
    datasets.publish_dataset("u", Same.of(store), format="iceberg")
    key = "u/_delta_log/_iceberg/metadata/v{}.metadata.json"
    store.put(key.format(2), store.get(key.format(1)))
    iceberg._put_hint(open_blobs(store), "u", 1)
    assert store.get("u/_delta_log/_iceberg/metadata/version-hint.text") == b"2"


def shown_keys(store) -> set[str]:
    """Files of the Iceberg table to which the hint leads."""
    folder = "u/_delta_log/_iceberg/metadata"
    version = int(store.get(f"{folder}/version-hint.text"))
    metadata = iceberg.TableMetadataUtil.parse_raw(store.get(f"{folder}/v{version}.metadata.json").decode())
    files = iceberg._BlobIO(open_blobs(store), "memory://")
    manifests = metadata.current_snapshot().manifests(files)
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(files)]
    return {entry.data_file.file_path.removeprefix("memory://") for entry in entries}
