"""A cube bound to its store: methods are the functions, names of columns are completed."""

import inspect

import pandas as pd
import polars as pl
import pytest

import kartothek_cube
from kartothek_cube.api.cube import C, Cube, OpenedCube, VirtualColumn, eager_cube, open_cube
from kartothek_cube.io_components.query import executor
from tests.support.cubes import memory
from tests.support.pages import Page

CUBE = Cube(["SHOP", "DAY"], ["COUNTRY"], "sales")
SEED = pd.DataFrame({"SHOP": [1, 2], "DAY": [1, 1], "COUNTRY": ["DE", "IT"], "QTY": [5, 6]})
WEATHER = pd.DataFrame({"SHOP": [1, 2], "COUNTRY": ["DE", "IT"], "TEMP": [8.5, 19.5], "A B": ["x", "y"]})
#: method -> function
METHODS = {
    name: method.__wrapped__ for name, method in vars(OpenedCube).items() if hasattr(method, "__wrapped__")
}
NAMES = (
    "adopt append build build_column_statistics changes cleanup compact compute connect contract copy_to "
    "dataset delete delete_rows discard_staged extend history keep_history lineage list_garbage merge pin "
    "publish publish_staged query "
    "remove_partitions repair rollback set_contract stats unpublish update update_schema verify"
)


@pytest.fixture
def store():
    return memory()


@pytest.fixture
def opened(store):
    eager_cube.build_cube({"seed": SEED, "weather": WEATHER}, CUBE, store)
    return open_cube("sales", store)


def test_methods_and_columns(opened):
    assert opened.cube == CUBE
    assert {*METHODS, "as_of", "c", "datasets", "schema"} <= set(dir(opened))
    results = {"to_pandas", "to_arrow", "to_polars", "lazy", "sql", "explain"}
    assert results <= set(dir(opened.query()))
    assert list(opened) == ["SHOP", "DAY", "COUNTRY", "A B", "QTY", "TEMP"]
    assert opened._ipython_key_completions_() == list(opened)
    assert dir(opened.c) == ["COUNTRY", "DAY", "QTY", "SHOP", "TEMP"]
    assert "TEMP" in opened
    assert "TEMPO" not in opened
    assert isinstance(opened["A B"], VirtualColumn)
    assert str(opened.c.TEMP > 10.0) == "TEMP > 10.0"
    found = [str(dtype) for dtype in opened.schema.types]
    assert found == ["int64", "int64", "string", "string", "int64", "double"]
    assert sorted(opened.datasets) == ["seed", "weather"]
    cold = opened.dataset(conditions=opened["TEMP"] < 10.0)
    assert cold.to_table(columns=["QTY"]).to_pylist() == [{"QTY": 5}]
    assert opened.connect().sql("SELECT max(QTY) FROM sales.seed").fetchall() == [(6,)]
    with pytest.raises(KeyError, match="cube sales: unknown column TEMPP; did you mean TEMP"):
        opened["TEMPP"]
    with pytest.raises(AttributeError, match="unknown column TEMPP; did you mean TEMP"):
        _ = opened.c.TEMPP
    assert not hasattr(opened.c, "__wrapped__")
    (frame,) = opened.query()
    assert frame.equals(opened.query().to_pandas())
    with pytest.raises(TypeError, match=r"to_pandas\(\) returns its rows"):
        opened.query()[0]
    with pytest.raises(AttributeError, match=r"no attribute 'head': to_pandas\(\) returns its rows"):
        opened.query().head()
    with pytest.raises(AttributeError, match=r"no attribute .to_pandas.: .*cube\.query\(\)\.to_pandas"):
        opened.to_pandas()
    for name in ("columns", "querry"):
        hint = "" if name == "columns" else "did you mean 'query'. "
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': {hint}dir.*cube\.c its columns"):
            getattr(opened, name)
    for argument in ("limit", "where"):
        with pytest.raises(AttributeError, match=rf"it is an argument, as in cube.query\({argument}=...\)"):
            getattr(opened.query(), argument)


