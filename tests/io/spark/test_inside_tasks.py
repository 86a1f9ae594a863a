"""The eager and the iter façade, and Arrow's, as functions that Spark's tasks call."""

from functools import partial

import pandas as pd
import pyarrow as pa
import pytest
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.io.spark import create_frame
from kartothek_cube.io.spark._session import no_pandas_warnings

pytestmark = pytest.mark.slow("runs many Spark jobs")

CUBE = api.Cube(["x"], ["p"], "cube")
DATA = pd.DataFrame({"x": range(12), "p": [i % 3 for i in range(12)], "v1": [i * 0.5 for i in range(12)]})


@pytest.fixture(params=["url", "factory"])
def store(request, url):
    """What a task may be given to open a store."""
    return url if request.param == "url" else partial(get_store_from_url, url)


@pytest.fixture
def built(store):
    api.build_cube(DATA, CUBE, store)
    return store


def partition(store, p: int) -> pd.DataFrame:
    (df,) = api.query_cube(CUBE, store, api.C("p") == p)
    return df


def test_queries_in_map_partitions(jvm, built):
    def sums(ps):
        for p in ps:
            yield p, "eager", float(partition(built, p)["v1"].sum())
            frames = api.query_cube__iterator(CUBE, built, api.C("p") == p, partition_by="p")
            yield p, "iter", sum(float(df["v1"].sum()) for df in frames)

    found = jvm.sparkContext.parallelize(range(3), 2).mapPartitions(sums).collect()
    expected = DATA.groupby("p")["v1"].sum()
    assert sorted(found) == [(p, name, expected[p]) for p in range(3) for name in ("eager", "iter")]


def test_writes_in_tasks_are_all_kept(jvm, built):
    def append(numbers):
        for n in numbers:
            new = pd.DataFrame({"x": [100 + n], "p": [n % 3], "v1": [float(n)]})
            if n % 2:
                api.append_to_cube(new, CUBE, built)
            else:
                api.append_to_cube__iter(iter([new]), CUBE, built, ktk_cube_dataset_ids=["seed"])
            yield n

    assert jvm.sparkContext.parallelize(range(8), 4).mapPartitions(append).count() == 8
    (df,) = api.query_cube(CUBE, built)
    assert df["x"].tolist() == [*range(12), *range(100, 108)]


def test_groups_of_spark_are_written_and_read_by_themselves(spark, built):
    """One task per group of `applyInArrow` updates its partition; no two of them get in each other's way."""

    def update(table: pa.Table) -> pa.Table:
        p = table["p"][0].as_py()
        df = table.to_pandas()
        api.update_cube(df, CUBE, built, api.C("p") == p, ["seed"])
        return pa.table({"p": [p], "n": [len(partition(built, p))]})

    new = create_frame(DATA.assign(v1=DATA["v1"] + 1)[DATA["x"] < 9], spark)
    with no_pandas_warnings():
        counts = new.groupBy("p").applyInArrow(update, "p bigint, n bigint").collect()
    assert sorted(map(tuple, counts)) == [(p, 3) for p in range(3)]
    (df,) = api.query_cube(CUBE, built)
    assert df["v1"].tolist() == (DATA["v1"] + 1).tolist()[:9]
