"""How long files stay: by the clock of the store, whatever that of the cleaner says."""

import os
from datetime import datetime, timedelta

import dask
import pytest

from kartothek_cube.core.testing import cm_frozen_time
from kartothek_cube.io.dask.delayed import garbage_collect_dataset__delayed
from kartothek_cube.io.eager import garbage_collect_dataset, list_dataset_garbage
from kartothek_cube.io.eager_cube import build_cube, cleanup_cube, list_cube_garbage, verify_cube
from tests.support.cubes import CUBE, frame, keys
from tests.support.factories import local, memory
from tests.support.stores import ReadOnlyStore

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OLD, YOUNG = "cube++seed/table/p=0/old.parquet", "cube++seed/table/p=0/young.parquet"


@pytest.fixture
def store(tmp_path):
    """A cube with two files of nobody: one is a day old, one was written just now."""
    factory = local(tmp_path / "store")
    build_cube(frame(x=[0], p=[0]), CUBE, factory)
    for key in (OLD, YOUNG):
        factory().put(key, b"data")
    yesterday = (datetime.now() - DAY).timestamp()
    os.utime(tmp_path / "store" / OLD, (yesterday, yesterday))
    return factory


#: retention -> files that are left
LEFT = [(None, set()), (timedelta(0), set()), (HOUR, {YOUNG}), (DAY - HOUR, {YOUNG}), (2 * DAY, {OLD, YOUNG})]


@pytest.mark.parametrize("retention, left", LEFT)
def test_retention(driver, store, retention, left):
    tidy = keys(store) - {OLD, YOUNG}
    driver.cleanup_cube(cube=CUBE, store=store, retention=retention)
    assert keys(store) == tidy | left
    assert verify_cube(CUBE, store).ok


@pytest.mark.parametrize("retention, left", LEFT)
@pytest.mark.parametrize("collect", [garbage_collect_dataset, garbage_collect_dataset__delayed])
def test_retention_of_datasets(store, collect, retention, left):
    tidy = keys(store) - {OLD, YOUNG}
    dask.compute(collect("cube++seed", store, retention=retention), scheduler="sync")
    assert keys(store) == tidy | left


@pytest.mark.parametrize("ours", [datetime(1980, 1, 1), datetime(2999, 1, 1)])
def test_a_wrong_clock_of_the_cleaner(store, ours):
    with cm_frozen_time(ours):
        assert [blob.key for blob in list_cube_garbage(CUBE, store, retention=HOUR)] == [OLD]


def test_lists(store):
    before = keys(store)
    for found in (list_cube_garbage(CUBE, store), list_dataset_garbage("cube++seed", store)):
        assert [(blob.key, blob.size) for blob in found] == [(OLD, 4), (YOUNG, 4)]
        assert found[1].mtime - found[0].mtime == pytest.approx(DAY.total_seconds(), abs=60)
    assert keys(store) == before
    # the own clock has to do
    found = list_cube_garbage(CUBE, ReadOnlyStore(store()), retention=HOUR)
    assert [blob.key for blob in found if blob.mtime is not None] in ([], [OLD])
    with cm_frozen_time(datetime(1980, 1, 1)):
        assert list_cube_garbage(CUBE, ReadOnlyStore(store()), retention=HOUR) == []


def test_stores_that_tell_no_times(tmp_path):
    store = memory(tmp_path)
    build_cube(frame(x=[0], p=[0]), CUBE, store)
    store().put(OLD, b"data")
    assert list_cube_garbage(CUBE, store, retention=timedelta(0)) == []
    assert list_dataset_garbage("cube++seed", store, retention=timedelta(0)) == []
    assert [tuple(blob) for blob in list_cube_garbage(CUBE, store)] == [(OLD, 4, None)]


@pytest.mark.parametrize(
    "retention, error, message",
    [(-HOUR, ValueError, "negative"), (24, TypeError, r"timedelta\(hours=24\), not 24")],
)
def test_what_is_no_retention(store, retention, error, message):
    with pytest.raises(error, match=message):
        cleanup_cube(CUBE, store, retention=retention)
