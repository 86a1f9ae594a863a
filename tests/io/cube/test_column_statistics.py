"""Column statistics of cubes: conditions on payload without an index open the files that can match."""

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.naming import metadata_key_from_uuid
from kartothek_cube.core.pruning import STATISTICS, statistics_file
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import build_dataset_indices, read_table, store_dataframes_as_dataset
from tests.support.cubes import memory, unchanged
from tests.support.stores import CountingStore, Same

CUBE = api.Cube(["x"], ["p"], "cube")
UUID = "cube++seed"
KEEP = {"seed": {STATISTICS: ["v", "t"]}}


def days(*numbers: int) -> pd.DataFrame:
    """Rows of days, in which `v` and `t` increase from day to day."""
    x = [10 * n + i for n in numbers for i in range(3)]
    return pd.DataFrame(
        {"x": x, "p": [i // 10 for i in x], "v": [i / 2 for i in x], "t": [f"t{i}" for i in x]}
    )


def pruning(store, condition, cube=CUBE, **kwargs):
    """By what a condition prunes files of the seed, and how many it keeps and prunes."""
    [effect] = api.explain_query(cube, store, condition, **kwargs).datasets[0].conditions
    assert len(api.query_cube(cube, store, condition, **kwargs)[0]) > 0
    return effect.by, effect.kept, effect.pruned


def state(store, uuid=UUID):
    return DatasetMetadata.load_from_store(uuid, open_blobs(store))


def key_of(store):
    return statistics_file(UUID, state(store).extra)


@pytest.fixture
def store():
    factory = memory()
    api.build_cube(days(0, 1, 2, 3), CUBE, factory, metadata=KEEP)
    return factory


def test_all_facades_build_and_keep_statistics(driver, store_factory):
    driver.build_cube(data=days(0, 1, 2), cube=CUBE, store=store_factory, statistics={"seed": ["t"]})
    assert pruning(store_factory, api.C("v") == 10.5) == ("rows", 3, 0)
    assert pruning(store_factory, api.C("t") < "t10") == ("statistics", 1, 2)
    driver.build_column_statistics(cube=CUBE, store=store_factory, columns=["v"])
    assert pruning(store_factory, api.C("v") == 10.5) == ("statistics", 1, 2)
    driver.append_to_cube(data=days(3), cube=CUBE, store=store_factory)
    update = {"remove_conditions": api.C("p") == 0, "ktk_cube_dataset_ids": ["seed"]}
    driver.update_cube(data=days(0), cube=CUBE, store=store_factory, **update)
    assert pruning(store_factory, api.C("v") >= 10) == ("statistics", 2, 2)
    [rows] = driver.query_cube(cube=CUBE, store=store_factory, conditions=api.C("v") >= 15.5)
    assert rows["x"].tolist() == [31, 32]
    assert api.verify_cube(CUBE, store_factory).ok


V, T = api.C("v"), api.C("t")
CONDITIONS = [
    *((V == 10.5, 1), (V != 10.5, 4), (V.isin([0.5, 3.0, 15.0]), 2), (V.between(5, 9.9), 1), (~(V < 10), 2)),
    *((T.startswith("t2"), 2), ((V < 1) | (T == "t31"), 2), ((V > 4) & (T < "t2"), 1)),
]


@pytest.mark.parametrize("condition, kept", CONDITIONS, ids=str)
def test_every_condition_keeps_the_files_that_can_match(store, condition, kept):
    """Texts of a file are from its first to its last: t0, t10, ..., t2."""
    explained = api.explain_query(CUBE, store, condition).datasets[0]
    assert explained.matching_files == kept
    everything = api.query_cube(CUBE, store)[0]
    api.build_column_statistics(CUBE, store, [])
    unpruned = api.query_cube(CUBE, store, condition)[0]
    assert api.explain_query(CUBE, store, condition).datasets[0].matching_files == 4
    api.build_column_statistics(CUBE, store, ["v", "t"])
    pd.testing.assert_frame_equal(api.query_cube(CUBE, store, condition)[0], unpruned)
    assert len(unpruned) < len(everything)


def test_a_column_called_partition_has_no_statistics():
    store = memory()
    api.build_cube(days(0, 1, 2).assign(partition="a"), CUBE, store, metadata=KEEP)
    for value, kept in {"a": 1, "b": 0}.items():
        condition = (V >= 10) & (api.C("partition") == value)
        assert sum(map(len, api.query_cube(CUBE, store, condition))) == 3 * kept
        assert api.explain_query(CUBE, store, condition).datasets[0].matching_files == 1


@pytest.mark.parametrize("n_files", [40, pytest.param(20_000, marks=pytest.mark.slow("40,000 files"))])
def test_a_point_query_opens_few_files(n_files):
    counting = CountingStore(memory())
    factory = Same.of(counting)
    many = pd.DataFrame({"x": range(n_files), "p": range(n_files), "v": [i * 7.0 for i in range(n_files)]})
    data, statistics = {"seed": many, "extra": many.rename(columns={"v": "w"})}, {"seed": "v", "extra": "w"}
    api.build_cube(data, CUBE, factory, statistics=statistics)
    for column in "vw":
        counting.reset()
        [rows] = api.query_cube(CUBE, factory, api.C(column) == 49.0)
        assert rows["x"].tolist() == [7]
        opened = {key for _, key in counting.log if "/table/p=" in str(key)}
        assert 2 <= len(opened) <= 10


def test_nulls_newer_rows_and_indices_are_considered(store):
    api.append_to_cube(days(4).assign(v=[None, 1.0, 2.0]), CUBE, store)
    assert pruning(store, api.C("v").is_null()) == ("statistics", 1, 4)
    # a newer row of a cell is read although its file cannot match
    api.append_to_cube(days(1).assign(v=-1.0), CUBE, store)
    assert api.query_cube(CUBE, store, api.C("v") == 5.0) == []
    build_dataset_indices(store, UUID, ["t"])
    assert pruning(store, api.C("t") == "t11") == ("index", 2, 4)


def test_files_change_and_the_statistics_follow(store):
    api.merge_into_cube(days(1).iloc[:1].assign(v=100.0), CUBE, store)
    assert pruning(store, api.C("v") > 50) == ("statistics", 1, 3)
    api.append_to_cube(days(2).assign(v=200.0), CUBE, store)
    api.compact_cube(CUBE, store)
    assert pruning(store, api.C("v") > 150) == ("statistics", 1, 3)
    api.delete_rows(CUBE, store, api.C("v") == 100)
    api.remove_partitions(CUBE, store, api.C("p") == 0)
    assert pruning(store, api.C("v") > 50) == ("statistics", 1, 2)
    assert api.verify_cube(CUBE, store).ok
    api.append_to_cube(days(4), CUBE, store)
    content = open_blobs(store).get(key_of(store))
    labels = pq.read_table(pa.BufferReader(content)).column("partition")
    assert labels.to_pylist() == state(store).partition_table.labels.to_pylist()


def test_an_update_of_the_schema_renames_and_drops_statistics(store):
    api.update_schema(CUBE, store, rename={"v": "w"}, drop=["t"], add={"n": "int64"}, defaults={"n": 1})
    assert state(store).metadata[STATISTICS] == ["w"]
    assert pruning(store, api.C("w") > 14) == ("statistics", 1, 3)
    api.build_column_statistics(CUBE, store, "n")
    api.append_to_cube(days(4).drop(columns="t").rename(columns={"v": "w"}).assign(n=2), CUBE, store)
    api.update_schema(CUBE, store, add={"m": "float64"})
    assert pruning(store, api.C("n") == 1) == ("statistics", 4, 1)
    assert pruning(store, api.C("w") > 14) == ("statistics", 2, 3)
    api.update_schema(CUBE, store, widen={"n": "float64"})
    assert pruning(store, api.C("n") == 1) == ("rows", 5, 0)
    assert api.verify_cube(CUBE, store).ok


def test_older_states_have_their_own_statistics(store):
    api.keep_cube_history(CUBE, store, 10)
    first = api.open_cube(CUBE, store).changes().token
    api.remove_partitions(CUBE, store, api.C("p") == 3)
    api.append_to_cube(days(4), CUBE, store)
    api.cleanup_cube(CUBE, store)
    assert api.query_cube(CUBE, store, api.C("v") > 19, as_of=first) == []
    api.append_to_cube(days(5), CUBE, store)
    api.rollback_cube(CUBE, store, 2)
    assert pruning(store, api.C("v") > 14) == ("statistics", 1, 3)
    api.keep_cube_history(CUBE, store, 0)
    api.cleanup_cube(CUBE, store)
    keys = [blob.key for blob in open_blobs(store).list(f"{UUID}/indices/{STATISTICS}/")]
    assert keys == [key_of(store)]


def test_a_copy_has_its_own_file(store):
    target = memory()
    api.copy_cube(CUBE, store, target, renamed_cube_prefix="other")
    other = api.Cube(["x"], ["p"], "other")
    assert pruning(target, api.C("v") > 14, other) == ("statistics", 1, 3)
    open_blobs(store).delete([key_of(store)])
    api.copy_cube(CUBE, store, memory())


def drop_record(store):
    """Write the header as kartothek does: without keys that it does not know."""
    open_blobs(store).put(metadata_key_from_uuid(UUID), state(store).copy(extra={}).to_json())


def delete_file(store):
    open_blobs(store).delete([key_of(store)])


@pytest.mark.parametrize("damage, problems", [(drop_record, set()), (delete_file, {"missing-statistics"})])
def test_other_software_ends_statistics_but_no_query(store, damage, problems):
    damage(store)
    assert pruning(store, api.C("v") > 14)[1:] == (4, 0)
    assert {problem.kind for problem in api.verify_cube(CUBE, store).problems} == problems
    api.append_to_cube(days(4), CUBE, store)
    assert pruning(store, api.C("v") < 1) == ("statistics", 4, 1)
    api.cleanup_cube(CUBE, store)
    api.build_column_statistics(CUBE, store, ["v"])
    assert pruning(store, api.C("v") > 14) == ("statistics", 2, 3)


def test_wrong_statistics_are_found_and_repaired(store):
    first, key = open_blobs(store).get(key_of(store)), key_of(store)
    table = pq.read_table(pa.BufferReader(first))
    order = pa.array(range(len(table))[::-1])
    wrong = table.set_column(1, "v", table.column("v").take(order))
    sink = pa.BufferOutputStream()
    pq.write_table(wrong, sink)
    open_blobs(store).put(key, bytes(sink.getvalue()))
    [problem] = api.verify_cube(CUBE, store).problems
    assert (problem.kind, problem.key, "v" in problem.message) == ("wrong-statistics", key, True)
    assert api.repair_cube(CUBE, store).ok
    assert pruning(store, api.C("v") > 14) == ("statistics", 1, 3)


def test_only_datasets_that_have_a_column_are_changed(store):
    api.extend_cube({"extra": days(0, 1).drop(columns=["v", "t"]).assign(w=[1, 2, 3, 4, 5, 6])}, CUBE, store)
    assert sorted(api.build_column_statistics(CUBE, store, "w")) == ["extra"]
    assert state(store).metadata[STATISTICS] == ["v", "t"]
    assert api.explain_query(CUBE, store, api.C("w") > 4).datasets[1].matching_files == 1
    assert sorted(api.build_column_statistics(CUBE, store, [], ["extra"])) == ["extra"]
    assert statistics_file("cube++extra", state(store, "cube++extra").extra) is None
    assert sorted(api.build_column_statistics(CUBE, store, [])) == ["seed"]
    with unchanged(lambda: store):
        assert api.build_column_statistics(CUBE, store, []) == {}


MISTAKES = [
    ("w", None, ValueError, r"unknown column w.*available"),
    ("p", None, ValueError, "'p': it is a partition key"),
    ("v", "other", ValueError, "other"),
    ("l", None, NotImplementedError, "type list<item: int64> cannot be compared"),
    (None, None, TypeError, r"columns is .*, or \[\] to keep no statistics, got None"),
    (["v", "partition"], None, ValueError, "labels of partitions have this name"),
]
#: mistakes of a build
BUILDS = [
    ({"statistics": ["v"]}, TypeError, "statistics should be a dict of dataset id to columns"),
    ({"statistics": {"seed": ["w"]}}, ValueError, "statistics missing in the input .*: unknown column w"),
    ({"metadata": {"seed": {STATISTICS: "v"}}}, ValueError, f"'{STATISTICS}' in the metadata is the list"),
]


@pytest.mark.parametrize("columns, datasets, error, text", MISTAKES)
def test_mistakes_change_nothing(columns, datasets, error, text):
    store = memory()
    api.build_cube(days(0).assign(l=[[1], [2], []], partition=1), CUBE, store)
    with unchanged(lambda: store), pytest.raises(error, match=text):
        api.build_column_statistics(CUBE, store, columns, datasets)


@pytest.mark.parametrize("arguments, error, text", BUILDS)
def test_mistakes_of_a_build_store_nothing(arguments, error, text):
    store = memory()
    with unchanged(lambda: store), pytest.raises(error, match=text):
        api.build_cube(days(0), CUBE, store, **arguments)


def test_other_engines_prune_by_statistics(store):
    """Whole files are opened by none of them: those that cannot match may be gone."""
    removed = state(store).partition_table.files["table"].to_pylist()[:3]
    open_blobs(store).delete(removed)
    opened = api.open_cube(CUBE, store)
    assert opened.dataset().to_table(filter=pc.field("v") > 14.0).num_rows == 3
    assert api.sql.connect(CUBE, store).sql("SELECT count(*) FROM cube WHERE t >= 't30'").fetchall() == [(3,)]
    assert len(read_table(UUID, store, predicates=[[("v", ">", 14.0)]])) == 3


def test_adopted_files_have_statistics(store, tmp_path):
    pq.write_table(pa.table({"x": [0, 1], "p": [0, 0], "w": [1.0, 2.0]}), tmp_path / "a.parquet")
    api.adopt_dataset(tmp_path / "a.parquet", CUBE, store, "extra", metadata={STATISTICS: ["w"]})
    (found,) = state(store, "cube++extra").load_statistics(open_blobs(store)).column("w").to_pylist()
    assert found == {"minimum": 1.0, "maximum": 2.0, "nulls": 0}


def test_datasets_without_a_cube_keep_statistics():
    store = memory()
    metadata = {STATISTICS: ["v", "p"]}
    store_dataframes_as_dataset(store, "sales", [days(0), days(1)], metadata=metadata, partition_on="p")
    table = state(store, "sales").load_statistics(open_blobs(store))
    assert [entry["maximum"] for entry in table.column("v").to_pylist()] == [1.0, 6.0]


def test_a_commit_takes_a_get_and_a_put_more():
    """As with an index."""
    counts = []
    for metadata in (None, KEEP):
        counting = CountingStore(memory())
        factory = Same.of(counting)
        api.build_cube(days(0, 1), CUBE, factory, metadata=metadata)
        counting.reset()
        api.append_to_cube(days(2), CUBE, factory)
        counts.append(counting.counts)
    more = counts[1] - counts[0]
    assert not counts[0] - counts[1]
    assert sum(more.values()) <= 4, more
