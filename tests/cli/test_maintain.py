"""index, copy, delete, cleanup, compact, history: effects, confirmations, errors."""

import json
import os
import pickle
import re
import sys
from functools import partial

import pandas as pd
import pytest
from storefact import get_store_from_url

from kartothek_cube.core.cube.discover import discover_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import PublicationWarning
from kartothek_cube.core.pruning import STATISTICS
from kartothek_cube.core.transforms import bucket
from kartothek_cube.io.eager import update_dataset_schema
from kartothek_cube.io.eager_cube import StagedWrite, build_cube, extend_cube, query_cube, rollback_cube
from kartothek_cube.io_components.maintenance import schema_update
from tests.cli.conftest import CUBE, append_cell
from tests.support.cubes import snapshot
from tests.support.paths import files_below


def test_index(ok, error, url):
    assert ok("cube", "index", "enrich", "v*") == "Indexed v2 of enrich: 2 data files read.\n"
    dataset = DatasetMetadata.load_from_store("cube++enrich", url)
    assert "v2" in dataset.indices
    assert dataset.metadata["ktk_cube_is_seed"] is False  # what else is in the header stays
    text = ok("cube", "index", "--statistics", "enrich", "v2")
    assert text == "Statistics of v2 of enrich: 2 data files read.\n"
    assert DatasetMetadata.load_from_store("cube++enrich", url).metadata[STATISTICS] == ["v2"]
    assert ok("cube", "info").count("\nColumn Statistics:\n  - v2: ") == 1
    assert json.loads(ok("cube", "info", "--json"))["datasets"]["enrich"]["statistics"] == ["v2"]
    assert "Partition keys need no index: p" in error("cube", "index", "seed", "p")


@pytest.fixture
def table(tmp_path):
    frame = pd.DataFrame({"x": [1, 2, 3], "p": ["a", "a", "b"], "w": [1.5, 2.5, 3.5]})
    frame.to_parquet(tmp_path / "table", partition_cols=["p"])
    return str(tmp_path / "table")


def test_adopt(ok, error, call, table, url, tmp_path):
    assert ok("cube", "adopt", table, "more") == (
        "Adopted 3 rows as more of cube cube (files: 0 linked, 2 copied, 0 rewritten).\n"
    )
    assert query_cube(CUBE, url)[0]["w"].tolist()[:3] == [1.5, 2.5, 3.5]
    assert "pass --overwrite" in error("cube", "adopt", table, "more")
    asked = call("cube", "adopt", table, "more", "--overwrite", input="n\n")
    assert (asked.exit_code, "Replace more of cube cube?" in asked.stderr) == (1, True)
    # nothing is asked about a table that does not exist
    assert "nosuch" in error("cube", "adopt", "nosuch", "more", "--overwrite")
    staged = ok("cube", "adopt", table, "more", "--overwrite", "--stage", str(tmp_path / "more.staged"))
    assert staged.startswith("<staged: more: ")
    assert "2 linked" in ok("cube", "adopt", table, "more", "--overwrite", "--yes", "--link")


def test_adopt_as_a_new_cube(ok, tmp_path, table):
    options = ["--dimensions", "x", "--partitions", "p", "--index", "w", "--type", "p=string"]
    store = str(tmp_path / "new")
    ok("shops", "adopt", table, "seed", *options, store=store)
    assert "w" in DatasetMetadata.load_from_store("shops++seed", store).indices
    ok("plain", "adopt", table, "seed", "--dimensions", "x", "--partitions", "", store=store)
    assert DatasetMetadata.load_from_store("plain++seed", store).partition_keys == []
    partitions = "p, bucket(4, x)"
    ok("spread", "adopt", table, "seed", "--dimensions", "x", "--partitions", partitions, store=store)
    assert discover_cube("spread", store)[0].transforms == (bucket(4, "x"),)
    assert "\n  - x_bucket: int64, bucket(4, 'x')\n" in ok("spread", "info", store=store)
    rows = ok("shops", "sql", "SELECT p, x FROM shops WHERE w > 3", "-o", "json", store=store)
    assert json.loads(rows) == [{"p": "b", "x": 3}]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["more", "--type", "p"], "--type has the form"),
        (["more", "--type", "p=whole"], "is no type of Arrow"),
        (["seed", "--dimensions", "x"], "needs both --dimensions and --partitions"),
        (["more", "--snapshot", "3"], "has no snapshots"),
        (["more", "--partition-on", ""], "Unspecified but provided partition columns"),
    ],
)
def test_errors_of_adopt(error, table, arguments, text):
    assert text in error("cube", "adopt", table, *arguments)
    assert "Could not load cube" in error("nope", "adopt", table, "more")


