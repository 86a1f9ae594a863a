"""Staged writes: files without a commit, which queries read with ``as_of``; published once, or discarded."""

import pickle
from datetime import datetime, timedelta
from functools import partial

import pandas as pd
import pytest

from kartothek_cube.api.cube import connect, discard_staged, open_cube, publish_staged, scan_cube
from kartothek_cube.core import clock, errors
from kartothek_cube.core.commit import header_store
from kartothek_cube.core.commit.change import STAGED
from kartothek_cube.core.cube.discover import discover_datasets, discover_datasets_unchecked
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetExistsError, MultiTableCommitAborted
from kartothek_cube.io import eager, eager_cube
from kartothek_cube.io.arrow import dataset as open_dataset
from tests.support.cubes import CUBE, HEADER, as_dict, frame, memory, snapshot, unchanged
from tests.support.dataset_facades import FACADES
from tests.support.stores import FaultyStore, InjectedError, Same

SEED = frame(x=[0, 1], p=[0, 1], v=[10, 11])
MORE = frame(x=[2, 3], p=[0, 1], v=[12, 13])
#: writes on top of `SEED`, as names of methods of façades with their arguments
WRITES = {
    "append": ("append_to_cube", {"data": MORE}),
    "extend": ("extend_cube", {"data": {"extra": frame(x=[0, 1], p=[0, 1], w=[1, 2])}}),
    "update": ("update_cube", {"data": MORE[:1], "remove_conditions": "p == 0", "datasets": ["seed"]}),
    "remove": ("remove_partitions", {"conditions": "p == 0"}),
    "overwrite": ("build_cube", {"data": MORE, "overwrite": True}),
}


def rows(store, **arguments):
    return as_dict(eager_cube.query_cube_df(CUBE, store, **arguments))


def headers(store_factory):
    return {key: data for key, data in snapshot(store_factory).items() if HEADER in key}


@pytest.fixture
def store():
    store = memory()
    eager_cube.build_cube(SEED, CUBE, store)
    return store


def stage(store, data=MORE, **arguments):
    return eager_cube.append_to_cube(data, CUBE, store, publish=False, **arguments)


def stage_write(store, name):
    method, arguments = WRITES[name]
    return getattr(eager_cube, method)(cube=CUBE, store=store, publish=False, **arguments)


# -- all façades ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
def test_a_staged_write_is_read_and_published(driver, store_factory, name):
    method, arguments = WRITES[name]
    write = partial(getattr(driver, method), cube=CUBE, **arguments)
    eager_cube.build_cube(SEED, CUBE, store_factory)
    before, rows_before = headers(store_factory), rows(store_factory)
    staged = pickle.loads(pickle.dumps(write(store=store_factory, publish=False)))
    assert (headers(store_factory), rows(store_factory)) == (before, rows_before)
    seen = driver.query_cube(cube=CUBE, store=store_factory, as_of=staged)
    publish_staged(staged, store_factory)
    assert [as_dict(df) for df in seen] == [rows(store_factory)]
    other = memory()
    eager_cube.build_cube(SEED, CUBE, other)
    getattr(eager_cube, method)(cube=CUBE, store=other, **arguments)
    assert rows(store_factory) == rows(other) != rows_before
    datasets = discover_datasets(CUBE, store_factory)
    assert all(datasets[name].metadata.get(STAGED) is not None for name in staged.changes)


def test_a_staged_build(driver, store_factory):
    staged = driver.build_cube(data=SEED, cube=CUBE, store=store_factory, publish=False)
    assert discover_datasets_unchecked("cube", store_factory) == {}
    assert rows(store_factory, as_of=staged) == as_dict(SEED)
    assert list(publish_staged(staged, store_factory)) == ["seed"]
    assert rows(store_factory) == as_dict(SEED)


@pytest.mark.parametrize("is_merge", [True, False])
def test_a_staged_write_that_replaces_rows(store, is_merge):
    if is_merge:
        staged = eager_cube.merge_into_cube(SEED[:1].assign(v=99), CUBE, store, publish=False)
    else:
        staged = eager_cube.delete_rows(CUBE, store, "x == 0", publish=False)
    seen, before = rows(store, as_of=staged), rows(store)
    assert seen != before
    publish_staged(staged, store)
    assert rows(store) == seen


