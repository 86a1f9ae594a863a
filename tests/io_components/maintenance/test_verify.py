"""Checking cubes and datasets: each fault is found and nothing else; what can be built anew is."""

import json
import re
from unittest import mock
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kartothek_cube.api import cube as api
from kartothek_cube.api.dataset import ExplicitSecondaryIndex, make_meta
from kartothek_cube.core import caching
from kartothek_cube.core.commit import header_store
from kartothek_cube.core.commit.change import ChangeSet, WriteMode
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.errors import DatasetNotFoundError, format_count
from kartothek_cube.core.header import COMMIT_RECORD
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io import eager
from kartothek_cube.io_components.maintenance.verify_dataset import REMEDIES, REPAIRABLE, Problem, Report
from kartothek_cube.io_components.write import write_commit
from tests.support.cubes import edit_header, file_keys, frame, header, memory, parquet_bytes, snapshot
from tests.support.paths import DATA
from tests.support.stores import Died, FaultyStore, ReadOnlyStore

CUBE = api.Cube(["x"], ["p"], "cube", index_columns=["i1"])
SEED = frame(x=[0, 1, 2], p=[0, 0, 1], i1=["a", "b", None], v1=[1.0, 2.0, 3.0]).assign(i1=["a", "b", "c"])
ENRICH = frame(x=[0, 2], p=[0, 1], v2=[1, 2])


@pytest.fixture
def store():
    store = memory()
    api.build_cube({"seed": SEED, "enrich": ENRICH}, CUBE, store)
    api.append_to_cube(SEED.head(1).assign(v1=9.0), CUBE, store)
    return store


def kinds(report) -> list[str]:
    return [problem.kind for problem in report.problems]


def first_file(store, uuid="cube++seed") -> str:
    return next(iter(file_keys(lambda: store, uuid).values()))


def rewrite(store, key, change) -> None:
    store.put(key, parquet_bytes(change(pq.read_table(pa.BufferReader(store.get(key))))))


def set_index(store, column, change, uuid="cube++seed") -> str:
    key = header(lambda: store, uuid)["indices"][column]
    index = ExplicitSecondaryIndex(column, index_storage_key=key).load(store)
    content = {value: list(labels) for value, labels in index.index_dct.items()}
    change(content)
    blob = ExplicitSecondaryIndex(column, content, dtype=index.dtype)
    other = memory()
    store.put(key, other.get(blob.store(other, uuid)))
    return key


# faults, each with the kind of problem that is found


def in_file(change, uuid="cube++seed"):
    return lambda store: rewrite(store, first_file(store, uuid), change)


def in_index(change, column="i1"):
    return lambda store: set_index(store, column, change)


def in_header(change, uuid="cube++enrich"):
    return lambda store: edit_header(lambda: store, uuid, change)


def in_first_partition(change, uuid="cube++seed"):

    def spoil(store):
        in_header(lambda h: change(store, next(iter(h["partitions"].values()))["files"]), uuid)(store)

    return spoil


def with_bytes(name, change):
    """Change the bytes of a blob of the dataset enrich, or of the first file or the index of the seed."""

    def spoil(store):
        known = {"file": first_file(store), "index": header(lambda: store, "cube++seed")["indices"]["i1"]}
        key = known.get(name, f"cube++enrich{name}")
        store.put(key, change(store.get(key) if key in store else b""))

    return spoil


def another_dataset(*, partition_on="p", table_name="table", **columns):
    def change(store):
        # as other software does
        with mock.patch.object(write_commit, "check_rules"):
            arguments = {"partition_on": partition_on, "table_name": table_name}
            eager.store_dataframes_as_dataset(store, "cube++more", [frame(**columns)], **arguments)

    return change


def lose_file(store):
    store.delete(first_file(store))


def lose_index(store):
    store.delete(header(lambda: store, "cube++seed")["indices"]["i1"])


def retype_index(store):
    key = header(lambda: store, "cube++seed")["indices"]["i1"]
    other = memory()
    index = ExplicitSecondaryIndex("i1", {1: ["p=0/a"]}, dtype=pa.int64())
    store.put(key, other.get(index.store(other, "cube++seed")))


def share_file(content):
    parts = list(content["partitions"].values())
    parts[-1]["files"]["table"] = parts[0]["files"]["table"]


def misplace(store, files):
    """The file of a partition lies in another one."""
    moved = files["table"].replace("p=0", "p=7")
    store.put(moved, store.get(files["table"]))
    files["table"] = moved