def test_a_life_of_a_cube(store):
    cube = open_cube(CUBE, store)
    assert repr(cube) == "<cube sales: dimensions SHOP, DAY; partitioned by COUNTRY; no datasets>"
    cube.build(SEED)
    cube.keep_history(3)
    cube.extend({"weather": WEATHER})
    cube.append(data=SEED.head(1).assign(QTY=7))
    assert cube.query(cube["TEMP"] < 10.0).to_pandas()["QTY"].tolist() == [7]
    assert cube.query().to_arrow().num_rows == 2
    assert [len(frame) for frame in cube.query(by="COUNTRY")] == [1, 1]
    assert cube.query(cube.c.COUNTRY == "DE").explain().read_files == 3
    assert len(cube.history()["seed"]) == 3
    assert cube.compact()["seed"]["files_after"] == 1
    assert cube.publish()["seed"]["version"] == 0
    assert cube.verify().ok
    assert cube.repair().ok
    assert cube.stats()["seed"]["rows"] == 2
    cube.update(SEED.head(1).assign(QTY=9), cube.c.COUNTRY == "DE", datasets="seed")
    cube.remove_partitions(cube.c.COUNTRY == "IT", datasets="seed")
    assert cube.query().to_pandas()["QTY"].tolist() == [9]
    cube.merge(SEED.head(1).assign(QTY=10))
    assert cube.query().to_pandas()["QTY"].tolist() == [10]
    cube.cleanup()
    assert cube.list_garbage() == []
    copy = memory()
    cube.copy_to(copy)
    assert list(open_cube("sales", copy)) == list(cube)
    cube.delete()
    assert "no datasets" in repr(cube)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_parameters_of_its_function(name):
    function, method = METHODS[name], getattr(OpenedCube, name)
    bound = ("cube", "store", "src_store")
    expected = [p for p in inspect.signature(function).parameters.values() if p.name not in bound]
    assert list(inspect.signature(method).parameters.values())[1:] == expected
    doc = inspect.getdoc(method)
    assert f"{function.__module__}.{function.__name__}" in doc
    assert [text for text in (">>>", "\nstore\n", "\ncube\n", "\ncube, store") if text in doc] == []


def test_every_function_of_a_cube_is_a_method():
    assert sorted(METHODS) == NAMES.split()
    functions = {name for name in eager_cube.__all__ if inspect.isfunction(getattr(eager_cube, name))}
    # not of a cube; methods of a query
    functions -= {"annotate_operations", "check_rows", "on_commit", "on_query"}
    functions -= {"explain_query", "query_cube", "query_cube_df"}
    assert functions - {function.__name__ for function in METHODS.values()} == set()


