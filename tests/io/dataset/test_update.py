"""Updates: removing and adding partitions, keeping indices, metadata, and other writers' work."""

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core import errors
from kartothek_cube.io_components.utils import combine_metadata
from tests.support.cubes import unchanged
from tests.support.stored_files import (
    check_integrity,
    contents,
    directories,
    frame,
    header,
    index,
    keys,
    labels,
    rows,
    snapshot,
)

PX = frame(p=[1, 1, 2], x=[1, 2, 3])


def test_append(io, store_factory):
    io.store(store_factory, [PX], partition_on="p", secondary_indices="x")
    before = labels(store_factory)
    dataset = io.update(store_factory, [frame(p=[2, 3], x=[3, 4])])
    assert labels(store_factory)[:2] == before
    assert directories(store_factory) == ["p=1", "p=2", "p=2", "p=3"]
    assert index(store_factory, "x") == {1: [0], 2: [0], 3: [1, 2], 4: [3]}
    check_integrity(store_factory)
    assert dataset == api.DatasetMetadata.load_from_store("u", store_factory)


def test_missing_dataset_is_created(io, memory):
    options = {"partition_on": "p", "secondary_indices": ["x"], "metadata": {"m": 1}}
    io.update(memory, [PX], delete_scope=[{"unknown": 1}], **options)
    assert header(memory)["partition_keys"] == ["p"]
    assert header(memory)["metadata"]["m"] == 1
    check_integrity(memory)


@pytest.mark.parametrize("nothing", [[], [None]])
def test_missing_dataset_is_not_created_of_nothing(io, memory, nothing):
    with unchanged(memory), pytest.raises(ValueError, match="no input for 'u'"):
        io.update(memory, nothing)


@pytest.fixture
def grid(memory):
    """Partitions (p, q) = (1, a), (1, b), (2, a), (2, b), in that order; x = 0, 1, 2, 3 and y = x % 2."""
    df = frame(p=[1, 1, 2, 2], q=["a", "b", "a", "b"], x=range(4), y=[0, 1, 0, 1])
    api.store_dataframes_as_dataset(memory, "u", [df], partition_on=["p", "q"], secondary_indices=["y"])
    return memory