def bad_label(store):
    def change(content):
        content["partitions"] = json.loads(json.dumps(content["partitions"]).replace("p=0/", "q=0/"))
        for part in content["partitions"].values():
            store.put(part["files"]["table"], b"")

    in_header(change)(store)


def lose_key(store):
    in_header(lambda content: content.pop(COMMIT_RECORD))(store)
    key = "cube++enrich/table/_common_metadata"
    schema = pq.read_schema(pa.BufferReader(store.get(key)))
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema.remove(schema.get_field_index("p")), sink)
    store.put(key, sink.getvalue().to_pybytes())


truncate = with_bytes("file", lambda data: data[:-10])
lose_column = in_file(lambda t: t.drop_columns(["v1"]))
shuffle = in_file(lambda t: t.take([1, 0]))
forget_value = in_index(lambda content: content.pop("b"))
forget_label = in_index(lambda content: content[0].pop(), "x")
spoil_header = with_bytes(".by-dataset-metadata.json", lambda data: b"{")
take_file_of_seed = in_first_partition(
    lambda store, files: files.update(table="cube++seed/table/p=0/a.parquet"), "cube++enrich"
)
overlap = another_dataset(x=[0, 2], p=[0, 1], v1=[1.0, 2.0])


def with_cell(table, x):
    return table.set_column(0, "x", pa.array([x], pa.int64()))


FAULTS = {
    "a lost file": (lose_file, "missing-file"),
    "a truncated file": (truncate, "unreadable-file"),
    "an empty file": (with_bytes("file", lambda data: b""), "unreadable-file"),
    "spoiled pages": (with_bytes("file", lambda data: data[:4] + bytes(60) + data[64:]), "unreadable-file"),
    "a lost column": (lose_column, "file-schema"),
    "a new column": (in_file(lambda t: t.append_column("new", pa.array([1] * len(t)))), "file-schema"),
    "another type": (in_file(lambda t: t.set_column(2, "v1", pa.array(["a"] * len(t)))), "file-schema"),
    "other rows": (in_file(lambda t: t.append_column("p", pa.array([5] * len(t)))), "wrong-partition"),
    "another order": (shuffle, "unsorted"),
    "another cell": (in_file(lambda t: with_cell(t, 7), "cube++enrich"), "wrong-name"),
    "a repeated row": (in_file(lambda t: t.take([0, 0, 1])), "duplicate-cells"),
    "a null": (in_file(lambda t: with_cell(t, None), "cube++enrich"), "null-key"),
    "a lost index": (lose_index, "missing-index"),
    "a spoiled index": (with_bytes("index", lambda data: b"no index"), "unreadable-index"),
    "an index without a value": (forget_value, "index-incomplete"),
    "an index without a label": (forget_label, "index-incomplete"),
    "an index with a new value": (in_index(lambda content: content.update(z=content["a"])), "index-excess"),
    "a new label": (in_index(lambda content: content["a"].append("p=0/unknown")), "index-unknown-partition"),
    "an index of another type": (retype_index, "index-type"),
    "no index": (in_header(lambda h: h["indices"].pop("i1"), "cube++seed"), "index-absent"),
    "no schema": (lambda store: store.delete("cube++enrich/table/_common_metadata"), "missing-schema"),
    "a spoiled schema": (with_bytes("/table/_common_metadata", lambda data: b"no schema"), "missing-schema"),
    "a spoiled header": (spoil_header, "header"),
    "a file of another dataset": (take_file_of_seed, "header"),
    "two headers": (with_bytes(".by-dataset-metadata.msgpack.zstd", lambda data: b""), "two-headers"),
    "a shared file": (in_header(share_file, "cube++seed"), "shared-file"),
    "a misplaced file": (in_first_partition(misplace), "path"),
    "a bad label": (bad_label, "label"),
    "no partition key in the schema": (lose_key, "schema"),
    "no seed": (lambda store: store.delete("cube++seed.by-dataset-metadata.json"), "seed"),
    "a column of two datasets": (overlap, "payload-overlap"),
    "a column of two types": (another_dataset(x=["a"], p=[0], v3=[1]), "type-conflict"),
    "no dimension": (another_dataset(p=[0], v3=[1]), "cube-columns"),
    "no partition keys": (another_dataset(x=[0], p=[0], v3=[1], partition_on=None), "cube-columns"),
    "another table": (another_dataset(x=[0], v3=[1], partition_on=None, table_name="core"), "cube-table"),
    "no specification": (in_header(lambda h: h.pop("metadata"), "cube++seed"), "no-specification"),
    "two seeds": (in_header(lambda h: h["metadata"].update(ktk_cube_is_seed=True)), "cube-metadata"),
}
#: what only the rows tell
DEEP = {"wrong-name", "wrong-partition", "unsorted", "duplicate-cells", "null-key"}
DEEP |= {"index-incomplete", "index-excess"}


