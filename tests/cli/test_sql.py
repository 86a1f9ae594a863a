"""sql: statements, output formats, time travel, the prompt."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pyarrow.parquet as pq
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube, keep_cube_history
from tests.cli.conftest import CUBE, Dialogue, append_cell


def test_tables_and_statements_from_stdin(ok):
    text = ok("cube", "sql", "SELECT x, v1, v2 FROM cube WHERE x < 3 ORDER BY x")
    assert text == "x   v1  v2\n1  0.5  m\n2  1.5  n\n"
    assert ok("cube", "sql", "-", "-o", "csv", input="SELECT max(x) AS x FROM cube;\n") == '"x"\n4\n'
    assert ok("cube", "sql", "-o", "csv", input="SELECT max(x) AS x FROM cube") == '"x"\n4\n'
    assert ok("--n_threads", "1", "cube", "sql", "SELECT count(*) AS n FROM cube", "-o", "csv") == '"n"\n4\n'


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("SELECT count(*) AS n FROM cube", [{"n": 4}]),
        ('SELECT s.x FROM "cube"."seed" s ANTI JOIN cube.enrich e USING (x, p)', [{"x": 4}]),
        ("SELECT 1 AS a WHERE false", []),
    ],
)
def test_json(ok, statement, expected):
    assert json.loads(ok("cube", "sql", statement, "-o", "json")) == expected


def test_types_that_arrow_does_not_have(ok):
    """DuckDB would change their values without an error."""
    statement = (
        "SELECT 7 AS a, 340282366920938463463374607431768211455::UHUGEINT AS a, '12:00:00+02'::TIMETZ AS "
        "\"t\"\"z\", '101'::BIT AS b, '1234567890123456789012345678901234567890'::BIGNUM AS n"
    )
    assert ok("cube", "sql", statement, "-o", "csv").splitlines() == [
        '"a","a","t""z","b","n"',
        '7,"340282366920938463463374607431768211455","12:00:00+02","101",'
        '"1234567890123456789012345678901234567890"',
    ]


def test_files(ok, tmp_path):
    path = tmp_path / "rows.parquet"
    ok("cube", "sql", "SELECT x, d FROM cube ORDER BY x", "--to", str(path))
    assert pq.read_table(path)["x"].to_pylist() == [1, 2, 3, 4]
    path = tmp_path / "rows.csv"
    ok("cube", "sql", "SELECT x, d FROM cube ORDER BY x LIMIT 1", "--to", str(path))
    assert path.read_text() == '"x","d"\n1,2020-01-01 00:00:00\n'


def test_as_of(ok, url):
    keep_cube_history(CUBE, url, 5)
    version = json.loads(ok("cube", "history", "--json"))[-1]["version"]
    append_cell(url, 9, "c")
    count = ["sql", "SELECT count(*) AS n FROM cube", "-o", "csv"]
    assert ok("cube", *count) == '"n"\n5\n'
    assert ok("cube", *count, "--as-of", str(version)) == '"n"\n4\n'


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["SELECT nope FROM cube"], "nope"),
        (["SELEC 1"], "syntax error"),
        (["SELECT * FROM cube.nope"], "nope"),
        ([" ; "], "There is no statement"),
        (["SELECT 1", "--to", "a.b"], "Cannot derive the format"),
        (["SELECT 1", "--as-of", "yesterday"], "Invalid --as-of"),
    ],
)
def test_errors(error, arguments, text):
    assert text in error("cube", "sql", *arguments)


def test_all_cubes_of_a_store(ok, error, call, url, tmp_path):
    """With a store in place of the cube, or none; a cube that cannot be loaded is left out."""
    shops = Cube(["x"], ["p"], "shops")
    build_cube(pd.DataFrame({"x": [1, 3], "p": ["a", "b"], "name": ["A", "C"]}), shops, url)
    statement = "SELECT name FROM shops JOIN cube.seed USING (x, p) WHERE v1 > 1"
    expected = '"name"\n"C"\n'
    assert ok(str(tmp_path / "store"), "sql", statement, "-o", "csv", store="nowhere") == expected
    assert ok(url, "sql", "SELECT 1 AS a", "-o", "csv", store="nowhere") == '"a"\n1\n'
    assert ok("sql", statement, "-o", "csv") == expected
    assert ok("sql", "-o", "csv", input=statement) == expected
    assert "cube" in ok(str(tmp_path / "store"), "ls", store="nowhere")
    assert "is a store: pass it by --store" in error(str(tmp_path / "store"), "info")
    assert "--as-of needs a cube" in error("sql", statement, "--as-of", "1")
    for path in (tmp_path / "store").glob("cube++seed.by-*"):
        path.unlink()
    result = call("sql", "SELECT count(*) AS n FROM shops", "-o", "csv")
    assert (result.exit_code, result.stdout) == (0, '"n"\n2\n')
    assert "Cube cube is left out: " in result.stderr
    build_cube(pd.DataFrame({"x": [1], "p": ["a"]}), Cube(["x"], ["p"], "temp"), url)
    result = call("sql", "SELECT count(*) AS n FROM shops", "-o", "csv")
    assert (result.exit_code, result.stdout) == (0, '"n"\n2\n')
    assert "Cube temp is left out: Cube 'temp' cannot be opened in SQL" in result.stderr
    (tmp_path / "empty").mkdir()
    assert "has no cubes" in error(str(tmp_path / "empty"), "sql", "SELECT 1")


def test_a_cube_that_is_called_sql(ok, url):
    build_cube(pd.DataFrame({"x": [1], "p": ["a"]}), Cube(["x"], ["p"], "sql"), url)
    assert ok("sql", "sql", "SELECT x FROM sql", "-o", "csv") == '"x"\n1\n'
    assert "x" in ok("sql", "info")


def test_error_in_a_scan(error, url, tmp_path):
    next((tmp_path / "store").glob("cube++seed/table/p=a/*.parquet")).unlink()
    assert "p=a" in error("cube", "sql", "SELECT sum(v1) FROM cube")


def test_what_is_missing_is_explained(error, monkeypatch):
    Dialogue(monkeypatch)
    monkeypatch.setitem(sys.modules, "prompt_toolkit.history", None)
    assert "This command needs prompt_toolkit: pip install" in error("cube", "sql")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "pip install 'kartothek_cube[sql]'" in error("cube", "sql", "SELECT 1")


def test_prompt(call, monkeypatch):
    lines = ["", "SELECT x", "FROM cube WHERE x > 3;", "SELECT nope FROM cube;", "SELECT 7 AS y;"]
    dialogue = Dialogue(monkeypatch, *lines)
    result = call("cube", "sql")
    assert result.exit_code == 0
    assert result.stdout == "x\n4\ny\n7\n"
    assert "Views: cube, cube.enrich, cube.seed" in result.stderr
    assert "Error: " in result.stderr
    assert "nope" in result.stderr
    assert dialogue.arguments("title") == ["sql> ", "sql> ", "...> ", "sql> ", "sql> ", "sql> "]
    assert {"cube.seed", "v1", "SELECT"} <= set(dialogue.arguments("completer")[-1].words)
    # the arrow keys recall lines of earlier prompts
    assert len(set(dialogue.arguments("history"))) == 1


def test_a_plan_is_shown_as_it_is_drawn(ok):
    lines = ok("cube", "sql", "EXPLAIN SELECT x FROM cube WHERE x > 1").splitlines()
    assert len(lines) > 5 and any("Filters" in line for line in lines)


def test_control_c_ends_a_statement(url):
    statement = "SELECT count(*) FROM range(100000000000) r WHERE hash(r.range) % 3 = 0"
    command = [sys.executable, "-m", "kartothek_cube", "--store", url, "cube", "sql", statement]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # the imports end before DuckDB's threads begin
        deadline = time.monotonic() + 60
        while len(os.listdir(f"/proc/{process.pid}/task")) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        try:
            _, text = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, text.strip()) == (1, "Aborted!")
