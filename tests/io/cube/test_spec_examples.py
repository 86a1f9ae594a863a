"""The examples of the specification of the query system, whatever the placement of the data."""

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


CELLS = frame(P=[1, 1, 2, 2], L=[1, 2, 1, 2])
SCHEDULE = frame(P=[1, 2], SCHED=[True, False])
ON_SCHEDULE = api.C("SCHED") == True  # noqa: E712
CHECKED = ON_SCHEDULE & (api.C("OK") == True)  # noqa: E712
#: datasets, arguments of a query, and its rows
EXAMPLES = {
    "join semantics": (
        {
            "seed": frame(P=[1, 2, 3, 5, 6]),
            "data_checks": frame(P=[1, 2, 3, 4, 5, 6], OK=[True, False, True, True, True, True]),
            "schedule": frame(P=[1, 2, 3, 4, 5], SCHED=[True, True, False, True, True]),
            "predictions": frame(P=[1, 2, 3, 4, 6], PRED=[0.23, 0.12, 0.13, 0.03, 0.01]),
        },
        {"conditions": CHECKED},
        {"P": [1, 5], "PRED": [0.23, None]},
    ),
    "outer join": (
        {
            "seed": CELLS,
            "data_checks": CELLS.assign(OK=[True, False, True, True]),
            "schedule": SCHEDULE,
            "predictions": CELLS.assign(PRED=[0.23, 0.12, 0.13, 0.13]),
        },
        {"conditions": CHECKED},
        {"P": [1], "L": [1], "PRED": [0.23]},
    ),
    "projection": (
        {
            "seed": frame(P=[1, 1, 1, 2, 2], L=[1, 2, 3, 1, 4]),
            "schedule": SCHEDULE,
            "agg": frame(P=[1, 2], AVG=[10.2, 1.34]),
        },
        {"conditions": ON_SCHEDULE, "dimension_columns": ["P"]},
        {"P": [1], "AVG": [10.2]},
    ),
}


@pytest.mark.parametrize("partition, is_partitioned", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("datasets, arguments, expected", EXAMPLES.values(), ids=EXAMPLES)
def test_examples(driver, store_factory, partition, is_partitioned, datasets, arguments, expected):
    cube = api.Cube([name for name in "PL" if name in datasets["seed"]], ["PART"], "cube")
    placed = {id_: df.assign(PART=partition(df["P"])) for id_, df in datasets.items()}
    build(store_factory, cube, **(placed if is_partitioned else {**datasets, "seed": placed["seed"]}))
    frames = driver.query_cube(cube=cube, store=store_factory, payload_columns=[*expected], **arguments)
    assert {name: values for name, values in rows(frames).items() if name != "PART"} == expected


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
