import pickle

import attrs
import pytest

from kartothek_cube.core.cube import Cube


@pytest.fixture
def cube() -> Cube:
    return Cube(["x", "y"], ["p", "q"], "cube", "base", index_columns=["i2", "i1"], suppress_index_on="y")


def test_arguments_are_converted_and_tell_indices_and_names_of_datasets(cube):
    other = Cube(b"x", "p", b"cube")
    assert attrs.astuple(other) == (("x",), ("p",), "cube", "seed", frozenset(), frozenset(), ())
    assert cube.ktk_index_columns == {"x", "p", "q", "i1", "i2"}
    assert Cube(["x", "y"], "p", "c").ktk_index_columns == {"x", "y", "p"}
    assert cube.ktk_dataset_uuid("enrich") == cube.ktk_dataset_uuid(b"enrich") == "cube++enrich"


def test_repr_shows_all_fields_in_the_same_order_every_time(cube):
    assert repr(cube) == (
        "Cube(dimension_columns=('x', 'y'), partition_columns=('p', 'q'), uuid_prefix='cube', "
        "seed_dataset='base', index_columns=frozenset({'i1', 'i2'}), suppress_index_on=frozenset({'y'}))"
    )
    assert repr(Cube("x", "p", "c")).endswith("index_columns=frozenset(), suppress_index_on=frozenset())")


def test_is_a_value(cube):
    assert pickle.loads(pickle.dumps(cube)) == cube == cube.copy()
    assert hash(cube) == hash(cube.copy())
    assert cube != cube.copy(dimension_columns=["y", "x"])  # their order is the sort order of the data
    assert cube == cube.copy(index_columns=["i1", "i2"])
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        cube.uuid_prefix = "other"


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"dimension_columns": []}, ["dimension_columns must not be empty"]),
        ({"dimension_columns": None}, ["dimension_columns must not be empty"]),
        ({"partition_columns": ["y", "p", "x"]}, ["partition_columns", "dimension_columns", ": x, y"]),
        ({"index_columns": ["i1", "y", "x"]}, ["index_columns", "dimension_columns", ": x, y"]),
        ({"index_columns": ["q", "p"]}, ["index_columns", "partition_columns", ": p, q"]),
        ({"suppress_index_on": ["z", "x", "p"]}, ["suppress_index_on", "dimension_columns (x, y)", ": p, z"]),
        ({"dimension_columns": ["x", "x", "y"]}, [": x"]),
        ({"uuid_prefix": "cu.be"}, ["uuid_prefix", "'cu.be'"]),
        ({"uuid_prefix": ""}, ["uuid_prefix", "''"]),
        ({"uuid_prefix": "cube\n"}, ["uuid_prefix", r"'cube\n'"]),
        ({"uuid_prefix": "cu++be"}, ["uuid_prefix", "'cu++be'", "must not contain ++"]),
        ({"seed_dataset": "a/b"}, ["seed_dataset", "'a/b'"]),
        ({"seed_dataset": "a++b"}, ["seed_dataset", "'a++b'", "must not contain ++"]),
    ],
)
def test_wrong_values_are_named(cube, changes, parts):
    with pytest.raises(ValueError) as error:
        cube.copy(**changes)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"dimension_columns": {"x"}}, "{'x'}"),
        ({"partition_columns": [1]}, "1"),
        ({"uuid_prefix": ["p"]}, r"uuid_prefix is a name \(str\), got \['p'\]"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_wrong_types(cube, changes, text):
    with pytest.raises(TypeError, match=text):
        cube.copy(**changes)


@pytest.mark.parametrize("dataset_id", ["a++b", "a.b", ""])
def test_illegal_dataset_id(cube, dataset_id):
    with pytest.raises(ValueError, match="dataset id") as error:
        cube.ktk_dataset_uuid(dataset_id)
    assert repr(dataset_id) in str(error.value)