@pytest.mark.parametrize(
    "scope, left",
    [
        ([{"p": 1}], [2, 3]),
        ([{"p": 1, "q": "a"}], [1, 2, 3]),
        ([{"p": 1}, {"q": "a"}], [3]),
        ([{"p": 1}, {"p": 1, "q": "a"}, {"p": 1}], [2, 3]),
        ([{"p": 7}], [0, 1, 2, 3]),
        ([{"p": "1"}], [2, 3]),
        ([{"y": 1}], [0, 2]),
        ([{"y": 1, "p": 1}], [0, 2, 3]),
        (({"p": np.int8(1)},), [2, 3]),
        ([{}], []),
        ([{"p": 1}, {}], []),
        ([], [0, 1, 2, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("new", [[], [frame(p=[1], q=["a"], x=[9], y=[1])]], ids=["remove", "replace"])
def test_delete_scope(io, grid, scope, left, new):
    before = snapshot(grid)
    io.update(grid, new, delete_scope=scope)
    assert [content["x"][0] for content in contents(grid)] == [*left, *(df["x"][0] for df in new)]
    check_integrity(grid)
    assert {key for key in before if "/" in key} <= keys(grid)  # only references disappear


@pytest.mark.parametrize(
    "time",
    [
        *(convert("2020-01-02 03:04:05") for convert in (pd.Timestamp, np.datetime64, str)),
        datetime.datetime(2020, 1, 2, 3, 4, 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_delete_scope_on_a_partition_key_of_times(io, memory, time):
    times = pd.DatetimeIndex(["2020-01-01", "2020-01-02"]) + pd.to_timedelta([0, 11045], unit="s")
    io.store(memory, [frame(t=times, x=[1, 2])], partition_on=["t"])
    io.update(memory, [], delete_scope=[{"t": time}])
    assert api.read_table("u", memory)["x"].tolist() == [1]


@pytest.mark.parametrize("value", [datetime.datetime(9999, 12, 31), "9999-12-31"])
@pytest.mark.parametrize("last, left", [("2020-01-02", [1, 2]), ("9999-12-31", [1])])
def test_delete_scope_takes_times_that_nanoseconds_do_not_hold(io, memory, value, last, left):
    df = frame(t=pd.DatetimeIndex(np.array(["2020-01-01", last], "datetime64[us]")), x=[1, 2])
    io.store(memory, [df.assign(y=df["t"])], partition_on="t", secondary_indices="y")
    for column in ("t", "y"):
        io.update(memory, [], delete_scope=[{column: value}])
        assert api.read_table("u", memory)["x"].tolist() == left


@pytest.mark.parametrize(
    "value, text",
    [
        ("2020-01-31", datetime.date(2020, 1, 31)),
        (pd.Timestamp("2020-01-31"), pd.Timestamp("2020-01-31")),
        ("2020-01-31 12:00", pd.Timestamp("2020-01-31 12:00", tz="UTC")),
        (pd.Timestamp("2020-01-31 13:00", tz="Europe/Berlin"), pd.Timestamp("2020-01-31 12:00", tz="UTC")),
        (b"a", "a"),
        ("a", b"a"),
        ("true", True),
        ("1.5", 1.5),
        ("12:30", datetime.time(12, 30)),
        (datetime.time(12, 30), datetime.time(12, 30)),
    ],
)
def test_values_of_a_scope_are_converted(io, memory, value, text):
    key = pd.Series([text], dtype=object if isinstance(text, datetime.date | bytes) else None)
    if isinstance(text, pd.Timestamp):
        key = pd.Series([text])
    io.store(memory, [frame(p=key, x=[1], y=key)], partition_on="p", secondary_indices="y")
    assert io.update(memory, [], delete_scope=[{"p": value, "y": value}]).partitions == {}


def test_emptied_index_keeps_its_type(io, grid):
    io.update(grid, [], delete_scope=[{}])
    assert index(grid, "y") == {}
    dataset = api.DatasetMetadata.load_from_store("u", grid, load_all_indices=True)
    assert str(dataset.indices["y"].dtype) == "int64"
    assert rows(api.read_table("u", grid)) == {"p": [], "q": [], "x": [], "y": []}
    io.update(grid, [frame(p=[1], q=["a"], x=[9], y=[1])])
    check_integrity(grid)


def test_unchanged_index_keeps_its_file(io, grid):
    before = header(grid)["indices"]
    io.update(grid, [], metadata={"m": 1})
    io.update(grid, [], delete_scope=[{"p": 7}])
    assert header(grid)["indices"] == before
    io.update(grid, [], delete_scope=[{"p": 1}])
    assert header(grid)["indices"] != before


@pytest.mark.parametrize("given", [None, "p", ["p"], ("p",)])
def test_partition_on(io, memory, given):
    io.store(memory, [PX], partition_on="p")
    io.update(memory, [PX], partition_on=given)
    assert directories(memory) == ["p=1", "p=2"] * 2


@pytest.mark.parametrize("given", [None, [], "x", ["x"], ["y", "x"]])
def test_all_indices_are_kept(io, memory, given):
    io.store(memory, [PX.assign(y=1)], secondary_indices=["x", "y"])
    io.update(memory, [PX.assign(y=2)], secondary_indices=given)
    assert index(memory, "x") == {1: [0, 1], 2: [0, 1], 3: [0, 1]}
    assert index(memory, "y") == {1: [0], 2: [1]}


@pytest.mark.parametrize("nulls_first", [True, False])
def test_nulls_learn_a_type_and_never_lose_it(io, memory, nulls_first):
    inputs = [frame(x=pd.Series([None], dtype=object)), frame(x=["a"])]
    first, second = inputs if nulls_first else inputs[::-1]
    io.store(memory, [first])
    dataset = io.update(memory, [second])
    assert list(map(str, dataset.schema.types)) == ["string"]
    assert api.DatasetMetadata.load_from_store("u", memory).schema == dataset.schema
    assert api.read_table("u", memory, predicates=[[("x", "==", "a")]])["x"].tolist() == ["a"]


def test_nulls_in_an_indexed_column(io, memory):
    io.store(memory, [frame(x=["a"])], secondary_indices="x")
    io.update(memory, [frame(x=pd.Series([None], dtype=object))])
    assert index(memory, "x") == {"a": [0]}


def test_table_name(io, memory):
    io.store(memory, [PX], table_name="core")
    with pytest.raises(RuntimeError, match="unknown table table; available: core"):
        io.update(memory, [PX])
    io.update(memory, [PX], table_name="core")
    assert [set(part["files"]) for part in header(memory)["partitions"].values()] == [{"core"}] * 2


def test_sort(io, memory):
    df = frame(p=[2, 1, 2, 1], x=[3, 2, 1, None], y=[1, 2, 3, 4])
    io.update(memory, [df], partition_on="p", sort_partitions_by=["x", "y"])
    assert directories(memory) == ["p=2", "p=1"]
    assert contents(memory) == [{"x": [1, 3], "y": [3, 1]}, {"x": [2, None], "y": [2, 4]}]


@pytest.mark.parametrize(
    "df, expected",
    [
        (frame(x=pd.Categorical(["b", "c", "a"], categories=["c", "a", "b"]), y=[1, 2, 3]), [3, 1, 2]),
        (frame(x=[1, 0] * 50, y=range(100)), [*range(1, 100, 2), *range(0, 100, 2)]),
    ],
    ids=["categories by value", "stable"],
)
def test_order_of_equal_values_and_categories(io, memory, df, expected):
    io.update(memory, [df], sort_partitions_by="x")
    [content] = contents(memory)
    assert (content["y"], content["x"]) == (expected, sorted(df["x"]))


def test_metadata(io, memory):
    dataset = io.update(memory, [PX], metadata={"a": 1}, metadata_merger=lambda dicts: {"b": len(dicts)})
    created = header(memory)["metadata"]["creation_time"]
    assert dataset.metadata == {"a": 1, "b": 2, "creation_time": created}
    dataset = io.update(memory, [PX], metadata={"b": [2], "c": 3})
    assert dataset.metadata == {"a": 1, "b": [2], "c": 3, "creation_time": created}


def test_metadata_merger(io, memory):
    io.store(memory, [PX], metadata={"a": 1, "b": [1], "d": 1})
    seen = []

    def merge(dicts):
        seen.extend(dicts)
        return combine_metadata([{"b": found.get("b")} for found in dicts])

    dataset = io.update(memory, [PX], metadata={"b": [2], "c": 3}, metadata_merger=merge)
    assert [sorted(found) for found in seen] == [["a", "b", "creation_time", "d"], ["b", "c"]]
    del dataset.metadata["creation_time"]
    assert dataset.metadata == {"a": 1, "b": [1, 2], "c": 3, "d": 1}


def test_factory(io, memory):
    io.store(memory, [PX], partition_on="p")
    factory = api.DatasetFactory("u", memory)
    assert len(factory.partitions) == 2
    io.update(None, [PX], None, factory=factory)
    assert len(factory.partitions) == 2  # what it has loaded stays
    factory.invalidate()
    assert len(factory.partitions) == 4
    io.update(None, [PX], None, factory=api.DatasetFactory("missing", memory))
    assert len(labels(memory, "missing")) == 1


def test_msgpack_stays_msgpack(io, store_factory):
    io.store(store_factory, [PX], metadata_storage_format="msgpack", secondary_indices="x")
    io.update(store_factory, [PX], delete_scope=[{"x": 7}])
    api.build_dataset_indices(store_factory, "u", ["p"])
    assert [key for key in keys(store_factory) if "/" not in key] == ["u.by-dataset-metadata.msgpack.zstd"]
    assert len(io.read(store_factory)) == 2


def test_two_headers(io, memory):
    io.store(memory, [PX], metadata_storage_format="msgpack")
    packed = {key: data for key, data in snapshot(memory).items() if "/" not in key}
    io.store(memory, [PX, PX], overwrite=True)
    for key, data in packed.items():
        memory().put(key, data)
    with unchanged(memory), pytest.raises(errors.CorruptDatasetError, match="another header"):
        io.update(memory, [], metadata={"m": 1})
    assert len(io.read(memory)) == 2  # JSON counts
    io.store(memory, [PX], overwrite=True)
    assert [key for key in keys(memory) if "/" not in key] == ["u.by-dataset-metadata.json"]


def test_kartothek_updated_a_msgpack_dataset(io, store_factory):
    """Its updates put a header in JSON, and leave the outdated one, which has the same time of creation."""
    io.store(store_factory, [PX], metadata_storage_format="msgpack")
    updated = api.DatasetMetadata.load_from_store("u", store_factory).copy(extra={})
    api.ensure_store(store_factory).put("u.by-dataset-metadata.json", updated.to_json())
    [problem] = api.verify_dataset("u", store_factory).problems
    assert (problem.kind, problem.key) == ("outdated-header", "u.by-dataset-metadata.msgpack.zstd")
    io.update(store_factory, [PX])
    assert [key for key in keys(store_factory) if "/" not in key] == ["u.by-dataset-metadata.json"]
    assert len(io.read(store_factory)) == 2


def test_an_index_on_a_partition_key_is_dropped(io, memory):
    """That of kartothek, as which `build_dataset_indices` does not refuse it."""
    io.store(memory, [PX], partition_on="p", secondary_indices="x")
    state = api.DatasetMetadata.load_from_store("u", memory).load_all_indices(memory)
    of_key = state.indices["p"]
    key = api.ExplicitSecondaryIndex("p", of_key.index_dct, dtype=of_key.dtype).store(memory(), "u")
    indices = {**state.indices, "p": api.ExplicitSecondaryIndex("p", index_storage_key=key)}
    memory().put("u.by-dataset-metadata.json", state.copy(indices=indices).to_json())
    assert set(header(memory)["indices"]) == {"p", "x"}
    io.update(memory, [PX], delete_scope=[{"p": PX["p"][0]}])
    assert set(header(memory)["indices"]) == {"x"}
    assert len(io.read(memory)) == 3
    api.commit_dataset(memory, "u", [api.write_single_partition(memory, "u", PX)])
    assert len(io.read(memory)) == 5


def test_appends_at_the_same_time_are_all_kept(store_factory):
    api.store_dataframes_as_dataset(store_factory, "u", [PX], partition_on="p", secondary_indices="x")
    start = threading.Barrier(6)

    def append(number):
        start.wait()
        for step in range(4):
            new = frame(p=[number], x=[10 * number + step])
            api.update_dataset_from_dataframes([new], store_factory, "u", metadata={f"m{number}": step})

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(append, range(6)))
    assert len(labels(store_factory)) == 2 + 24
    assert {f"m{number}": 3 for number in range(6)}.items() <= header(store_factory)["metadata"].items()
    check_integrity(store_factory)


def test_races_to_create(store_factory):
    store_factory()  # its directory is there before the race
    start, outcomes = threading.Barrier(5), []

    def create(number):
        start.wait()
        with suppress(errors.DatasetExistsError):
            api.store_dataframes_as_dataset(store_factory, "u", [frame(x=[number])])
            outcomes.append(number)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(create, range(5)))
    assert contents(store_factory) == [{"x": outcomes}]


def _interrupted(memory, scope, **kwargs):
    """Update a partition; somebody appends to p=1 and p=3 after that is planned and its input written."""

    def inputs():
        yield frame(p=[1], x=[7])
        api.update_dataset_from_dataframes([frame(p=[1, 3], x=[8, 9])], memory, "u")

    return api.update_dataset_from_dataframes__iter(inputs(), memory, "u", delete_scope=scope, **kwargs)


def test_removal_of_what_was_never_seen(memory):
    api.store_dataframes_as_dataset(memory, "u", [PX], partition_on="p")
    with pytest.raises(errors.ConcurrentWriteError, match="p=1/") as caught:
        _interrupted(memory, [{"p": 1}])
    assert len(caught.value.partitions) == 1
    assert sorted(api.read_table("u", memory)["x"]) == [1, 2, 3, 8, 9]


@pytest.mark.parametrize(
    "scope, options, left",
    [([{"p": 1}], {"on_conflict": "replace"}, [3, 7, 9]), ([{"p": 2}], {}, [1, 2, 7, 8, 9])],
    ids=["whatever is there", "elsewhere"],
)
def test_removals_that_are_no_conflict(memory, scope, options, left):
    api.store_dataframes_as_dataset(memory, "u", [PX], partition_on="p")
    _interrupted(memory, scope, **options)
    assert sorted(api.read_table("u", memory)["x"]) == left


FAILED_MERGER = r"metadata_merger failed for dataset 'u': KeyError\('z'\)"
OTHER_KEYS = r"Incompatible set of partition keys: .*\['p', 'q'\]"


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"delete_scope": [{"typo": 1}]}, ValueError, "typo; available: p, q, y"),
        ({"delete_scope": [{"x": 1}]}, ValueError, "x.*available: p, q, y"),
        ({"delete_scope": [{"p": 1}, {"p": 1, "x": 1}]}, ValueError, "unindexed column x"),
        ({"delete_scope": [{"p": None}]}, ValueError, "'p' is null"),
        ({"delete_scope": [{"y": float("nan")}]}, ValueError, "'y' is null"),
        ({"delete_scope": [{"p": "one"}]}, ValueError, "'p'.*'one'"),
        ({"delete_scope": [{"p": 1.5}]}, TypeError, "'p'.*1.5"),
        ({"delete_scope": {"p": 1}}, ValueError, "dict"),
        ({"delete_scope": [1]}, TypeError, "int"),
        *(({"partition_on": given}, ValueError, OTHER_KEYS) for given in ("x", ["q", "p"], "p")),
        ({"secondary_indices": ["y", "x"]}, ValueError, r"expected \['y'\], but got \['x', 'y'\]"),
        ({"sort_partitions_by": "z"}, ValueError, "unknown column z"),
        ({"on_conflict": "ignore"}, ValueError, "'ignore'"),
        (
            {"factory": api.DatasetFactory("u", "hmemory://")},
            ValueError,
            "dataset_uuid and store and factory",
        ),
        ({"metadata_merger": lambda dicts: dicts[0]["z"]}, ValueError, FAILED_MERGER),
        ({"metadata_merger": lambda dicts: {"a": object()}}, TypeError, "'a' is not JSON"),
        ({"metadata_merger": lambda dicts: 5}, TypeError, "metadata has to be a dict"),
    ],
)
def test_bad_arguments_change_nothing_and_leave_no_file(io, grid, arguments, error, text):
    with unchanged(grid), pytest.raises(error, match=text):
        io.update(grid, [frame(p=[1], q=["a"], x=[9], y=[1])], **arguments)


def test_a_dataset_without_partition_keys_gets_none(io, memory):
    io.store(memory, [PX])
    with unchanged(memory), pytest.raises(ValueError, match=r"Incompatible set of partition keys: .*\[\]"):
        io.update(memory, [PX], partition_on="p")


def test_rows_with_other_columns(io, memory):
    frame = pd.DataFrame({"p": ["a", "b"], "x": [1, 2], "y": ["u", "v"]})
    other = frame.drop(columns="y").assign(z=[1.5, 2.5])
    io.store(memory, [frame], partition_on=["p"], secondary_indices=["x"])
    text = 'in appends, by schema_mode="merge"'
    with unchanged(memory), pytest.raises(errors.SchemaConflictError, match=text):
        io.update(memory, [other])
    io.update(memory, [other], schema_mode="merge")
    result = pd.concat(io.read(memory)).sort_values(["z", "x"])
    assert result["z"].tolist()[:2] == [1.5, 2.5]
    assert result["y"].isna().tolist() == [True, True, False, False]
    assert pd.concat(io.read(memory, predicates=[[("z", ">", 2.0), ("x", "==", 2)]]))["x"].tolist() == [2]
    assert api.verify_dataset("u", memory).ok
