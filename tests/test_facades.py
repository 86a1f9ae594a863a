"""Façades have the signature of their operation, for people, for type checkers and for :mod:`pickle`."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
import typing
from importlib import import_module

import attrs
import cloudpickle
import pandas as pd
import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io import arrow, arrow_cube, eager, eager_cube, iter_cube
from kartothek_cube.io import iter as iter_io
from kartothek_cube.io_components.facade import define_facade, facade
from kartothek_cube.io_components.job import Job, execute
from tests.support.paths import ROOT

#: operations on cubes that write input, and others
WRITES = ("build_cube", "extend_cube", "append_to_cube", "update_cube")
OTHERS = (
    "query_cube",
    "remove_partitions",
    "delete_rows",
    "delete_cube",
    "copy_cube",
    "verify_cube",
    "build_column_statistics",
    "collect_stats",
    "cleanup_cube",
    "compact_cube",
    "compute_dataset",
)
#: façade of cubes -> suffix of writes, of other operations
CUBE_FACADES = {
    "eager_cube": ("", ""),
    "iter_cube": ("__iter", "__iter"),
    "dask.bag_cube": ("_from_bag", "_bag"),
    "dask.delayed_cube": ("_from_delayed", "_delayed"),
    "dask.dataframe_cube": ("_from_dataframe", "_dataframe"),
    "spark.cube": ("_from_spark", "_spark"),
}
#: operations that a façade does not have
MISSING = {f"{name}_dataframe" for name in ("build_column_statistics", "compact_cube", "compute_dataset")}
MISSING |= {"delete_rows_dataframe", "verify_cube_dataframe"}

MODULES = (*CUBE_FACADES, "arrow_cube", "eager", "iter", "arrow")
MODULES += ("dask.bag", "dask.delayed", "dask.dataframe", "spark.dataset")
FUNCTIONS = {
    f"{module}.{name}": getattr(import_module(f"kartothek_cube.io.{module}"), name)
    for module in MODULES
    for name in import_module(f"kartothek_cube.io.{module}").__all__
}
FUNCTIONS = {name: value for name, value in FUNCTIONS.items() if inspect.isfunction(value)}
MADE = {name: f for name, f in FUNCTIONS.items() if hasattr(f, "__signature__")}


#: a few calls of the store, nothing to distribute; or for one process so far
EAGER_ONLY = (
    "Adoption CommitEvent CubeChanges CubeHistory CubeLineage CubeState Hook QueryEvent StagedWrite "
    "adopt_dataset annotate_operations check_rows discard_staged explain_query keep_cube_history "
    "lineage_cube list_contract list_cube_changes list_cube_garbage list_cube_history merge_into_cube "
    "on_commit on_query pin_cube publish_cube publish_staged query_cube_df repair_cube rollback_cube "
    "set_contract unpublish_cube update_schema"
)
#: parameters that a façade may have beside those of the operation
ADDED = {"ktk_cube_dataset_ids", "datasets", "blocksize"}
#: defaults of kartothek 5.3
OF_KARTOTHEK = {"update_cube_from_bag": {"rows_outside": "warn"}}


def test_every_operation_on_cubes_is_listed():
    assert sorted({*WRITES, *OTHERS, *EAGER_ONLY.split()}) == sorted(eager_cube.__all__)
    count = facade("m", "count", CountWithProgress, run_count)
    assert str(inspect.signature(count)) == (
        "(cube: 'Cube', ktk_cube_dataset_ids: 'list[str] | None' = None, *, "
        "datasets: 'list[str] | None' = None, progress: 'bool' = False) -> 'int'"
    )
    assert (count.__module__, count.__name__, count.__qualname__) == ("m", "count", "count")
    assert typing.get_type_hints(count)["return"] is int
    assert count("c", ["a", "b", "c"]) == count("c", datasets=["a", "b", "c"]) == 0 + 1 + 2


@pytest.mark.parametrize("module", CUBE_FACADES)
def test_every_facade_of_cubes_has_every_operation(module):
    write, other = CUBE_FACADES[module]
    names = {*(name + write for name in WRITES), *(name + other for name in OTHERS)} - MISSING
    assert names - set(import_module(f"kartothek_cube.io.{module}").__all__) == set()
    assert names <= {name.rpartition(".")[2] for name in MADE}


@pytest.mark.parametrize("module", [module for module in CUBE_FACADES if module.startswith(("iter", "dask"))])
def test_an_operation_has_the_same_parameters_everywhere(module):
    suffixes = dict.fromkeys(WRITES, CUBE_FACADES[module][0]) | dict.fromkeys(OTHERS, CUBE_FACADES[module][1])
    for operation, suffix in suffixes.items():
        name = operation + suffix
        # partitions of dask DataFrames belong to one dataset
        if name in MISSING or (module == "dask.dataframe_cube" and operation in WRITES[:3]):
            continue
        eager, lazy = (
            {p.name: p.default for p in inspect.signature(f).parameters.values() if p.name != "progress"}
            for f in (getattr(eager_cube, operation), FUNCTIONS[f"{module}.{name}"])
        )
        expected = {**eager, **OF_KARTOTHEK.get(name, {})}
        assert {key: lazy.get(key, "missing") for key in eager} == expected, name
        assert set(lazy) - set(eager) <= ADDED, name


@pytest.mark.parametrize("name", MADE)
def test_functions_are_pickled_by_name(name):
    function = MADE[name]
    assert pickle.loads(pickle.dumps(function)) is function
    assert cloudpickle.loads(cloudpickle.dumps(function)) is function
    assert len(cloudpickle.dumps(function)) < 200


@pytest.mark.parametrize("name", [name for name in MADE if not name.startswith(("spark.", "arrow_cube."))])
def test_type_hints_are_objects(name):
    hints = typing.get_type_hints(MADE[name])
    assert set(hints) == {*inspect.signature(MADE[name]).parameters, "return"}


# -- what type checkers know ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says: the revealed type of each function, and the error of a call with a wrong argument."""
    pytest.importorskip("mypy")
    lines = []
    for name in MADE:
        module, _, function = name.rpartition(".")
        lines.append(f"from kartothek_cube.io.{module} import {function}; reveal_type({function})")
        lines.append(f"{function}(wrong_argument=1)")
    path = tmp_path_factory.mktemp("types") / "calls.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    found = re.findall(r"(?m)^.*calls\.py:(\d+): (?:note|error): (.*)$", run.stdout)
    assert found, run.stdout + run.stderr
    texts: dict[int, list[str]] = {}
    for line, text in found:
        texts.setdefault(int(line) - 1, []).append(text)
    return {name: (texts[2 * i], texts[2 * i + 1]) for i, name in enumerate(MADE)}