def test_a_staged_computation_is_the_last_one_once_it_is_published(store):
    def double(df):
        return df[["x", "p"]].assign(w=2 * df["v"])

    compute = partial(eager_cube.compute_dataset, double, CUBE, store, "doubled")
    # the first computation creates the dataset, later ones replace files
    for write in (lambda: None, lambda: eager_cube.append_to_cube(MORE, CUBE, store)):
        write()
        staged, before = compute(publish=False), rows(store)
        seen = rows(store, as_of=staged)
        assert seen["w"] == [2 * v for v in seen["v"]]
        assert rows(store) == before
        publish_staged(staged, store)
        publish_staged(staged, store)
        assert rows(store) == seen
        assert compute().n_partitions == 0


def test_of_two_staged_computations_one_is_published(store):
    compute = partial(eager_cube.compute_dataset, lambda df: df.drop(columns="v"), CUBE, store, "cells")
    for done in ("created", "computed"):
        first, second = compute(publish=False), compute(publish=False)
        publish_staged(first, store)
        for use in (publish_staged, lambda staged, store: eager_cube.query_cube(CUBE, store, as_of=staged)):
            with pytest.raises(ConcurrentWriteError, match=f"Another writer has {done} it"):
                use(second, store)
        eager_cube.append_to_cube(frame(x=[8], p=[8], v=[8]), CUBE, store)


@pytest.mark.parametrize("dataset_id", ["seed", "extra"])
def test_a_staged_table_of_another_system_holds_no_links(store, tmp_path, dataset_id):
    column = "v" if dataset_id == "seed" else "w"
    source = tmp_path / "source"
    source.mkdir()
    SEED.rename(columns={"v": column}).to_parquet(source / "a.parquet", index=False)
    target = f"hfs://{tmp_path}/store?create_if_missing=true"
    if dataset_id == "extra":
        eager_cube.build_cube(SEED, CUBE, target)
    staged = eager_cube.adopt_dataset(source, CUBE, target, dataset_id, link=True, publish=False)
    assert [path.stat().st_nlink for path in (tmp_path / "store").rglob("*.parquet")].count(2) == 0
    seen = rows(target, as_of=pickle.loads(pickle.dumps(staged)))
    publish_staged(staged, target)
    assert rows(target) == seen
    assert seen[column] == [10, 11]


# -- reading -------------------------------------------------------------------------------------------------


def test_all_readers_take_a_staged_write(store):
    staged = eager_cube.append_to_cube(MORE, CUBE, store, publish=False)
    cube, opened = open_cube("cube", store).as_of(staged), open_cube("cube", store)
    assert cube.query("x >= 2", columns="v").to_pandas()["v"].tolist() == [12, 13]
    assert connect(CUBE, store, as_of=staged).sql("SELECT sum(v) FROM cube").fetchall() == [(46,)]
    assert scan_cube(CUBE, store, as_of=staged).collect().height == 4
    assert cube.query().explain().read_files == 4
    found = opened.query(as_of=staged, changed_since=opened.changes().token).to_pandas()["x"].tolist()
    assert found == [0, 1, 2, 3]
    assert opened.query(datasets=["seed"], as_of=staged).to_arrow().num_rows == 4
    with pytest.raises(ValueError, match="unknown dataset"):
        opened.query(datasets=["other"], as_of=staged).to_arrow()
    with pytest.raises(ValueError, match="is no write to cube 'other'"):
        eager_cube.query_cube(CUBE.copy(uuid_prefix="other"), store, as_of=staged)
    assert repr(staged) == "<staged: seed: 2 rows in 2 files>"


def test_it_is_read_on_top_of_later_commits_and_indices(store):
    staged = stage(store)
    eager_cube.append_to_cube(frame(x=[9], p=[0], v=[90]), CUBE, store)
    eager.build_dataset_indices(store=store, dataset_uuid="cube++seed", columns=["v"])
    assert rows(store, as_of=staged, conditions="v == 12")["x"] == [2]
    assert rows(store, as_of=staged)["x"] == [0, 1, 2, 3, 9]
    publish_staged(staged, store)
    assert rows(store)["x"] == [0, 1, 2, 3, 9]
    assert rows(store, as_of=staged)["x"] == [0, 1, 2, 3, 9]
    assert eager_cube.verify_cube(CUBE, store).ok


