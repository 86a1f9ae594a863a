"""Columns are added, dropped, renamed and widened; files stay as they are, and every reader adapts them."""

import datetime
from contextlib import nullcontext, suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.core import clock
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    CorruptDatasetError,
    SchemaConflictError,
    UnknownOutcomeError,
)
from kartothek_cube.core.naming import EVOLUTION
from kartothek_cube.io import eager
from kartothek_cube.io_components.job import execute
from kartothek_cube.io_components.maintenance import schema_update
from kartothek_cube.io_components.write.cube_writes import AppendToCube
from kartothek_cube.io_components.write.write_commit import finish_write, validate_cube, write_job
from kartothek_cube.io_components.write.write_tasks import prepare, run_write, write_frames
from tests.support.cube_facades import FACADES, SPARK, open_facade
from tests.support.cubes import HEADER, edit_header, groups, memory, refuses, rows, unchanged
from tests.support.factories import STORES
from tests.support.stores import Died, FaultyStore

CUBE = api.Cube(["x"], ["p"], "cube", index_columns=["i"])
OLD = pd.DataFrame({"x": [1, 2, 3], "p": ["a", "a", "b"], "i": [7, 8, 9], "q": [10, 20, 30]})
OTHER = pd.DataFrame({"x": [1], "p": ["a"], "w": [1]})
NEW = pd.DataFrame({"x": [3, 4], "p": ["b", "b"], "i": [9, 9], "q": [31, 40], "v": [1.5, 2.5]})


@pytest.fixture
def store():
    store = memory()
    api.build_cube(OLD, CUBE, store)
    return store


def query(store, *args, **kwargs):
    return rows(api.query_cube(CUBE, store, *args, **kwargs))


def data_files(store):
    return {key: store.get(key) for key in store.keys() if key.endswith(".parquet") and "/table/" in key}


# -- append ---------------------------------------------------------------------------------------


def test_merge_adds_columns(store):
    api.append_to_cube(NEW, CUBE, store, schema_mode="merge")
    keys = {"i": [7, 8, 9, 9], "p": ["a", "a", "b", "b"], "x": [1, 2, 3, 4]}
    assert query(store) == {**keys, "q": [10, 20, 31, 40], "v": [None, None, 1.5, 2.5]}
    assert api.verify_cube(CUBE, store).ok
    assert api.verify_cube(CUBE, store, deep=False).ok


def test_merge_without_a_new_or_an_old_column(store):
    api.append_to_cube(OLD[:1], CUBE, store, schema_mode="merge")
    assert EVOLUTION not in DatasetMetadata.load_from_store("cube++seed", store).metadata
    api.append_to_cube(NEW[1:].drop(columns=["q"]), CUBE, store, schema_mode="merge")
    assert query(store)["q"] == [10, 20, 30, None]
    api.append_to_cube(NEW, CUBE, store)
    assert query(store)["q"] == [10, 20, 31, 40]
    assert api.verify_cube(CUBE, store).ok


LOST = "lacks q, of which 1 stored cell would lose the value, such as {'p': 'b', 'x': 3}. Use merge_into_cube"


def test_merge_turns_no_value_into_null(driver, store_factory):
    driver.build_cube(data=OLD, cube=CUBE, store=store_factory)
    correction = NEW.drop(columns="q")
    with refuses(store_factory, ValueError, LOST):
        driver.append_to_cube(data=correction, cube=CUBE, store=store_factory, schema_mode="merge")
    explicit = correction.assign(q=pd.array([None, 40], "Int64"))
    driver.append_to_cube(data=explicit, cube=CUBE, store=store_factory, schema_mode="merge")
    assert rows(driver.query_cube(cube=CUBE, store=store_factory))["q"] == [10, 20, None, 40]
    # there is no value any more
    driver.append_to_cube(data=correction[:1], cube=CUBE, store=store_factory, schema_mode="merge")


def test_the_advice_for_a_correction_keeps_the_values_that_it_lacks(store):
    correction = OLD.tail(1).drop(columns="q")
    with pytest.raises(SchemaConflictError, match=r"q .* of others with merge_into_cube"):
        api.append_to_cube(correction, CUBE, store)
    api.merge_into_cube(correction, CUBE, store)
    assert query(store)["q"] == [10, 20, 30]


def test_merge_replaces_defaults_by_defaults_only(store):
    api.update_schema(CUBE, store, add={"n": "int64"}, defaults={"n": 5})
    api.append_to_cube(OLD[:1], CUBE, store, schema_mode="merge")
    api.append_to_cube(OLD[1:2].assign(n=6), CUBE, store)
    with pytest.raises(ValueError, match=r"lacks n, of which 1 stored cell would lose the value.*'x': 2"):
        api.append_to_cube(OLD, CUBE, store, schema_mode="merge")
    assert query(store)["n"] == [5, 6, 5]


