"""Typical mistakes: one sentence each, in every façade, before anything is changed."""

import inspect
import logging
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core import errors
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.errors import CorruptDatasetError, CubeNotFoundError, DuplicateCellsError
from kartothek_cube.core.utils import lazy_store
from kartothek_cube.io.iter_cube import build_cube__iter
from tests.support.cube_facades import FACADES, SPARK, Eager, open_facade
from tests.support.cubes import INTERNAL, file_keys, keys, memory, refuses, rows, unchanged
from tests.support.factories import STORES
from tests.support.stores import FaultyStore, ReadOnlyStore, Wrapped

CUBE = Cube(["SHOP", "DAY"], ["COUNTRY"], "c")
SEED = pd.DataFrame({"SHOP": [1, 2, 3], "DAY": pd.Timestamp("2024-01-05"), "COUNTRY": ["DE", "DE", "FR"]})
SEED["QTY"] = [10, 20, 30]
PRICES = SEED.rename(columns={"QTY": "PRICE"})
MORE = SEED.assign(DAY=pd.Timestamp("2024-01-06"))


@pytest.fixture
def built(driver, store_factory):
    """A store with a cube of one dataset."""
    driver.build_cube(data=SEED, cube=CUBE, store=store_factory)
    return store_factory


def corrupt(store):
    for key in file_keys(store, "c++seed").values():
        store().put(key, b"no Parquet file")


def build(data=SEED, cube=CUBE):
    return lambda d, s: d.build_cube(data=data, cube=cube, store=s)


def append(data, cube=CUBE):
    return lambda d, s: d.append_to_cube(data=data, cube=cube, store=s)


def query(cube=CUBE, **arguments):
    return lambda d, s: d.query_cube(cube=cube, store=s, **arguments)


def extend(prices=PRICES, name="prices", **arguments):
    return lambda d, s: d.extend_cube(data={name: prices}, cube=CUBE, store=s, **arguments)


def remove(conditions):
    return lambda d, s: d.remove_partitions(cube=CUBE, store=s, conditions=conditions)


def query_corrupt(d, s):
    corrupt(s)
    d.query_cube(cube=CUBE, store=s)