def test_a_cube_that_breaks_a_rule_is_verified_and_repaired(ok, call, error, url, monkeypatch):
    """As after two jobs have added a column of the same name at the same time."""

    def add_column(uuid, column):
        with monkeypatch.context() as patch:
            patch.setattr(schema_update, "check_rules", lambda *arguments: None)
            update_dataset_schema(uuid, url, add={column: "string"})

    add_column("cube++seed", "v2")
    assert "present in multiple datasets: v2 in enrich, seed" in error("cube", "query", "--output", "csv")
    assert "payload-overlap" in call("cube", "verify").output
    assert "enrich" in ok("cube", "info")
    ok("cube", "history", "--rollback", "2", "--yes")
    ok("cube", "verify")
    add_column("cube++seed", "v2")
    update_dataset_schema("cube++enrich", url, drop="v2")
    ok("cube", "verify")
    add_column("cube++enrich", "v1")
    ok("cube", "delete", "--include", "enrich", "--yes")
    assert len(query_cube("cube", url)[0]) == 4


def test_copy(ok, error, tmp_path):
    text = ok("cube", "copy", "--tgt_store", "other")
    assert text == "Copied enrich, seed of cube cube to other (4 data files).\n"
    assert files_below(tmp_path / "other") == files_below(tmp_path / "store")
    assert "--overwrite" in error("cube", "copy", "--tgt_store", "other")
    ok("cube", "copy", "--tgt-store", f"hfs://{tmp_path}/new", "--exclude", "enrich")
    names = files_below(tmp_path / "new")
    assert {name.partition(".")[0].partition("/")[0] for name in names} == {"cube++seed"}
    assert "--tgt_store" in error("cube", "copy", "--tgt_store", "dataset")
    assert "identical" in error("cube", "copy", "--tgt_store", "by_url")


@pytest.mark.parametrize("cleanup, kept", [("--cleanup", False), ("--no-cleanup", True)])
def test_copy_over_a_cube(ok, call, tmp_path, cleanup, kept):
    ok("cube", "copy", "--tgt_store", "other")
    ok("cube", "index", "enrich", "v2", store="other")
    before = files_below(tmp_path / "other") - files_below(tmp_path / "store")
    assert any("indices/v2" in name for name in before)
    refused = call("cube", "copy", "--tgt_store", "other", "--overwrite", cleanup, input="n\n")
    assert refused.exit_code == 1
    assert files_below(tmp_path / "other") - files_below(tmp_path / "store") == before
    ok("cube", "copy", "--tgt_store", "other", "--overwrite", cleanup, "--yes")
    assert (files_below(tmp_path / "other") > files_below(tmp_path / "store")) is kept


def test_delete_asks(ok, call, tmp_path):
    before = files_below(tmp_path / "store")
    for answer in ("n\n", "\n", None):
        result = call("cube", "delete", input=answer)
        assert result.exit_code == 1
        assert "enrich, seed; 4 data files" in result.stderr
        assert files_below(tmp_path / "store") == before
    assert "--yes" in call("cube", "delete").stderr
    assert ok("cube", "delete", input="y\n").endswith("Deleted enrich, seed of cube cube (4 data files).\n")
    assert files_below(tmp_path / "store") == set()


def test_delete_of_some(ok, tmp_path, url):
    text = ok("cube", "delete", "--include", "enrich", "-y")
    assert text == "Deleted enrich of cube cube (2 data files).\n"
    assert ok("cube", "delete", "--exclude", "*", "-y") == "No dataset selected, nothing to delete.\n"
    assert not any("enrich" in name for name in files_below(tmp_path / "store"))
    assert len(query_cube(CUBE.copy(index_columns=[]), url)[0]) == 4


