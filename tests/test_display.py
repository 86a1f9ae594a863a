"""How objects look in notebooks."""

import json
import pickle

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.display import MAX_ROWS, facts, plain_text_table, table
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import plan_query
from tests.support.cube_facades import FACADES, SPARK, open_facade
from tests.support.cubes import memory
from tests.support.factories import STORES
from tests.support.pages import Page

EVIL = "<script>&\"'"
CUBE = api.Cube(["x", "y"], ["p"], "cube", index_columns=[EVIL], suppress_index_on=["y"])


@pytest.fixture
def built():
    frame = pd.DataFrame({"x": [1, 2], "y": [1, 1], "p": [EVIL, "b"], EVIL: [1, 2]})
    store = memory()
    return store, api.build_cube(frame, CUBE, store, metadata={"seed": {"key": EVIL}})


def views(built):
    store, datasets = built
    return {
        "cube": CUBE,
        "dataset": datasets["seed"],
        "explanation": api.explain_query(CUBE, store, api.C("p") != EVIL),
    }


@pytest.mark.parametrize(
    "name, expected",
    [
        ("cube", ["Cube cube", "dimension", "partition", EVIL]),
        ("dataset", ["Dataset cube++seed", "int64", "string", "partition key", EVIL, "Metadata ("]),
        ("explanation", ["seed", "x, y", f"p != {EVIL}", f"{EVIL}, x, y"]),
    ],
)
def test_html(built, name, expected):
    view = Page(views(built)[name]._repr_html_())
    text = " ".join(view.text)
    assert not view.attributes("script")
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize(
    "condition, expected",
    [
        (api.C("p") == EVIL, f"p == {EVIL}"),
        ((api.C("x") > 1) & (api.C("y") < 2), "(x > 1) & (y < 2)"),
        ((api.C("x") > 1) | (api.C("y") < 2), "(x > 1) | (y < 2)"),
    ],
)
def test_conditions_are_shown_as_they_are_written(condition, expected):
    assert Page(condition._repr_html_()).text[-1] == expected


def test_the_report_of_a_verification_is_a_table_of_problems(built):
    store, _ = built
    assert {"problems", "0", "files", "2"} <= set(Page(api.verify_cube(CUBE, store)._repr_html_()).text)
    key = next(key for key in store.keys() if "/table/p=b/" in key)
    store.delete(key)
    words = Page(api.verify_cube(CUBE, store)._repr_html_()).text
    assert {"cube++seed", "missing-file", key} <= set(words)


def test_lazy_datasets_are_tables(built):
    store, datasets = built
    assert DatasetFactory("cube++seed", lambda: store)._repr_html_() == datasets["seed"]._repr_html_()
    assert DatasetFactory("missing", lambda: store)._repr_html_() is None


def test_repr_of_a_plan(built):
    plan = plan_query(QueryCube(CUBE, built[0], api.C("p") != EVIL))
    assert repr(plan) == f"QueryPlan(1 partition; files: 1 of 2 of seed (seed); conditions: p != {EVIL})"


def test_tables_and_facts_as_text():
    assert facts({"a": [], "b": 1234, "c": ["x", "y"]}).count("none") == 1
    assert plain_text_table(["a", "b"], []) == "a  b"
    assert plain_text_table(["a", "b"], [["long", 1], ["s", 1000]]) == "a         b\nlong      1\ns     1,000"
    html = table("", ["n"], [[i] for i in range(MAX_ROWS + 3)])
    assert html.count("<tr>") == MAX_ROWS + 1
    assert "and 3 more" in html
    assert table("", ["n"], []) == ""


def test_the_history_of_a_cube_is_a_table(built):
    """With times, names and signs like those of the command line."""
    store, _ = built
    header, state = repr(api.list_cube_history(CUBE, store)).splitlines()
    assert header.split() == ["version", "time", "operation", "datasets", "files", "rows"]
    assert state.startswith("1        ") and " UTC  build (current)  seed " in state
    api.update_schema(CUBE, store, add={"new": "string"})
    history = api.list_cube_history(CUBE, store)
    view = Page(history._repr_html_())
    text = " ".join(view.text)
    assert view.attributes("table") and view.attributes("tr")
    time = f"{history[-1].time:%Y-%m-%d %H:%M:%S.%f} UTC".replace(" ", "\xa0")
    assert f"{time} update_schema (current) seed +0\xa0-0" in text
    assert "(seed" not in text
    assert "message" not in text
    api.extend_cube({"o": pd.DataFrame({"x": [1], "y": [1], "p": ["b"], "v": [1]})}, CUBE, store)
    with api.annotate_operations("why"):
        api.remove_partitions(CUBE, store, api.C("p") == "b")
    words = set(Page(api.list_cube_history(CUBE, store)._repr_html_()).text)
    assert {"operation", "remove_partitions (current)", "o, seed", "files", "rows", "message", "why"} <= words


@pytest.mark.parametrize("name", [*FACADES, SPARK])
def test_results_of_every_facade_are_tables(tmp_path, name):
    driver, store = open_facade(name), STORES["local" if name == SPARK else "memory"](tmp_path)
    cube = api.Cube(["x"], ["p"], "cube")
    data = pd.DataFrame({"x": [1, 2], "p": ["a", "b"], "v": [1, 2]})
    results = [
        driver.build_cube(data=data, cube=cube, store=store),
        driver.append_to_cube(data=data.assign(x=3), cube=cube, store=store),
        driver.collect_stats(cube=cube, store=store),
    ]
    for result in results:
        view = Page(result._repr_html_())
        assert view.attributes("table")
        assert {"dataset", "seed", "files"} <= set(view.text)


def test_results_by_dataset_are_tables(built):
    store, datasets = built
    for found in (datasets, api.discover_datasets(CUBE, store)):
        words = Page(found._repr_html_()).text
        assert {"dataset", "seed", "cube++seed", "p"} <= set(words)
        assert [word for word in words if EVIL in word] == [f"p, {EVIL}, x, y"]
    stats = api.collect_stats(CUBE, store)
    assert isinstance(stats, dict)
    assert {"dataset", "seed", "files", "rows", "blobsize"} <= set(Page(stats._repr_html_()).text)
    counts = api.compact_cube(CUBE, store)
    assert {"seed", "files before", "rows after"} <= set(Page(counts._repr_html_()).text)
    assert "No datasets" in type(stats)()._repr_html_()
    assert "No datasets" in type(datasets)()._repr_html_()
    assert pickle.loads(pickle.dumps(stats)) == stats == json.loads(json.dumps(stats))