AWARE = pd.Timestamp("2024-01-05", tz="UTC")
TOKYO = AWARE.tz_convert("Asia/Tokyo")
MIXED = pd.Series([AWARE, AWARE.tz_localize(None), AWARE], dtype=object)
SHOPS, TEXT_MONTH = Cube(["SHOP"], ["COUNTRY"], "c"), Cube(["SHOP", "DAY"], ["month(DAY)"], "x")
WEATHER = pd.DataFrame({"QTY": [10], "COUNTRY": "DE", "TEMP": 7})
IS_KEY = "Datasets are joined by dimensions only: if QTY identifies rows"
ONE_NAME = "is one or several names (str), got 5 of type int"
OTHER_DIMENSIONS = "was written with the dimension columns DAY, SHOP, the specification has SHOP"
#: mistake -> what is done, text of the error, and its type, if it is no ValueError
MISTAKES = {
    "column": (query(payload_columns=["QYT"]), "unknown column QYT; did you mean QTY?"),
    "column of the input": (
        append(MORE.rename(columns={"QTY": "Qty"})),
        "Qty     -       int64  did you mean 'QTY'? Else drop the column",
    ),
    "column of a condition": (query(conditions=api.C("QYT") > 1), "QYT"),
    "type of a condition": (query(conditions=api.C("QTY") == "many"), "QTY", TypeError),
    "type of a column": (
        append(MORE.assign(QTY=[1.5, None, 3.0])),
        """QTY     int64   double  widen payload with update_schema, or df['QTY'].astype("Int64") if""",
    ),
    "type of a key": (
        extend(PRICES.astype({"SHOP": str})),
        "Dataset 'c++prices': Column 'SHOP' is int64 in the cube but string in dataset 'prices'",
        errors.MultiTableCommitAborted,
    ),
    "key": (append(MORE.drop(columns="DAY")), "unknown column DAY; available: COUNTRY, QTY, SHOP"),
    "key in the index": (
        append(MORE.set_index("DAY")),
        "the index of the DataFrame, DAY, is not stored",
    ),
    "permission": (lambda d, s: append(MORE)(d, Wrapped(ReadOnlyStore, s)), "read-only", OSError),
    "corrupt file": (query_corrupt, "Corrupt object 'c++seed/table/COUNTRY=", CorruptDatasetError),
    "dataset": (query(datasets=["seed", "price"]), "unknown dataset price; available: seed"),
    "dataset of the input": (append({"sead": MORE}), "unknown dataset sead; did you mean seed?"),
    **{
        f"dataset of {name}": (
            extend(**{name: {"price": of_it}}),
            f"{name}: unknown dataset price; did you mean prices?",
        )
        for name, of_it in (("partition_on", ["COUNTRY"]), ("metadata", {}), ("statistics", ["PRICE"]))
    },
    "columns that are no names": (query(payload_columns=5), f"payload_columns {ONE_NAME}", TypeError),
    "a tuple as name of a dimension": (
        query(dimension_columns=[("DAY",)]),
        "dimension_columns is one or several names (str), got ('DAY',) of type tuple",
        TypeError,
    ),
    "groups that are no names": (
        query(partition_by=[None]),
        "partition_by is one or several names (str), got None",
        TypeError,
    ),
    "datasets that are no names": (query(datasets=[5]), f"datasets {ONE_NAME}", TypeError),
    "frames as loaded datasets": (
        query(datasets={"seed": SEED}),
        "datasets has ids, or loaded headers (DatasetMetadata) by id, got DataFrame for seed",
        TypeError,
    ),
    "an array without dimensions as names": (
        query(payload_columns=np.array(5)),
        "payload_columns is one or several names (str), got array(5) of type ndarray",
        TypeError,
    ),
    "names that are no text": (
        query(partition_by=b"\xff"),
        "partition_by: Object of type bytes is not UTF-8",
    ),
    "partition columns that are no names": (
        extend(partition_on={"prices": [5]}),
        f"partition_on of dataset prices {ONE_NAME}",
        TypeError,
    ),
    "partition columns that occur twice": (
        extend(partition_on={"prices": ["COUNTRY", "COUNTRY"]}),
        "partition_on of dataset prices: Names must not occur twice, but these do: COUNTRY",
    ),
    "statistics that are no names": (
        extend(statistics={"prices": 5}),
        f"statistics of dataset prices {ONE_NAME}",
        TypeError,
    ),
    "text as a flag": (extend(overwrite="no"), "overwrite is True or False, got 'no'", TypeError),
    "condition": (
        remove(api.C("SHOP") == 1),
        "(COUNTRY), but got conditions on: SHOP. Functions whose names begin with "
        "delete_rows take conditions on all columns",
    ),
    "zone of a condition": (
        query(conditions=api.C("DAY") >= TOKYO),
        "are its times those of UTC? Write pandas.Timestamp('2024-01-05 00:00:00').",
        TypeError,
    ),
    "zone": (
        append(MORE.assign(DAY=AWARE)),
        "DAY     timestamp[ns]  timestamp[ns, tz=UTC]  "
        """df['DAY'].dt.tz_convert("UTC").dt.tz_localize(None), if times of the dataset are those of UTC""",
    ),
    "zones": (extend(PRICES.assign(DAY=MIXED)), "Column 'DAY' mixes timestamps with and without time zone"),
    "zones of payload": (
        extend(PRICES.assign(SINCE=MIXED.where([True, True, False], pd.NaT))),
        "Column 'SINCE' mixes timestamps with and without time zone",
    ),
    "dimensions of a query": (
        query(SHOPS),
        f"'seed' {OTHER_DIMENSIONS}. Pass 'c' or what discover_cube returns",
    ),
    "dimensions of a write": (append(MORE, SHOPS), OTHER_DIMENSIONS),
    "name of a new cube": (
        build({"seed": SEED}, "new"),
        "Cube new not found: available: c; a new cube needs its specification in place of the name, such as "
        """Cube(dimension_columns=["SHOP", "DAY"], partition_columns=[], uuid_prefix="new")""",
        CubeNotFoundError,
    ),
    "no cube": (
        build({"seed": SEED}, 5),
        "expected a Cube or the name of a stored one, got int",
        TypeError,
    ),
    "payload as a key": (
        extend(WEATHER.assign(DAY=MORE["DAY"]), "weather"),
        f"already present in cube: QTY (in seed). {IS_KEY}, build the cube with it in dimension_columns",
    ),
    "payload as the only key": (extend(WEATHER, "weather"), f"dimension columns: DAY, SHOP. {IS_KEY}"),
    "day before month": (query(conditions="DAY >= 01.02.2024"), "write the year first"),
    "day before month as a value": (
        query(conditions=api.C("DAY") >= "01/02/2024"),
        "Write the year first, as in pandas.Timestamp('2020-01-31')",
        TypeError,
    ),
    "null key": (
        append(MORE.assign(COUNTRY=["DE", None, "FR"])),
        'Found NULL-values in partition column "COUNTRY" of dataset "seed" (1 of 3 rows).',
    ),
    "empty frame": (
        extend(PRICES[:0]),
        "Cannot write empty datasets: prices. The first write of a dataset needs rows.",
        errors.MultiTableCommitAborted,
    ),
    "duplicate": (
        append(pd.concat([MORE, MORE])),
        "Dataset 'seed' has several rows for one cell of COUNTRY, DAY, SHOP",
        DuplicateCellsError,
    ),
    "time": (query(as_of="yesterday"), "as_of is a version (int) or a point in time such as"),
    "entry of the history": (query(as_of=SimpleNamespace(version=1)), "pass its version", TypeError),
    "state": (query(as_of=99), "Cube 'c': there is no state as of 99. Its only state is 1"),
    "transform as a text": (
        build(cube=TEXT_MONTH),
        "unknown column month(DAY); available: COUNTRY, DAY, QTY, SHOP. A transform is no text: pass month(",
    ),
    "seed in an extension": (extend(SEED, "seed"), "Name the new dataset, as in {'weather': df}"),
    "cube": (build(), "The cube exists; pass overwrite=True to replace it", errors.DatasetExistsError),
}