def test_a_cube_without_seed(ok, call, error, tmp_path):
    """After only the seed was deleted, the rest can be shown and deleted."""
    assert "without the seed" in call("cube", "delete", "--include", "seed", "-y").stderr
    text = ok("cube", "info")
    assert "Seed Dataset:      none" in text
    assert "  - x: int64\n  - d: unknown\nPartition Columns:\n  - p: string\n" in text
    assert "Dataset: enrich" in text
    for command in (["stats"], ["query", "-o", "csv"], ["copy", "--tgt_store", "other"], ["report"]):
        assert "only info, delete and cleanup work without it" in error("cube", *command)
    verified = call("cube", "verify")
    assert (verified.exit_code, "seed" in verified.stdout) == (3, True)
    (tmp_path / "store" / "cube++seed" / "table").mkdir(parents=True)
    orphan = tmp_path / "store" / "cube++seed" / "table" / "orphan.parquet"
    orphan.write_bytes(b"1")
    ok("cube", "cleanup", "--retention", "0", "-y")
    assert not orphan.exists()
    assert ok("cube", "delete", "-y") == "Deleted enrich of cube cube (2 data files).\n"
    assert files_below(tmp_path / "store") == set()


def test_cleanup_after_an_interrupted_deletion(ok, error, tmp_path):
    """A deletion that was killed leaves files without a header."""
    for name in files_below(tmp_path / "store"):
        if name.endswith("metadata.json"):
            (tmp_path / "store" / name).unlink()
    assert "only orphaned files" in error("cube", "info")
    assert ok("cube", "cleanup", "--retention", "0", "-y").startswith("Deleted ")
    assert files_below(tmp_path / "store") == set()
    assert "Cube cube not found" in error("cube", "info")
    assert "Cube cube not found" in error("cube", "cleanup")


def test_cleanup_deletes_a_dataset_that_a_rollback_has_hidden(ok, url, tmp_path):
    extend_cube({"more": pd.DataFrame({"x": [1], "p": ["a"], "w": [1]})}, CUBE, url)
    rollback_cube(CUBE, url, 2)
    ok("cube", "cleanup", "--retention", "0", "-y")
    assert not [name for name in files_below(tmp_path / "store") if name.startswith("cube++more")]


@pytest.fixture
def garbage(tmp_path):
    """Two orphaned files, one of them older than a day."""
    folder = tmp_path / "store" / "cube++seed" / "table"
    old, young = folder / "p=a" / "old.parquet", folder / "p=a" / "young.parquet"
    for path in (old, young):
        path.write_bytes(b"1234567")
    os.utime(old, (0, 0))
    return {str(path.relative_to(tmp_path / "store")) for path in (old, young)}


def test_cleanup_lists(call, garbage, tmp_path):
    before = files_below(tmp_path / "store")
    result = call("cube", "cleanup", "--dry-run")
    assert result.stdout.splitlines() == [name for name in garbage if "old" in name]
    young = "1 orphaned file (7 B) is younger than 24h and kept."
    assert result.stderr == f"1 orphaned file (7 B) would be deleted.\n{young}\n"
    assert set(call("cube", "cleanup", "--dry-run", "--retention", "0").stdout.splitlines()) == garbage
    assert files_below(tmp_path / "store") == before


def test_cleanup(ok, call, garbage, tmp_path):
    before = files_below(tmp_path / "store")
    assert call("cube", "cleanup", input="n\n").exit_code == 1
    assert files_below(tmp_path / "store") == before
    assert ok("cube", "cleanup", "--yes") == "Deleted 1 orphaned file (7 B) of cube cube.\n"
    assert before - files_below(tmp_path / "store") == {name for name in garbage if "old" in name}
    ok("cube", "cleanup", "--yes", "--retention", "0")
    assert before - files_below(tmp_path / "store") == garbage
    # nothing to do, nothing to ask
    assert ok("cube", "cleanup") == "There are no orphaned files to delete.\n"


@pytest.mark.parametrize("text", ["24", "a day", "-1h", "1h 5min", "", "99999999999d"])
def test_bad_retention(error, text):
    assert "--retention" in error("cube", "cleanup", "--retention", text)


def test_nothing_changes_a_read_only_cube(ok, url):
    before = snapshot(partial(get_store_from_url, url))
    ok("cube", "info")
    ok("cube", "stats")
    ok("cube", "query", "-o", "csv")
    ok("cube", "report", "-o", "-")
    json.loads(ok("cube", "info", "--json"))
    assert snapshot(partial(get_store_from_url, url)) == before


def first(url):
    return query_cube(CUBE, url)[0]["v1"].iloc[0]