CELLS = [
    pa.array([0.5, -0.0, float("inf")]),
    pa.array([b"", b"a", b"\xff"]),
    pa.array([False, True, False]),
    pa.array([datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]),
    pa.array([0, 1, 2**64 - 1], pa.uint64()),
    pa.array([datetime.datetime(1970, 1, 1), datetime.datetime(2020, 1, 1)], pa.timestamp("ns")),
]


@pytest.mark.parametrize("values", CELLS, ids=lambda values: str(values.type))
def test_merge_knows_its_cells_by_dimensions_of_any_type(values):
    cube, store = api.Cube(["x", "y"], ["p"], "cube"), memory()
    cells = pa.table({"x": values, "y": range(len(values)), "p": [0] * len(values), "v": [1] * len(values)})
    api.build_cube(cells, cube, store)
    for number in range(len(values)):
        with pytest.raises(ValueError, match=f"lacks v, of which 1 stored cell .*'y': {number}"):
            api.append_to_cube(cells.slice(number, 1).drop_columns("v"), cube, store, schema_mode="merge")
    others = cells.set_column(1, "y", pa.array(range(5, 5 + len(values)))).drop_columns("v")
    api.append_to_cube(others, cube, store, schema_mode="merge")
    elsewhere = cells.set_column(2, "p", pa.array([1] * len(values))).drop_columns("v")
    api.append_to_cube(elsewhere, cube, store, schema_mode="merge")


def test_merge_sees_values_that_are_stored_while_it_runs(store):
    plan = AppendToCube(None, CUBE, store, schema_mode="merge").plan(["seed"])
    late = OLD.tail(1).assign(x=7)
    written = run_write(plan, prepare(plan, {"seed": [late.drop(columns="q")]}))
    api.append_to_cube(late, CUBE, store)
    with pytest.raises(ValueError, match="lacks q, of which 1 stored cell"):
        finish_write(plan, [written])
    assert query(store, api.C("x") == 7)["q"] == [30]


TAKEN = "Payload written in dataset 'seed' is already present in cube: w"
NO_INDEX = "Dataset 'other' has no column i, and its rows would have null there: drop it"


@pytest.mark.parametrize(
    "data, message",
    [
        (NEW.drop(columns="i"), "Missing columns in dataset 'seed': unknown column i"),
        (NEW.drop(columns="x"), "Missing dimension columns"),
        (NEW.drop(columns="p"), "Missing partition columns"),
        (NEW.rename(columns={"v": "w"}), TAKEN),
        ({"other": OTHER.assign(i=1)}, NO_INDEX),
    ],
)
def test_what_merge_refuses(store, data, message):
    api.extend_cube({"other": OTHER}, CUBE, store)
    with unchanged(lambda: store), pytest.raises(ValueError, match=message):
        api.append_to_cube(data, CUBE, store, schema_mode="merge")
    if message in (TAKEN, NO_INDEX):
        # nor is it the advice for other writes
        with unchanged(lambda: store), pytest.raises(SchemaConflictError, match=message):
            api.append_to_cube(data, CUBE, store)
        with unchanged(lambda: store), pytest.raises(SchemaConflictError, match=message):
            api.update_cube(data, CUBE, store, None, datasets=["seed", "other"])


def test_strict_is_the_default_and_types_have_to_agree(store):
    with pytest.raises(SchemaConflictError):
        api.append_to_cube(NEW, CUBE, store)
    with pytest.raises(ValueError, match="schema_mode is 'strict' or 'merge', got 'union'"):
        api.append_to_cube(NEW, CUBE, store, schema_mode="union")
    with pytest.raises(SchemaConflictError, match="q"):
        api.append_to_cube(NEW.assign(q="text"), CUBE, store, schema_mode="merge")


# -- update_schema --------------------------------------------------------------------------------


HALF_PAST = datetime.datetime(2024, 2, 29, 12, 30)
#: type of a column, its default, and the value of rows, if it is another one
DEFAULTS = [
    *(
        ("int64", 5),
        ("int8", 100),
        ("float64", 0.1),
        ("bool", True),
        ("string", "a 'quoted' ✓"),
        (pa.binary(), b"bytes"),
    ),
    *(("int64", None), ("string", None), ("float64", float("nan"), None), ("int64", pd.NA, None)),
    *((pa.date32(), HALF_PAST.date()), (pa.date32(), "2024-02-29", HALF_PAST.date())),
    (pa.timestamp("us"), HALF_PAST.replace(microsecond=1)),
    (pa.timestamp("us"), "2024-02-29T12:30", HALF_PAST),
    (pa.timestamp("us", "UTC"), HALF_PAST.replace(tzinfo=datetime.UTC)),
    (pa.timestamp("us", "UTC"), "2024-02-29T12:30Z", HALF_PAST.replace(tzinfo=datetime.UTC)),
    *((pa.time64("us"), datetime.time(1, 2, 3, 4)), (pa.time64("us"), "01:02:03", datetime.time(1, 2, 3))),
    (pa.duration("us"), datetime.timedelta(1, 2, 3)),
]