def test_a_replaced_partition_is_a_conflict_for_readers_and_publishers(store):
    staged = eager_cube.update_cube(MORE[:1], CUBE, store, "p == 0", ["seed"], publish=False)
    assert repr(staged) == "<staged: seed: 1 row in 1 file in place of 1 file>"
    eager_cube.append_to_cube(frame(x=[9], p=[0], v=[90]), CUBE, store)
    for use in (partial(rows, store, as_of=staged), partial(publish_staged, staged, store)):
        with pytest.raises(ConcurrentWriteError, match="Partitions in conflict: p=0"):
            use()
    assert rows(store)["x"] == [0, 1, 9]


def test_values_that_an_append_would_hide_are_found_when_it_is_published(store):
    staged = stage(store, SEED.drop(columns="v"), schema_mode="merge")
    with pytest.raises(ValueError, match="would lose the value"):
        publish_staged(staged, store)


@pytest.mark.parametrize(
    "name, error, text",
    [
        ("two", errors.MultiTableCommitAborted, "present in multiple datasets: w in one, two"),
        ("one", DatasetExistsError, "exists"),
    ],
)
def test_the_rules_of_the_cube_are_checked_again(store, name, error, text):
    """Of two datasets, and of the same one that was created since."""
    extra = frame(x=[0], p=[0], w=[1])
    staged = eager_cube.extend_cube({"one": extra}, CUBE, store, publish=False)
    eager_cube.extend_cube({name: extra}, CUBE, store)
    with pytest.raises(error, match=text):
        publish_staged(staged, store)
    assert set(discover_datasets(CUBE, store)) == {"seed", name}


# -- published once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("later", ["delete", "compact", "overwrite"])
def test_publishing_again_has_no_effect(store, name, later):
    staged = stage_write(store, name)
    publish_staged(staged, store)
    if later == "delete":
        eager_cube.append_to_cube(frame(x=[9], p=[0], v=[90]), CUBE, store)
        eager_cube.delete_rows(CUBE, store, "x != 9")
    elif later == "compact":
        eager_cube.compact_cube(CUBE, store)
    elif name != "extend":
        eager_cube.build_cube(SEED, CUBE, store, overwrite=True)
    before = headers(lambda: store)
    publish_staged(staged, store)
    assert headers(lambda: store) == before


def test_after_a_rollback_it_may_be_published_again(store):
    staged = stage(store)
    publish_staged(staged, store)
    eager_cube.rollback_cube(CUBE, store, as_of=1)
    assert rows(store) == as_dict(SEED)
    with pytest.raises(ValueError, match="2 files of it stay"):
        discard_staged(staged, store)
    publish_staged(staged, store)
    assert rows(store)["x"] == [0, 1, 2, 3]


def test_ids_are_kept_as_long_as_writes_can_be_published(store, monkeypatch):
    now = datetime(2026, 1, 1)
    monkeypatch.setattr(clock, "datetime_utcnow", lambda: now)
    first, late = stage(store), stage(store)
    publish_staged(first, store)
    assert len(discover_datasets(CUBE, store)["seed"].metadata[STAGED]) == 1
    now += timedelta(days=31)
    with pytest.raises(ValueError, match="staged on 2026-01-01: it can be published within 30 days"):
        publish_staged(late, store)
    publish_staged(first, store)
    publish_staged(stage(store), store)
    assert len(discover_datasets(CUBE, store)["seed"].metadata[STAGED]) == 2
    now += timedelta(days=31)
    publish_staged(stage(store), store)
    assert len(discover_datasets(CUBE, store)["seed"].metadata[STAGED]) == 2
    assert rows(store)["x"] == [0, 1, 2, 3]


def test_metadata_of_another_dataset_bring_no_ids(store):
    staged = stage(store)
    publish_staged(staged, store)
    foreign = {STAGED: {"other": "2026-01-01"}}
    eager_cube.append_to_cube(MORE, CUBE, store, metadata={"seed": foreign})
    assert list(discover_datasets(CUBE, store)["seed"].metadata[STAGED]) == [staged.changes["seed"].staged[0]]


