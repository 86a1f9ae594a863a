"""info, stats, ls, verify: text (which users parse) and JSON; exit codes, repair."""

import json
import re

import pandas as pd

from kartothek_cube.core.cube.consistency import cube_metadata
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager import store_dataframes_as_dataset
from kartothek_cube.io.eager_cube import build_cube, collect_stats
from tests.cli.conftest import CUBE, append_cell

INFO = """\
Infos
UUID Prefix:        cube
Dimension Columns:
  - x: int64
  - d: timestamp[ns]
Partition Columns:
  - p: string
Index Columns:
  - i1: bool
Seed Dataset:      seed

Dataset: enrich
Partition Keys:
  - p: string
Partitions: 2
Metadata:
  {
"""
PAYLOAD = """\
  }
Dimension Columns:
  - x: int64
Payload Columns:
  - i1: bool
  - v2: string

Dataset: seed
"""


def test_info(ok):
    text = ok("cube", "info")
    assert text.startswith(INFO)
    assert PAYLOAD in text
    assert "ktk_" not in text
    assert "klee_" not in text
    assert re.search(r'"creation_time": "[-0-9T:.]+\+00:00"', text)
    content = json.loads(ok("cube", "info", "--json"))
    assert content["dimension_columns"] == ["x", "d"]
    assert content["datasets"]["enrich"]["payload_columns"] == {"i1": "bool", "v2": "string"}
    assert content["datasets"]["seed"]["partitions"] == 2
    assert "seed" not in ok("cube", "stats", "--include", "en*, seed", "--exclude", "s?ed")
    assert list(json.loads(ok("cube", "stats", "--json", "--include", "seed"))["datasets"]) == ["seed"]


def test_info_shows_no_internal_columns(tmp_path, ok):
    """A dataset that kartothek wrote from a frame with an index of its own stores it as a column."""
    store = f"hfs://{tmp_path}/store"
    frame = pd.DataFrame({"x": [1, 2], "p": [1, 1], "__index_level_0__": [7, 8]})
    cube = Cube(["x"], ["p"], "indexed")
    options = {"partition_on": ["p"], "secondary_indices": ["x"], "metadata": cube_metadata(cube, "seed")}
    store_dataframes_as_dataset(store, "indexed++seed", [frame], **options)
    plain = frame.assign(v=1).drop(columns="__index_level_0__").set_index("v", drop=False).rename_axis(None)
    build_cube(plain, Cube(["x"], ["p"], "plain"), store)
    # as kartothek wrote cubes before version 3
    old = Cube(["x"], ["p"], "old")
    timed = frame.rename(columns={"__index_level_0__": "KLEE_TS"})
    metadata = cube_metadata(old, "seed")
    store_dataframes_as_dataset(store, "old++seed", [timed], **options | {"metadata": metadata})
    described = json.loads(ok("old", "info", "--json"))["datasets"]["seed"]
    assert (described["dimension_columns"], described["payload_columns"]) == ({"x": "int64"}, {})
    for cube in ("indexed", "plain"):
        for options in ([], ["--json"]):
            assert "index_level" not in ok(cube, "info", *options)
    assert "index_level" not in ok("indexed", "report", "-o", "-")


def test_stats(ok, url):
    size = collect_stats(CUBE, url)
    text = ok("cube", "stats")
    enrich, seed = (size[name]["blobsize"] for name in ("enrich", "seed"))
    total = enrich + seed
    assert text.startswith(f"enrich\nblobsize:  {enrich:,}\nfiles:  2\npartitions:  2\nrows:  3\n\nseed\n")
    assert text.endswith(f"\n\n__total__\nblobsize:  {total:,}\nfiles:  4\n")
    assert ok("cube", "verify").startswith("no problems in 2 datasets, 4 files, ")
    # not the files, of which a partition may have several
    append_cell(url)
    seed = json.loads(ok("cube", "info", "--json"))["datasets"]["seed"]
    counted = json.loads(ok("cube", "stats", "--json"))["datasets"]["seed"]
    assert (seed["partitions"], seed["files"]) == (counted["partitions"], counted["files"]) == (2, 3)
    assert ok("cube", "info").partition("Dataset: seed")[2].count("Partitions: 2\n") == 1
    assert json.loads(ok("cube", "verify", "--json", "--quick"))["ok"] is True


def test_ls(ok, call, error, tmp_path):
    assert ok("ls") == "cube  enrich, seed\n"
    assert json.loads(ok("ls", "--json")) == {"cube": ["enrich", "seed"]}
    (tmp_path / "other").mkdir()
    result = call("ls", store="other")
    assert (result.stdout, result.exit_code) == ("", 0)
    for command in ("ls", "verify"):
        assert "Cube nope not found" in error("nope", command)


def test_a_cube_may_be_called_ls_and_have_no_index(tmp_path, ok):
    build_cube(pd.DataFrame({"x": [1], "p": [1]}), Cube(["x"], ["p"], "ls"), f"hfs://{tmp_path}/store")
    text = ok("ls", "info")
    assert "UUID Prefix:        ls\n" in text and "Index Columns:\n\nSeed Dataset:      seed\n" in text


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