@pytest.mark.parametrize("dtype, default, expected", [(*given, given[-1])[:3] for given in DEFAULTS], ids=str)
def test_an_added_column_has_its_default_in_all_rows(store, dtype, default, expected):
    def values():
        return pa.concat_tables(api.query_cube_arrow(CUBE, store)).column("n").to_pylist()

    api.update_schema(CUBE, store, add={"n": dtype}, defaults={"n": default})
    assert values() == [expected] * 3
    api.append_to_cube(OLD.tail(1).assign(x=4), CUBE, store, schema_mode="merge")
    assert values() == [expected] * 4
    assert api.verify_cube(CUBE, store).ok
    api.compact_cube(CUBE, store)
    assert values() == [expected] * 4


@pytest.mark.parametrize("columns", [["p"], []], ids=["partition key", "none"])
@pytest.mark.parametrize("predicates", [None, [[("x", ">", 1)]]], ids=["all rows", "some rows"])
def test_reads_without_a_stored_column_keep_the_number_of_rows(store, columns, predicates):
    api.update_schema(CUBE, store, add={"n": "int64"})
    frame = eager.read_table("cube++seed", store, columns=columns, predicates=predicates)
    expected = OLD if predicates is None else OLD[OLD.x > 1]
    assert frame.to_dict("list") == {column: expected[column].tolist() for column in columns}
    assert len(frame) == len(expected)


@pytest.mark.parametrize("entry", [{"n": {"added": True, "default": "many"}}, [], {"n": 1}], ids=repr)
def test_malformed_metadata_are_reported(store, entry):
    api.update_schema(CUBE, store, add={"n": "int64"}, defaults={"n": 5})
    edit_header(lambda: store, "cube++seed", lambda h: h["metadata"][EVOLUTION].update(columns=entry))
    with pytest.raises(CorruptDatasetError, match=EVOLUTION):
        query(store)
    assert [problem.kind for problem in api.verify_cube(CUBE, store).problems] == ["header"]


GIVEN = [
    *((int, pa.int64()), (str, pa.string()), (datetime.date, pa.date32()), ("Int64", pa.int64())),
    *(
        ("datetime64[ns]", pa.timestamp("ns")),
        (np.dtype("float32"), pa.float64()),
        (pd.StringDtype(), pa.string()),
    ),
    (pd.DatetimeTZDtype("ns", "UTC"), pa.timestamp("ns", "UTC")),
    (pd.ArrowDtype(pa.list_(pa.int64())), pa.list_(pa.int64())),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
]


@pytest.mark.parametrize("given, expected", GIVEN, ids=str)
def test_types_of_pandas_numpy_and_python(store, given, expected):
    dataset = api.update_schema(CUBE, store, add={"n": given})
    assert dataset.schema.field("n").type == expected


def test_filters_of_arrow_on_a_column_that_conditions_cannot_compare(store):
    api.update_schema(CUBE, store, add={"n": pa.duration("us")}, defaults={"n": datetime.timedelta(1)})
    is_positive = pc.field("n") > pa.scalar(datetime.timedelta(0))
    assert api.cube_dataset(CUBE, store).to_table(filter=is_positive).num_rows == 3


def test_conditions_on_added_columns(store):
    api.update_schema(CUBE, store, add={"n": "int64", "m": "int64"}, defaults={"n": 5})
    assert query(store, api.C("n") == 5)["x"] == [1, 2, 3]
    assert query(store, api.C("n") > 5) is None
    assert query(store, api.C("m") > 5) is None
    api.append_to_cube(OLD.tail(1).assign(n=6, m=7), CUBE, store)
    assert query(store, api.C("n") == 6)["x"] == [3]
    assert query(store, api.C("m") > 5)["x"] == [3]


def test_drop(store):
    before = data_files(store)
    api.update_schema(CUBE, store, add={"n": "int64"}, drop=["q"], rename={}, defaults={"n": 5})
    assert data_files(store) == before, "files stay as they are"
    assert query(store) == {"i": [7, 8, 9], "n": [5, 5, 5], "p": ["a", "a", "b"], "x": [1, 2, 3]}
    assert api.verify_cube(CUBE, store).ok
    api.append_to_cube(OLD.drop(columns="q").tail(1).assign(x=4, n=6), CUBE, store)
    assert query(store)["x"] == [1, 2, 3, 4]


def test_rename(store):
    api.update_schema(CUBE, store, rename={"q": "r"})
    assert query(store)["r"] == [10, 20, 30]
    assert query(store, api.C("r") > 15, payload_columns=["r"])["r"] == [20, 30]
    api.append_to_cube(OLD.rename(columns={"q": "r"}).tail(1).assign(r=31), CUBE, store)
    api.copy_cube(CUBE, store, target := memory())
    assert query(target)["r"] == [10, 20, 31]
    api.update_schema(CUBE, store, rename={"r": "s"})
    assert query(store)["s"] == [10, 20, 31]
    api.update_schema(CUBE, store, rename={"s": "q"})
    assert query(store)["q"] == [10, 20, 31]
    assert api.verify_cube(CUBE, store).ok