#: parameters of a query, its columns in their order, and rows that have them
FIRST = {"SHOP": 1, "DAY": 1, "COUNTRY": "DE", "A B": "x", "QTY": 5, "TEMP": 8.5}
SECOND = {"SHOP": 2, "DAY": 1, "COUNTRY": "IT", "A B": "y", "QTY": 6, "TEMP": 19.5}
QUERIES = [
    ({}, "SHOP,DAY,COUNTRY,A B,QTY,TEMP", [FIRST, SECOND]),
    ({"where": "TEMP > 10", "columns": ["TEMP", "QTY"]}, "SHOP,DAY,COUNTRY,TEMP,QTY", [SECOND]),
    ({"columns": ["QTY", "SHOP", "DAY", "COUNTRY"], "limit": 1}, "QTY,SHOP,DAY,COUNTRY", [FIRST]),
    ({"columns": ["QTY", "DAY"]}, "SHOP,COUNTRY,QTY,DAY", [FIRST, SECOND]),
    ({"dimension_columns": "SHOP", "columns": "TEMP"}, "SHOP,COUNTRY,TEMP", [FIRST, SECOND]),
    ({"columns": []}, "SHOP,DAY,COUNTRY", [FIRST, SECOND]),
    ({"where": C("QTY") > 100}, "", []),
]
READERS = {
    "pandas": lambda query: query.to_pandas().to_dict("records"),
    "frames": lambda query: [row for frame in query for row in frame.to_dict("records")],
    "arrow": lambda query: query.to_arrow().to_pylist(),
    "polars": lambda query: query.to_polars().to_dicts(),
    "lazy": lambda query: query.lazy().collect().to_dicts(),
    "sql": lambda query: query.sql("SELECT * FROM query").pl().to_dicts(),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("arguments, columns, rows", QUERIES, ids=str)
def test_all_libraries_get_the_same_rows_and_columns(opened, read, arguments, columns, rows):
    result = read(opened.query(**arguments))
    assert [list(row.items()) for row in result] == [
        [(c, row[c]) for c in columns.split(",")] for row in rows
    ]


@pytest.mark.parametrize("arguments", [{"limit": 1}, {"dimension_columns": ["SHOP", "DAY"]}], ids=str)
def test_engines_get_the_same_types_whether_a_query_is_scanned_or_read_at_once(store, arguments):
    cube = open_cube(CUBE, store)
    cube.build(SEED.assign(DAY=pd.Timestamp("2024-01-31"), QTY=pd.Timestamp("2024-01-31", tz="UTC")))
    scanned, read = cube.query(), cube.query(**arguments)
    assert read.lazy().collect_schema() == scanned.lazy().collect_schema()
    assert read.sql("FROM query").types == scanned.sql("FROM query").types


def test_statements_without_the_table_or_rows_say_what_to_write(opened):
    with pytest.raises(ValueError, match=r"no rows, write SELECT \.\.\. FROM query"):
        opened.query().sql("")
    with pytest.raises(Exception, match="sales does not exist") as caught:
        opened.query().sql("SELECT * FROM sales")
    assert caught.value.__notes__ == ["The rows are those of the table query: SELECT ... FROM query"]


@pytest.mark.parametrize("arguments", [{}, {"changed_since": 0}], ids=["lazy", "at once"])
def test_statements_and_their_errors_know_no_other_table(opened, arguments):
    opened.append(SEED.assign(QTY=7))
    arguments = {"changed_since": opened.history()[0].version} if arguments else {}
    for name in ("temp", "rows"):
        with pytest.raises(Exception, match=f"{name} does not exist") as caught:
            opened.query(**arguments).sql(f"SELECT * FROM {name}")
        assert "rows" not in str(caught.value).replace(name, "")
    with pytest.raises(Exception, match='Did you mean "query"'):
        opened.query(**arguments).sql("SELECT * FROM qery")


def test_a_query_can_be_read_again_whatever_its_arguments_are(opened):
    query = opened.query(iter([C("QTY") > 5]), columns=iter(["QTY"]), datasets=iter(["seed"]))
    assert query.explain().datasets[0].columns == ("COUNTRY", "DAY", "QTY", "SHOP")[1:]
    assert [query.to_arrow()["QTY"].to_pylist() for _ in range(2)] == [[6], [6]]


@pytest.mark.parametrize("where", ["QTY > 5", C("QTY") > 5], ids=str)
def test_filters_of_engines_are_added_to_the_conditions(opened, where):
    query = opened.query(where)
    assert query.lazy().filter(pl.col("COUNTRY") == "DE").collect().height == 0
    assert query.sql("SELECT QTY FROM query WHERE COUNTRY = 'IT'").fetchall() == [(6,)]


def test_a_query_reads_nothing_before_its_result_is_asked_for(store):
    cube = open_cube(CUBE, store)
    query = cube.query("QTY > 5")
    assert "not found" in repr(query)
    assert query._repr_html_() is None
    cube.build(SEED)
    assert query.to_pandas()["QTY"].tolist() == [6]
    cube.append(SEED.assign(QTY=7))
    assert query.to_pandas()["QTY"].tolist() == [7, 7]


def test_a_query_shows_what_it_would_read(opened, monkeypatch):
    query = opened.query(opened["COUNTRY"] == "DE", by="DAY")
    assert query.explain().partition_by == ("DAY",)
    with monkeypatch.context() as patch:
        patch.setattr(executor, "run_task", None)
        text, words = repr(query), " ".join(Page(query._repr_html_()).text)
    for shown in (text, words):
        assert "2 files in 1 partition" in shown
        assert "COUNTRY == DE" in shown
    assert "unknown column TYPO" in repr(opened.query("TYPO == 1"))
    assert repr(opened.query(5)).startswith("<query of cube sales: ")


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_unknown_column_is_an_error_whatever_the_library(opened, read):
    with pytest.raises(ValueError, match="unknown column TEMPP; did you mean TEMP"):
        read(opened.query(columns=["QTY", "TEMPP"]))


def test_a_query_with_groups_is_an_iterable_of_frames(opened):
    query = opened.query(by="COUNTRY", columns=["TEMP", "QTY"])
    assert [list(frame.columns) for frame in query] == [["SHOP", "DAY", "COUNTRY", "TEMP", "QTY"]] * 2
    assert [frame["QTY"].tolist() for frame in query] == [[5], [6]]
    assert list(opened.query("QTY > 100", by="COUNTRY")) == []
    for read in ("to_pandas", "to_arrow", "to_polars", "lazy"):
        with pytest.raises(ValueError, match="groups"):
            getattr(query, read)()
    with pytest.raises(ValueError, match="groups"):
        query.sql("FROM query")
    with pytest.raises(ValueError, match="either groups"):
        list(opened.query(by="COUNTRY", limit=1))
    assert "either groups" in repr(opened.query(by="COUNTRY", limit=1))


def test_the_columns_of_groups_are_in_their_frames(store):
    eager_cube.build_cube(SEED, CUBE.copy(index_columns=["QTY"]), store)
    frames = list(open_cube("sales", store).query(by="QTY", columns=[]))
    assert [frame.columns.tolist() for frame in frames] == [["SHOP", "DAY", "COUNTRY", "QTY"]] * 2


def test_a_state_that_does_not_exist_is_not_an_empty_cube(opened):
    assert "no state" in repr(opened.as_of(99)) and "no datasets" not in repr(opened.as_of(99))
    assert opened.as_of(99)._repr_html_() is None
    assert "no datasets" not in repr(opened.as_of("yesterday"))


def test_views_are_short_and_steer_no_terminal(opened):
    with eager_cube.annotate_operations(job="a\x1b[31m\nb"):
        rows = pd.DataFrame({"SHOP": range(300), "DAY": 2, "COUNTRY": map(str, range(300)), "QTY": 1})
        opened.append(rows)
    assert "job a\\x1b[31m\\nb" in repr(opened.lineage())
    words = Page(opened.changes(2)._repr_html_()).text
    assert any("100 more" in word for word in words) and len(words) < 1_500


def test_a_staged_write_belongs_to_its_cube(opened, store):
    eager_cube.build_cube(SEED, CUBE.copy(uuid_prefix="other"), store)
    staged = open_cube("other", store).append(SEED.assign(DAY=2), publish=False)
    for method in (opened.publish_staged, opened.discard_staged):
        with pytest.raises(ValueError, match="is no write to cube 'sales'"):
            method(staged)
    assert list(open_cube("other", store).publish_staged(staged)) == ["seed"]


def test_sql_tells_columns_apart_or_refuses(store):
    cube = open_cube(CUBE, store)
    cube.build(SEED.assign(qty=1))
    with pytest.raises(ValueError, match="SQL does not distinguish QTY and qty of the query:"):
        cube.query().sql("FROM query")
    assert cube.query().to_polars().columns == ["SHOP", "DAY", "COUNTRY", "QTY", "qty"]


def test_an_older_state_is_read_and_not_written(opened, store):
    opened.append(SEED.assign(QTY=7))
    first, second = (state.version for state in opened.history())
    old = opened.as_of(first)
    assert repr(old).startswith(f"<cube sales as of {first}: ")
    assert old.query("QTY > 0").to_pandas()["QTY"].tolist() == [5, 6]
    assert old.query(as_of=second).to_pandas()["QTY"].tolist() == [7, 7]
    assert old.dataset().to_table()["QTY"].to_pylist() == [5, 6]
    assert old.connect().sql("SELECT sum(QTY) FROM sales").fetchall() == [(11,)]
    assert len(old.datasets["seed"].partitions) == 2
    opened.update_schema(add={"NEW": "int64"})
    assert "NEW" not in old
    calls = {"append": SEED, "build": SEED, "rollback": 1, "verify": None, "history": None, "delete": None}
    for name, argument in calls.items():
        with pytest.raises(ValueError, match=rf"is open as of {first}, .* without a state for {name}\(\)"):
            getattr(old, name)(*([] if argument is None else [argument]))
    assert len(opened.history()) == 3


@pytest.mark.parametrize("text", ["opened.c.TE", "opened.query(opened.c.TE"])
def test_ipython_completes_columns(opened, text):
    completer = pytest.importorskip("IPython.core.completer")
    with completer.provisionalcompleter():
        found = completer.IPCompleter(namespace={"opened": opened}).completions(text, len(text))
        assert [completion.text for completion in found] == ["TEMP"]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda cube: cube.query(colums="QTY"), r"query\(\) got .* 'colums'; did you mean 'columns'"),
        (lambda cube: cube.query(STORE="A"), r"argument 'STORE'; available: where, columns, by, datasets,"),
        (lambda cube: cube.append(), r"append\(\) missing a required argument: 'data'"),
        (lambda cube: cube.append(SEED, data=SEED), r"append\(\) multiple values for argument 'data'"),
        (lambda cube: cube.query("QTY > 5", "QTY"), r"query\(\) too many positional arguments"),
        (lambda cube: cube.rollback(datasets="seed"), r"rollback\(\) missing a required argument: 'as_of'"),
        (lambda cube: cube.append(SEED, dataset="seed"), r"append\(\) got an unexpected .* 'dataset'"),
    ],
)
def test_wrong_arguments_are_errors_of_the_method(opened, call, message):
    with pytest.raises(TypeError, match=message):
        call(opened)