def test_compact(ok, url):
    append_cell(url)
    before = query_cube(CUBE, url)[0]
    # both conditions have to hold
    assert "seed: nothing to do" in ok("cube", "compact", "-w", "p == b", "-w", "p == a")
    for options in (["--where", "p == b"], ["--min-files", "3"]):
        counts = json.loads(ok("cube", "compact", "--json", "--include", "seed", *options))
        assert {name: found["partitions"] for name, found in counts.items()} == {"seed": 0}
    text = ok("cube", "compact", "--where", "p == a")
    assert text.splitlines()[0] == "enrich: nothing to do"
    assert text.splitlines()[1].startswith("seed: 1 partition; 2 → 1 file, ")
    assert text.endswith(", 3 → 2 rows\n")
    pd.testing.assert_frame_equal(query_cube(CUBE, url)[0], before)


def test_delete_rows(ok, call, error, url):
    asked = call("cube", "delete-rows", "-w", "v2 == m", input="n\n")
    assert (asked.exit_code, "Delete 1 cell of cube cube (enrich, seed)?" in asked.stderr) == (1, True)
    text = ok("cube", "delete-rows", "--where", "v2 == m", "--yes")
    assert text == "enrich: 1 row deleted in 1 partition\nseed: 1 row deleted in 1 partition\n"
    assert query_cube(CUBE, url)[0]["x"].tolist() == [2, 3, 4]
    for options in ([], ["--where", " "], ["--everything", "--where", "x == 2"]):
        assert "either --where with conditions, or --everything" in error("cube", "delete-rows", *options)
    assert "unknown column y" in error("cube", "delete-rows", "-w", "y == 2", "--yes")
    assert "seed: 0 rows deleted" in ok("cube", "delete-rows", "-w", "x == 99")  # nothing to ask
    counts = json.loads(ok("cube", "delete-rows", "--everything", "--json", "--yes", "--exclude", "enrich"))
    assert counts == {"seed": {"partitions": 2, "rows_deleted": 3}}


def test_staged(ok, error, url, tmp_path):
    def n_rows(*options):
        return len(json.loads(ok("cube", "query", "-o", "json", *options)))

    file, change = str(tmp_path / "deletion"), "1 row in 1 file in place of 1 file"
    summary = f"<staged: enrich: {change}; seed: {change}>"
    ok("cube", "delete-rows", "-w", "v2 == m", "--stage", file)
    assert (n_rows(), n_rows("--as-of", file), ok("cube", "staged", file)) == (4, 3, summary + "\n")
    assert ok("cube", "sql", "SELECT min(x) FROM cube", "-o", "csv", "--as-of", file).split()[1] == "2"
    assert ok("cube", "staged", file, "--discard") == summary + ": discarded\n"
    assert "Files of this commit were deleted" in error("cube", "staged", file, "--publish")
    ok("cube", "delete-rows", "-w", "v2 == m", "--stage", file)
    for _ in range(2):
        assert ok("cube", "staged", file, "--publish") == summary + ": published\n"
    assert n_rows() == 3
    assert "files of it stay" in error("cube", "staged", file, "--discard")
    assert "either --publish or --discard" in error("cube", "staged", file, "--discard", "--publish")


@pytest.mark.parametrize("content", [b"", b"x", pickle.dumps([1]), pickle.dumps(StagedWrite(CUBE, {}))[:-9]])
def test_files_that_are_no_staged_writes(error, tmp_path, content):
    file = tmp_path / "file"
    assert "Cannot read" in error("cube", "staged", str(file))
    file.write_bytes(content)
    for command in (["staged", str(file)], ["query", "--as-of", str(file)]):
        assert "is no staged write: pass a file of --stage" in error("cube", *command)
    file.write_bytes(pickle.dumps(StagedWrite(CUBE.copy(uuid_prefix="other"), {})))
    for command in (["staged", str(file)], ["query", "--as-of", str(file)]):
        assert "is no write to cube" in error("cube", *command)