def parse_type(revealed):
    """The parameters of a revealed type (name, keyword-only, has a default), and the type of its result."""
    text = re.fullmatch(r'Revealed type is "def \((.*)"', revealed)[1]
    parameters, depth, start, is_keyword = [], 0, 0, False
    for i, char in enumerate(text):
        depth += (char in "[(") - (char in "])")
        if depth < 0 or (char == "," and not depth):
            parameter = text[start:i].strip()
            if parameter == "*":
                is_keyword = True
            else:
                parameters.append((parameter.partition(":")[0], is_keyword, parameter.endswith(" =")))
            start = i + 1
        if depth < 0:
            return parameters, text[i + 1 :].removeprefix(" -> ") or "None"
    raise ValueError(revealed)


def last_names(annotation):
    return [name.rpartition(".")[2] for name in re.findall(r"[\w.]+", annotation)]


@pytest.mark.slow("mypy checks the whole package")
@pytest.mark.parametrize("name", MADE)
def test_type_checkers_know_the_signature(checked, name):
    (revealed,), wrong = checked[name]
    # one of the two names of a parameter may have to be given, which types cannot express
    expected = [
        (p.name, p.kind is p.KEYWORD_ONLY, p.default is not p.empty or p.name == "ktk_cube_dataset_ids")
        for p in inspect.signature(MADE[name]).parameters.values()
    ]
    parameters, result = parse_type(revealed)
    # the order of keyword-only parameters has no meaning
    for is_keyword, order in ((False, list), (True, sorted)):
        assert order(p for p in parameters if p[1] is is_keyword) == order(
            p for p in expected if p[1] is is_keyword
        )
    # pyarrow has no type information
    annotation = re.sub(r"pa\.\w+", "Any", inspect.signature(MADE[name]).return_annotation)
    assert last_names(result) == last_names(annotation)
    assert any('Unexpected keyword argument "wrong_argument"' in text for text in wrong)


