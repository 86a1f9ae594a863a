"""Merges: cells are updated, inserted and deleted by one commit, and only touched partitions change."""

import numpy as np
import pandas as pd
import pytest
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError, DuplicateCellsError
from kartothek_cube.core.naming import is_header_key
from kartothek_cube.core.store import PreconditionFailed
from kartothek_cube.core.store.resolve import GenericBlobStore
from kartothek_cube.io_components import runtime
from kartothek_cube.io_components.write import rewrite, write_commit

CUBE = api.Cube(["x", "y"], ["p", "q"], "cube", index_columns=["i"])


def frame(start: int, stop: int, factor: int = 1) -> pd.DataFrame:
    n = np.arange(start, stop)
    columns = {"x": n, "y": n % 2, "p": n // 4, "q": "a/b", "i": n % 3, "v": n * factor, "w": n * 0.5}
    return pd.DataFrame(columns)


@pytest.fixture
def store():
    store = get_store_from_url("hmemory://")
    api.build_cube(frame(0, 16), CUBE, store)
    return store


@pytest.fixture
def before_commit(monkeypatch):
    """Calls a function once, when the files of a merge are written."""
    finish_write, actions = write_commit.finish_write, []

    def finish_later(*args):
        if actions:
            actions.pop()()
        return finish_write(*args)

    monkeypatch.setattr(write_commit, "finish_write", finish_later)
    return actions.append


def stored(store) -> pd.DataFrame:
    (df,) = api.query_cube(CUBE, store)
    return df[sorted(df.columns)].sort_values("x", ignore_index=True)


def labels(store) -> list[str]:
    return DatasetMetadata.load_from_store("cube++seed", store).partition_table.labels.to_pylist()


def test_cells_are_updated_inserted_and_deleted(store):
    before = labels(store)
    changes = frame(2, 20, 10).drop(index=range(2, 10)).assign(drop=False)
    changes.loc[changes["x"].isin([3, 15, 19]), "drop"] = True
    result = api.merge_into_cube(changes, CUBE, store, delete_column="drop")
    assert result.partitions.to_pydict() == {
        "partition": [f"p={p}/q=a%2Fb" for p in (0, 3, 4)],
        "rows_inserted": [0, 0, 3],
        "rows_updated": [1, 3, 0],
        "rows_deleted": [1, 1, 0],
    }
    unchanged = frame(0, 16)[lambda df: ~df["x"].isin([2, 3, 12, 13, 14, 15])]
    expected = pd.concat([unchanged, changes.query("~drop")])
    expected = expected[sorted(stored(store).columns)].sort_values("x", ignore_index=True)
    pd.testing.assert_frame_equal(stored(store), expected, check_dtype=False)
    untouched = [label for label in before if label.startswith(("p=1/", "p=2/"))]
    assert set(untouched) == set(before) & set(labels(store)) and len(labels(store)) == 5
    assert api.verify_cube(CUBE, store).ok


@pytest.fixture(params=[1, 1 << 24], ids=["one by one", "at once"])
def one_task(request, monkeypatch):
    """A task merges all partitions, which it reads one by one or at once."""
    monkeypatch.setattr(runtime, "available_cores", lambda: 1)
    monkeypatch.setattr(rewrite, "TASKS_PER_CORE", 1)
    monkeypatch.setattr(rewrite, "_BLOCK_BYTES", request.param)


def test_cells_of_other_partitions_stay(one_task):
    """The same cell in several partitions."""
    store, cube = get_store_from_url("hmemory://"), api.Cube(["x"], ["p", "q"], "cube")
    keys = [(0.5, "a"), (1.0, "a"), (1.0, "A")]
    rows = pd.DataFrame([{"x": x, "p": p, "q": q, "v": 0} for p, q in keys for x in range(3)])
    api.build_cube(rows, cube, store)
    before = {tuple(row) for row in api.query_cube(cube, store)[0][["p", "q", "x"]].to_numpy()}
    changes = rows[(rows["x"] == 1) & (rows["q"] == "a") | (rows["x"] == 2) & (rows["q"] == "A")]
    changes = changes.assign(v=7, gone=changes["x"] == 2)
    result = api.merge_into_cube(changes, cube, store, delete_column="gone")
    assert result.rows_inserted == 0 and result.rows_deleted == 1
    after = api.query_cube(cube, store)[0]
    assert before - {tuple(row) for row in after[["p", "q", "x"]].to_numpy()} == {(1.0, "A", 2)}
    assert (after["v"] == 7).tolist() == ((after["x"] == 1) & (after["q"] == "a")).tolist()


@pytest.mark.parametrize("seed", range(2))
def test_merges_are_those_of_a_dict(store, seed, one_task):
    """Random merges, appends and compactions, with and without all columns, against rows by cell."""
    random = np.random.default_rng(seed)
    model = frame(0, 16).set_index("x").to_dict("index")
    for _ in range(8):
        xs = np.sort(random.choice(24, random.integers(0, 9), replace=False))
        rows = frame(0, 24, int(random.integers(100))).iloc[xs].reset_index(drop=True)
        step = random.integers(4)
        if step == 0:
            api.append_to_cube(rows, CUBE, store)
            model |= rows.set_index("x").to_dict("index")
            continue
        if step == 1:
            api.compact_cube(CUBE, store)
            continue
        given = rows.drop(columns="w") if step == 2 else rows
        flags = random.random(len(rows)) < 0.3
        result = api.merge_into_cube(given.assign(gone=flags), CUBE, store, delete_column="gone")
        known = np.array([x in model for x in xs], dtype=bool)
        counts = (result.rows_inserted, result.rows_updated, result.rows_deleted)
        assert counts == ((~known & ~flags).sum(), (known & ~flags).sum(), (known & flags).sum())
        for x, row, flag in zip(xs, given.set_index("x").to_dict("records"), flags, strict=True):
            if flag:
                model.pop(x, None)
            else:
                model[x] = {"w": np.nan, **model.get(x, {}), **row}
        assert api.verify_cube(CUBE, store).ok
        expected = pd.DataFrame.from_dict(model, "index").rename_axis("x").reset_index().sort_values("x")
        result = stored(store)
        expected = expected[result.columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(result, expected, check_dtype=False)


def test_a_merge_finds_the_partition_of_zero_for_minus_zero(store):
    cube = api.Cube(["x"], ["f"], "zeros")
    api.build_cube(pd.DataFrame({"x": [1], "f": [0.0], "v": [1], "w": [2]}), cube, store)
    api.merge_into_cube(pd.DataFrame({"x": [1], "f": [-0.0], "v": [3]}), cube, store)
    (df,) = api.query_cube(cube, store)
    assert df.to_dict("records") == [{"f": 0.0, "v": 3, "w": 2, "x": 1}]


def test_columns_that_are_left_out_have_their_default(store):
    api.update_schema(CUBE, store, add={"unit": "string"}, defaults={"unit": "km"})
    api.merge_into_cube(frame(14, 18).drop(columns="w"), CUBE, store)
    rows = stored(store).tail(4)
    assert rows["unit"].tolist() == ["km"] * 4
    assert rows["w"].isna().tolist() == [False, False, True, True]


def test_an_enrichment_of_other_dimensions_is_merged_by_its_own_cells(store):
    names = pd.DataFrame({"y": [0, 1], "name": ["even", "odd"]})
    api.extend_cube({"names": names}, CUBE, store, partition_on={"names": []})
    result = api.merge_into_cube(pd.DataFrame({"y": [1], "name": ["ODD"]}), CUBE, store, "names")
    assert result.rows_updated == 1 and result.partitions["partition"].to_pylist() == [""]
    assert set(api.query_cube(CUBE, store, payload_columns=["name"])[0]["name"]) == {"even", "ODD"}


@pytest.mark.parametrize("keys", [["q", "p"], ["p", "k"], ["k", "q", "p"]], ids=str)
def test_datasets_with_other_partition_keys_than_the_cube(store, keys):
    """In another order than in the cube, or with further ones."""
    extra = frame(0, 16).drop(columns=["v", "w", "i"]).assign(k=1, u=1)
    extra = extra.drop(columns=sorted({"p", "q"} - {*keys}))
    api.extend_cube({"extra": extra}, CUBE, store, partition_on={"extra": keys})
    changes = pd.concat([extra.iloc[[3]], extra.iloc[[4]].assign(x=99)]).assign(u=7)
    result = api.merge_into_cube(changes, CUBE, store, "extra")
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert stored(store)["u"].tolist() == [1, 1, 1, 7, *[1] * 12]
    assert api.verify_cube(CUBE, store).ok


def test_rows_of_new_partitions_keep_narrow_types(store):
    narrow = frame(0, 4).astype({"w": "float32"})
    api.build_cube(narrow, CUBE, store, overwrite=True)
    api.merge_into_cube(narrow.assign(p=9), CUBE, store)
    assert stored(store)["w"].dtype == "float32"


def test_all_rows_can_be_deleted(store):
    api.merge_into_cube(frame(0, 16).assign(gone=True), CUBE, store, delete_column="gone")
    assert api.query_cube(CUBE, store) == [] and labels(store) == []
    assert api.list_cube_history(CUBE, store)[-1].operation == "merge"
    api.merge_into_cube(frame(0, 4), CUBE, store)
    assert len(stored(store)) == 4


@pytest.mark.parametrize("dtype", [None, object, "float64"], ids=str)
def test_a_frame_without_rows_changes_no_row_whatever_its_types(store, dtype):
    before, empty = labels(store), frame(0, 0)
    result = api.merge_into_cube(empty if dtype is None else empty.astype(dtype), CUBE, store)
    assert (result.rows_inserted, result.rows_updated, labels(store)) == (0, 0, before)


def test_partitions_without_a_change_keep_their_files(store):
    before = labels(store)
    absent = frame(0, 4).assign(x=100, y=[0, 1, 2, 3], gone=True)
    result = api.merge_into_cube(absent, CUBE, store, delete_column="gone")
    assert labels(store) == before and result.rows_deleted == 0


@pytest.mark.parametrize(
    "change, error, text",
    [
        (lambda df: pd.concat([df, df.head(1)]), DuplicateCellsError, "several rows for one cell"),
        (lambda df: df.assign(z=1), ValueError, "not stored: .*z.* Name another dataset by dataset="),
        (lambda df: {"seed": df}, TypeError, r"rows of one dataset, which dataset=\.\.\. names, got a dict"),
        (lambda df: df.assign(__kartothek_cube_partition=1), ValueError, "reserve the column name"),
        (lambda df: df.drop(columns="i"), ValueError, "Missing columns .*i"),
        (lambda df: df.drop(columns="p"), ValueError, "Missing columns .*p"),
        (lambda df: df.assign(v="text"), ValueError, "v"),
        (lambda df: df.assign(x=None), ValueError, "NULL-values"),
        (lambda df: df.assign(gone=1), TypeError, "must be boolean"),
        (lambda df: df.drop(columns="gone"), ValueError, "delete_column"),
    ],
)
def test_wrong_input_is_refused_and_changes_nothing(store, change, error, text):
    before = sorted(store.keys())
    with pytest.raises(error, match=text):
        api.merge_into_cube(change(frame(0, 8).assign(gone=False)), CUBE, store, delete_column="gone")
    with pytest.raises(ValueError, match="is a column of dataset"):
        api.merge_into_cube(frame(0, 8), CUBE, store, delete_column="v")
    assert sorted(store.keys()) == before


@pytest.mark.parametrize("rows", [frame(2, 3, 5), frame(16, 17, 5)], ids=["stored", "new"])
def test_other_writers_of_a_touched_partition_are_noticed(store, before_commit, rows):
    """Another writer appends after the merge has read the partition: its row must not be lost."""
    before_commit(lambda: api.append_to_cube(rows, CUBE, store))
    changes = frame(0, 18, 7)
    with pytest.raises(ConcurrentWriteError, match=f"p={rows['p'].iloc[0]}"):
        api.merge_into_cube(changes, CUBE, store)
    assert stored(store).set_index("x")["v"][rows["x"].iloc[0]] == rows["v"].iloc[0]
    files = [key for key in store.keys() if key.endswith(".parquet") and "/table/" in key]
    assert len(files) == len(labels(store)), "files of the refused merge are left"
    api.merge_into_cube(changes, CUBE, store)
    assert stored(store)["v"].tolist() == frame(0, 18, 7)["v"].tolist()


def test_writers_of_other_partitions_are_no_conflict(store, before_commit):
    before_commit(lambda: api.append_to_cube(frame(12, 20, 3), CUBE, store))
    api.merge_into_cube(frame(0, 4, 7), CUBE, store)
    assert stored(store)["v"].tolist() == [x * (7 if x < 4 else 3 if x >= 12 else 1) for x in range(20)]


@pytest.mark.parametrize(
    "change", [{"add": {"z": "int64"}, "defaults": {"z": 5}}, {"drop": "v"}, {"rename": {"v": "u"}}], ids=str
)
@pytest.mark.parametrize("start", [2, 100], ids=["replaces", "inserts only"])
def test_the_schema_is_updated_meanwhile(store, before_commit, change, start):
    """Rows that were read before lack a new column, which has its default then; others are read again."""
    before_commit(lambda: api.update_schema(CUBE, store, **change))
    if "add" in change and start == 2:
        api.merge_into_cube(frame(2, 4, 10), CUBE, store)
        assert stored(store)["v"].tolist() == [0, 1, 20, 30, *range(4, 16)]
        assert stored(store)["z"].tolist() == [5] * 16
    else:
        with pytest.raises(ConcurrentWriteError, match=r"schema was changed.*Repeat it"):
            api.merge_into_cube(frame(start, start + 2, 10), CUBE, store)
        assert len(stored(store)) == 16
    assert api.verify_cube(CUBE, store).ok


@pytest.fixture
def deletion(store):
    """A job that deletes all rows of a partition, after its tasks."""
    context = rewrite.plan_merge(CUBE, store, delete_column="drop")
    job = rewrite.merge_cube_job(context, frame(0, 4).assign(drop=True))
    parts = [job.run(job.context, task) for task in job.tasks]
    return lambda: job.finish(parts)


def test_a_deletion_of_whole_partitions_can_be_repeated(store, deletion):
    text = "<merge: 0 rows inserted, 0 updated, 4 deleted in 1 partition>"
    assert repr(deletion()) == repr(deletion()) == text
    assert stored(store)["x"].tolist() == list(range(4, 16))
    again = api.merge_into_cube(frame(0, 4).assign(drop=True), CUBE, store, delete_column="drop")
    assert again.rows_deleted == 0


def test_a_deletion_of_whole_partitions_whose_answer_is_lost_below_another_commit(
    store, deletion, monkeypatch
):
    """The client repeats the request, and the header is that of the other writer by then."""
    put_if = GenericBlobStore.put_if

    def lose(self, key, data, token):
        if not is_header_key(key):
            return put_if(self, key, data, token)
        monkeypatch.undo()
        put_if(self, key, data, token)
        api.append_to_cube(frame(16, 20), CUBE, store)
        raise PreconditionFailed(key)

    monkeypatch.setattr(GenericBlobStore, "put_if", lose)
    deletion()
    assert stored(store)["x"].tolist() == list(range(4, 20))


@pytest.mark.parametrize(
    "write, factor", [(api.append_to_cube, 1), (api.merge_into_cube, 7)], ids=["append", "merge"]
)
def test_a_deletion_of_whole_partitions_does_not_delete_rows_of_others(store, deletion, write, factor):
    write(frame(0, 2, factor), CUBE, store)
    with pytest.raises(ConcurrentWriteError):
        deletion()
