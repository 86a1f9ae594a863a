"""verify, compact, history: the command line of what io.eager_cube does."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from kartothek_cube.io.eager_cube import append_to_cube, query_cube
from tests.cli.conftest import CUBE


def append(url, value):
    """Hide the first cell by another one."""
    frame = pd.DataFrame({"x": [1], "d": pd.to_datetime(["2020-01-01"]), "p": ["a"], "v1": [value]})
    append_to_cube(frame, CUBE, url)


def first(url):
    """Give the value of the first cell."""
    return query_cube(CUBE, url)[0]["v1"].iloc[0]


def test_verify(ok):
    assert ok("cube", "verify").startswith("no problems in 2 datasets, 4 files, ")
    assert json.loads(ok("cube", "verify", "--json", "--quick"))["ok"] is True


def test_verify_finds_damage(call, ok, tmp_path):
    (index,) = (tmp_path / "store" / "cube++enrich" / "indices" / "i1").iterdir()
    index.unlink()
    result = call("cube", "verify")
    assert result.exit_code == 3
    assert "cube++enrich: missing-index" in result.stdout
    assert result.stderr == ""
    assert call("cube", "verify", "--json").exit_code == 3
    ok("cube", "verify", "--include", "seed")
    assert "repaired: cube++enrich" in ok("cube", "verify", "--repair")
    ok("cube", "verify")


def test_verify_of_a_cube_that_cannot_be_loaded(call, error, tmp_path):
    (tmp_path / "store" / "cube++seed.by-dataset-metadata.json").unlink()
    result = call("cube", "verify")
    assert result.exit_code == 3
    assert "seed" in result.stdout
    assert "unknown cube nope" in error("nope", "verify")


def test_compact(ok, url):
    append(url, 9.5)
    before = query_cube(CUBE, url)[0]
    text = ok("cube", "compact")
    assert text.splitlines()[0] == "enrich: nothing to do"
    assert text.splitlines()[1].startswith("seed: 1 partitions; 2 → 1 files, ")
    assert text.endswith(", 3 → 2 rows\n")
    pd.testing.assert_frame_equal(query_cube(CUBE, url)[0], before)


@pytest.mark.parametrize(
    "options, partitions",
    [([], 1), (["--where", "p == b"], 0), (["--where", "p == a"], 1), (["--min-files", "3"], 0)],
)
def test_compact_some(ok, url, options, partitions):
    append(url, 9.5)
    counts = json.loads(ok("cube", "compact", "--json", "--include", "seed", *options))
    assert counts["seed"]["partitions"] == partitions


def test_history(ok, call, error, url):
    ok("cube", "history", "--keep", "5")
    time = json.loads(ok("cube", "history", "--json"))["seed"][-1]["time"]
    version = json.loads(ok("cube", "history", "--json"))["seed"][-1]["version"]
    append(url, 9.5)
    ok("cube", "index", "seed", "v1")  # the older state lacks it
    assert first(url) == 9.5
    text = ok("cube", "history", "--include", "seed")
    assert text.splitlines()[0] == "seed"
    assert text.splitlines()[-1].endswith("  current")
    assert '"v1":0.5' in ok("cube", "query", "--as-of", time, "-n", "1", "-o", "json")
    assert '"v1":9.5' in ok("cube", "query", "-n", "1", "-o", "json")
    assert call("cube", "history", "--rollback", time, input="n\n").exit_code == 1
    assert first(url) == 9.5
    ok("cube", "history", "--rollback", str(version), "--include", "seed", "--yes")
    assert first(url) == 0.5
    assert "--include" in error("cube", "history", "--rollback", str(version), "--yes")
    assert call("cube", "query", "--as-of", "1999-01-01", "-o", "csv").exit_code == 2