def test_a_cube_as_it_has_to_be(store):
    before = snapshot(lambda: store)
    report = api.verify_cube(CUBE, ReadOnlyStore(store))
    assert report.ok
    assert dict(report.checked) == {"datasets": 2, "files": 5, "rows": 6, "indices": 2}
    assert repr(report) == "no problems in 2 datasets, 5 files, 6 rows, 2 indices"
    assert api.repair_cube(CUBE, store) == report
    assert snapshot(lambda: store) == before


EMPTY_LISTS = DATA / "empty-lists"


@pytest.mark.parametrize("deep", [True, False])
def test_files_of_kartothek_and_plateau_with_empty_lists_only(deep):
    cube = api.Cube(["x"], ["p"], "cube")
    store = "hfs://" + quote(str(EMPTY_LISTS / "kartothek"))
    assert api.verify_cube(cube, store, deep=deep).problems == ()
    assert [values.tolist() for values in api.query_cube(cube, store)[0]["v"]] == [[], [1]]
    store = "hfs://" + quote(str(EMPTY_LISTS / "plateau"))
    assert eager.verify_dataset("dataset", store, deep=deep).problems == ()
    assert [values.tolist() for values in eager.read_table("dataset", store)["s"]] == [[], ["a"]]


@pytest.mark.parametrize(
    "recorded, found, fits",
    [
        (pa.list_(pa.int64()), pa.list_(pa.null()), True),
        (pa.list_(pa.list_(pa.string())), pa.list_(pa.list_(pa.null())), True),
        (pa.struct([("a", pa.list_(pa.int64()))]), pa.struct([("a", pa.list_(pa.null()))]), True),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.null()), True),
        (pa.float64(), pa.int64(), False),
        (pa.decimal128(5, 2), pa.decimal128(2, 1), True),
        (pa.binary(), pa.string(), True),
        (pa.int64(), pa.float64(), False),
        (pa.decimal128(2, 1), pa.decimal128(5, 2), False),
        (pa.string(), pa.binary(), False),
        (pa.date32(), pa.timestamp("ns"), False),
        (pa.timestamp("ns"), pa.date32(), False),
        (pa.timestamp("ns"), pa.timestamp("ns", "UTC"), False),
        (pa.timestamp("ns", "UTC"), pa.timestamp("ns"), False),
        (pa.list_(pa.int64()), pa.list_(pa.string()), False),
        (pa.list_(pa.int64()), pa.list_(pa.list_(pa.null())), False),
        (pa.list_(pa.int64()), pa.int64(), False),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.null())]), False),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.null())]), False),
    ],
    ids=str,
)
def test_types_that_reads_turn_into_those_of_the_schema_are_no_fault(recorded, found, fits):
    store = memory()
    eager.store_dataframes_as_dataset(store, "u", [pa.table({"v": pa.nulls(1, recorded)})])
    rewrite(store, first_file(store, "u"), lambda t: t.set_column(0, "v", pa.nulls(1, found)))
    assert kinds(eager.verify_dataset("u", store)) == ([] if fits else ["file-schema"])


@pytest.mark.parametrize("name", FAULTS)
def test_faults(store, name):
    fault, kind = FAULTS[name]
    fault(store)
    before = snapshot(lambda: store)
    is_deep = kind in DEEP or name == "spoiled pages"
    assert kinds(api.verify_cube(CUBE, store, deep=False)) == ([] if is_deep else [kind])
    report = api.verify_cube(CUBE, store)
    # the rows of a shared file are those of another partition
    assert kind in kinds(report) if kind == "shared-file" else kinds(report) == [kind]
    assert not report.ok
    assert snapshot(lambda: store) == before
    for problem in report.problems:
        assert problem.key in repr(report)
        assert problem.remedy in repr(report)
        assert problem.dataset in (f"cube++{name}" for name in ("seed", "enrich", "more"))
    assert report.to_pandas()["kind"].tolist() == kinds(report)
    assert json.loads(json.dumps(report.to_dict()))["problems"][0]["kind"] == kinds(report)[0]
    repaired = api.repair_cube(CUBE, store)
    if kind in REPAIRABLE:
        assert repaired.ok
        assert [problem.kind for problem in repaired.repaired] == kinds(report)
        assert api.verify_cube(CUBE, store).ok
        assert f"repaired: {report.problems[0].dataset}: " in repr(repaired)
        old = json.loads(before["cube++seed.by-dataset-metadata.json"])
        assert header(lambda: store, "cube++seed")["partitions"] == old["partitions"]
    elif kind != "shared-file":
        # where data are missing, an index built anew would hide it
        assert repaired == report
        assert snapshot(lambda: store) == before


