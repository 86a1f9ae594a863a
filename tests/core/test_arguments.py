"""Parameters with two names: the new one and that of kartothek."""

import inspect
import typing
from collections.abc import Iterable

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.api import dataset as dataset_api
from kartothek_cube.api import discover
from kartothek_cube.core.arguments import alias_parameter
from kartothek_cube.io.dask import bag_cube, dataframe_cube, delayed_cube
from kartothek_cube.io.spark import cube as spark_cube
from tests.support.cubes import CUBE, SEED, memory

OLD = ("ktk_cube_dataset_ids", "filter_ktk_cube_dataset_ids")
#: loaded, so that functions are those of the façades
FACADES = (bag_cube, dataframe_cube, delayed_cube, spark_cube)
FUNCTIONS = {getattr(module, name) for module in (api, discover) for name in module.__all__}
FUNCTIONS = sorted(filter(inspect.isfunction, FUNCTIONS), key=lambda function: function.__name__)
EAGER = api.query_cube.__module__


def _parameters(function):
    return inspect.signature(function).parameters


WITH_ALIAS = [f for f in FUNCTIONS if set(OLD) & set(_parameters(f))]


@pytest.mark.parametrize("function", WITH_ALIAS, ids=lambda function: function.__name__)
def test_datasets_is_a_name_of_every_such_parameter(function):
    parameter = _parameters(function)["datasets"]
    assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None)
    old = next(name for name in OLD if name in _parameters(function))
    with pytest.raises(TypeError, match=f"takes datasets or {old}, two names of one parameter, but got both"):
        function(**{old: ["seed"], "datasets": ["seed"]})


def test_functions_with_the_alias_are_found():
    assert len(WITH_ALIAS) > 25


@pytest.mark.parametrize("keyword", ["datasets", "ktk_cube_dataset_ids"])
def test_both_names_mean_the_same(keyword):
    store = memory()
    df = pd.DataFrame({"x": [1], "p": [1]})
    api.build_cube({"seed": df, "more": df.assign(y=1)}, CUBE, store)
    assert sorted(discover.discover_datasets(CUBE, store, datasets=["seed"])) == ["seed"]
    api.update_cube({}, CUBE, store, None, **{keyword: ["more"]}, metadata={"more": {"a": 1}})
    assert api.verify_cube(CUBE, store, **{keyword: "more"}).checked["datasets"] == 1
    with pytest.raises(ValueError, match="unknown dataset nope"):
        api.verify_cube(CUBE, store, **{keyword: "nope"})


def test_a_required_parameter_needs_one_of_its_names():
    with pytest.raises(TypeError, match=r"update_cube\(\) needs datasets \(or ktk_cube_dataset_ids"):
        api.update_cube({}, CUBE, memory(), None)


NAMES = ("columns", "payload_columns", "dimension_columns", "partition_by", "dataset", "datasets", "drop")
WITH_NAMES = [(f, n) for f in FUNCTIONS for n in NAMES if f.__module__ == EAGER and n in _parameters(f)]
#: what the functions need beside the cube and the store
NEEDED = {
    "build_column_statistics": {"columns": "x"},
    "append_to_cube": {"data": SEED},
    "check_rows": {"check": print},
    "compute_dataset": {"function": lambda df: df, "into": "more"},
    "delete_rows": {"conditions": "x == 1"},
    "list_contract": {"dataset": "seed"},
    "merge_into_cube": {"data": SEED},
    "remove_partitions": {"conditions": "all"},
    "rollback_cube": {"as_of": 1},
    "set_contract": {"rules": []},
    "update_cube": {"data": SEED, "remove_conditions": None},
    "update_schema": {"add": {"new": "int64"}},
}