@pytest.mark.slow("mypy checks the whole package")
@pytest.mark.parametrize(
    "name", [name for name in MADE if "store" in inspect.signature(MADE[name]).parameters]
)
def test_type_checkers_know_which_facades_need_a_factory(checked, name):
    (revealed,), _ = checked[name]
    is_factory = inspect.signature(MADE[name]).parameters["store"].annotation == "StoreFactoryInput"
    assert is_factory == bool(re.match(r"dask\.\w+_cube\.", name))
    # a store is Any, as simplekv has no type information
    assert is_factory != ("store: str | os.PathLike[str] | Any | " in revealed)


# -- how functions are made ----------------------------------------------------------------------------------


@attrs.frozen
class Count:
    """
    Count something.

    See :func:`copy_cube`.

    Parameters
    ----------
    cube
        The cube.
    datasets, ktk_cube_dataset_ids
        Datasets.

    Returns
    -------
    int
        A number.

    Examples
    --------
    >>> count(1)  # doctest: +SKIP
    1
    """

    cube: Cube
    ktk_cube_dataset_ids: list[str] | None = None
    datasets: list[str] | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[int]:
        tasks = range(len(self.ktk_cube_dataset_ids))
        return Job(
            name="count", description="count", context=None, tasks=tasks, run=lambda _, i: i, finish=sum
        )


@attrs.frozen
class CountWithProgress(Count):
    progress: bool = attrs.field(default=False, kw_only=True)


def run_count(count: Count) -> Answer:  # noqa: F821 - the name of a type variable
    return execute(count.job())


