"""query: conditions, columns, groups, output formats, interactive queries."""

import io
import json

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube, query_cube
from kartothek_cube.io_components.query import executor
from tests.cli.conftest import CUBE, Dialogue, append_cell

TABLE = """\
d           i1     p   v1  v2  x
2020-01-01  true   a  0.5  m   1
2020-01-02  false  a  1.5  n   2
2020-01-01  true   b  2.5      3
2020-01-02         b           4
"""


def test_table_and_csv(ok):
    assert ok("cube", "query", "-o", "table") == TABLE
    assert ok("cube", "query", "--columns", "__all__", "-n", "1") == (
        "d           i1    p   v1  v2  x\n2020-01-01  true  a  0.5  m   1\n"
    )
    assert ok("cube", "query", "-o", "csv", "--where", "x > 2") == (
        '"d","i1","p","v1","v2","x"\n2020-01-01 00:00:00,true,"b",2.5,,3\n2020-01-02 00:00:00,,"b",,,4\n'
    )
    assert ok("cube", "query", "-o", "csv", "--where", "x > 9") == '"d","i1","p","v1","v2","x"\n'
    assert ok("cube", "query") == ok("cube", "query", "--columns", "__all__")


@pytest.mark.parametrize(
    "where, expected",
    [
        (["x > 2"], [3, 4]),
        (["x > 1 & p == a"], [2]),
        (["x > 1", "p=a"], [2]),
        (["x > 9"], []),
        ([""], [1, 2, 3, 4]),
    ],
)
def test_where(ok, where, expected):
    options = [part for text in where for part in ("--where", text)]
    assert [row["x"] for row in json.loads(ok("cube", "query", "-o", "json", *options))] == expected


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--columns", "v1"], ["d", "p", "v1", "x"]),
        (["--columns", "v*, i1"], ["d", "i1", "p", "v1", "v2", "x"]),
        (["--columns", ""], ["d", "p", "x"]),
        (["--dimensions", "x", "--columns", ""], ["p", "x"]),
        (["--include", "seed"], ["d", "p", "v1", "x"]),
        (["--partition-by", "i1", "--columns", ""], ["d", "i1", "p", "x"]),
    ],
)
def test_columns(ok, options, expected):
    assert sorted(json.loads(ok("cube", "query", "-o", "json", *options))[0]) == expected


def test_limit_stops_reading(ok, monkeypatch):
    n_files, run_task = [], executor.run_task

    def spy(context, task, *args):
        n_files.append(len(task.scanned[0]))
        return run_task(context, task, *args)

    monkeypatch.setattr(executor, "run_task", spy)
    assert len(json.loads(ok("cube", "query", "-o", "json", "--limit", "1"))) == 1
    assert n_files == [1]
    n_files.clear()
    assert len(json.loads(ok("cube", "query", "-o", "json"))) > 1
    assert sum(n_files) > 1


def test_times_have_one_format_in_all_partitions(ok, url):
    append_cell(url, 5, "c", time="2020-01-01 05:00")
    lines = ok("cube", "query", "-o", "csv", "--columns", "v1").splitlines()[1:]
    assert {len(line.split(",")[0]) for line in lines} == {len("2020-01-01 05:00:00")}


def test_the_first_rows_are_written_before_other_partitions_are_read(ok, url, monkeypatch):
    append_cell(url, 5, "c")
    events, run_task, write_csv = [], executor.run_task, pyarrow.csv.write_csv

    def read(context, task, *args):
        events.append("read")
        return run_task(context, task, *args)

    def write(*args):
        events.append("write")
        write_csv(*args)

    monkeypatch.setattr(executor, "run_task", read)
    monkeypatch.setattr(pyarrow.csv, "write_csv", write)
    lines = ok("cube", "query", "-o", "csv", "--columns", "v1").splitlines()
    assert events[:2] == ["read", "write"] and events.count("read") == events.count("write") == 3
    assert lines[0] == '"d","p","v1","x"' and [line.split(",")[-1] for line in lines[1:]] == list("12345")
    events.clear()
    ok("cube", "query", "-o", "csv", "--dimensions", "d,x")
    assert events == ["read", "write"], "rows that are sorted as a whole are read at once"


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--where", "x > one"], "'one' does not fit"),
        (["--where", "x >"], "condition"),
        # one by one
        (["--where", "v2 == 'm", "--where", "p == 'a'"], "unbalanced quote"),
        (["--partition-by", "v1"], "not indexed"),
        (["--dimensions", "v1"], "v1"),
        (["--include", "enrich"], "seed"),
        (["--to", "/nowhere/at/all.csv"], "Cannot write"),
        (["--to", "", "-o", "csv"], "The output file has no name"),
        (["--dimensions", "x"], "Cannot project"),
    ],
)
def test_refused(error, options, expected):
    assert expected in error("cube", "query", *options)


@pytest.mark.parametrize("output", ["table", "csv"])
def test_a_limit_may_be_larger_than_any_integer_of_arrow(ok, output):
    everything = ok("cube", "query", "-o", output, "--dimensions", "d,x")
    assert ok("cube", "query", "-o", output, "--dimensions", "d,x", "-n", str(2**70)) == everything