@pytest.mark.parametrize("given", [5, [None], [("x",)]], ids=str)
@pytest.mark.parametrize("function, argument", WITH_NAMES)
def test_what_is_no_name_of_an_argument_is_told_with_its_name(function, argument, given):
    store = memory()
    api.build_cube(SEED, CUBE, store)
    arguments = {"cube": CUBE, "store": store, "src_store": store, "tgt_store": memory()}
    arguments |= NEEDED.get(function.__name__, {})
    known = {name: value for name, value in arguments.items() if name in _parameters(function)}
    with pytest.raises(TypeError, match=f"^{argument} (is|has to be) .*got .*(5|None|'x')"):
        function(**{**known, argument: given})


@pytest.mark.parametrize(
    "function, arguments, text",
    [
        (api.copy_cube, {"renamed_datasets": ["a"]}, "renamed_datasets should be a dict of .* but is list"),
        (api.copy_cube, {"renamed_cube_prefix": 5}, "renamed_cube_prefix is a name"),
        (api.update_schema, {"defaults": 5}, "defaults should be a dict of column to value, but is int"),
        (api.compute_dataset, {"metadata": 5}, "metadata has to be a dict"),
        (api.compute_dataset, {"into": ["more"]}, "into is a name"),
        (api.adopt_dataset, {"metadata": 5}, "metadata for dataset more should be a dict, but is int"),
        (api.adopt_dataset, {"dataset_id": ["more"]}, "dataset_id is a name"),
        (api.adopt_dataset, {"partition_on": 5}, "partition_on is one or several names"),
        (api.merge_into_cube, {"delete_column": ["x"]}, "delete_column is a name"),
        (api.set_contract, {"rules": 5}, "A contract is a list of rules, .*got 5"),
        (api.set_contract, {"check_existing": "no"}, "check_existing is True or False, got 'no'"),
        (api.publish_cube, {"on_commit": "no"}, "on_commit is True or False, got 'no'"),
        (api.merge_into_cube, {"progress": SEED["x"]}, "progress is True or False, got 0 "),
    ],
)
def test_wrong_types_of_arguments(function, arguments, text):
    store = memory()
    api.build_cube(SEED, CUBE, store)
    given = {"cube": CUBE, "store": store, "src_store": store, "tgt_store": memory(), "source": ".", **NEEDED}
    given |= {"dataset_id": "more", "dataset": "seed", **NEEDED.get(function.__name__, {}), **arguments}
    with pytest.raises(TypeError, match=text):
        function(**{name: value for name, value in given.items() if name in _parameters(function)})


@pytest.mark.parametrize("old", [None, ["a"]])
def test_none_is_no_value(old):
    @alias_parameter("new", "old")
    def function(x, old=None, *, new=None):
        return old, new

    assert function(0, old, new=None) == (old, None)
    assert function(0, None, new=["b"]) == (["b"], None)
    assert function(0, old=None, new=["b"]) == (["b"], None)


@pytest.mark.parametrize("name", ["query_cube", "read_dataset_as_dataframes", "read_dataset_as_arrow"])
def test_functions_of_iterators_have_one_suffix(name):
    module = api if name == "query_cube" else dataset_api
    assert {f"{name}__iter", f"{name}__iterator"} <= set(module.__all__)
    assert getattr(module, f"{name}__iter") is getattr(module, f"{name}__iterator")


def test_parameters_of_a_cube_are_typed():
    # mypy and attrs take the types of the converters
    names = {**vars(inspect.getmodule(api.Cube)), "Iterable": Iterable}
    hints = typing.get_type_hints(api.Cube.__init__, names)
    assert {name: hint for name, hint in hints.items() if name != "return"} == {
        "dimension_columns": str | Iterable[str],
        "partition_columns": str | api.PartitionTransform | Iterable[str | api.PartitionTransform],
        "uuid_prefix": str,
        "seed_dataset": str,
        "index_columns": str | Iterable[str] | None,
        "suppress_index_on": str | Iterable[str] | None,
        "transforms": Iterable[api.PartitionTransform],
    }


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_public_parameters_are_typed(function):
    types = {name: parameter.annotation for name, parameter in _parameters(function).items()}
    assert not {inspect.Parameter.empty, "Any", "object"} & {*types.values()}, types
