"""What Iceberg tables have beyond Delta tables; ``test_publish.py`` compares what readers of both see."""

import json
from pathlib import Path

import pandas as pd
import pytest
from pyiceberg.table import StaticTable

from kartothek_cube.api import cube as cubes
from kartothek_cube.api import dataset as datasets
from kartothek_cube.core.dataset_files import data_keys
from kartothek_cube.core.errors import PublicationWarning
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.maintenance import garbage
from kartothek_cube.io_components.publication import delta_log, iceberg, published_table
from tests.io import test_publish as delta
from tests.io.test_publish import CUBE, build_published, plain, seed, store_published
from tests.support.crash import stores_after_faults
from tests.support.cubes import memory, snapshot
from tests.support.paths import files_below
from tests.support.stores import Same


def rows(path: Path) -> list[dict]:
    return plain(delta.by_pyiceberg(path / "cube++seed"))


def test_each_publication_is_a_snapshot(url, path):
    build_published(url, format="iceberg")
    cubes.append_to_cube(pd.DataFrame({"x": [2], "p": [2]}), CUBE, url)
    cubes.remove_partitions(CUBE, url, cubes.C("p") == 1)
    # what is an Iceberg table stays one
    assert cubes.publish_cube(CUBE, url)["seed"] == {"version": 1, "files": 2, "added": 1, "removed": 1}
    before = files_below(path)
    cubes.publish_cube(CUBE, url, format="iceberg")
    assert files_below(path) == before
    shown = StaticTable.from_metadata(delta.iceberg(path / "cube++seed"))
    assert [snapshot.summary["total-data-files"] for snapshot in shown.snapshots()] == ["2", "2"]
    assert shown.current_snapshot().summary["deleted-data-files"] == "1"
    assert len(shown.inspect.manifests()) == 3
    assert [row["x"] for row in rows(path)] == [0, 2]
    assert [row["x"] for row in plain(shown.scan(row_filter="p = 2").to_arrow())] == [2]
    assert len(shown.scan(snapshot_id=shown.snapshots()[0].snapshot_id).to_arrow()) == 2
    assert [row["x"] for row in delta.rows(path / "cube++seed")] == [0, 2]


def test_a_published_dataset_becomes_an_iceberg_table(url, path):
    """Its log shows the state already, and gets no version for that."""
    build_published(url)
    found = cubes.publish_cube(CUBE, url, format="iceberg")["seed"]
    assert found == {"version": 0, "files": 2, "added": 0, "removed": 0}
    assert len(rows(path)) == 2


def test_each_commit_publishes(url, path):
    cubes.build_cube(seed(), CUBE, url, metadata={"seed": {"kartothek_cube_publish": "iceberg"}})
    cubes.append_to_cube(pd.DataFrame({"x": [2], "p": [2]}), CUBE, url)
    assert len(rows(path)) == 3
    with pytest.warns(PublicationWarning, match="newer version"):
        cubes.append_to_cube(pd.DataFrame({"x": [2], "p": [2]}), CUBE, url)
    assert len(rows(path)) == 3


def test_a_store_without_locations():
    store = memory()
    cubes.build_cube(seed(), CUBE, Same.of(store))
    before = set(store.keys())
    with pytest.raises(ValueError, match="Iceberg tables name their files by absolute paths, and this store"):
        cubes.publish_cube(CUBE, Same.of(store), format="iceberg")
    assert set(store.keys()) == before


def test_what_iceberg_tables_cannot_show(url, path, monkeypatch):
    """pyiceberg and Polars would round 0.1; no other dataset is published either."""
    data = {"seed": seed(), "more": seed(f=[0.1, 0.2])}
    cubes.build_cube(data, CUBE, url, partition_on={"more": ["p", "f"]})
    with pytest.raises(ValueError, match="partition key f is a floating point number"):
        cubes.publish_cube(CUBE, url, format="iceberg")
    monkeypatch.setattr(published_table, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'kartothek_cube\[iceberg\]'"):
        cubes.publish_cube(CUBE, url, format="iceberg")
    assert not delta.logs(path)


def test_cleanups_and_the_end(url, path, tmp_path):
    build_published(url, format="iceberg")
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
    build_published(url, format="iceberg")
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
    store_published(Same.of(build), format="iceberg", partition_on=["p"])
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
    store_published(Same.of(store), format="iceberg", partition_on=["p"])
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