def run_elsewhere(count: Count) -> list[int]:
    return [execute(count.job())]


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((), {}, r"count\(\) missing a required argument: 'cube'"),
        (("c",), {"x": 1}, r"count\(\) got an unexpected keyword argument 'x'"),
        (("c", [], []), {}, r"count\(\) too many positional arguments"),
        (("c", []), {"datasets": []}, r"count\(\) takes datasets or ktk_cube_dataset_ids"),
    ],
)
def test_wrong_arguments_are_errors_of_the_function(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        facade("m", "count", Count, run_count)(*args, **kwargs)


def test_the_documentation_is_that_of_the_class():
    text = facade("m", "count", CountWithProgress, run_count, "Runs here.").__doc__
    assert text == inspect.cleandoc(
        """
        Count something.

        See :func:`~kartothek_cube.io.eager_cube.copy_cube`.

        Runs here.

        Parameters
        ----------
        cube
            The cube.
        datasets, ktk_cube_dataset_ids
            Datasets.
        progress
            Show a bar of files, bytes and the time left; needs tqdm.

        Returns
        -------
        int
            A number.

        Examples
        --------
        >>> count(1)  # doctest: +SKIP
        1
        """
    )


def test_another_facade_documents_its_own_result():
    other = facade("m", "enumerate_all", Count, run_elsewhere, summary="Count elsewhere.", returns="Numbers.")
    assert other.__doc__.startswith("Count elsewhere.\n\nSee ")
    assert other.__doc__.endswith("Returns\n-------\nlist[int]\n    Numbers.")
    assert inspect.signature(other).return_annotation == "list[int]"


def test_a_function_is_decorated_as_facade():
    @define_facade(Count, returns="Numbers.")
    def enumerate_all(count: Count) -> list[int]:
        """Count elsewhere.

        Runs here.
        """
        return run_elsewhere(count)

    texts = {"summary": "Count elsewhere.", "returns": "Numbers."}
    made = facade(__name__, "enumerate_all", Count, run_elsewhere, "Runs here.", **texts)
    assert enumerate_all.__doc__ == made.__doc__
    assert (enumerate_all.__module__, enumerate_all.__name__) == (__name__, "enumerate_all")
    assert inspect.signature(enumerate_all) == inspect.signature(made)
    assert enumerate_all("c", ["a", "b"]) == [1]


# -- no argument is forgotten --------------------------------------------------------------------------------

CUBE = Cube(["x"], ["p"], "cube")
ROWS = pd.DataFrame({"x": [0, 1], "p": 0})
OTHER = ROWS.assign(v=1)
#: calls in one store, in this order, one for each class of arguments
CALLS = [
    (eager_cube.build_cube, {"data": ROWS}),
    (iter_cube.build_cube__iter, {"data": [ROWS], "overwrite": True}),
    (eager_cube.extend_cube, {"data": {"a": OTHER}}),
    (iter_cube.extend_cube__iter, {"data": [{"b": OTHER.rename(columns={"v": "w"})}], "datasets": "b"}),
    (eager_cube.append_to_cube, {"data": ROWS}),
    (iter_cube.append_to_cube__iter, {"data": [ROWS], "datasets": "seed"}),
    (eager_cube.update_cube, {"data": ROWS, "remove_conditions": C("p") == 0, "datasets": "seed"}),
    *(
        (getattr(eager_cube, name), {})
        for name in ("query_cube", "query_cube_df", "explain_query", "collect_stats")
    ),
    *((function, {}) for function in (arrow_cube.query_cube_arrow, arrow_cube.query_cube_table)),
    *((getattr(eager_cube, name), {}) for name in ("verify_cube", "compact_cube", "cleanup_cube")),
    (eager_cube.remove_partitions, {"conditions": C("p") == 0}),
    (eager_cube.delete_cube, {}),
    (eager.store_dataframes_as_dataset, {"dfs": [ROWS]}),
    (iter_io.store_dataframes_as_dataset__iter, {"dataset_uuid": "w", "df_generator": [ROWS]}),
    (eager.create_empty_dataset_header, {"dataset_uuid": "v", "schema": ROWS}),
    (eager.update_dataset_from_dataframes, {"df_list": [ROWS]}),
    (iter_io.update_dataset_from_dataframes__iter, {"df_generator": [ROWS]}),
    (eager.write_single_partition, {"data": ROWS}),
    (eager.commit_dataset, {"metadata": {"a": 1}}),
    *((getattr(eager, name), {}) for name in ("read_table", "read_dataset_as_dataframes")),
    *(
        (getattr(arrow, f"read_{name}"), {})
        for name in ("table_arrow", "dataset_as_arrow", "dataset_as_record_batches")
    ),
    (eager.build_dataset_indices, {"columns": ["x"]}),
    *((getattr(eager, name), {}) for name in ("garbage_collect_dataset", "delete_dataset")),
]
#: without effect, accepted for users of kartothek
WITHOUT_EFFECT = {"predicate_pushdown_to_io"}


def test_every_field_of_the_arguments_is_used(store_factory, monkeypatch):
    """The planner reads each of them, or the façade does."""
    unused = {}
    for function, arguments in CALLS:
        cls, fields = function.operation, set(inspect.signature(function).parameters)
        cls = typing.get_origin(cls) or cls
        read = set()

        def get(instance, name, read=read):
            # attrs reads all fields to copy and to compare
            if not sys._getframe(1).f_globals["__name__"].startswith("attr."):
                read.add(name)
            return object.__getattribute__(instance, name)

        with monkeypatch.context() as patch:
            patch.setattr(cls, "__getattribute__", get, raising=False)
            target = {"cube": CUBE} if "cube" in fields else {"dataset_uuid": "u"}
            function(store=store_factory, **target | arguments)
        alias = {"datasets"} if "ktk_cube_dataset_ids" in fields else set()
        if fields - read - alias - WITHOUT_EFFECT:
            unused[function.__name__] = fields - read - alias - WITHOUT_EFFECT
    assert unused == {}
