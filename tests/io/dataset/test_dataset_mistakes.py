"""Typical mistakes with datasets: one sentence each, in every façade."""

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import CorruptDatasetError, DatasetExistsError, DatasetNotFoundError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.store.resolve import ensure_store
from kartothek_cube.io import eager
from kartothek_cube.io.dask import dataframe
from kartothek_cube.io_components import runtime
from tests.support.cubes import INTERNAL, file_keys, keys, refuses, unchanged
from tests.support.dataset_facades import FACADES
from tests.support.stores import FaultyStore, ReadOnlyStore, Wrapped

FRAME = pd.DataFrame(
    {"SHOP": [1, 2], "DAY": pd.to_datetime(["2024-01-05"] * 2), "COUNTRY": ["DE", "FR"], "QTY": [10, 20]}
)
AWARE = pd.Timestamp("2024-01-05", tz="UTC")


@pytest.fixture
def built(io, memory):
    """A store with a partitioned dataset."""
    io.store(memory, [FRAME], partition_on=["COUNTRY"])
    return memory


def read_corrupt(io, store):
    for key in file_keys(store, "u").values():
        store().put(key, b"no Parquet file")
    io.read(store)


def update(df, **arguments):
    return lambda f, s: f.update(s, [df], **arguments)


def read(**arguments):
    return lambda f, s: f.read(s, **arguments)