def test_widen(store):
    api.update_schema(CUBE, store, widen={"q": "float64"})
    assert pa.concat_tables(api.query_cube_arrow(CUBE, store)).column("q").type == pa.float64()
    assert query(store, api.C("q") > 19.5)["q"] == [20.0, 30.0]
    api.append_to_cube(OLD.tail(1).assign(q=30.5), CUBE, store)
    assert query(store)["q"] == [10.0, 20.0, 30.5]
    assert api.verify_cube(CUBE, store).ok
    api.update_schema(CUBE, store, add={"n": "int64"})
    api.append_to_cube(OLD.tail(1).assign(q=30.5, n=2**53 + 1), CUBE, store)
    with pytest.raises(ValueError, match="cannot be widened to float64, which cannot hold 9007199254740993"):
        api.update_schema(CUBE, store, widen={"n": "float64"})


@pytest.mark.parametrize(
    "update, message",
    [
        ({}, "Nothing to update: pass add, drop, rename or widen"),
        ({"drop": "z"}, "unknown column z"),
        ({"drop": "x"}, "column x is indexed|column x is a dimension column of the cube"),
        ({"drop": "p"}, "column p is a partition key and cannot be changed"),
        ({"rename": {"i": "j"}}, "column i is an index column of the cube and cannot be changed"),
        ({"rename": {"q": "i"}}, "Column i is an index column of the cube and cannot be added"),
        ({"add": {"q": "int64"}}, "column q exists already"),
        ({"add": {"q": "int64"}, "drop": "q"}, "column q exists already"),
        ({"add": {"w": "int64"}}, "present in multiple datasets: w in other, seed"),
        *(
            (
                {"add": {"n": dtype}, "defaults": {"n": value}},
                f"{value!r} is no value of column n, which is {dtype}",
            )
            for dtype, value in (
                ("int64", "a"),
                ("int64", 1.5),
                ("int64", True),
                ("int8", 300),
                ("date32", "May"),
            )
        ),
        (
            {"add": {"n": pa.list_(pa.int64())}, "defaults": {"n": [1]}},
            "n is list<.*>, .* default can only be null",
        ),
        ({"add": {"n": "int64"}, "defaults": {"m": 1}}, "m is no column that is added"),
        *(
            (
                {"add": {"n": dtype}},
                f"column n: a type is one of Arrow, pandas or NumPy, .* but not {dtype!r}",
            )
            for dtype in ("int6", "object", "category", 5)
        ),
        ({"add": ["n"]}, "add is a dict of column to type, got list"),
        ({"rename": ["q"]}, "rename should be a dict of old to new names, but is list"),
        ({"add": {"__n": "int64"}}, "'__n' is no name of a column"),
        ({"add": {"KLEE_TS": "int64"}}, "Column KLEE_TS .* the name is reserved"),
        ({"rename": {"q": "__q"}}, "Column __q .* the name is reserved"),
        ({"widen": {"q": "string"}}, "column q is int64 and cannot be widened to string"),
        ({"drop": "q", "rename": {"q": "r"}}, "several changes of column q"),
        ({"dataset": "nope", "drop": "q"}, "unknown dataset nope"),
    ],
)
def test_mistakes(store, update, message):
    api.extend_cube({"other": OTHER}, CUBE, store)
    with unchanged(lambda: store), pytest.raises((ValueError, TypeError), match=message):
        api.update_schema(CUBE, store, **update)


def test_integers_and_floats_that_differ_are_not_mixed_unless_asked(store):
    api.append_to_cube(NEW, CUBE, store, schema_mode="merge")
    for data in (NEW.assign(q=[1.5, 2.5]), NEW.assign(v=[1, 2**53 + 1])):
        with pytest.raises(SchemaConflictError, match=r"float64|Int64"):
            api.append_to_cube(data, CUBE, store, schema_mode="merge")
    api.update_schema(CUBE, store, widen={"q": float})
    api.append_to_cube(NEW.assign(q=[1.5, 2.5]), CUBE, store)
    assert query(store)["q"] == [10.0, 20.0, 1.5, 2.5]


@pytest.mark.parametrize("update", [{"drop": "q"}, {"rename": {"q": "r"}}])
def test_a_name_is_not_used_again(store, update):
    api.update_schema(CUBE, store, **update)
    with pytest.raises(ValueError, match=r"column q was (dropped|renamed to r), and older files still hold"):
        api.update_schema(CUBE, store, add={"q": "string"})
    frame = OLD.tail(1) if "drop" in update else OLD.tail(1).assign(r=1)
    with unchanged(lambda: store):
        with pytest.raises(ValueError, match=r"^Dataset 'cube\+\+seed': column q was .*choose another name$"):
            api.append_to_cube(frame, CUBE, store, schema_mode="merge")
        with pytest.raises(SchemaConflictError, match="the input do not fit those of the dataset"):
            api.append_to_cube(frame, CUBE, store)


