"""Functions that users call are documented completely: parameters, results, errors, an example that runs."""

import inspect
import re
from importlib import import_module

import pytest

import kartothek_cube

MODULES = (
    "api.cube",
    "api.dataset",
    "io.arrow",
    "io.arrow_cube",
    "io.dask.bag",
    "io.dask.bag_cube",
    "io.dask.dataframe",
    "io.dask.dataframe_cube",
    "io.dask.delayed",
    "io.dask.delayed_cube",
    "io.eager",
    "io.eager_cube",
    "io.iter",
    "io.iter_cube",
    "io.opened_cube",
    "io.spark.cube",
    "io.spark.dataset",
    "io.spark.table",
    "io.sql",
)
PACKAGES = (*(import_module(f"kartothek_cube.{name}") for name in MODULES), kartothek_cube)
FUNCTIONS = {
    f"{value.__module__.removeprefix('kartothek_cube.')}.{value.__name__}": value
    for module in PACKAGES
    for value in (getattr(module, name) for name in module.__all__)
    if inspect.isfunction(value)
}
#: functions that raise nothing, whatever their arguments
WITHOUT_ERRORS = {"core.schema.normalize_column_order", "core.schema.normalize_type"}


def sections(function) -> dict[str, str]:
    _, *rest = re.split(r"\n\n([A-Z]\w+)\n-+\n", inspect.getdoc(function) or "")
    return dict(zip(rest[::2], rest[1::2], strict=True))


def test_the_functions_are_all_there():
    assert len(FUNCTIONS) > 140


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_and_results_and_errors(name):
    function = FUNCTIONS[name]
    found = sections(function)
    signature = inspect.signature(function)
    documented = re.findall(r"\w+", " ".join(re.findall(r"(?m)^\S.*$", found.get("Parameters", ""))))
    assert sorted(documented) == sorted(signature.parameters)
    if signature.return_annotation not in (None, "None", "Iterator[None]"):
        assert found.get("Returns", "").strip()
    assert found.get("Raises", "").strip() or name in WITHOUT_ERRORS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_example_calls_the_function(name):
    examples = sections(FUNCTIONS[name]).get("Examples", "")
    assert re.search(rf"(?m)^(>>>|\.\.\.) .*\b{name.rpartition('.')[2]}\(", examples)
    assert "doctest: +SKIP" not in examples