WIDEN = """QTY     int64   double  widen payload with update_schema, or df['QTY'].astype("Int64") if"""
ADD = 'QTY     int64   -      add the column, or leave it out: of new cells with schema_mode="merge", of'
DROP = "NEW     -       int64  drop the column, or add it by update_schema"
CONVERT = """timestamp[ns]  timestamp[ns, tz=UTC]  df['DAY'].dt.tz_convert("UTC").dt.tz_localize(None), if"""
#: mistake -> what is done, the error, and its text
MISTAKES = {
    "column": (read(columns=["QYT"]), ValueError, "unknown column QYT; did you mean QTY?"),
    "no list": (read(predicates=5), TypeError, "are a list of lists of (column, operator, value), got 5"),
    "no function": (update(FRAME, metadata_merger=5), TypeError, "a function of a list of two dicts, got 5"),
    "no name": (update(FRAME, partition_on=[["COUNTRY"]]), TypeError, "name (str), got ['COUNTRY'] of"),
    "dict": (update({"SHOP": 1, "QTY": 1}), ValueError, "got int. If the dict has rows or columns, pass pa"),
    "column of a predicate": (read(predicates=[[("QYT", ">", 1)]]), ValueError, "QYT"),
    "type of a predicate": (read(predicates=[[("QTY", "==", "many")]]), TypeError, "QTY"),
    "type of a column": (update(FRAME.assign(QTY=[1.5, None])), ValueError, WIDEN),
    "missing column": (update(FRAME.drop(columns="QTY")), ValueError, ADD),
    "unknown column": (update(FRAME.assign(NEW=1)), ValueError, DROP),
    "time": (read(as_of="yesterday"), ValueError, "as_of is a version (int) or a point in time such as"),
    "state": (read(as_of=99), ValueError, "Dataset 'u': there is no state as of 99. Its only state is 1"),
    "permission": (lambda f, s: f.update(Wrapped(ReadOnlyStore, s), [FRAME]), OSError, "read-only"),
    "corrupt file": (read_corrupt, CorruptDatasetError, "Corrupt object 'u/table/COUNTRY="),
    "dataset": (lambda f, s: f.read(s, "v"), DatasetNotFoundError, "Dataset 'v' does not exist"),
    "existing dataset": (lambda f, s: f.store(s, [FRAME]), DatasetExistsError, "Pass overwrite=True"),
    "zone": (update(FRAME.assign(DAY=AWARE)), ValueError, CONVERT),
    "null key": (update(FRAME.assign(COUNTRY=["DE", None])), ValueError, "null: 1 of 2 rows would be lost"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_a_dataset_is_one_sentence(io, built, mistake):
    operation, kind, text = MISTAKES[mistake]
    before = keys(built)
    with pytest.raises(kind) as caught:
        operation(io, built)
    message = str(caught.value)
    assert text in message, message
    assert INTERNAL.search(message) is None, message
    assert len(message.splitlines()[0]) < 350, message
    assert keys(built) == before


# the columns of Arrow tables have one type
#: arguments that pandas does not take for true or false
SERIES = pd.Series(["COUNTRY", "QTY"])
NO_COLUMNS = {
    "uuid of a copy": lambda s: eager.copy_dataset(SERIES, s, "v"),
    "target of a copy": lambda s: eager.copy_dataset("u", s, SERIES),
    "version": lambda s: eager.store_dataframes_as_dataset(s, "v", [FRAME], metadata_version=SERIES),
    "predicates": lambda s: eager.delete_dataset_rows("u", s, SERIES),
    "scope": lambda s: eager.commit_dataset(s, "u", None, delete_scope=SERIES),
    "new columns": lambda s: eager.update_dataset_schema("u", s, add=SERIES),
    "new names": lambda s: eager.update_dataset_schema("u", s, rename=SERIES),
}


@pytest.mark.parametrize("call", NO_COLUMNS.values(), ids=NO_COLUMNS)
def test_a_series_in_a_wrong_place_is_shown(memory, call):
    eager.store_dataframes_as_dataset(memory, "u", [FRAME])
    with unchanged(memory), pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        call(memory)
    assert "ambiguous" not in str(caught.value)


def test_columns_of_a_frame_name_columns(memory):
    eager.store_dataframes_as_dataset(memory, "u", [FRAME])
    hashes = dataframe.hash_dataset(memory, "u", group_key=FRAME.columns[:1]).compute(scheduler="sync")
    assert hashes.index.tolist() == [1, 2]
    assert eager.update_dataset_schema("u", memory, drop=FRAME.columns[1:]).schema.names == ["SHOP"]


@pytest.mark.parametrize("io", [name for name in FACADES if name != "arrow"], indirect=True)
def test_mixed_zones(io, built):
    mixed = pd.Series([AWARE, AWARE.tz_localize(None)], dtype=object)
    with refuses(built, ValueError, "Column 'DAY' mixes timestamps with and without time zone"):
        io.update(built, [FRAME.assign(DAY=mixed)])


@pytest.mark.parametrize("batch", [[FRAME[:0]], []])
def test_an_empty_batch_changes_nothing(io, built, batch):
    with unchanged(built):
        io.update(built, batch)


def test_a_missing_directory_is_named(io, tmp_path):
    with pytest.raises(DatasetNotFoundError, match=f"there is no directory {tmp_path}/typo"):
        io.read(f"hfs://{tmp_path}/typo")
    assert not (tmp_path / "typo").exists()


def test_a_url_that_opens_another_store_each_time(io):
    with pytest.raises(ValueError, match="hmemory:// is a new, empty store each time it is opened"):
        io.store("hmemory://", [FRAME])


def test_a_function_that_opens_another_store_each_time():
    def open_store():
        return ensure_store("hmemory://")

    expected = "The factory opens another store each time it is called, so what is written would be lost"
    with pytest.raises(ValueError, match=expected):
        eager.store_dataframes_as_dataset(open_store, "u", [FRAME])
    with pytest.raises(ValueError, match=expected):
        api.build_cube(FRAME.assign(x=[1, 2], p=1), api.Cube(["x"], ["p"], "c"), open_store)


def test_a_garbage_collection_may_delete_the_file_by_which_stores_are_compared():
    inner = ensure_store("hmemory://")
    store = FaultyStore(inner).fail("put", after=True, error=lambda: [*map(inner.delete, inner.keys())])
    assert runtime.is_same_store(open_blobs(inner), open_blobs(store), "u")