def test_columns_of_another_writer_are_found(opened, store):
    assert "RAIN" not in opened
    assert str(opened["TEMP"] > 1) == "TEMP > 1"
    rain = pd.DataFrame({"DAY": [1], "COUNTRY": ["DE"], "RAIN": [True]})
    eager_cube.extend_cube({"rain": rain}, CUBE, store)
    assert str(opened["RAIN"] == True) == "RAIN == True"  # noqa: E712


def test_views(opened):
    text = "<cube sales: dimensions SHOP, DAY; partitioned by COUNTRY; datasets seed, weather>"
    assert repr(opened) == text
    assert not hasattr(opened.query, "_repr_html_"), "a method is not shown as what it returns"
    assert repr(opened.c) == "<columns of cube sales: SHOP, DAY, COUNTRY, A B, QTY, TEMP>"
    words = Page(opened._repr_html_()).text
    assert {"Cube sales", "weather", "TEMP", "double", "dimension", "payload", "seed, weather"} <= set(words)


def test_views_and_completion_of_a_cube_that_does_not_exist_yet(store):
    cube = open_cube(CUBE, store)
    assert cube._ipython_key_completions_() == ["SHOP", "DAY", "COUNTRY"]
    assert dir(cube.c) == ["COUNTRY", "DAY", "SHOP"]
    assert repr(cube.c) == "<columns of cube sales: SHOP, DAY, COUNTRY>"
    assert {"Cube sales", "COUNTRY"} <= set(Page(cube._repr_html_()).text)
    with pytest.raises(ValueError, match="Cube sales not found"):
        _ = cube.schema


