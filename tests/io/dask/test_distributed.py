"""Cubes on a cluster of two processes, also when one of them dies."""

import os
import signal
from pathlib import Path

import dask
import dask.bag as db
import dask.dataframe
import pandas as pd
import pytest
from distributed import Client, LocalCluster, wait

from kartothek_cube.api import cube as api
from kartothek_cube.io.dask import dataframe_cube, delayed_cube
from tests.support.cubes import CUBE, build, check_integrity, file_keys, frame, keys, rows
from tests.support.factories import local

pytestmark = pytest.mark.slow("starts a cluster of dask")

IDS = ["seed", "enrich"]


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 5}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs="ERROR"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def store(tmp_path):
    return local(tmp_path / "store")


def load(p: int) -> dict[str, pd.DataFrame]:
    return {"seed": frame(x=[0, 1], p=p, v1=[p, -p]), "enrich": frame(x=[0, 1], p=p, v2=["a", None])}


def load_and_die(p: int, marker: Path) -> dict[str, pd.DataFrame]:
    if p == 5 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return load(p)


def double(frames: dict[str, pd.DataFrame] | pd.DataFrame) -> pd.DataFrame:
    return frames.assign(v1=2 * frames["v1"])


def payload(store) -> list:
    (df,) = api.query_cube(CUBE, store, payload_columns=["v1"], dimension_columns=["x"])
    return rows([df.sort_values(["p", "x"])])["v1"]


def test_build_extend_query_transform_and_update(client, store):
    delayed_cube.build_cube_from_delayed(
        [dask.delayed(load)(p) for p in range(6)], CUBE, store, IDS
    ).compute()
    new = [dask.delayed(pd.DataFrame)({"x": [0, 1], "p": p, "v3": p + 0.5}) for p in range(6)]
    ddf = dask.dataframe.from_delayed(new, meta={"x": "int64", "p": "int64", "v3": "float64"})
    dataframe_cube.extend_cube_from_dataframe({"new": ddf}, CUBE, store).compute()
    groups = delayed_cube.query_cube_delayed(
        CUBE, store, api.C("p") >= 3, partition_by="p", datasets="seed", payload_columns="v1"
    )
    changed = [dask.delayed(double)(df) for df in groups]
    delayed_cube.update_cube_from_delayed(changed, CUBE, store, api.C("p") >= 3, "seed").compute()
    found = pd.concat(api.query_cube_bag(CUBE, store, partition_by="p").compute())
    assert found["v1"].tolist() == [0, 0, 1, -1, 2, -2, 6, -6, 8, -8, 10, -10]
    assert found["v3"].tolist() == [p + 0.5 for p in range(6) for _ in range(2)]
    check_integrity(store)


def test_frames_are_those_of_the_eager_facade(client, store):
    api.build_cube_from_bag(db.from_sequence(range(40), npartitions=40).map(load), CUBE, store, IDS).compute()
    expected = api.query_cube(CUBE, store, partition_by="p")
    results = [
        dask.compute(*delayed_cube.query_cube_delayed(CUBE, store, partition_by="p")),
        api.query_cube_bag(CUBE, store, partition_by="p", blocksize=7).compute(),
        dask.compute(*dataframe_cube.query_cube_dataframe(CUBE, store, partition_by="p").to_delayed()),
    ]
    for frames in results:
        assert len(frames) == len(expected) == 40
        for got, want in zip(frames, expected):
            pd.testing.assert_frame_equal(got, want)
    assert api.collect_stats_bag(CUBE, store, blocksize=3).compute()[0] == api.collect_stats(CUBE, store)


@pytest.mark.parametrize("method", ["tasks", "p2p"])
def test_a_shuffle(client, store, method):
    seed = pd.DataFrame({"x": range(300), "p": [f"p{i % 4}" for i in range(300)], "v1": range(300)})
    ddf = dask.dataframe.from_pandas(seed, npartitions=6)
    with dask.config.set({"dataframe.shuffle.method": method}):
        dataframe_cube.build_cube_from_dataframe(
            ddf, CUBE, store, shuffle=True, num_buckets=2, bucket_by="x"
        ).compute()
    assert len(file_keys(store, "cube++seed")) == 8
    assert sorted(payload(store)) == list(range(300))
    check_integrity(store)


@pytest.mark.slow("kills workers of a cluster")
@pytest.mark.parametrize("form", ["delayed", "bag"])
def test_a_worker_that_is_killed_in_the_middle_of_a_build(client, store, tmp_path, form):
    marker = tmp_path / "killed"
    if form == "delayed":
        data = [dask.delayed(load_and_die)(p, marker) for p in range(12)]
        result = delayed_cube.build_cube_from_delayed(data, CUBE, store, IDS).compute()
    else:
        bag = db.from_sequence(range(12), npartitions=12).map(load_and_die, marker)
        (result,) = api.build_cube_from_bag(bag, CUBE, store, IDS).compute()
    assert marker.exists()
    assert {name: len(dataset.partitions) for name, dataset in result.items()} == {"enrich": 12, "seed": 12}
    assert payload(store) == [v for p in range(12) for v in (p, -p)]
    check_integrity(store)
    delayed_cube.cleanup_cube_delayed(CUBE, store).compute()
    assert sum("/table/p=" in key for key in keys(store)) == 24


def test_a_worker_that_is_killed_with_the_result_of_the_commit(client, store):
    """All tasks run again, for nothing of what they wrote is known any more; still there is one commit."""
    build(store, seed=load(0)["seed"], enrich=load(0)["enrich"])
    data = [dask.delayed(load)(p) for p in range(1, 4)]
    future = client.compute(delayed_cube.append_to_cube_from_delayed(data, CUBE, store, IDS))
    wait(future)
    before = file_keys(store, "cube++seed")
    ((worker,),) = client.who_has(future).values()
    pids = client.run(os.getpid)
    os.kill(pids[worker], signal.SIGKILL)
    assert set(future.result()) == set(IDS)
    assert file_keys(store, "cube++seed") == before
    assert payload(store) == [v for p in range(4) for v in (p, -p)]
    check_integrity(store)


def test_an_error_of_a_task_reaches_the_user(client, store):
    seed = pd.DataFrame({"x": [0, 0], "p": [0, 0], "v1": [1, 2]})
    with pytest.raises(ValueError, match="p=0, x=0"):
        delayed_cube.build_cube_from_delayed([dask.delayed(seed.copy)()], CUBE, store).compute()
    build(store, seed=load(0)["seed"])
    ddf = dask.dataframe.from_pandas(pd.DataFrame({"x": [0], "p": [1], "v1": ["a"]}), npartitions=1)
    with pytest.raises(ValueError, match="v1"):
        dataframe_cube.append_to_cube_from_dataframe(ddf, CUBE, store).compute()


def threads_of_polars(store) -> int:
    api.query_cube(CUBE, store)
    import polars

    return polars.thread_pool_size()


def test_polars_has_the_threads_of_the_worker(client, store):
    """Workers of one machine would take all its cores each."""
    delayed_cube.build_cube_from_delayed(
        [dask.delayed(load)(p) for p in range(6)], CUBE, store, IDS
    ).compute()
    # another test may have killed a worker; the client's own list of workers is refreshed late
    client.wait_for_workers(2)
    workers = list(client.ncores())
    counts = [client.submit(threads_of_polars, store, workers=[w], pure=False).result() for w in workers]
    assert set(counts) == {1}, counts