def test_publish(ok, call, error, url, tmp_path):
    assert "Published" not in ok("cube", "info")
    assert ok("cube", "publish", "--include", "seed") == "seed: version 0, 2 files (2 added, 0 removed)\n"
    assert json.loads(ok("cube", "publish", "--json"))["enrich"]["version"] == 0
    assert ok("cube", "publish").splitlines()[1] == "seed: version 0, 2 files (nothing changed)"
    assert ok("cube", "info").count("Published: Delta table, version 0\n") == 2
    append_cell(url)
    assert "Published: Delta table, version 0, of an older state\n" in ok("cube", "info")
    assert "cube++seed: publication: " in call("cube", "verify").output
    assert "compact the cube first" in error("cube", "publish")
    text = ok("cube", "publish", "--compact", "--exclude", "enrich")
    assert text == "seed: version 1, 2 files (1 added, 1 removed)\n"
    (tmp_path / "store/cube++seed/_delta_log" / f"{1:020d}.json").write_text("{")
    assert "Published: Delta table with a damaged log (see verify)\n" in ok("cube", "info")


def test_publish_on_commit(ok, url):
    ok("cube", "publish", "--on-commit", "--include", "seed")
    assert "Published: Delta table, version 0, by each commit\n" in ok("cube", "info")
    with pytest.warns(PublicationWarning, match="newer version"):
        append_cell(url)
    ok("cube", "compact")
    assert "Published: Delta table, version 1, by each commit\n" in ok("cube", "info")
    ok("cube", "publish", "--not-on-commit")
    assert "by each commit" not in ok("cube", "info")


def test_unpublish(ok, call, url, tmp_path):
    ok("cube", "publish", "--include", "seed")
    asked = call("cube", "unpublish", input="n")
    assert (asked.exit_code, "Unpublish seed of cube cube?" in asked.stderr) == (1, True)
    assert "Published: " in ok("cube", "info")
    assert ok("cube", "unpublish", "--yes").splitlines() == ["enrich: was not published", "seed: unpublished"]
    # nothing is left to be confirmed
    assert ok("cube", "unpublish").splitlines() == ["enrich: was not published", "seed: was not published"]
    assert "Published: " not in ok("cube", "info")


def test_history(ok, call, error, url):
    ok("cube", "history", "--keep", "5")
    state = json.loads(ok("cube", "history", "--json"))[-1]
    time, version = state["time"], state["version"]
    token = json.loads(ok("cube", "changes", "--json"))["token"]
    append_cell(url)
    ok("cube", "index", "seed", "v1")  # the older state lacks it
    assert first(url) == 9.5
    text = ok("cube", "history")
    assert [line.split()[4] for line in text.splitlines()[-2:]] == ["append", "build_index"]
    assert "(current)" in text.splitlines()[-1]
    assert '"v1":0.5' in ok("cube", "query", "--as-of", f"{time[:26]} UTC", "-n", "1", "-o", "json")
    assert '"v1":0.5' in ok("cube", "query", "--as-of", time, "-n", "1", "-o", "json")
    assert '"v1":0.5' in ok("cube", "query", "--as-of", str(version), "-n", "1", "-o", "json")
    assert '"v1":9.5' in ok("cube", "query", "-n", "1", "-o", "json")
    assert call("cube", "history", "--rollback", time, input="n\n").exit_code == 1
    assert first(url) == 9.5
    ok("cube", "history", "--rollback", str(version), "--include", "seed", "--yes")
    assert first(url) == 0.5
    append_cell(url, v1=7.5)
    ok("cube", "history", "--rollback", token, "--yes")
    assert first(url) == 0.5
    text = error("cube", "history", "--rollback", "12345")  # before it asks
    assert "no state as of 12345" in text
    # names commands, no functions
    assert not re.search("[a-z]+_[a-z]+", text)
    assert call("cube", "query", "--as-of", "1999-01-01", "-o", "csv").exit_code == 2
    text = error("cube", "query", "--as-of", "yesterday")
    assert "--as-of 'yesterday': expected a version, a token, or a time" in text
    assert "--rollback 'yesterday'" in error("cube", "history", "--rollback", "yesterday", "-y")


def test_history_of_some_datasets(ok, error, url):
    ok("cube", "history", "--keep", "5")
    append_cell(url)
    seed, enrich = (json.loads(ok("cube", "history", "--json", "--include", n)) for n in ("seed", "enrich"))
    assert seed[-1]["operation"] == "append"
    assert len(enrich) == len(seed) - 1
    assert "append" not in ok("cube", "history", "--exclude", "seed")
    version = json.loads(ok("cube", "history", "--json"))[-1]["version"]
    assert "nothing to undo" in error("cube", "history", "--rollback", str(version))
    assert ok("cube", "history").count("(current)") == 1


