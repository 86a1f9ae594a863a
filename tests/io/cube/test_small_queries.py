"""Small queries: what they cost, and that what queries share never shows."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api.cube import C, Cube, append_to_cube, build_cube, discover_datasets, query_cube
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.store.local import LocalBlobStore
from kartothek_cube.io.eager_cube import remove_partitions, update_cube

CUBE = Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube")
ROWS = 1_000


def seed(rows=ROWS, factor=1.0):
    x = np.arange(rows)
    return pd.DataFrame({"x": x, "p": x // 100, "v": x * factor})


def enrich():
    x = np.arange(ROWS)
    return pd.DataFrame({"x": x, "p": x // 100, "w": -x, "t": [f"text {n}" for n in x]})


@pytest.fixture
def url(tmp_path):
    url = f"hfs://{tmp_path}/store?durable=false"
    build_cube({"seed": seed(), "enrich": enrich()}, CUBE, url)
    return url


def point(url, x):
    (df,) = query_cube(CUBE, url, conditions=C("x") == x)
    return df.iloc[0].to_dict()


def expected(x, factor=1.0):
    return {"x": x, "p": x // 100, "v": x * factor, "w": -x, "t": f"text {x}"}


def count_calls(function):
    """Number of Python functions that are called."""
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return events.count("call")


# 1,350 with Python 3.11 and pandas 3, a third of them in Polars; older versions of pandas need more steps
@pytest.mark.parametrize(
    "kind, limit",
    [("point", 1_460), ("all", 1_700)] if int(pd.__version__.split(".")[0]) >= 3 else [("point", 2_250)],
)
def test_a_query_calls_few_python_functions(url, kind, limit):
    condition = C("x") == 512 if kind == "point" else None
    query = lambda: query_cube(CUBE, url, conditions=condition)  # noqa: E731
    for _ in range(3):
        query()
    assert count_calls(query) <= limit


def test_a_point_query_reads_each_blob_once(url, monkeypatch):
    point(url, 512)
    calls = []

    def record(name, call):
        def recorded(self, key, *args):
            calls.append((name, key))
            return call(self, key, *args)

        monkeypatch.setattr(LocalBlobStore, name, recorded)

    # `get` calls `get_with_token`
    for name in ("get_with_token", "list_dir", "list", "size", "exists", "open_read"):
        record(name, getattr(LocalBlobStore, name))
    point(url, 13)
    assert len(calls) == len(set(calls))
    # the listing, two headers, one index, two files
    assert len(calls) == 6


def test_a_query_sees_each_commit(url):
    assert point(url, 5) == expected(5)
    update_cube({"seed": seed(100, factor=3.0)}, CUBE, url, C("p") == 0, ktk_cube_dataset_ids=["seed"])
    assert point(url, 5) == expected(5, factor=3.0)
    more = pd.DataFrame({"x": [ROWS], "p": [77], "v": [0.5]})
    append_to_cube(more, CUBE, url)
    assert query_cube(CUBE, url, conditions=C("x") == ROWS)[0]["v"].tolist() == [0.5]
    remove_partitions(CUBE, url, conditions=C("p") == 0, ktk_cube_dataset_ids=["seed", "enrich"])
    assert query_cube(CUBE, url, conditions=C("x") == 5) == []


def test_cubes_of_one_name_in_two_stores_are_not_mixed_up(url, tmp_path):
    other = f"hfs://{tmp_path}/other?durable=false"
    build_cube({"seed": seed(factor=2.0), "enrich": enrich()}, CUBE, other)
    for _ in range(2):
        assert point(url, 5) == expected(5)
        assert point(other, 5) == expected(5, factor=2.0)


def test_a_missing_dataset_or_schema_is_noticed(url):
    point(url, 5)
    blobs = open_blobs(url)
    blobs.delete(["cube++enrich/table/_common_metadata"])
    # the header holds the schema as well
    assert point(url, 5) == expected(5)
    blobs.delete(["cube++enrich.by-dataset-metadata.json"])
    assert list(query_cube(CUBE, url, conditions=C("x") == 5)[0].columns) == ["p", "v", "x"]
    blobs.delete(["cube++seed.by-dataset-metadata.json"])
    with pytest.raises(ValueError, match="Cube cube not found: available: none"):
        point(url, 5)


def test_what_users_change_does_not_reach_other_queries(url):
    (first,) = query_cube(CUBE, url, conditions=C("p") == 3)
    first.columns.name = "renamed"
    first["v"] = 0
    first.loc[0, "t"] = "changed"
    first.index.name = "row"
    datasets = discover_datasets(CUBE, url)
    datasets["seed"].metadata.clear()
    datasets["seed"].indices.clear()
    (second,) = query_cube(CUBE, url, conditions=C("p") == 3)
    assert second.columns.name is None
    assert second.index.name is None
    assert second["v"].tolist() == [float(x) for x in range(300, 400)]
    assert second["t"].iloc[0] == "text 300"
    assert point(url, 5) == expected(5)


def test_frames_of_groups_are_independent(url):
    frames = query_cube(CUBE, url, partition_by="x")
    assert [len(df) for df in frames] == [1] * ROWS
    frames[0].loc[0, "v"] = -1.0
    frames[0].loc[0, "t"] = "changed"
    assert frames[1].iloc[0].to_dict() == expected(1)
    assert point(url, 0) == expected(0)
    assert frames[0].loc[0, "v"] == -1.0


def test_threads_get_the_answers_of_their_own_queries(url):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda x: point(url, x), range(0, ROWS, 7)))
    assert answers == [expected(x) for x in range(0, ROWS, 7)]


def test_threads_see_commits_of_others_as_a_whole(url):
    """Partition 0 of both datasets is replaced again and again: no query sees one without the other."""

    def change():
        for factor in (2.0, 3.0, 4.0, 5.0):
            data = {"seed": seed(100, factor), "enrich": enrich()[:100].assign(w=int(factor))}
            update_cube(data, CUBE, url, C("p") == 0, ktk_cube_dataset_ids=list(data))

    def read(_):
        (df,) = query_cube(CUBE, url, conditions=C("x") == 50)
        return df["v"].iloc[0] / 50, df["w"].iloc[0]

    with ThreadPoolExecutor(5) as pool:
        writer = pool.submit(change)
        seen = list(pool.map(read, range(60)))
        writer.result()
    assert {(factor, w) for factor, w in seen} <= {(1.0, -50.0), *((f, f) for f in (2.0, 3.0, 4.0, 5.0))}
    assert read(0) == (5.0, 5.0)
