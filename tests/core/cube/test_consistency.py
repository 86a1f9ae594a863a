"""Which sets of datasets form a cube: one test per rule, each rule on its own."""

import pytest

from kartothek_cube.api.consistency import check_datasets, get_cube_payload, get_payload_subset
from kartothek_cube.api.discover import discover_datasets_unchecked
from kartothek_cube.io.eager import store_dataframes_as_dataset
from tests.support.cubes import CUBE, check_message, frame

SEED = {"df": frame(x=[0], y=[0], p=[0], v1=[1]), "partition_on": ["p"], "secondary_indices": ["x"]}
CUBE_XY = CUBE.copy(dimension_columns=["x", "y"], suppress_index_on=["y"])


def stored(store, **datasets):
    """Store datasets by the dataset façade, which checks nothing about cubes, and load them."""
    for id_, arguments in {"seed": SEED, **datasets}.items():
        arguments = dict(arguments)
        store_dataframes_as_dataset(store, f"cube++{id_}", [arguments.pop("df")], **arguments)
    return discover_datasets_unchecked("cube", store)


FIT = {
    "one dimension": {"df": frame(x=[0], v2=[1])},
    "other dimension": {"df": frame(y=[0], p=[0], v2=[1]), "partition_on": ["p"]},
    "extra keys": {"df": frame(x=[0], y=[0], p=[0], a=["b"], v2=[1]), "partition_on": ["a", "p"]},
    "null dimension": {"df": frame(x=[0], y=[None], v2=[1])},
    "extra index": {"df": frame(x=[0], v2=[1]), "secondary_indices": ["x", "v2"]},
    "no payload": {"df": frame(x=[0])},
}


@pytest.mark.parametrize("enrich", FIT.values(), ids=FIT.keys())
def test_datasets_that_fit(store_factory, enrich):
    checked = check_datasets(stored(store_factory, enrich=enrich), CUBE_XY)
    assert list(checked) == ["enrich", "seed"]
    assert checked["seed"].primary_indices_loaded
    assert set(checked["seed"].indices) == {"p", "x"}
    assert [dataset.uuid for dataset in checked.values()] == ["cube++enrich", "cube++seed"]


@pytest.mark.parametrize(
    "changes, enrich",
    [
        ({"index_columns": ["v2"]}, {"df": frame(x=[0], v2=[1]), "secondary_indices": ["v2"]}),
        ({"index_columns": ["v2"]}, {"df": frame(x=[0], v2=[1]), "partition_on": ["v2"]}),
        ({"index_columns": ["unknown"]}, FIT["one dimension"]),
    ],
    ids=["secondary", "partition", "in no dataset"],
)
def test_index_columns_are_indexed_either_way(store_factory, changes, enrich):
    assert check_datasets(stored(store_factory, enrich=enrich), CUBE_XY.copy(**changes))


def enrich(partition_on=(), **columns):
    return {"enrich": {"df": frame(**columns), "partition_on": list(partition_on)}}


SEED_BY_P = {"partition_on": ["p"], "secondary_indices": ["x"]}
#: datasets, attributes of the cube, what the message tells
UNFIT = {
    "payload twice": (
        {"enrich": {"df": frame(x=[0], v1=[1])}, "other": {"df": frame(x=[0], v1=[1], z=[2])}},
        {},
        ["v1", "enrich, other, seed"],
    ),
    "dimension type": (
        enrich(x=["a"], v2=[1]),
        {},
        ["x", "string in dataset 'enrich' but int64 in dataset 'seed'"],
    ),
    "partition type": (enrich(["p"], x=[0], p=["a"], v2=[1]), {}, ["p", "int64", "string"]),
    "seed without partition column": ({"seed": {**SEED, "partition_on": []}}, {}, ["seed", "p"]),
    "partition column as payload": (enrich(x=[0], p=[0], v2=[1]), {}, ["enrich", "p"]),
    "seed without dimension": ({"seed": {"df": frame(x=[0], p=[0], v1=[1]), **SEED_BY_P}}, {}, ["seed", "y"]),
    "no dimension": (enrich(v2=[1]), {}, ["enrich", "x, y"]),
    "dimension not indexed": ({}, {"suppress_index_on": []}, ["seed", "y"]),
    "index column not indexed": (enrich(x=[0], v2=[1]), {"index_columns": ["v2"]}, ["enrich", "v2"]),
    "dimension is a partition key": (
        {"seed": {"df": SEED["df"], "partition_on": ["p", "x"], "secondary_indices": []}},
        {},
        ["seed", "x"],
    ),
    "no seed": ({}, {"seed_dataset": "main"}, ["main"]),
}


@pytest.mark.parametrize("datasets, changes, fragments", UNFIT.values(), ids=UNFIT.keys())
def test_datasets_that_do_not_fit(store_factory, datasets, changes, fragments):
    with pytest.raises(ValueError) as caught:
        check_datasets(stored(store_factory, **datasets), CUBE_XY.copy(**changes))
    check_message(caught.value, fragments)


def test_a_table_of_another_name(store_factory):
    datasets = stored(store_factory, enrich={"df": frame(x=[0], v2=[1]), "table_name": "other"})
    with pytest.raises(ValueError) as caught:
        check_datasets(datasets, CUBE_XY)
    check_message(caught.value, ("enrich", "other"))


def test_payload_is_what_is_neither_dimension_nor_partition(store_factory):
    datasets = stored(store_factory, enrich={"df": frame(y=[0], v2=[1], __a=[2], KLEE_TS=[3])})
    assert get_payload_subset(["x", "y", "p", "v1", "z"], CUBE_XY) == {"v1", "z"}
    assert get_cube_payload(datasets, CUBE_XY) == {"v1", "v2"}


@pytest.mark.parametrize("names", [[None], [["x"]], [{"x": 1}]])
def test_dimensions_in_a_header_that_are_no_texts_are_others(store, names):
    metadata = {"ktk_cube_is_seed": True, "ktk_cube_dimension_columns": names}
    datasets = stored(store, seed={**SEED, "metadata": metadata})
    with pytest.raises(ValueError, match="'seed' was written with the dimension columns"):
        check_datasets(datasets, CUBE)