@pytest.mark.parametrize("store", ["./store", "store/", "file://{}/store", "hfs://{}/store", "by_url"])
def test_a_copy_onto_itself_deletes_nothing(ok, error, tmp_path, monkeypatch, store):
    """Also if the store has two names."""
    monkeypatch.chdir(tmp_path)
    before = files_below(tmp_path / "store")
    target = store.format(tmp_path)
    assert "two different stores" in error("cube", "copy", "--tgt_store", target, "--overwrite", "-y")
    assert files_below(tmp_path / "store") == before
    ok("cube", "verify")


def test_a_copy_that_cannot_start_deletes_nothing(ok, error, tmp_path):
    """The seed of the target does not fit the dataset that stays there."""
    target = f"hfs://{tmp_path}/other?create_if_missing=true"
    other = pd.DataFrame({"x": [1], "d": pd.to_datetime(["2020-01-01"]), "p": ["a"], "v2": ["conflict"]})
    replaced = pd.DataFrame({"x": [1], "p": ["a"], "w": [1]})
    build_cube({"seed": other, "enrich": replaced}, CUBE.copy(index_columns=[]), target)
    before = files_below(tmp_path / "other")
    copy = ("cube", "copy", "--tgt_store", "other", "--include", "enrich", "--overwrite", "-y")
    assert "v2" in error(*copy)
    assert files_below(tmp_path / "other") == before


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "jobs.py").write_text(
        "def double(df):\n    return df[['x', 'p']].assign(twice=2 * df['v1'])\n\n\nnumber = 5\n"
        "def divide(df):\n    return df[['x', 'p']].assign(n=number // (df['p'].iloc[0] != 'b'))\n"
    )
    (tmp_path / "unfinished.py").write_text("number = undefined\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "jobs", raising=False)


def test_compute_changes_and_lineage(ok, error, url, module):
    double = ("cube", "compute", "jobs:double", "doubled")
    assert ok(*double, "--columns", "v1").startswith("computed: 4 rows in 2")
    token = ok("cube", "changes").splitlines()[-1].removeprefix("token: ")
    assert json.loads(ok("cube", "changes", "--since", token, "--json")) == {"partitions": [], "token": token}
    append_cell(url)
    changed = json.loads(ok("cube", "changes", "--since", token, "--json"))
    assert [(row["dataset"], row["change"]) for row in changed["partitions"]] == [("seed", "changed")]
    others = json.loads(ok("cube", "changes", "--since", token, "--exclude", "seed", "--json"))
    assert others["partitions"] == []
    assert "changed" in ok("cube", "changes", "--since", token)
    rows = json.loads(ok("cube", "query", "--since", token, "--output", "json", "--columns", "v1"))
    assert {row["p"] for row in rows} == {row["p"] for row in changed["partitions"]}
    for command in ("query", "changes"):
        assert "Invalid --since 'yesterday'" in error("cube", command, "--since", "yesterday")
    assert "is no token" in error("cube", "changes", "--since", "seed@x")
    stale = r"doubled: version 1; compute from enrich .*; stale: seed changed\n"
    assert re.search(stale, ok("cube", "lineage"))
    assert ok(*double, "-c", "v1").startswith("computed: ")
    assert re.search(r"doubled: .*; up to date\n", ok("cube", "lineage"))
    assert len(json.loads(ok("cube", "lineage", "--openlineage"))) == 6
    assert " from enrich " in ok("cube", "history")
    assert "computed: 2 rows" in ok(*double, "--everything", "-w", "p = a")
    assert ok(*double, "--everything", "--stage", "computed.staged").startswith("<staged: doubled:")
    assert ok("cube", "staged", "computed.staged", "--publish").endswith(": published\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("jobs", "doubled"), "expected MODULE:FUNCTION"),
        (("jobs:number", "doubled"), "'jobs:number' is no function"),
        (("jobs:nothing", "doubled"), "module 'jobs' has no attribute 'nothing'"),
        (("no_jobs:f", "doubled"), "No module named 'no_jobs'"),
        (("jobs:double", "seed"), "into is 'seed', the seed"),
        (("unfinished:f", "doubled"), "NameError: name 'undefined' is not defined"),
        (("jobs:divide", "doubled"), "Function divide failed for p='b': ZeroDivisionError: "),
    ],
)
def test_compute_tells_what_is_wrong(error, module, arguments, message):
    assert message in error("cube", "compute", *arguments)
