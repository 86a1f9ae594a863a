"""What a user sees of long commands: a bar that moves, and the first rows, in a real pseudo-terminal."""

import re
from functools import partial

import pandas as pd
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import append_to_cube, build_cube
from tests.support.terminal import run_in_terminal, text_of

pytestmark = pytest.mark.slow("commands on a slow store")

CUBE = Cube(["x"], ["p"], "cube")
#: the command on a store where each request takes 30 ms
SLOW = """
import time
from kartothek_cube.cli import cli
from kartothek_cube.core.store.local import LocalBlobStore

def slow(function):
    def call(*args, **kwargs):
        time.sleep(0.03)
        return function(*args, **kwargs)
    return call

for name in ("get", "size", "put"):
    setattr(LocalBlobStore, name, slow(getattr(LocalBlobStore, name)))
cli()
"""


run_slow = partial(run_in_terminal, terminal="stderr", command=("-c", SLOW))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A cube of two datasets with 30 partitions, half of which have two files."""
    directory = tmp_path_factory.mktemp("store")
    cells = pd.DataFrame({"x": range(30), "p": range(30)})
    build_cube({"seed": cells.assign(v=1), "extra": cells.assign(w=1)}, CUBE, directory)
    append_to_cube(cells[:15].assign(v=2), CUBE, directory)
    return str(directory)


COMMANDS = {
    "query": ["query", "-o", "csv"],
    "query a table": ["query", "-o", "table"],
    "verify": ["verify"],
    "compact": ["compact"],
}


@pytest.mark.parametrize("options", [*COMMANDS.values(), ["copy", "--tgt_store"]], ids=[*COMMANDS, "copy"])
def test_the_bar_moves(directory, tmp_path, options):
    target = [str(tmp_path / "target")] if options[-1] == "--tgt_store" else []
    _, screen = run_slow("--store", directory, "-j", "1", "cube", *options, *target)
    text = text_of(screen)
    counts = [int(n.replace(",", "")) for n in re.findall(r"\| +(\d+)/\d+ files", text)]
    assert len(set(counts)) >= 5 and counts == sorted(counts)
    totals = {int(n) for n in re.findall(r"/(\d+) files", text)}
    assert max(counts) <= max(totals)
    if options[0] in ("query", "verify"):
        assert len(totals) == 1, "the number of files is known from the beginning"
    assert len(set(re.findall(r"\[(\d\d:\d\d)<", text))) >= 2, "the time moves"


def test_the_first_rows_of_a_csv_come_long_before_the_last(directory):
    rows, _ = run_slow("--store", directory, "-j", "1", "cube", "query", "-o", "csv")
    assert sum(part.count(b"\n") for _, part in rows) == 31
    assert rows[0][1].count(b"\n") < 10
    assert rows[-1][0] - rows[0][0] > 1