@pytest.mark.parametrize("where", ["x > 0", "x > 9"])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_binary(call, url, form, where):
    """The output is the result of the query, also when it is written to a pipe."""
    result = call("cube", "query", "-o", form, "--where", where)
    assert result.exit_code == 0
    data = io.BytesIO(result.stdout_bytes)
    table = pq.read_table(data) if form == "parquet" else pa.ipc.open_stream(data).read_all()
    frames = query_cube(CUBE, url, conditions=C("x") > int(where[-1]))
    if frames:
        pd.testing.assert_frame_equal(table.to_pandas(), frames[0], check_dtype=False)
    else:
        assert (len(table), table.column_names) == (0, ["d", "i1", "p", "v1", "v2", "x"])


def test_json_of_everything(ok, tmp_path):
    frame = pd.DataFrame({"x": [1, 2], "p": "ä", "v1": [[1, 2], None], "v3": ['a"b\n', "\x1b[31m"]})
    frame["\x1b[32m"] = 1
    frame["v2"] = pd.to_datetime(["2020-01-01 01:02:03.000004", None])
    build_cube(frame, Cube(["x"], ["p"], "odd"), f"hfs://{tmp_path}/store")
    assert json.loads(ok("odd", "query", "-o", "json")) == [
        {"\x1b[32m": 1, "p": "ä", "v1": [1, 2], "v2": "2020-01-01T01:02:03.000004", "v3": 'a"b\n', "x": 1},
        {"\x1b[32m": 1, "p": "ä", "v1": None, "v2": None, "v3": "\x1b[31m", "x": 2},
    ]
    assert json.loads(ok("odd", "query", "-o", "json", "--where", "x > 9")) == []
    assert r"  - \x1b[32m: int64" in ok("odd", "info")
    table = ok("odd", "query", "-o", "table")
    assert "\x1b" not in table
    assert r"\x1b[31m" in table
    assert len(table.splitlines()) == 3
    assert "[1, 2]" in ok("odd", "query", "-o", "csv")


@pytest.mark.parametrize("output", ["csv", "json", "table"])
def test_bytes_are_hexadecimal(ok, tmp_path, output):
    frame = pd.DataFrame({"x": [1, 2], "p": "a", "v": [b"a\xff", None]})
    build_cube(frame, Cube(["x"], ["p"], "odd"), f"hfs://{tmp_path}/store")
    assert "61ff" in ok("odd", "query", "-o", output)


def test_explain(ok):
    text = ok("cube", "query", "--explain", "--where", "p == a & i1 == true")
    assert "enrich   i1 == True  index" in text
    assert "restricted" in text
    assert "at most 1 row" in ok("cube", "query", "--explain", "--limit", "1")
    content = json.loads(ok("cube", "query", "--explain", "-o", "json", "--where", "p == a"))
    assert content["read_files"] == 2
    expected = {"condition": "p == a", "by": "partition key", "kept": 1, "pruned": 1}
    assert content["datasets"][0]["conditions"] == [expected]


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr("kartothek_cube.cli.context.is_interactive", lambda: True)


def test_interactive(call, monkeypatch):
    dialogue, frames = Dialogue(monkeypatch, "x > 2", "v1", "x > 9", "__all__", "", ""), []
    monkeypatch.setattr("kartothek_cube.cli.query._make_shell", lambda: frames.append)
    result = call("cube", "query")
    assert result.exit_code == 1
    assert "No rows." in result.stdout
    assert [list(frame.columns) for frame in frames] == [["d", "p", "v1", "x"], ["d", "p", "x"]]
    assert [len(frame) for frame in frames] == [2, 4]
    assert dialogue.arguments("default") == ["", "", "x > 2", "v1", "x > 9", "__all__", ""]


def test_interactive_without_ipython(call, terminal, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "IPython.terminal.embed", None)
    result = call("cube", "query")
    assert result.exit_code == 2
    assert result.stderr == "Error: This command needs IPython: pip install 'kartothek_cube[cli]'\n"


def test_prompts_of_prompt_toolkit(call, terminal, monkeypatch):
    """The real prompt with simulated keys; invalid input is not accepted."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    frames = []
    monkeypatch.setattr("kartothek_cube.cli.query._make_shell", lambda: frames.append)
    delete_line, enter, end = "\x15", "\r", "\x04"
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text(f"x > two{enter}{delete_line}x > 2{enter}v1{enter}{delete_line}{end}")
        result = call("cube", "query")
    assert result.exit_code == 1
    assert [list(frame.columns) for frame in frames] == [["d", "p", "v1", "x"]]
    assert frames[0]["x"].tolist() == [3, 4]


def test_groups(ok):
    result = json.loads(ok("cube", "query", "--partition-by", "i1", "-o", "json"))
    assert [(row["i1"], row["x"]) for row in result] == [(False, 2), (True, 1), (True, 3)]
    assert len(json.loads(ok("cube", "query", "--partition-by", "i1", "-o", "json", "--limit", "2"))) == 2


def test_an_empty_text_is_an_option(ok, error):
    """It runs a single query, without prompts."""
    assert ok("cube", "query", "--columns", "").splitlines()[0].split() == ["d", "p", "x"]
    assert ok("cube", "query", "--where", "").splitlines()[0].split() == ["d", "i1", "p", "v1", "v2", "x"]
    for option in ("--dimensions", "--partition-by", "--include", "--exclude", "--as-of"):
        error("cube", "query", option, "")