def test_an_overwrite_forgets_the_evolution(store):
    api.update_schema(CUBE, store, drop="q")
    old = DatasetMetadata.load_from_store("cube++seed", store).metadata
    api.build_cube(OLD, CUBE, store, overwrite=True, metadata={"seed": {EVOLUTION: old[EVOLUTION]}})
    assert EVOLUTION not in DatasetMetadata.load_from_store("cube++seed", store).metadata
    assert query(store)["q"] == [10, 20, 30]


def test_older_states_have_their_schema(store):
    api.keep_cube_history(CUBE, store, 5)
    before = api.list_cube_history(CUBE, store)["seed"][-1]
    api.update_schema(CUBE, store, drop="q", add={"n": "int64"})
    assert sorted(query(store)) == ["i", "n", "p", "x"]
    assert query(store, as_of={"seed": before.version})["q"] == [10, 20, 30]
    api.rollback_cube(CUBE, store, {"seed": before.version})
    assert query(store)["q"] == [10, 20, 30]


def test_an_index_on_an_added_column(store):
    api.update_schema(CUBE, store, add={"n": "int64"}, defaults={"n": 3}, rename={"q": "r"})
    eager.build_dataset_indices(store, "cube++seed", ["n", "r"])
    assert len(api.query_cube(CUBE, store, api.C("n") == 3, partition_by="r")) == 3
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("merge", [False, True])
def test_an_update_that_dies_before_the_header_is_put_changes_nothing(store, merge):
    dying = FaultyStore(store).die("put", key=HEADER)
    with pytest.raises(Died):
        if merge:
            api.append_to_cube(NEW, CUBE, dying, schema_mode="merge")
        else:
            api.update_schema(CUBE, dying, add={"n": "int64"}, drop="q")
    assert query(store) == {"i": [7, 8, 9], "p": ["a", "a", "b"], "q": [10, 20, 30], "x": [1, 2, 3]}
    api.append_to_cube(OLD.tail(1).assign(q=31), CUBE, store)
    assert query(store)["q"] == [10, 20, 31]
    api.update_schema(CUBE, store, drop="q")
    assert sorted(query(store)) == ["i", "p", "x"]


@pytest.mark.parametrize("default, fits", [(7, True), (2**60 + 1, False)])
def test_defaults_are_widened_exactly(store, default, fits):
    """Also if no file lacks the column, as rows that are appended later may."""
    api.update_schema(CUBE, store, add={"z": "int64"}, defaults={"z": default})
    api.update_cube(OLD.assign(z=1), CUBE, store, "all", ["seed"])
    if fits:
        api.update_schema(CUBE, store, widen={"z": "float64"})
    else:
        with pytest.raises(ValueError, match="is no value of column z, which is double"):
            api.update_schema(CUBE, store, widen={"z": "float64"})
    api.append_to_cube(OLD.tail(1).assign(x=4), CUBE, store, schema_mode="merge")
    assert query(store)["z"] == [1, 1, 1, default]


def test_concurrent_appends_meet_the_new_schema(store):
    """An append that was planned before an update of the schema is refused, and keeps its columns."""
    frames = {"seed": [OLD.tail(1)]}
    job = write_job(AppendToCube(None, CUBE, store).plan(frames), [frames], write_frames)
    api.update_schema(CUBE, store, rename={"q": "r"})
    with pytest.raises(SchemaConflictError):
        execute(job)
    assert query(store)["r"] == [10, 20, 30]


# -- datasets and façades -------------------------------------------------------------------------


@pytest.mark.parametrize("is_undone", [True, False])
def test_a_commit_below_a_later_one_waits_for_the_other_writer(store, monkeypatch, is_undone):
    """Both have seen a column twice; the one on top, which can be undone, is."""
    calls = []

    def validate(cube, blobs):
        calls.append(1)
        if len(calls) == 1:
            api.append_to_cube(OLD.assign(n=pd.array([1, 2, 3], "Int64")), CUBE, store)
        if len(calls) < 3 or not is_undone:
            raise ValueError("column n in several datasets")

    monkeypatch.setattr(schema_update, "validate_cube", validate)
    monkeypatch.setattr(clock, "sleep", lambda seconds: None)
    with (
        nullcontext() if is_undone else pytest.raises(UnknownOutcomeError, match="verify_cube names the rule")
    ):
        api.update_schema(CUBE, store, add={"n": "int64"})
    assert query(store)["n"] == [1, 2, 3]


