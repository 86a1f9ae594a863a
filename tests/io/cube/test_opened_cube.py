"""A cube bound to its store: methods are the functions, names of columns are completed."""

from __future__ import annotations

import inspect

import pandas as pd
import pytest

import kartothek_cube
from kartothek_cube.core.cube.conditions import VirtualColumn
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io import arrow_cube, eager_cube, iter_cube, sql
from kartothek_cube.io.opened_cube import OpenedCube, open_cube
from tests.support.cubes import memory
from tests.test_display import Text

CUBE = Cube(["SHOP", "DAY"], ["COUNTRY"], "sales")
SEED = pd.DataFrame({"SHOP": [1, 2], "DAY": [1, 1], "COUNTRY": ["DE", "IT"], "QTY": [5, 6]})
WEATHER = pd.DataFrame({"SHOP": [1, 2], "COUNTRY": ["DE", "IT"], "TEMP": [8.5, 19.5], "A B": ["x", "y"]})
FUNCTIONS = {
    "adopt": eager_cube.adopt_dataset,
    "append": eager_cube.append_to_cube,
    "build": eager_cube.build_cube,
    "cleanup": eager_cube.cleanup_cube,
    "compact": eager_cube.compact_cube,
    "connect": sql.connect,
    "copy_to": eager_cube.copy_cube,
    "dataset": arrow_cube.cube_dataset,
    "delete": eager_cube.delete_cube,
    "explain": eager_cube.explain_query,
    "extend": eager_cube.extend_cube,
    "history": eager_cube.list_cube_history,
    "keep_history": eager_cube.keep_cube_history,
    "list_garbage": eager_cube.list_cube_garbage,
    "publish": eager_cube.publish_cube,
    "query": eager_cube.query_cube,
    "query_arrow": arrow_cube.query_cube_arrow,
    "query_iter": iter_cube.query_cube__iter,
    "query_table": arrow_cube.query_cube_table,
    "remove_partitions": eager_cube.remove_partitions,
    "repair": eager_cube.repair_cube,
    "rollback": eager_cube.rollback_cube,
    "scan": arrow_cube.scan_cube,
    "stats": eager_cube.collect_stats,
    "update": eager_cube.update_cube,
    "update_schema": eager_cube.update_schema,
    "verify": eager_cube.verify_cube,
}


@pytest.fixture
def store():
    return memory()


@pytest.fixture
def opened(store):
    eager_cube.build_cube({"seed": SEED, "weather": WEATHER}, CUBE, store)
    return open_cube("sales", store)


def test_the_specification_is_read_from_the_store(opened):
    assert opened.cube == CUBE


def test_a_life_of_a_cube(store):
    cube = open_cube(CUBE, store)
    assert repr(cube) == "<cube sales: dimensions SHOP, DAY; partitioned by COUNTRY; no datasets>"
    cube.build(SEED)
    cube.keep_history(3)
    cube.extend({"weather": WEATHER})
    cube.append(SEED.head(1).assign(QTY=7))
    assert cube.query(cube["TEMP"] < 10.0)[0]["QTY"].tolist() == [7]
    assert [table.num_rows for table in cube.query_arrow()] == [2]
    assert [len(frame) for frame in cube.query_iter(partition_by="COUNTRY")] == [1, 1]
    assert cube.explain(cube.c.COUNTRY == "DE").read_files == 3
    assert len(cube.history()["seed"]) == 3
    assert cube.compact()["seed"]["files_after"] == 1
    assert cube.publish()["seed"]["version"] == 0
    assert cube.verify().ok
    assert cube.repair().ok
    assert cube.stats()["seed"]["rows"] == 2
    cube.update(SEED.head(1).assign(QTY=9), cube.c.COUNTRY == "DE", datasets="seed")
    cube.remove_partitions(cube.c.COUNTRY == "IT", datasets="seed")
    assert cube.query()[0]["QTY"].tolist() == [9]
    cube.cleanup()
    assert cube.list_garbage() == []
    copy = memory()
    cube.copy_to(copy)
    assert list(open_cube("sales", copy)) == list(cube)
    cube.delete()
    assert "no datasets" in repr(cube)


