"""Deleting rows of a dataset by predicates: what a read returns for them is gone, other files stay."""

from collections import Counter

import numpy as np
import pytest

from kartothek_cube.api import cube as cube_api
from kartothek_cube.api import dataset as api
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.io_components.delete_rows import DeleteDatasetRows
from kartothek_cube.io_components.write.stored_rows import StoredRows
from kartothek_cube.serialization import CsvSerializer
from tests.support.cubes import refuses, unchanged
from tests.support.stored_files import check_integrity, directories, frame, index, labels, snapshot

ROWS = frame(p=["a", "a", "b", "c"], x=[1, 2, 3, 4], w=[1.0, np.nan, 3.0, 4.0])
MORE = ROWS.assign(x=ROWS["x"] + 10)


def delete_delayed(uuid, store, *args, **kwargs):
    return api.delete_dataset_rows__delayed(uuid, store, *args, **kwargs).compute(scheduler="sync")


FACADES = {"eager": api.delete_dataset_rows, "delayed": delete_delayed}


@pytest.fixture(params=[[], ["p"]], ids=["one partition", "partition keys"])
def stored(request, memory):
    """A dataset of two inputs."""
    options = {"partition_on": request.param, "secondary_indices": "x"}
    api.store_dataframes_as_dataset(memory, "u", [ROWS, MORE], **options)
    return memory


def left(store, column="x"):
    return sorted(api.read_table("u", store)[column])


@pytest.mark.parametrize("delete", FACADES.values(), ids=FACADES.keys())
def test_rows_are_deleted(stored, delete):
    assert delete("u", stored, [[("x", "==", 2)], [("p", "==", "b")]])["rows_deleted"] == 3
    assert left(stored) == [1, 4, 11, 12, 14]
    check_integrity(stored)
    assert sorted(index(stored, "x")) == [1, 4, 11, 12, 14]
    assert api.verify_dataset("u", stored).ok


@pytest.mark.parametrize(
    "predicates, expected",
    [
        ([[("w", "==", np.nan)]], [1, 3, 4, 11, 13, 14]),
        ([[("w", "!=", np.nan), ("x", "<", 10)]], [2, 11, 12, 13, 14]),
        ([[("p", "in", ["a", "c"]), ("x", ">", 3)]], [1, 2, 3, 13]),
        ("all", []),
    ],
    ids=str,
)
def test_predicates_are_those_of_a_read(stored, predicates, expected):
    found = api.read_table("u", stored, predicates=None if predicates == "all" else predicates)
    assert api.delete_dataset_rows("u", stored, predicates)["rows_deleted"] == len(found)
    assert left(stored) == expected
    check_integrity(stored)


def test_partitions_without_such_rows_keep_their_files(stored):
    with unchanged(stored):
        counts = api.delete_dataset_rows("u", stored, [[("x", ">", 5), ("x", "<", 9)]])
    assert counts == {"rows_deleted": 0, "partitions": 0}
    before = labels(stored)
    counts = api.delete_dataset_rows("u", stored, [[("x", "==", 12)]])
    assert counts == {"rows_deleted": 1, "partitions": 1}
    assert len(set(before) & set(labels(stored))) == len(before) - 1


def test_whole_partitions_are_removed_without_being_read(memory, monkeypatch):
    api.store_dataframes_as_dataset(memory, "u", [ROWS, MORE], partition_on="p")
    monkeypatch.setattr(StoredRows, "read", lambda *_: pytest.fail("a file was read"))
    counts = api.delete_dataset_rows("u", memory, [[("p", ">", "a")]])
    assert counts == {"rows_deleted": 4, "partitions": 4}
    assert directories(memory) == ["p=a", "p=a"]


@pytest.mark.parametrize(
    "predicates, error, text",
    [
        (None, ValueError, "No predicates: everything would be removed. Pass predicates='all'"),
        ([], ValueError, "predicates='all'"),
        ([[]], ValueError, "Conjunction 0"),
        ([[("y", "==", 1)]], ValueError, "unknown column y; available: p, w, x"),
        ([[("x", "==", "text")]], TypeError, "'x'"),
    ],
)
def test_wrong_arguments_change_nothing(stored, predicates, error, text):
    with refuses(stored, error, text):
        api.delete_dataset_rows("u", stored, predicates)


def test_missing_datasets_and_those_of_cubes_are_refused(memory):
    with refuses(memory, KeyError, "'u'"):
        api.delete_dataset_rows("u", memory, "all")
    cube_api.build_cube(ROWS, cube_api.Cube(["x"], ["p"], "c"), memory)
    with refuses(memory, ValueError, "'c++seed' belongs to a cube: use delete_rows"):
        api.delete_dataset_rows("c++seed", memory, [[("x", "==", 1)]])


