"""The examples of the specification of the query system, whatever the placement of the data."""

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from tests.support.cubes import build, file_keys, frame, groups, memory, rows
from tests.support.stores import CountingStore, Same

#: how the partition column follows from ``P``, and whether enrichments are partitioned at all
PLACEMENTS = {
    "one partition": (lambda p: 0 * p, True),
    "a partition each": (lambda p: p, True),
    "two partitions": (lambda p: p % 2, True),
    "unpartitioned enrichments": (lambda p: p % 3, False),
}


@pytest.fixture(params=PLACEMENTS.values(), ids=PLACEMENTS.keys())
def place(request, store_factory):
    """A function that stores a cube in one of the placements."""
    partition, partitioned = request.param

    def store(cube: api.Cube, **datasets: pd.DataFrame):
        placed = {
            id_: df.assign(PART=partition(df["P"])) if partitioned or id_ == cube.seed_dataset else df
            for id_, df in datasets.items()
        }
        build(store_factory, cube, **placed)
        return store_factory

    return store


def found(driver, cube, store, columns, **arguments):
    """Give the columns without the partition column."""
    result = rows(driver.query_cube(cube=cube, store=store, payload_columns=columns, **arguments))
    return {name: values for name, values in result.items() if name != "PART"}


def test_example_1_join_semantics(driver, place):
    cube = api.Cube(["P"], ["PART"], "cube", seed_dataset="db_data")
    store = place(
        cube,
        db_data=frame(P=[1, 2, 3, 5, 6]),
        data_checks=frame(P=[1, 2, 3, 4, 5, 6], OK=[True, False, True, True, True, True]),
        schedule=frame(P=[1, 2, 3, 4, 5], SCHED=[True, True, False, True, True]),
        predictions=frame(P=[1, 2, 3, 4, 6], PRED=[0.23, 0.12, 0.13, 0.03, 0.01]),
    )
    conditions = (api.C("OK") == True) & (api.C("SCHED") == True)  # noqa: E712
    assert found(driver, cube, store, ["P", "PRED"], conditions=conditions) == {
        "P": [1, 5],
        "PRED": [0.23, None],
    }


def test_example_2_outer_join(driver, place):
    cube = api.Cube(["P", "L"], ["PART"], "cube", seed_dataset="db_data")
    cells = {"P": [1, 1, 2, 2], "L": [1, 2, 1, 2]}
    store = place(
        cube,
        db_data=frame(**cells),
        data_checks=frame(**cells, OK=[True, False, True, True]),
        schedule=frame(P=[1, 2], SCHED=[True, False]),
        predictions=frame(**cells, PRED=[0.23, 0.12, 0.13, 0.13]),
    )
    conditions = (api.C("OK") == True) & (api.C("SCHED") == True)  # noqa: E712
    assert found(driver, cube, store, ["P", "L", "PRED"], conditions=conditions) == {
        "P": [1],
        "L": [1],
        "PRED": [0.23],
    }


def test_example_3_projection(driver, place):
    cube = api.Cube(["P", "L"], ["PART"], "cube", seed_dataset="db_data")
    store = place(
        cube,
        db_data=frame(P=[1, 1, 1, 2, 2], L=[1, 2, 3, 1, 4]),
        schedule=frame(P=[1, 2], SCHED=[True, False]),
        agg=frame(P=[1, 2], AVG=[10.2, 1.34]),
    )
    conditions = api.C("SCHED") == True  # noqa: E712
    result = found(driver, cube, store, ["P", "AVG"], conditions=conditions, dimension_columns=["P"])
    assert result == {"P": [1], "AVG": [10.2]}


def test_planning_example(driver):
    """Pre-conditions, partition-by, alignment and re-grouping of the first sections; one file per row."""
    store = CountingStore(memory())
    factory = Same.of(store)
    cube = api.Cube(["X"], ["P", "Q"], "cube", index_columns=["I1", "I2"])
    seed = frame(
        X=[1, 2, 3, 4, 5], P=[0, 0, 0, 1, 1], Q=[0, 1, 1, 0, 0], I1=[1, 2, 3, 4, 5], I2=[1, 1, 1, 1, 2]
    )
    enrich = frame(X=[1, 2, 4, 5, 7], P=[0, 0, 1, 1, 9], Q=[0, 1, 0, 0, 0], V=[6, 7, 8, 9, 0])
    build(factory, cube, seed=seed[:1], enrich=enrich[:1])
    for i in range(1, 5):
        data = {"seed": seed[i : i + 1], "enrich": enrich[i : i + 1]}
        api.append_to_cube(data=data, cube=cube, store=factory)
    store.reset()
    arguments = {"conditions": api.C("I1") > 1, "partition_by": "I2", "payload_columns": ["V"]}
    assert groups(driver.query_cube(cube=cube, store=factory, **arguments)) == [
        {"I2": [1, 1, 1], "P": [0, 0, 1], "Q": [1, 1, 0], "V": [7, None, 8], "X": [2, 3, 4]},
        {"I2": [2], "P": [1], "Q": [0], "V": [9], "X": [5]},
    ]
    touched = {key for _, key in store.log}
    seed_files, enrich_files = (
        list(file_keys(factory, f"cube++{id_}").values()) for id_ in ("seed", "enrich")
    )
    assert touched.isdisjoint({seed_files[0], enrich_files[0], enrich_files[4]})
    assert touched >= {*seed_files[1:], *enrich_files[1:4]}