@pytest.mark.parametrize("argument", ["by", "columns", "dimension_columns"])
def test_the_error_about_a_name_given_twice_tells_the_argument(opened, argument):
    with pytest.raises(ValueError, match=f"^{argument}: Names must not occur twice, but these do: DAY"):
        opened.query(**{argument: ["DAY", "DAY"]})


@pytest.mark.parametrize("cube", ["sales", CUBE], ids=["name", "Cube"])
def test_the_old_order_of_the_arguments_works(store, cube):
    eager_cube.build_cube(SEED.assign(COUNTRY="DE"), CUBE, store)
    with pytest.warns(DeprecationWarning, match="takes the cube first"):
        opened = open_cube(store, cube)
    assert opened.query().to_pandas().equals(open_cube(cube, store).query().to_pandas())


def test_usual_names_are_in_the_package(store):
    from kartothek_cube import Cube as Usual
    from kartothek_cube import build_cube, query_cube

    assert (Usual, build_cube, query_cube) == (Cube, eager_cube.build_cube, eager_cube.query_cube)
    assert {"month", "bucket"} <= set(kartothek_cube.__all__)
    missing = [name for name in kartothek_cube.__all__ if not hasattr(kartothek_cube, name)]
    assert missing == []
    assert set(kartothek_cube.__all__) <= set(dir(kartothek_cube))