def planned(store, predicates):
    """The last step of a deletion whose tasks are done."""
    job = DeleteDatasetRows("u", store, predicates).job()
    results = [job.run(job.context, task) for task in job.tasks]
    return lambda: job.finish(results)


@pytest.mark.parametrize("predicates", [[[("x", "==", 1)]], [[("p", "==", "a")]]], ids=["some", "all"])
def test_rows_that_are_appended_meanwhile_stay(stored, predicates):
    expected = len(ROWS) * 3 - len(api.read_table("u", stored, predicates=predicates))
    finish = planned(stored, predicates)
    api.update_dataset_from_dataframes([ROWS], stored, "u")
    finish()
    assert len(left(stored)) == expected
    check_integrity(stored)


def test_partitions_that_are_removed_meanwhile_are_noticed(stored):
    finish = planned(stored, [[("x", "==", 1)]])
    api.update_dataset_from_dataframes([ROWS], stored, "u", delete_scope=[{}])
    before = snapshot(stored)
    with pytest.raises(ConcurrentWriteError):
        finish()
    # without the file that the deletion has written
    assert snapshot(stored).keys() < before.keys()
    assert left(stored) == [1, 2, 3, 4]
    check_integrity(stored)


def test_a_staged_deletion(stored):
    staged = api.delete_dataset_rows("u", stored, [[("x", ">", 3)]], publish=False)
    assert left(stored) == [1, 2, 3, 4, 11, 12, 13, 14]
    assert sorted(api.read_table("u", stored, as_of=staged)["x"]) == [1, 2, 3]
    cube_api.publish_staged(staged, stored)
    assert left(stored) == [1, 2, 3]


def test_published_tables_follow(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    store = f"hfs://{tmp_path}"
    api.store_dataframes_as_dataset(store, "u", [ROWS], partition_on="p")
    api.publish_dataset("u", store, on_commit=True)
    api.delete_dataset_rows("u", store, [[("x", "==", 1)], [("p", "==", "c")]])
    assert sorted(deltalake.DeltaTable(f"{tmp_path}/u").to_pyarrow_table()["x"].to_pylist()) == [2, 3]


def test_statistics_and_other_formats(memory):
    metadata = {"kartothek_cube_statistics": ["w"]}
    api.store_dataframes_as_dataset(memory, "u", [ROWS, MORE], partition_on="p", metadata=metadata)
    api.delete_dataset_rows("u", memory, [[("w", ">=", 4.0)]], df_serializer=CsvSerializer())
    api.delete_dataset_rows("u", memory, [[("x", "==", 2)]], df_serializer=CsvSerializer())
    assert sorted(api.read_table("u", memory, predicates=[[("w", "<", 4.0)]])["x"]) == [1, 3, 11, 13]
    assert left(memory) == [1, 3, 11, 12, 13]
    assert api.verify_dataset("u", memory).ok


def test_a_header_that_lists_no_partitions(memory):
    api.create_empty_dataset_header(memory, "u", ROWS, partition_on="p")
    api.write_single_partition(memory, "u", ROWS)
    api.delete_dataset_rows("u", memory, [[("x", "==", 1)]])
    assert left(memory) == [2, 3, 4]


def test_a_factory_in_place_of_uuid_and_store(stored):
    api.delete_dataset_rows(factory=api.DatasetFactory("u", stored), predicates=[[("x", "<", 10)]])
    assert left(stored) == [11, 12, 13, 14]


@pytest.mark.parametrize("seed", range(4))
def test_random_deletions_leave_what_a_filter_does(memory, seed):
    draw = np.random.default_rng(seed)
    inputs = [
        frame(p=draw.integers(0, 4, 30), x=draw.integers(0, 9, 30), w=draw.choice([1.5, np.nan, -0.0], 30))
        for _ in range(3)
    ]
    api.store_dataframes_as_dataset(memory, "u", inputs, partition_on=[[], ["p"], ["p", "x"]][seed % 3])

    def counted(df):
        return Counter(df[["p", "x", "w"]].astype(str).itertuples(index=False, name=None))

    for _ in range(4):
        p, x, w = int(draw.integers(0, 4)), int(draw.integers(0, 9)), draw.choice([1.5, 0.0])
        predicates = [[("p", "==", p), ("x", ">", x)], [("w", "<=", w), ("x", "==", x)]]
        before, found = api.read_table("u", memory), api.read_table("u", memory, predicates=predicates)
        assert api.delete_dataset_rows("u", memory, predicates)["rows_deleted"] == len(found)
        assert counted(api.read_table("u", memory)) == counted(before) - counted(found)
        check_integrity(memory)