@pytest.mark.parametrize("keep", [False, True])
def test_a_repair_of_indices_is_no_new_state_and_does_not_mend_the_history(store, keep):
    if keep:
        eager.keep_dataset_history("cube++seed", store)
    lose_index(store)
    forget_label(store)
    before = eager.list_dataset_history("cube++seed", store)
    assert set(kinds(api.repair_cube(CUBE, store))) == ({"history-file"} if keep else set())
    assert eager.list_dataset_history("cube++seed", store) == before
    api.cleanup_cube(CUBE, store)
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("deep", [True, False])
def test_all_facades_find_the_same(store, driver, deep):
    for fault in (truncate, forget_value, overlap):
        fault(store)
    arguments = {"cube": CUBE, "store": lambda: store, "deep": deep}
    assert driver.verify_cube(**arguments) == api.verify_cube(CUBE, store, deep=deep)
    chosen = driver.verify_cube(**arguments, ktk_cube_dataset_ids="enrich")
    assert chosen.ok
    assert chosen.checked["datasets"] == 1


@pytest.mark.parametrize("ids", ["sed", ["seed", "more"]])
def test_unknown_datasets(store, ids):
    with pytest.raises(ValueError, match=r"unknown dataset (sed|more)"):
        api.verify_cube(CUBE, store, ids)


def test_dataset(store):
    assert eager.verify_dataset("cube++seed", store).ok
    forget_value(store)
    (problem,) = eager.verify_dataset("cube++seed", store).problems
    assert problem.column == "i1"
    assert re.search(r"no entries for 1 .* 'b' in p=0/", problem.message)
    report = eager.repair_dataset("cube++seed", store)
    assert (report.ok, [p.kind for p in report.repaired]) == (True, ["index-incomplete"])
    with pytest.raises(DatasetNotFoundError):
        eager.verify_dataset("u", store)


@pytest.mark.parametrize("process", ["of the writer", "another"])
def test_a_damaged_seed_is_reported_beside_datasets_of_its_operations(store, process):
    api.append_to_cube({"seed": SEED, "enrich": ENRICH}, CUBE, store)
    store.put("cube++seed.by-dataset-metadata.json", b"{")
    if process == "another":
        caching.clear()
    report = api.verify_cube(CUBE, store)
    assert kinds(report) == ["unknown-operation", "header"]
    assert "cube++seed" in report.problems[0].message


def test_datasets_have_no_order_and_columns_may_have_no_type():
    store = memory()
    df = frame(x=[2, 1, 1, None])
    eager.store_dataframes_as_dataset(store, "u", [df], secondary_indices="x")
    assert eager.verify_dataset("u", store).ok
    store = memory()
    eager.store_dataframes_as_dataset(store, "u", [frame(x=pd.Series([None], dtype=object), y=[1])])
    eager.update_dataset_from_dataframes([frame(x=["a"], y=[1])], store, "u")
    eager.build_dataset_indices(store, "u", "x")
    assert eager.verify_dataset("u", store).ok


@pytest.mark.parametrize(
    "values",
    [
        pd.array([1, None], "Int64"),
        [1.5, None],
        ["a", None],
        [b"a", b"\x00"],
        [True, False],
        pd.to_datetime(["2020-01-01 00:00:01", None]),
        pd.to_datetime(["2020-01-01", "2020-01-02"]).tz_localize("Europe/Berlin"),
        pd.Categorical(["a", "b"]),
        [pd.Timestamp("2020-01-01").date(), None],
    ],
    ids=lambda v: str(pd.Series(v).dtype),
)
def test_types(values):
    store = memory()
    df = frame(x=values, y=[[1], [2]], z=[1, 2])
    eager.store_dataframes_as_dataset(store, "u", [df, df.head(1)], partition_on="z", secondary_indices="x")
    eager.update_dataset_from_dataframes([df.assign(x=df["x"].iloc[0])], store, "u")
    report = eager.verify_dataset("u", store)
    assert report.ok, report