@pytest.mark.parametrize("kept", ["text", {"a": 5, "b": None, "c": "2026-13-01"}])
def test_ids_that_other_software_has_damaged_are_ignored(store, kept, monkeypatch):
    header_store.edit_header(
        eager_cube.open_blobs(store), "cube++seed", lambda s: s.copy(metadata={**s.metadata, STAGED: kept})
    )
    publish_staged(stage(store), store)
    assert len(discover_datasets(CUBE, store)["seed"].metadata[STAGED]) == 1


def test_an_undone_commit_leaves_no_id_below_that_of_another_writer():
    """The second dataset fails after another writer has published to the first one."""
    inner = memory()
    both = {"first": frame(x=[0], p=[0], w=[1]), "seed": SEED}
    eager_cube.build_cube(both, CUBE, inner)
    other = stage(inner, {"first": frame(x=[7], p=[0], w=[7])})
    staged = stage(inner, {"first": frame(x=[5], p=[0], w=[5]), "seed": MORE})

    def interrupt():
        publish_staged(other, inner)
        raise InjectedError

    # the header of the participant is put, that of the seed is not
    store = FaultyStore(inner).fail("put", key="cube++seed/indices", error=interrupt)
    with pytest.raises(InjectedError):
        publish_staged(staged, store)
    ids = discover_datasets(CUBE, inner)["first"].metadata[STAGED]
    assert list(ids) == [other.changes["first"].staged[0]]
    publish_staged(staged, inner)
    assert rows(inner)["x"] == [0, 1, 2, 3]
    assert sorted(eager.read_table("cube++first", inner)["x"]) == [0, 5, 7]


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, n_rows", [("append", 4), ("extend", 2), ("remove", 1)])
def test_what_is_discarded_or_collected_cannot_be_published(store, name, n_rows):
    """Also a removal of whole files, which has no data files of its own."""
    before = snapshot(lambda: store)
    for delete in (discard_staged, lambda staged, store: eager_cube.cleanup_cube(CUBE, store)):
        staged = stage_write(store, name)
        eager_cube.cleanup_cube(CUBE, store, retention=timedelta(days=1))
        assert len(rows(store, as_of=staged)["x"]) == n_rows
        delete(staged, store)
        # the refused attempt before may have archived the state
        assert {key for key in store.keys() if "/_history/" not in key} == before.keys()
        with pytest.raises(ConcurrentWriteError, match="Files of this commit were deleted"):
            publish_staged(staged, store)
        assert rows(store) == as_dict(SEED)
        if name != "remove":
            with pytest.raises(errors.MissingFileError, match="or with a staged write that was discarded"):
                rows(store, as_of=staged)
    discard_staged(staged, store)


@pytest.mark.parametrize("mode", ["strict", "merge"])
def test_nor_if_an_index_needs_its_rows(store, mode):
    staged = stage(store, MORE if mode == "strict" else MORE[["x", "p"]].assign(w=1), schema_mode=mode)
    eager.build_dataset_indices(store, "cube++seed", ["v"])
    discard_staged(staged, store)
    with unchanged(Same.of(store)), pytest.raises(ConcurrentWriteError, match="Files of this commit"):
        publish_staged(staged, store)


@pytest.mark.parametrize("name, n_files, x", [("append", 2, [0, 1, 2, 3]), ("remove", 1, [1])])
def test_a_published_write_is_not_discarded(store, name, n_files, x):
    staged = stage_write(store, name)
    publish_staged(staged, store)
    with pytest.raises(ValueError, match=f"is published, or being published: {n_files} files? of it stay"):
        discard_staged(staged, store)
    assert rows(store)["x"] == x


@pytest.mark.parametrize("name", ["append", "update", "remove"])
def test_a_write_to_a_cube_that_was_deleted_since_is_a_conflict(store, name):
    staged = stage_write(store, name)
    eager_cube.delete_cube(CUBE, store)
    for use in (publish_staged, lambda staged, store: rows(store, as_of=staged)):
        with pytest.raises(ConcurrentWriteError, match="The dataset was deleted since the write was staged"):
            use(staged, store)


# -- single datasets and arguments ---------------------------------------------------------------------------