def test_a_commit_to_a_dataset_that_is_deleted_since_is_no_part_of_the_cube(store, monkeypatch):
    def validate(cube, blobs):
        api.delete_cube(CUBE, store)
        validate_cube(cube, blobs)

    monkeypatch.setattr(schema_update, "validate_cube", validate)
    with pytest.raises(ValueError, match=r"Seed dataset .* is missing"):
        api.update_schema(CUBE, store, add={"n": "int64"})


def test_a_dataset_of_a_cube_alone(monkeypatch):
    store, cube = memory(), api.Cube(["x", "y"], ["p"], "cube")
    seed = pd.DataFrame({"x": [1], "y": [1], "p": ["a"], "q": [1]})
    api.build_cube({"seed": seed, "o": seed[["x", "p"]].assign(v=1, w=1)}, cube, store)
    for update, message in (
        ({"add": {"q": "int64"}}, "multiple datasets: q in o, seed"),
        ({"rename": {"v": "q"}}, "multiple datasets: q in o, seed"),
        ({"drop": "x"}, "must have at least one of the following dimension columns: x"),
    ):
        with refuses(lambda: store, ValueError, message):
            eager.update_dataset_schema("cube++o", store, **update)
    # a cube that breaks a rule already can be corrected
    with monkeypatch.context() as patch:
        patch.setattr(schema_update, "check_rules", lambda *arguments: None)
        eager.update_dataset_schema("cube++seed", store, add={"v": "int64", "w": "int64"})
    eager.update_dataset_schema("cube++o", store, drop="w")
    with pytest.raises(ValueError, match="multiple datasets: q in o, seed; v in o, seed"):
        eager.update_dataset_schema("cube++o", store, add={"q": "int64"})
    eager.update_dataset_schema("cube++o", store, rename={"v": "z"})
    assert api.verify_cube(cube, store).ok
    # no cube
    eager.store_dataframes_as_dataset(store, "a++b", [seed])
    eager.update_dataset_schema("a++b", store, drop="q")


ALONE = pd.DataFrame({"x": [1], "p": ["a"], "v": [1]})


def _store_alone(store, uuid, frame, **arguments):
    eager.store_dataframes_as_dataset(store, uuid, [frame], partition_on=["p"], **arguments)


def _roll_back_alone(store):
    api.update_schema("cube", store, "o", rename={"v": "z"})
    api.update_schema("cube", store, add={"v": "int64"})
    eager.rollback_dataset("cube++o", store, 1)


def _publish_late(store):
    """A write of which the rule is broken since it was staged."""
    added = [ALONE.assign(z=1)]
    staged = eager.update_dataset_from_dataframes(added, store, "cube++o", schema_mode="merge", publish=False)
    api.update_schema("cube", store, add={"z": "int64"})
    api.publish_staged(staged, store)


BREAKING = {
    "merge": (
        lambda s: eager.update_dataset_from_dataframes(
            [ALONE.assign(q=1)], s, "cube++o", schema_mode="merge"
        ),
        "multiple datasets: q in o, seed",
    ),
    "publish": (_publish_late, "multiple datasets: z in o, seed"),
    "overwrite": (
        lambda s: _store_alone(s, "cube++o", ALONE.drop(columns="x"), overwrite=True),
        "must have at least one of the following dimension columns: x",
    ),
    "create": (lambda s: _store_alone(s, "cube++n", ALONE), "multiple datasets: v in n, o"),
    "header": (
        lambda s: eager.create_empty_dataset_header(s, "cube++n", ALONE, partition_on=["p"]),
        "multiple datasets: v in n, o",
    ),
    "overwrite seed": (
        lambda s: _store_alone(s, "cube++seed", ALONE, overwrite=True),
        r"Without the metadata of dataset 'cube\+\+seed' there is no cube",
    ),
    "roll back": (_roll_back_alone, "multiple datasets: v in o, seed"),
}


@pytest.fixture
def alone():
    store, frames = memory(), {"seed": ALONE.rename(columns={"v": "q"}), "o": ALONE}
    api.build_cube(frames, api.Cube(["x"], ["p"], "cube"), store)
    return store


@pytest.mark.parametrize("name", BREAKING)
def test_writes_to_a_dataset_alone_break_no_rule_of_its_cube(alone, name):
    write, message = BREAKING[name]
    with pytest.raises(ValueError, match=message):
        write(alone)
    assert api.verify_cube("cube", alone).ok


def test_writes_to_a_dataset_alone_that_break_no_rule(alone):
    eager.update_dataset_from_dataframes([ALONE.assign(w=1)], alone, "cube++o", schema_mode="merge")
    _store_alone(alone, "cube++n", ALONE.rename(columns={"v": "n"}))
    # no dataset of the cube
    eager.store_dataframes_as_dataset(alone, "cube++", [ALONE])
    assert {"w", "n"} <= {*api.query_cube("cube", alone)[0].columns}