def test_history(store):
    eager.keep_dataset_history("cube++seed", store, 5)
    old = header(lambda: store, "cube++seed")["indices"]["x"]
    api.append_to_cube(SEED, CUBE, store)
    assert eager.verify_dataset("cube++seed", store).ok
    store.delete(old)
    (problem,) = eager.verify_dataset("cube++seed", store).problems[:1]
    assert (problem.kind, problem.key) == ("history-file", old)
    for key in [key for key in store.keys() if "/_history/" in key]:
        store.put(key, b"x")
    assert set(kinds(eager.verify_dataset("cube++seed", store))) == {"history"}


def test_schema_of_an_unfinished_write(store):
    """The schema of an overwrite is there, its header is not."""
    failing = FaultyStore(store).die("put", key="enrich.by-dataset")
    schema = make_meta(frame(x=[1], other=["a"]), "new")
    with pytest.raises(Died):
        commit(open_blobs(failing), ChangeSet("cube++enrich", mode=WriteMode.REPLACE, schema=schema))
    (problem,) = api.verify_cube(CUBE, store).problems
    assert problem.kind == "schema-pending"
    assert api.repair_cube(CUBE, store).ok
    names = pq.read_schema(pa.BufferReader(store.get("cube++enrich/table/_common_metadata"))).names
    assert names == ["p", "v2", "x"]


def test_a_repair_between_schema_and_header_of_a_commit(store, monkeypatch):
    check, repaired = header_store.check_files, []

    def check_after_repair(*args, **kwargs):
        monkeypatch.undo()
        repaired.extend(api.repair_cube(CUBE, store).repaired)
        check(*args, **kwargs)

    monkeypatch.setattr(header_store, "check_files", check_after_repair)
    api.update_schema(CUBE, store, "enrich", rename={"v2": "w2"})
    assert [problem.kind for problem in repaired] == ["schema-pending"]
    assert api.verify_cube(CUBE, store).ok


def test_long_reports_are_cut():
    report = Report([Problem("u", "missing-file", f"u/{n}", "gone") for n in range(30)])
    assert "30 problems\n" in repr(report)
    assert "and 10 more" in repr(report)
    assert len(report.to_pandas()) == 30


def test_kinds_are_fixed():
    with pytest.raises(ValueError):
        Problem("u", "something", "k", "text")
    assert set(REMEDIES) >= REPAIRABLE
    found = {kind for _, kind in FAULTS.values()}
    # tested elsewhere: above, in test_history.py and test_update.py of tests/io/dataset, test_publish.py of
    # tests/io, and test_atomicity.py, test_column_statistics.py and test_contracts.py of tests/io/cube
    others = {"history", "history-file", "schema-pending", "unfinished-operation", "unknown-operation"}
    others |= {"publication", "publication-log", "missing-statistics", "wrong-statistics", "contract"}
    others |= {"outdated-header"}
    assert found | others == set(REMEDIES)


# whatever an index says, the report says how it differs from the data --------------------------------------

CONTENT = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sets(st.integers(0, 3), min_size=1))


@pytest.mark.slow("many random indices")
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(data=CONTENT, said=CONTENT)
def test_indices_against_data(data, said):
    store = memory()
    dfs = [frame(x=[v for v, where in data.items() if n in where] or ["e"]) for n in range(4)]
    labels = list(eager.store_dataframes_as_dataset(store, "u", dfs, secondary_indices="x").partitions)
    content = {v: [labels[n] for n in sorted(where)] for v, where in said.items()}
    others = [n for n in range(4) if dfs[n]["x"].tolist() == ["e"]]
    if others:
        content["e"] = [labels[n] for n in others]

    def change(found):
        found.clear()
        found.update(content)

    set_index(store, "x", change, "u")
    truth = {(v, n) for v, where in data.items() for n in where}
    claim = {(v, n) for v, where in said.items() for n in where}
    expected = ["index-excess"] * bool(claim - truth) + ["index-incomplete"] * bool(truth - claim)
    report = eager.verify_dataset("u", store)
    assert kinds(report) == expected
    for problem in report.problems:
        missing = truth - claim if problem.kind == "index-incomplete" else claim - truth
        assert f" {format_count(len(missing), 'value')} in partitions" in problem.message
    assert eager.repair_dataset("u", store).ok