#: mistakes that a façade does not know: a DataFrame of Spark has no index and one type per column
UNKNOWN = {("key in the index", SPARK), ("zones", SPARK), ("zones of payload", SPARK)}
REMEDIES_OF_SPARK = {
    "type of a column": 'widen payload with update_schema, or F.col("QTY").cast("bigint") if all are whole',
    "zone": 'F.col("DAY").cast("timestamp_ntz"), in the time zone of the session',
}
#: every façade with every mistake, whatever the table of combinations says
CASES = [(m, f) for m in MISTAKES for f in (*FACADES, SPARK) if (m, f) not in UNKNOWN]


@pytest.mark.parametrize("mistake, name", CASES)
def test_a_mistake_is_one_sentence(tmp_path, mistake, name):
    operation, text, kind = (*MISTAKES[mistake], ValueError)[:3]
    driver, built = open_facade(name), STORES["local" if name == SPARK else "memory"](tmp_path)
    api.build_cube(SEED, CUBE, built)
    if mistake == "corrupt file" and name == SPARK:
        # the rows of a query are computed by Spark, which puts errors of tasks into its own
        kind = Exception
    before = keys(built)
    with pytest.raises(kind) as caught:
        operation(driver, built)
    message = str(caught.value)
    # the remedy is one for the frames of the façade
    text = REMEDIES_OF_SPARK.get(mistake, text) if name == SPARK else text
    assert text in message, message
    if kind is Exception:
        return
    assert INTERNAL.search(message) is None, message
    assert len(message.splitlines()[0]) < 350, message
    assert keys(built) == before