def test_datasets():
    store = memory()
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "k": ["s", "t"]})
    eager.store_dataframes_as_dataset(store, "ds", [frame], partition_on="k")
    eager.update_dataset_from_dataframes(
        [frame.drop(columns="b").assign(c=True)], store, "ds", schema_mode="merge"
    )
    eager.update_dataset_schema("ds", store, rename={"a": "z"}, add={"n": "string"}, defaults={"n": "?"})
    df = eager.read_table("ds", store)
    assert df.columns.tolist() == ["k", "b", "c", "n", "z"]
    assert df["z"].tolist() == [1, 2, 1, 2]
    assert df["n"].tolist() == ["?"] * 4
    assert [None if pd.isna(v) else v for v in df["c"]] == [None, None, True, True]
    df = eager.read_table("ds", store, columns=["z"], predicates=[[("n", "==", "?"), ("z", ">", 1)]])
    assert df["z"].tolist() == [2, 2]
    assert eager.verify_dataset("ds", store).ok
    frames = eager.read_dataset_as_dataframes("ds", store)
    assert {tuple(sorted(f.columns)) for f in frames} == {("b", "c", "k", "n", "z")}
    with pytest.raises(ValueError, match="column k is a partition key"):
        eager.update_dataset_schema("ds", store, drop="k")
    with pytest.raises(SchemaConflictError):
        eager.update_dataset_from_dataframes([frame], store, "ds")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_plateau_reads_and_updates(tmp_path):
    plateau = pytest.importorskip("plateau.io.eager")
    url = f"hfs://{tmp_path}"
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "k": ["s", "t"]})
    eager.store_dataframes_as_dataset(url, "ds", [frame], partition_on="k")
    eager.update_dataset_schema("ds", url, rename={"b": "c"}, add={"n": "int64"}, defaults={"n": 3})
    new = frame.rename(columns={"b": "c"}).assign(n=4)
    eager.update_dataset_from_dataframes([new], url, "ds")
    df = plateau.read_table("ds", url)
    assert df["a"].tolist() == [1, 2, 1, 2]
    assert df["c"].isna().tolist() == [True, True, False, False]
    plateau.update_dataset_from_dataframes([new], store=url, dataset_uuid="ds")
    df = eager.read_table("ds", url)
    assert df["c"].tolist() == ["x", "y"] * 3
    assert df["n"].tolist() == [3, 3, 4, 4, 4, 4]
    assert eager.verify_dataset("ds", url).ok


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_other_libraries_read_rewritten_files(tmp_path):
    plateau = pytest.importorskip("plateau.io.eager")
    url = f"hfs://{tmp_path}"
    api.build_cube(OLD, CUBE, url)
    api.update_schema(CUBE, url, rename={"q": "r"}, add={"n": "int64"}, defaults={"n": 3})
    with pytest.raises(ValueError, match="Columns cannot be found in stored dataframe: r"):
        plateau.read_table("cube++seed", url, columns=["x", "r"])
    assert api.compact_cube(CUBE, url)["seed"]["files_before"] == 0
    before = query(url)
    counts = api.compact_cube(CUBE, url, min_files=1)["seed"]
    assert (counts["files_before"], counts["files_after"]) == (2, 2)
    assert query(url) == before
    assert api.verify_cube(CUBE, url).ok
    df = plateau.read_table("cube++seed", url, columns=["x", "r", "n"], predicates=[[("r", ">", 10)]])
    assert df.sort_values("x").to_dict("list") == {"x": [2, 3], "r": [20, 30], "n": [3, 3]}
    # what is current already is left as it is
    rewritten = data_files(get_store_from_url(url))
    api.compact_cube(CUBE, url, min_files=1)
    assert data_files(get_store_from_url(url)) == rewritten


def test_large_files_lack_the_names_of_columns_that_are_requested(store_factory):
    """Those of a remote store are read by ranges, and payload where conditions match."""
    n, cube = 30_000, api.Cube(["x"], ["p"], "cube")
    seed = pd.DataFrame({"x": range(n), "p": "a", "q": range(n), "t": [f"{i:040}" for i in range(n)]})
    other = seed[["x", "p"]].assign(y=range(n), z=1.0)
    api.build_cube({"seed": seed, "o": other}, cube, store_factory)
    add, rename = {"m": "int64"}, {"q": "r"}
    api.update_schema(cube, store_factory, add=add, defaults={"m": 9}, rename=rename, drop="t")
    api.update_schema(cube, store_factory, "o", add={"n": "int64"}, defaults={"n": 3}, rename={"y": "w"})
    [df] = api.query_cube(cube, store_factory, api.C("r") == n - 1, payload_columns=["r", "m"])
    assert df.to_dict("list") == {"m": [9], "p": ["a"], "r": [n - 1], "x": [n - 1]}
    [df] = api.query_cube(cube, store_factory, (api.C("w") >= n - 2) & (api.C("n") == 3))
    last = {name: [n - 2, n - 1] for name in "rwx"}
    assert rows([df]) == {"m": [9, 9], "n": [3, 3], "p": ["a", "a"], "z": [1.0, 1.0], **last}


