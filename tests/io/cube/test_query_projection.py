"""Cube queries with fewer dimensions than the cube."""

import pytest

from kartothek_cube.core.cube.conditions import C
from tests.support.cubes import CUBE, build, frame, refuses

XY = CUBE.copy(dimension_columns=["x", "y"], index_columns=["i1"])


@pytest.fixture
def built(store_factory):
    """A store with enrichments of several dimensionalities."""
    build(
        store_factory,
        XY,
        seed=frame(x=[0, 0, 1, 1], y=[0, 1, 0, 1], p=[0, 0, 1, 1], v1=[1, 2, 3, 4], i1=[7, 8, 7, 8]),
        by_x=frame(x=[0, 1], p=[0, 1], v2=[0.5, 1.5]),
        by_y=frame(y=[0, 1], v3=["a", "b"]),
        by_both=frame(x=[0, 1], y=[0, 0], p=[0, 1], v4=[True, False]),
    )
    return store_factory


@pytest.mark.parametrize(
    "arguments, fragments",
    [
        ({"payload_columns": ["v1", "i1"]}, ["seed", "x, y", "x", "i1, v1"]),
        ({"payload_columns": ["v4"]}, ["by_both", "x, y", "x", "v4"]),
        ({"payload_columns": ["v3"]}, ["by_y", "y", "x", "v3"]),
        ({"payload_columns": ["v2"], "dimension_columns": "y"}, ["by_x", "x", "y", "v2"]),
        ({"payload_columns": ["v2"], "conditions": C("v1") == 1}, ["seed", "v1"]),
        ({"payload_columns": ["v2"], "conditions": C("v4") == True}, ["by_both", "v4"]),  # noqa: E712
        ({"payload_columns": ["v2"], "partition_by": "i1"}, ["seed", "i1"]),
        ({"payload_columns": ["y"]}, ["y"]),
        ({}, ["x"]),
    ],
)
def test_payload_of_more_dimensions_cannot_be_projected(driver, built, arguments, fragments):
    with refuses(built, ValueError, *fragments):
        driver.query_cube(**{"cube": XY, "store": built, "dimension_columns": "x", **arguments})
