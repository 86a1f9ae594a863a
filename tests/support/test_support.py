"""What fixtures, wrappers and comparisons promise: fresh and picklable stores, differences that are found."""

import datetime
import itertools
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys

import pandas as pd
import pytest

from tests.conftest import FACADE_NAMES, LONGEST, OTHER_SPARKS
from tests.support import power
from tests.support.cubes import filled
from tests.support.factories import STORES
from tests.support.paths import ROOT
from tests.support.stores import Died, FaultyStore
from tests.support.values import compare_frames, compare_json, decode, encode


def test_stores_survive_pickle_start_empty_and_are_independent(store_factory, store, other_store_factory):
    store.put("key", b"data")
    again = pickle.loads(pickle.dumps(store_factory))
    assert again().get("key") == b"data"
    assert list(store_factory()) == ["key"]
    store_factory().put("key", b"data")
    assert list(other_store_factory()) == []


# Python 3.12 and later warn of what is tested here
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forks_do_not_wait_for_a_server(tmp_path):
    STORES["s3"](tmp_path)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map_async(abs, [-1]).get(timeout=10) == [1]


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_died_sends_no_more_requests(after):
    store = filled({"d/f": b"1"})
    wrapper = FaultyStore(store).die("put", at=2, key="metadata", after=after)
    wrapper.put("a.metadata", b"")
    wrapper.put("b", b"")
    for method, *arguments in (("put", "c.metadata", b""), ("put", "d", b""), ("get", "b"), ("delete", "b")):
        with pytest.raises(Died):
            getattr(wrapper, method)(*arguments)
    assert len(wrapper.happened) == 1
    assert sorted(store.keys()) == ["a.metadata", "b", *["c.metadata"] * after, "d/f"]


def test_every_facade_has_a_name_for_the_command_line():
    from tests.support.cube_facades import FACADES

    assert (*FACADES, "spark") == FACADE_NAMES


def test_files_that_start_first_exist():
    assert [name for name in {*LONGEST, *OTHER_SPARKS} - {"spark"} if not (ROOT / name).is_file()] == []


@pytest.mark.slow("collects all tests of cubes")
def test_every_facade_meets_every_store():
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command = [*pytest_, "-q", "--collect-only", "tests/io/cube"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    facades, stores = "|".join(FACADE_NAMES), "|".join(STORES)
    # parameters of fixtures come in the order of the arguments of the test
    cases = [line.partition("[")[2] for line in output.splitlines()]
    found = [(re.findall(rf"\b({facades})\b", case), re.findall(rf"\b({stores})\b", case)) for case in cases]
    pairs = {pair for both in found for pair in itertools.product(*both)}
    expected = {*itertools.product(FACADE_NAMES[:-1], set(STORES) - {"moto"})}
    assert pairs == expected | {("spark", "local"), ("eager", "moto")}


FRAME = pd.DataFrame({"x": [1, 2], "y": ["a", None]})


@pytest.mark.parametrize(
    "other",
    [FRAME.assign(x=FRAME.x.astype("int8")), FRAME.assign(y=FRAME.y.astype(object)), FRAME.set_axis([7, 8])],
    ids=["width", "flavour", "row index"],
)
def test_frames_that_are_the_same(other):
    assert compare_frames(other, FRAME) is None


@pytest.mark.parametrize(
    "other, options, why",
    [
        (FRAME[["y", "x"]], {}, "columns are"),
        (FRAME[["x"]], {"column_order": False}, "columns are"),
        (FRAME[:1], {}, "1 rows instead of 2"),
        (FRAME[::-1], {}, "row 0"),
        (FRAME.assign(x=[1, 3]), {"row_order": False}, r"row 1 \(sorted\)"),
        (FRAME.assign(x=[1.0, 2.0]), {}, r"'x': \(\('float', 1\), \('int', 1\)\)"),
        (FRAME.assign(x=["1", "2"]), {}, r"'x': \(\('str', '1'\), \('int', 1\)\)"),
        (FRAME.assign(y=["a", "b"]), {}, "row 1"),
        (FRAME.assign(y=FRAME.y.astype("category")), {}, "'y': ..'categorical'"),
        (None, {}, "expected a DataFrame"),
    ],
)
def test_frames_that_differ(other, options, why):
    assert re.search(why, compare_frames(other, FRAME, **options) or "")


def test_order_does_not_matter_unless_asked_for():
    assert compare_frames(FRAME[::-1][["y", "x"]], FRAME, row_order=False, column_order=False) is None


def test_json_that_differs():
    assert compare_json({"a": [1]}, {"a": [1]}) is None
    assert compare_json({"a": [True]}, {"a": [1]}) == 'result is {"a": [true]} instead of {"a": [1]}'


STAMP = pd.Timestamp("2020-01-02T03:04:05.000006")


@pytest.mark.parametrize(
    "value", [{"a": [1, 1.5, "x", None, True]}, datetime.date(2020, 1, 2), STAMP, b"\x00\xff", float("inf")]
)
def test_values_survive_json(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


# a disk whose power fails


def lose(tmp_path, work, lost):
    """What is left of what was done in a directory, when what was not flushed is lost."""
    recording = power.Recording(tmp_path)
    with recording.running():
        work(tmp_path)
    *_, (_, disk) = recording.replay()
    return disk.after_failure(lost)


def write(path, content, flush):
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, content)
    if flush:
        os.fsync(descriptor)
    os.close(descriptor)


def flush_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    "flush, flush_entry, left",
    [
        (False, False, {"all": {}, "contents": {"f": b""}, "none": {"f": b"1"}}),
        (False, True, {"all": {"f": b""}, "contents": {"f": b""}, "none": {"f": b"1"}}),
        (True, False, {"all": {}, "contents": {"f": b"1"}, "none": {"f": b"1"}}),
        (True, True, {"all": {"f": b"1"}, "contents": {"f": b"1"}, "none": {"f": b"1"}}),
    ],
)
def test_disk_keeps_what_was_flushed(tmp_path, flush, flush_entry, left):
    for lost, expected in left.items():
        root = tmp_path / lost
        root.mkdir()

        def work(root):
            write(root / "t", b"1", flush)
            os.replace(root / "t", root / "f")
            if flush_entry:
                flush_folder(root)

        assert lose(root, work, lost) == expected


def test_disk_brings_back_what_was_deleted(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1")

    def work(root):
        os.unlink(root / "a")
        flush_folder(root)
        os.unlink(root / "b")

    assert lose(tmp_path, work, "all") == {"b": b"1"}


def test_disk_sees_all_that_is_done(tmp_path):
    with pytest.raises(AssertionError, match="behind our back"):
        lose(tmp_path, lambda root: (root / "f").write_bytes(b"1"), "none")