@pytest.mark.slow("every façade")
@pytest.mark.parametrize("name", [*FACADES, SPARK])
def test_every_facade_reads_files_of_all_schemas(tmp_path, name):
    """Indices, conditions, history, compaction and copies, where files were written before the changes."""
    driver, kind = open_facade(name), "local" if name == SPARK else "memory"
    store, target = STORES[kind](tmp_path / "store"), STORES[kind](tmp_path / "target")

    def query(**kwargs):
        return driver.query_cube(cube=CUBE, store=store, **kwargs)

    other = pd.DataFrame({"x": [1, 3], "p": ["a", "b"], "y": [1, 2]})
    data = {"seed": OLD.assign(w=[1, 2, 3], d=0), "o": other}
    driver.build_cube(data=data, cube=CUBE, store=store)
    api.keep_cube_history(CUBE, store, 9)
    original, state = query(), api.list_cube_history(CUBE, store)[-1].version
    added = {"add": {"n": int}, "defaults": {"n": 5}}
    api.update_schema(CUBE, store, **added, rename={"q": "r"}, drop="d", widen={"w": float})
    api.update_schema(CUBE, store, "o", rename={"y": "z"}, add={"k": str}, defaults={"k": "t"})
    new = pd.DataFrame({"x": [3, 4], "p": "b", "i": 9, "r": [31, 40], "w": [3.5, 4.5], "m": [True, False]})
    driver.append_to_cube(data=new, cube=CUBE, store=store, schema_mode="merge")

    expected = {"i": [7, 8, 9, 9], "k": ["t", None, "t", None], "m": [None, None, True, False], "n": [5] * 4}
    expected |= {"p": ["a", "a", "b", "b"], "r": [10, 20, 31, 40], "w": [1.0, 2.0, 3.5, 4.5]}
    expected |= {"x": [1, 2, 3, 4], "z": [1, None, 2, None]}
    assert rows(query()) == expected
    for condition, cells in [
        (api.C("r") > 15, [2, 3, 4]),
        (api.C("n") == 5, [1, 2, 3, 4]),
        (api.C("n") > 5, []),
        (api.C("w") > 1.5, [2, 3, 4]),
        (api.C("m") == True, [3]),  # noqa: E712
        (api.C("m").is_null(), [1, 2]),
        (api.C("k") == "t", [1, 3]),
        ((api.C("i") == 9) & (api.C("r") == 31), [3]),
    ]:
        found = rows(query(conditions=condition, payload_columns=[])) or {"x": []}
        assert found["x"] == cells, condition
    by_index = groups(query(partition_by="i", payload_columns=["r", "n"]))
    found = [(group["i"][0], group["r"], group["n"][0]) for group in by_index]
    assert found == [(7, [10], 5), (8, [20], 5), (9, [31, 40], 5)]
    assert rows(query(as_of=state)) == rows(original)

    driver.copy_cube(cube=CUBE, src_store=store, tgt_store=target)
    assert rows(driver.query_cube(cube=CUBE, store=target)) == expected
    api.compact_cube(CUBE, store)
    assert rows(query()) == expected
    assert api.verify_cube(CUBE, store).ok
    assert api.verify_cube(CUBE, target).ok
    api.rollback_cube(CUBE, store, state)
    assert rows(query()) == rows(original)
    assert api.verify_cube(CUBE, store).ok


# -- concurrent changes ---------------------------------------------------------------------------


def change_often(store):
    """More updates than a schema file holds versions of."""
    for number in range(10):
        api.update_schema(CUBE, store, add={f"s{number}": "int64"})
    api.update_schema(CUBE, store, drop="q")


LATER = NEW.drop(columns="q").assign(x=NEW["x"] + 100)
OPERATIONS = {
    "query": lambda store: api.query_cube(CUBE, store),
    "discover": lambda store: api.discover_datasets(CUBE, store)["seed"].schema,
    "stats": lambda store: api.collect_stats(CUBE, store),
    "append": lambda store: api.append_to_cube(LATER, CUBE, store, schema_mode="merge"),
    "compact": lambda store: api.compact_cube(CUBE, store, min_files=1),
    "update": lambda store: api.update_schema(CUBE, store, add={"t": "int64"}),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("at", range(1, 5))
def test_a_schema_changes_often_between_the_reads_of_a_header_and_its_schema(store, operation, at):
    api.append_to_cube(OLD.assign(x=[5, 6, 7]), CUBE, store)
    other = FaultyStore(store).fail("get", at=at, key="_common_metadata", error=lambda: change_often(store))
    with suppress(ConcurrentWriteError):
        operation(other)
    if other.happened:
        assert "q" not in query(store)
    assert api.verify_cube(CUBE, store).ok


def test_an_older_header_has_its_own_schema(store):
    other = FaultyStore(store).fail("get", key="_common_metadata", error=lambda: change_often(store))
    assert rows(api.query_cube(CUBE, other))["q"] == [10, 20, 30]
