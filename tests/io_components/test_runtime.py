"""Bars of progress: what they count, when they show, that they go away."""

import io
import sys
import threading
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.io_components import runtime
from tests.support.cubes import memory

CUBE = api.Cube(["x"], ["p"], "cube")
FRAME = pd.DataFrame({"x": range(6), "p": [0, 0, 1, 1, 2, 2]})


class Log:
    """A watcher that remembers."""

    def __init__(self):
        self.expected, self.sizes = 0, []

    def expect(self, files):
        self.expected += files

    def count(self, nbytes):
        self.sizes.append(nbytes)


def data_bytes(store):
    keys = [key for key in store.keys() if key.endswith(".parquet") and "/table/" in key]
    return sorted(len(store.get(key)) for key in keys)


@pytest.fixture
def store():
    store = memory()
    api.build_cube(FRAME, CUBE, store)
    return store


@pytest.mark.parametrize("work", [api.query_cube, api.collect_stats, api.verify_cube])
def test_reading(store, work):
    log = Log()
    with runtime.report_progress_to(log):
        work(CUBE, store)
    assert log.expected == 3
    assert sorted(log.sizes) == data_bytes(store)


def test_directories_count_alike(tmp_path):
    log, url = Log(), f"hfs://{tmp_path}"
    with runtime.report_progress_to(log):
        api.build_cube(FRAME, CUBE, url)
    sizes = sorted(path.stat().st_size for path in tmp_path.rglob("table/p=*/*.parquet"))
    assert (log.expected, sorted(log.sizes)) == (3, sizes)
    log.sizes.clear()
    with runtime.report_progress_to(log):
        api.query_cube(CUBE, url)
    assert sorted(log.sizes) == sizes


def test_nobody_watches_afterwards(store):
    log = Log()
    with runtime.report_progress_to(log):
        pass
    runtime.progress_add_total(1)
    runtime.progress_advance(1)
    api.query_cube(CUBE, store)
    assert (log.expected, log.sizes) == (0, [])


def test_threads_know_the_watcher_and_the_limit():
    def advance(number):
        runtime.progress_advance(number)
        return runtime.available_cores()

    log = Log()
    with runtime.report_progress_to(log), runtime.limit_threads(2):
        cores = runtime.ordered_map(advance, range(9), 4)
        assert list(cores) == [runtime.available_cores()] * 9
    assert sorted(log.sizes) == list(range(9))


def test_at_most_and_more_than_expected():
    with runtime.limit_threads(1):
        threads = list(runtime.ordered_map(lambda _: threading.current_thread().name, range(4), 8))
    assert set(threads) == {threading.current_thread().name}
    screen = io.StringIO()
    bar = runtime.ProgressBar("t", file=screen, mininterval=0)
    bar.count(5)
    bar.close()
    assert "1/1 files" in screen.getvalue()


def test_a_bar_shows_files_and_bytes_unless_it_waits(store):
    screen = io.StringIO()
    with runtime.progress_bar("query", True, file=screen, mininterval=0):
        api.query_cube(CUBE, store)
    text = screen.getvalue().replace("\r", "\n")
    assert "query: 100%" in text
    assert "3/3 files" in text
    assert runtime.bytes_text(sum(data_bytes(store))) in text
    screen = io.StringIO()
    with runtime.progress_bar("query", True, file=screen, mininterval=0, delay=1000, leave=False):
        api.query_cube(CUBE, store)
    assert screen.getvalue() == ""


def test_progress_on_request(store, capsys):
    api.query_cube(CUBE, store)
    assert capsys.readouterr().err == ""
    api.query_cube(CUBE, store, progress=True)
    assert "3/3 files" in capsys.readouterr().err
    with pytest.raises(ValueError, match="v9"):
        api.query_cube(CUBE, store, payload_columns=["v9"], progress=True)
    assert "3/3" not in capsys.readouterr().err


LONG = {
    "build_cube": lambda store, **kw: api.build_cube(FRAME, CUBE, memory(), **kw),
    "extend_cube": lambda store, **kw: api.extend_cube({"enrich": FRAME.assign(v1=1)}, CUBE, store, **kw),
    "append_to_cube": lambda store, **kw: api.append_to_cube(FRAME, CUBE, store, **kw),
    "update_cube": lambda store, **kw: api.update_cube(FRAME, CUBE, store, None, ["seed"], **kw),
    "collect_stats": partial(api.collect_stats, CUBE),
    "compact_cube": partial(api.compact_cube, CUBE),
    "verify_cube": partial(api.verify_cube, CUBE),
    "delete_rows": lambda store, **kw: api.delete_rows(CUBE, store, "x == 1", **kw),
    "copy_cube": lambda store, **kw: api.copy_cube(CUBE, store, memory(), **kw),
}


@pytest.mark.parametrize("name", LONG)
def test_every_long_operation_shows_it(store, capsys, name):
    LONG[name](store)
    assert capsys.readouterr().err == ""
    another = memory()
    api.build_cube(FRAME, CUBE, another)
    LONG[name](another, progress=True)
    assert "files" in capsys.readouterr().err


def test_without_tqdm(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"pip install 'kartothek_cube\[cli\]'"):
        api.query_cube(CUBE, store, progress=True)


def test_the_time_moves_while_no_file_is_done(monkeypatch):
    monkeypatch.setattr(runtime, "_TICK_SECONDS", 0.01)
    screen = io.StringIO()
    bar = runtime.ProgressBar("t", file=screen, mininterval=0)
    deadline = time.monotonic() + 30
    while screen.getvalue().count("0/0 files") < 5:
        assert time.monotonic() < deadline, screen.getvalue()
        time.sleep(0.01)
    bar.close()
    text = screen.getvalue()
    time.sleep(0.1)
    assert screen.getvalue() == text


@pytest.mark.parametrize(
    "nbytes, text",
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1.0 kB")),
        *((999_960, "1.0 MB"), (2.5e12, "2.5 TB"), (3e18, "3,000.0 PB")),
    ],
)
def test_bytes_text(nbytes, text):
    assert runtime.bytes_text(nbytes) == text


@pytest.mark.parametrize(
    "weights, bounds", [([0.0], [0, 1]), ([5.0, 0.0], [0, 2]), ([5.0, 5.0, 6.0], [0, 2, 3])]
)
def test_slices_are_no_more_than_their_size_demands(weights, bounds):
    assert runtime.split_by_weight(np.array(weights), 1, 10).tolist() == bounds