def test_single_datasets(tmp_path):
    store = f"hfs://{tmp_path}"
    staged = eager.store_dataframes_as_dataset(store, "d", [MORE], publish=False)
    assert repr(staged) == "<staged: d: 2 rows in 1 file>"
    with pytest.raises(KeyError):
        eager.read_table("d", store)
    assert list(publish_staged(staged, store)) == ["d"]
    staged = eager.update_dataset_from_dataframes([SEED], store, "d", publish=False)
    publish_staged(staged, store)
    publish_staged(staged, store)
    assert sorted(eager.read_table("d", store)["x"]) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="is no write to cube"):
        rows(store, as_of=staged)
    empty = eager.store_dataframes_as_dataset(store, "e", [MORE[:0]], publish=False)
    discard_staged(empty, store)
    with pytest.raises(ConcurrentWriteError, match="Files of this commit were deleted"):
        publish_staged(empty, store)


@pytest.mark.parametrize("name", FACADES)
def test_staged_writes_of_single_datasets_are_read(name, tmp_path):
    facade, store = FACADES[name](), f"hfs://{tmp_path}"

    def seen(**arguments):
        return sorted(x for df in facade.read(store, "d", **arguments) for x in df["x"])

    keys = {"partition_on": ["p"], "secondary_indices": ["x"]}
    staged = eager.store_dataframes_as_dataset(store, "d", [MORE], publish=False, **keys)
    assert seen(as_of=staged, predicates=[[("x", "==", 3)]]) == [3]
    publish_staged(staged, store)
    update = partial(eager.update_dataset_from_dataframes, [SEED], store, "d")
    staged = pickle.loads(pickle.dumps(update(delete_scope=[{"p": 0}], publish=False)))
    assert (seen(), seen(as_of=staged)) == ([2, 3], [0, 1, 3])
    update()
    with pytest.raises(ConcurrentWriteError, match="Partitions in conflict: p=0"):
        seen(as_of=staged)
    with pytest.raises(ValueError, match="is no write to dataset 'e'"):
        facade.read(store, "e", as_of=staged)


def test_a_staged_update_that_would_leave_no_partition_is_neither_read_nor_published(store):
    staged = eager_cube.update_cube(
        MORE[:0], CUBE, store, remove_conditions="p == 0", datasets=["seed"], publish=False
    )
    assert rows(store, as_of=staged)["x"] == [1]
    eager_cube.remove_partitions(CUBE, store, "p == 1")
    with pytest.raises(ValueError, match="No partitions left"):
        rows(store, as_of=staged)
    with pytest.raises(MultiTableCommitAborted, match="No partitions left"):
        publish_staged(staged, store)


def test_datasets_of_cubes_are_read(store):
    staged = stage(store)
    assert len(eager.read_table("cube++seed", store, as_of=staged)) == 4
    assert open_dataset("cube++seed", store, as_of=staged).count_rows() == 4
    with pytest.raises(ValueError, match="is no write to dataset 'cube"):
        eager.read_table("cube++extra", store, as_of=staged)


def keep_first(dicts):
    return {"a": 1}


def test_functions_have_to_pickle(tmp_path):
    store = f"hfs://{tmp_path}"
    update = partial(eager.update_dataset_from_dataframes, [SEED], store, "d", publish=False)
    with pytest.raises(ValueError, match=r"metadata_merger .* has to be a function of a module"):
        update(metadata_merger=lambda dicts: dicts[0])
    assert list(tmp_path.iterdir()) == []
    staged = pickle.loads(pickle.dumps(update(metadata_merger=keep_first)))
    assert publish_staged(staged, store)["d"].metadata["a"] == 1


def test_wrong_arguments(store):
    with pytest.raises(TypeError, match="publish is True or False, got 'no'"):
        eager_cube.append_to_cube(MORE, CUBE, store, publish="no")
    written = eager_cube.append_to_cube(MORE, CUBE, store)
    for use in (publish_staged, discard_staged):
        with pytest.raises(TypeError, match="publish=False returns, got DatasetsById; without it"):
            use(written, store)


def test_the_handle_holds_no_rows(store):
    many = pd.DataFrame({"x": range(100_000), "p": 0, "v": 0.5})
    cube = CUBE.copy(suppress_index_on={"x"}, uuid_prefix="large")
    staged = eager_cube.build_cube(many, cube, store, publish=False)
    assert len(pickle.dumps(staged)) < 4000