def test_other_engines(opened):
    assert opened.dataset(conditions=opened["TEMP"] < 10.0).to_table(columns=["QTY"]).to_pylist() == [
        {"QTY": 5}
    ]
    assert opened.query_table(columns=["QTY"])["QTY"].to_pylist() == [5, 6]
    assert opened.scan(dataset_id="weather").select("TEMP").collect()["TEMP"].to_list() == [8.5, 19.5]
    assert opened.connect().sql("SELECT max(QTY) FROM sales.seed").fetchall() == [(6,)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_method_has_the_parameters_of_its_function(name):
    function, method = FUNCTIONS[name], getattr(OpenedCube, name)
    bound = ("cube", "store", "src_store")
    expected = [p for p in inspect.signature(function).parameters.values() if p.name not in bound]
    assert list(inspect.signature(method).parameters.values())[1:] == expected
    doc = inspect.getdoc(method)
    assert f"{function.__module__}.{function.__name__}" in doc
    assert ">>>" not in doc
    assert "\nstore\n" not in doc
    assert "\ncube\n" not in doc


def test_every_method_is_tested():
    public = {name for name, value in vars(OpenedCube).items() if callable(value) and name[0] != "_"}
    assert public == set(FUNCTIONS)


def test_columns(opened):
    assert list(opened) == ["SHOP", "DAY", "COUNTRY", "A B", "QTY", "TEMP"]
    assert opened._ipython_key_completions_() == list(opened)
    assert dir(opened.c) == ["COUNTRY", "DAY", "QTY", "SHOP", "TEMP"]
    assert "TEMP" in opened
    assert "TEMPO" not in opened
    assert isinstance(opened["A B"], VirtualColumn)
    assert str(opened.c.TEMP > 10.0) == "TEMP > 10.0"
    assert [str(dtype) for dtype in opened.schema.types] == [
        "int64",
        "int64",
        "string",
        "string",
        "int64",
        "double",
    ]
    assert sorted(opened.datasets) == ["seed", "weather"]


def test_unknown_columns(opened):
    with pytest.raises(KeyError, match="cube sales: unknown column TEMPP; did you mean TEMP"):
        opened["TEMPP"]
    with pytest.raises(AttributeError, match="unknown column TEMPP; did you mean TEMP"):
        _ = opened.c.TEMPP
    assert not hasattr(opened.c, "__wrapped__")


def test_columns_of_another_writer_are_found(opened, store):
    assert "RAIN" not in opened
    rain = pd.DataFrame({"DAY": [1], "COUNTRY": ["DE"], "RAIN": [True]})
    eager_cube.extend_cube({"rain": rain}, CUBE, store)
    assert str(opened["RAIN"] == True) == "RAIN == True"  # noqa: E712


def test_the_type_of_a_column_that_another_dataset_knows(store):
    days = SEED.assign(COUNTRY="DE")
    cube = open_cube(CUBE, store)
    cube.build(days)
    assert str(cube.schema.field("DAY").type) == "int64"


def test_views(opened):
    assert (
        repr(opened) == "<cube sales: dimensions SHOP, DAY; partitioned by COUNTRY; datasets seed, weather>"
    )
    assert repr(opened.c) == "<columns of cube sales: SHOP, DAY, COUNTRY, A B, QTY, TEMP>"
    words = Text(opened._repr_html_()).words
    assert {"Cube sales", "weather", "TEMP", "double", "dimension", "payload", "seed, weather"} <= set(words)


def test_views_and_completion_of_a_cube_that_does_not_exist_yet(store):
    cube = open_cube(CUBE, store)
    assert cube._ipython_key_completions_() == ["SHOP", "DAY", "COUNTRY"]
    assert dir(cube.c) == ["COUNTRY", "DAY", "SHOP"]
    assert repr(cube.c) == "<columns of cube sales: SHOP, DAY, COUNTRY>"
    assert {"Cube sales", "COUNTRY"} <= set(Text(cube._repr_html_()).words)
    with pytest.raises(ValueError, match="Cube sales not found"):
        _ = cube.schema


def test_what_is_no_cube(store):
    with pytest.raises(ValueError, match="Cube sales not found: available: none"):
        open_cube("sales", store)
    eager_cube.build_cube(SEED.assign(COUNTRY="DE"), CUBE, store)
    with pytest.raises(ValueError, match=r"Cube sale not found: did you mean sales\? available: sales$"):
        open_cube("sale", store)
    with pytest.raises(TypeError, match="expected a Cube or the name of a stored one, got int"):
        open_cube(5, store)


@pytest.mark.parametrize("cube", ["sales", CUBE], ids=["name", "Cube"])
def test_the_old_order_of_the_arguments_works(store, cube):
    eager_cube.build_cube(SEED.assign(COUNTRY="DE"), CUBE, store)
    with pytest.warns(DeprecationWarning, match="takes the cube first"):
        opened = open_cube(store, cube)
    assert opened.query()[0].equals(open_cube(cube, store).query()[0])


def test_usual_names_are_in_the_package(store):
    from kartothek_cube import Cube as Usual
    from kartothek_cube import build_cube, query_cube

    assert (Usual, build_cube, query_cube) == (Cube, eager_cube.build_cube, eager_cube.query_cube)
    missing = [name for name in kartothek_cube.__all__ if not hasattr(kartothek_cube, name)]
    assert missing == []
    assert set(kartothek_cube.__all__) <= set(dir(kartothek_cube))