def update_schema(**arguments):
    return lambda s: api.update_schema(CUBE, s, **arguments)


def copy(**arguments):
    return lambda s: api.copy_cube(CUBE, s, memory(), **arguments)


IS_NO_NAME = "is a name (str), got 5 of type int"
FRAMES = {"seed": SEED}
#: argument of an operation that not all façades have -> call, error and its text
WRONG_ARGUMENTS = {
    "a cube as its prefix": (
        lambda s: api.discover_cube(CUBE, s),
        TypeError,
        "uuid_prefix is a name (str), got",
    ),
    "frames to count": (lambda s: api.collect_stats(CUBE, s, FRAMES), TypeError, "got DataFrame for seed"),
    "frames to delete": (lambda s: api.delete_cube(CUBE, s, FRAMES), TypeError, "got DataFrame for seed"),
    "frames to copy": (copy(datasets=FRAMES), TypeError, "got DataFrame for seed"),
    "an iterator with a typo": (copy(datasets=iter(["seed", "sed"])), RuntimeError, "unknown dataset sed;"),
    "an iterator of a typo": (
        lambda s: api.discover_cube("c", s, datasets=iter(["sed"])),
        ValueError,
        "unknown dataset sed; did you mean seed?",
    ),
    "an empty prefix": (copy(renamed_cube_prefix=""), ValueError, "uuid_prefix: '' cannot be"),
    "a new id": (copy(renamed_datasets={"seed": 5}), TypeError, f"renamed_datasets {IS_NO_NAME}"),
    "a new name": (update_schema(rename={"QTY": 5}), TypeError, f"rename {IS_NO_NAME}"),
    "a column": (update_schema(add={5: "int64"}), TypeError, f"add {IS_NO_NAME}"),
    "a type": (update_schema(add={"NEW": []}), TypeError, "add, column NEW: a type is one of Arrow"),
    "a dataset": (lambda s: api.cube_dataset(CUBE, s, dataset_id=5), TypeError, f"dataset_id {IS_NO_NAME}"),
    "a unit": (
        lambda s: api.cube_dataset(CUBE, s, timestamp_unit="min"),
        ValueError,
        "timestamp_unit is one of 's', 'ms', 'us', 'ns', got 'min'",
    ),
    "a flag of a rule": (
        lambda s: api.set_contract(CUBE, s, "seed", [api.NotNull("QTY", checked="no")]),
        TypeError,
        "checked is True or False, got 'no'",
    ),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_an_error_names_the_argument_and_nothing_is_changed(tmp_path, name):
    call, kind, text = WRONG_ARGUMENTS[name]
    store = STORES["memory"](tmp_path)
    api.build_cube(SEED, CUBE, store)
    with refuses(store, kind, text):
        call(store)


def copy_without_a_file(store):
    store().delete(min(file_keys(store, "c++seed").values()))
    api.copy_cube(CUBE, store, memory())


#: operation that is given up, its dataset, and what its message says next
ABORTS = {
    "payload of two datasets": (
        lambda s: api.build_cube({"seed": SEED, "a": PRICES, "b": PRICES}, CUBE, s, overwrite=True),
        "Dataset 'c++b': Found columns present in multiple datasets: PRICE in a, b",
    ),
    "no rows in a batch": (
        lambda s: api.extend_cube__iter(iter([{"a": PRICES[:0]}]), CUBE, s, ["a"]),
        "Dataset 'c++a': Cannot write empty datasets: a",
    ),
    "no seed in a batch": (
        lambda s: api.build_cube__iter(iter([{"a": PRICES}]), CUBE, s, ["a", "seed"], overwrite=True),
        "Dataset 'c++seed': Seed data (\"seed\") is missing",
    ),
    "nothing left": (
        lambda s: api.update_cube({"seed": SEED[:0]}, CUBE, s, "all", ["seed"]),
        "Dataset 'c++seed': No partitions left",
    ),
    "missing file": (copy_without_a_file, "Dataset 'c++seed': The file 'c++seed/table/COUNTRY=DE/"),
    "target that fails": (
        lambda s: api.copy_cube(CUBE, s, FaultyStore(memory()).fail("put", key="by-dataset")),
        "Dataset 'c++seed': injected",
    ),
}


@pytest.mark.parametrize("name", ABORTS)
def test_what_is_given_up_names_dataset_and_rule_first(tmp_path, name):
    operation, text = ABORTS[name]
    store = STORES["memory"](tmp_path)
    api.build_cube(SEED, CUBE, store)
    with pytest.raises(errors.MultiTableCommitAborted) as caught:
        operation(store)
    message = str(caught.value)
    assert message.startswith(text), message
    assert "The operation was not committed" in message
    assert message.count("Dataset '") == 1


#: operation -> its arguments
OPERATIONS = {
    "query_cube": {},
    "append_to_cube": {"data": SEED},
    "extend_cube": {"data": {"prices": PRICES}},
    "remove_partitions": {"conditions": api.C("COUNTRY") == "DE"},
    "update_cube": {"data": SEED, "remove_conditions": None, "ktk_cube_dataset_ids": ["seed"]},
    "collect_stats": {},
    "cleanup_cube": {},
    "delete_cube": {},
}


def run(driver, operation, store, cube=CUBE):
    if operation == "copy_cube":
        return driver.copy_cube(cube=cube, src_store=store, tgt_store=store.replace("cubs", "copy"))
    return getattr(driver, operation)(cube=cube, store=store, **OPERATIONS[operation])


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("operation", [*OPERATIONS, "copy_cube"])
def test_a_store_that_is_no_directory_is_named_and_not_created(driver, tmp_path, operation, is_file):
    path, text = tmp_path / "cubs", "there is no directory {}"
    if is_file:
        path.write_text("no directory")
        text = "{} is a file; a store is a directory"
    with pytest.raises(ValueError, match=text.format(path)):
        run(driver, operation, f"hfs://{path}")
    assert path.read_text() == "no directory" if is_file else not path.exists()


#: operations that the façades of graphs do not have
EAGER_OPERATIONS = {
    "merge": lambda c, s: api.merge_into_cube(SEED, c, s),
    "remove": lambda c, s: api.remove_partitions(c, s, "all"),
    "delete": api.delete_cube,
    "stats": api.collect_stats,
    "discover": api.discover_datasets,
    "schema": lambda c, s: api.update_schema(c, s, "seed", rename={"QTY": "N"}),
    "publish": api.publish_cube,
    "unpublish": api.unpublish_cube,
    "verify": api.verify_cube,
    "repair": api.repair_cube,
    "compact": api.compact_cube,
    "garbage": api.list_cube_garbage,
    "cleanup": api.cleanup_cube,
    "history": api.list_cube_history,
    "keep history": api.keep_cube_history,
    "rollback": lambda c, s: api.rollback_cube(c, s, 1),
    "explain": api.explain_query,
    "frame": api.query_cube_df,
    "dataset": api.cube_dataset,
    "stream": api.query_cube_as_record_batches,
    "LazyFrame": api.scan_cube,
    "SQL": api.sql.connect,
    "open": api.open_cube,
}
NO_CUBE = re.escape("Cube sale not found: did you mean sales? available: sales")


@pytest.fixture
def sales(tmp_path):
    """The URL of a store with a cube of another name."""
    url = f"hfs://{tmp_path / 'cubs'}?create_if_missing=true"
    api.build_cube(SEED, CUBE.copy(uuid_prefix="sales"), url)
    return url


@pytest.mark.parametrize("operation", [*OPERATIONS, "copy_cube"])
def test_a_cube_that_does_not_exist_is_the_same_error_in_all_facades(driver, sales, operation):
    with unchanged(lazy_store(sales)), pytest.raises(CubeNotFoundError, match=NO_CUBE):
        run(driver, operation, sales, CUBE.copy(uuid_prefix="sale"))


NO_CUBES = {
    "name": ("sale", CubeNotFoundError, NO_CUBE),
    "Cube": (CUBE.copy(uuid_prefix="sale"), CubeNotFoundError, NO_CUBE),
    "number": (5, TypeError, "expected a Cube or the name of a stored one, got int"),
}


@pytest.mark.parametrize("cube, error, text", NO_CUBES.values(), ids=NO_CUBES)
@pytest.mark.parametrize("operation", EAGER_OPERATIONS)
def test_a_cube_that_does_not_exist_is_the_same_error_in_all_operations(sales, operation, cube, error, text):
    if operation == "open" and isinstance(cube, Cube):
        cube = "sale"  # a cube that is opened by its specification need not exist
    with unchanged(lazy_store(sales)), pytest.raises(error, match=text):
        EAGER_OPERATIONS[operation](cube, sales)


@pytest.mark.parametrize("name", ["", "../sales", "sales/seed"])
def test_what_cannot_be_the_name_of_a_cube(sales, name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be the name of a cube"):
        api.query_cube(name, sales)
    with pytest.raises(ValueError, match=r"If it is the store, pass the cube before it$"):
        api.query_cube(sales, "sales")


def test_what_is_deleted_can_be_deleted_again(driver, built):
    driver.delete_cube(cube=CUBE, store=built)
    driver.delete_cube(cube=CUBE, store=built)
    api.build_cube(SEED, CUBE.copy(uuid_prefix="other"), built)
    with pytest.raises(CubeNotFoundError, match="Cube c not found: available: other"):
        driver.delete_cube(cube=CUBE, store=built)


def test_a_name_stands_for_a_cube_that_is_stored(driver, built):
    assert driver.collect_stats(cube="c", store=built)["seed"]["rows"] == 3
    (found,) = api.query_cube("c", built)
    pd.testing.assert_frame_equal(found, api.query_cube(CUBE, built)[0])
    api.append_to_cube(MORE, "c", built)
    driver.cleanup_cube(cube="c", store=built)
    driver.delete_cube(cube="c", store=built)
    assert keys(built) == set()


def test_an_option_that_does_not_exist(driver, tmp_path):
    with pytest.raises(ValueError, match="unknown option durible; did you mean durable"):
        driver.query_cube(cube=CUBE, store=f"hfs://{tmp_path}?durible=false")


def test_a_copy_to_a_store_that_is_lost(driver, built):
    with refuses(built, ValueError, "hmemory:// is a new, empty store each time it is opened"):
        driver.copy_cube(cube=CUBE, src_store=built, tgt_store="hmemory://")


def test_key_types_of_new_datasets_are_checked_before_anything_is_written(store_factory):
    data = {"seed": SEED, "prices": PRICES.astype({"SHOP": str})}
    with refuses(store_factory, errors.MultiTableCommitAborted, "is int64 in dataset 'seed' but string in"):
        api.build_cube(data, CUBE, store_factory)


# -- indices of frames ------------------------------------------------------------------------


@pytest.mark.parametrize("write", [api.append_to_cube, api.merge_into_cube])
@pytest.mark.parametrize("index", ["QTY", ["SHOP", "DAY"]])
def test_columns_in_the_index(built, index, write):
    with refuses(built, ValueError, "the index of the DataFrame, ", " is not stored; reset_index() makes"):
        write(MORE.set_index(index), CUBE, built)
    with pytest.warns(UserWarning, match="'seed': the index of the DataFrame, row, is not stored"):
        write(MORE.rename_axis("row"), CUBE, built)
    assert len(api.query_cube(CUBE, built)[0]) == 6


# -- removals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conditions", [None, [], " ", api.C("COUNTRY").in_interval()], ids=str)
def test_removing_everything_without_saying_so_is_refused(driver, built, conditions):
    with refuses(built, ValueError, "No conditions: everything would be removed. Pass conditions='all'"):
        driver.remove_partitions(cube=CUBE, store=built, conditions=conditions)


def test_an_update_replaces_everything(driver, built):
    arguments = {"cube": CUBE, "store": built, "ktk_cube_dataset_ids": ["seed"]}
    driver.update_cube(data=MORE[:1], remove_conditions="all", **arguments)
    assert rows(driver.query_cube(cube=CUBE, store=built))["QTY"] == [10]
    with refuses(built, ValueError, "No remove_conditions: everything would be removed"):
        driver.update_cube(data=MORE, remove_conditions=[], **arguments)


def test_warnings_name_the_line_of_the_user(driver, built):
    """Here, the user is the façade of the tests. With dask, a task finds out what the warning says."""
    arguments = {"cube": CUBE, "store": built}
    update = {"remove_conditions": api.C("COUNTRY") == "DE", "ktk_cube_dataset_ids": ["seed"]}
    with pytest.warns(UserWarning, match="do not select") as outside:
        driver.update_cube(data=MORE, rows_outside="warn", **update, **arguments)
    days = {"days": SEED[["DAY"]].drop_duplicates().assign(WEEK=1)}
    api.extend_cube(days, CUBE, built, partition_on={"days": []})
    with pytest.warns(UserWarning, match="Removed from dataset") as other_keys:
        driver.remove_partitions(conditions=api.C("COUNTRY") == "DE", **arguments)
    lines, first = inspect.getsourcelines(Eager.run)
    for (warning,) in (outside, other_keys):
        assert warning.filename == inspect.getsourcefile(Eager)
        assert warning.lineno - first in range(len(lines))


# -- cells in several partitions -----------------------------------------------------------------------------

MOVED = SEED.assign(COUNTRY=["DE", "FR", "DE"])


def test_cells_in_another_partition_are_refused_on_demand(driver, built):
    expected = "2 cells of DAY, SHOP are in several partitions, such as {'SHOP': 2,"
    with refuses(built, DuplicateCellsError, expected):
        driver.append_to_cube(data=MOVED, cube=CUBE, store=built, unique_cells=True)
    for allowed in (SEED, MORE, SEED.assign(SHOP=[7, 8, 9]), SEED[:0]):
        driver.append_to_cube(data=allowed, cube=CUBE, store=built, unique_cells=True)
    assert api.verify_cube(CUBE, built).ok
    both = MORE.assign(SHOP=[20, 21, 20], DAY=pd.Timestamp("2025-01-01"))
    with refuses(built, DuplicateCellsError, "1 cell of DAY, SHOP is in several partitions"):
        driver.append_to_cube(data=both, cube=CUBE, store=built, unique_cells=True)


def test_unique_cells_need_an_index(store_factory):
    cube = CUBE.copy(suppress_index_on=["SHOP", "DAY"])
    api.build_cube(SEED, cube, store_factory)
    with refuses(store_factory, ValueError, "unique_cells needs an index on a dimension column"):
        api.append_to_cube(MOVED, cube, store_factory, unique_cells=True)


def test_only_files_that_share_a_value_of_each_dimension_are_read(store_factory):
    days = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"])
    api.build_cube(SEED.assign(DAY=days), CUBE, store_factory)
    corrupt(store_factory)
    api.append_to_cube(SEED.assign(COUNTRY="UK"), CUBE, store_factory, unique_cells=True)
    data = SEED[:1].assign(COUNTRY="UK", DAY=pd.Timestamp("2024-01-01"))
    with pytest.raises(CorruptDatasetError, match="COUNTRY=DE"):
        api.append_to_cube(data, CUBE, store_factory, unique_cells=True)


@pytest.mark.parametrize("suppressed", [[], ["SHOP"], ["SHOP", "DAY"]])
def test_verify_finds_cells_in_several_partitions(store_factory, suppressed):
    cube = CUBE.copy(suppress_index_on=suppressed)
    api.build_cube(SEED, cube, store_factory)
    api.append_to_cube(SEED, cube, store_factory)
    assert api.verify_cube(cube, store_factory).ok
    api.append_to_cube(MOVED, cube, store_factory)
    [problem] = api.verify_cube(cube, store_factory).problems
    assert (problem.kind, problem.dataset) == ("duplicate-cells", "c++seed")
    assert problem.message.startswith("2 cells of DAY, SHOP are in several partitions, such as {'SHOP': 2,")
    assert "in COUNTRY=DE and COUNTRY=FR" in problem.message
    assert problem.key.startswith("c++seed/table/COUNTRY=DE/")
    assert api.verify_cube(cube, store_factory, deep=False).ok


# -- arguments, logs, remainders -----------------------------------------------------------------------------


def test_the_log_tells_what_a_query_reads(built, caplog):
    with caplog.at_level(logging.DEBUG, "kartothek_cube"):
        api.query_cube(CUBE, built, api.C("COUNTRY") == "DE", payload_columns=["QTY"])
    [text] = [record.getMessage() for record in caplog.records if "Query of cube" in record.getMessage()]
    files = "Query of cube c reads 1 of 2 files of dataset seed"
    assert text == f"{files}: columns DAY, QTY, SHOP; conditions COUNTRY == 'DE'"


def test_the_log_tells_which_announced_datasets_are_not_written(store_factory, caplog):
    assert list(build_cube__iter(iter([{"seed": SEED}]), CUBE, store_factory, ["seed", "prices"])) == ["seed"]
    assert caplog.messages == ["build of cube c: no input for prices; nothing is written there"]


def test_the_log_tells_that_a_commit_was_repeated(tmp_path, caplog):
    store = STORES["memory"](tmp_path)
    api.build_cube(SEED, CUBE, store)
    slow = FaultyStore(store())
    slow.fail("put", key="/_history/", error=lambda: api.append_to_cube(MORE, CUBE, store))
    with caplog.at_level(logging.DEBUG, "kartothek_cube"):
        api.append_to_cube(MORE.assign(SHOP=[7, 8, 9]), CUBE, slow)
    assert "Commit to dataset c++seed: another writer was faster, attempt 2 follows" in caplog.messages


def test_a_cube_without_its_seed(driver, built):
    driver.extend_cube(data={"prices": PRICES}, cube=CUBE, store=built)
    driver.delete_cube(cube=CUBE, store=built, datasets={"seed"})
    with pytest.raises(ValueError, match=r"Seed dataset \(seed\) is missing. The cube c has: prices"):
        driver.query_cube(cube=CUBE, store=built)
    with unchanged(built):
        driver.cleanup_cube(cube=CUBE, store=built)
    assert set(driver.collect_stats(cube=CUBE, store=built)) == {"prices"}
    driver.delete_cube(cube=CUBE, store=built)
    assert keys(built) == set()


def test_what_is_no_store_or_no_cube(store_factory):
    with pytest.raises(TypeError, match=r"or a URL such as 'hfs:///data', got None$"):
        api.query_cube(CUBE, None)
    with pytest.raises(CubeNotFoundError, match=r"^Cube c not found: available: none$"):
        api.query_cube(CUBE, store_factory)
    with pytest.raises(TypeError, match=r"got OpenedCube; .*, \.cube of an opened one$"):
        api.query_cube(api.open_cube(CUBE, store_factory), store_factory)


def test_conflicts_name_their_dataset(built):
    expected = (
        "Dataset 'c++seed', table 'table': Schema violation: the columns of the input do not fit those of "
        "the dataset.\ncolumn  stored  given  what to do\n"
        "NEW     -       int64  drop the column, or add it by update_schema"
    )
    with refuses(built, errors.SchemaConflictError, expected):
        api.append_to_cube(MORE.assign(NEW=1), CUBE, built)
