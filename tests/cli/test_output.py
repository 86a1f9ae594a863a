"""Files and tables of query results: suffixes, compression, digits, zones, width of the terminal."""

import csv
import gzip
import io
import json
import re
import signal
from decimal import Decimal
from functools import partial
from pathlib import Path

import click
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from kartothek_cube.cli.output import FORMATS
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube
from tests.support.terminal import run_in_terminal, text_of

SUFFIXES = [".csv", ".parquet", ".arrow", ".arrows", ".feather", ".json", ".jsonl", ".ndjson", ".txt"]


@pytest.mark.parametrize("name", ["a.xlsx", "a", "a.", "csv", "a.xlsx.gz", "a.gz", "a.csv.zip"])
def test_unknown_suffixes_are_errors(error, tmp_path, name):
    message = error("cube", "query", "--to", str(tmp_path / name))
    assert all(suffix in message for suffix in SUFFIXES)
    assert "--output" in message
    assert not (tmp_path / name).exists()


def test_the_option_wins_over_the_suffix_and_tells_the_format_of_standard_output(ok, tmp_path):
    assert ok("cube", "query", "--to", "-", "-o", "csv").startswith('"d","i1"')
    ok("cube", "query", "-o", "csv", "--to", str(tmp_path / "a.xlsx"))
    assert len(pd.read_csv(tmp_path / "a.xlsx")) == 4


def read_arrow(path):
    return pa.ipc.open_stream(path.read_bytes()).read_all()


def unpacked(path):
    return io.BytesIO(gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize(
    "name, read",
    [
        *((name, pd.read_csv) for name in ("a.csv.gz", "A.CSV")),
        *((name, pd.read_json) for name in ("a.json", "a.json.gz")),
        *((name, partial(pd.read_json, lines=True)) for name in ("a.jsonl", "a.ndjson", "a.jsonl.gz")),
        *((name, read_arrow) for name in ("a.arrow", "a.arrows")),
        ("a.feather", pa.feather.read_table),
        ("a.parquet", pq.read_table),
        ("a.txt", pd.read_fwf),
        ("a.txt.gz", lambda path: pd.read_fwf(unpacked(path))),
        ("a.parquet.gz", lambda path: pq.read_table(unpacked(path))),
    ],
)
def test_files(call, tmp_path, name, read):
    path = tmp_path / name
    result = call("cube", "query", "--to", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"Wrote 4 rows to {path}\n"
    assert read(path).shape == (4, 6)
    # no temporary files
    assert {found.name for found in tmp_path.iterdir()} == {name, "skv.yml", "store"}


@pytest.mark.parametrize("form", ["jsonl", "feather"])
def test_empty_results(call, form):
    result = call("cube", "query", "-o", form, "--where", "x > 9")
    assert result.exit_code == 0
    if form == "feather":
        names = pa.feather.read_table(io.BytesIO(result.stdout_bytes)).column_names
        assert names == ["d", "i1", "p", "v1", "v2", "x"]
    else:
        assert result.stdout == ""


def test_a_failed_query_keeps_the_file(error, tmp_path):
    """It is replaced when the new one is complete."""
    path = tmp_path / "a.csv"
    path.write_text("before")
    for name in (tmp_path / "store" / "cube++seed" / "table" / "p=b").iterdir():
        name.write_bytes(b"broken")
    error("cube", "query", "--to", str(path))
    assert path.read_text() == "before"
    assert {found.name for found in tmp_path.iterdir()} == {"a.csv", "skv.yml", "store"}


@pytest.mark.parametrize("command", [("query", "--to"), ("report", "-o")])
def test_a_terminated_command_keeps_the_file(call, tmp_path, command, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("before")
    # the file is complete, but does not have its name yet
    monkeypatch.setattr("os.replace", lambda *names: signal.raise_signal(signal.SIGTERM))
    handler = signal.getsignal(signal.SIGTERM)
    assert call("cube", *command, str(path)).exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    assert path.read_text() == "before"
    assert {found.name for found in tmp_path.iterdir()} == {"a.csv", "skv.yml", "store"}


def test_a_replaced_file_keeps_its_permissions_and_a_link_stays_one(ok, tmp_path):
    path, link = tmp_path / "private.csv", tmp_path / "link.csv"
    path.write_text("before")
    path.chmod(0o600)
    link.symlink_to(path)
    ok("cube", "query", "--to", str(link))
    assert link.is_symlink() and path.read_text() != "before"
    assert path.stat().st_mode & 0o777 == 0o600


def write(form: str, table: pa.Table) -> str:
    sink = io.BytesIO()
    FORMATS[form](sink, table.schema, [table])
    return sink.getvalue().decode()


def test_json_keeps_all_digits_and_separators_of_lines():
    values = [0.1 + 0.2, 1e300, 5e-324, 2.0**60, None, float("nan")]
    floats, ints = pa.array(values, pa.float64()), pa.array([2**60 + 1] * 6)
    rows = [json.loads(line) for line in write("jsonl", pa.table({"f": floats, "i": ints})).splitlines()]
    assert [row["f"] for row in rows] == [0.1 + 0.2, 1e300, 5e-324, float(2**60), None, None]
    assert {row["i"] for row in rows} == {2**60 + 1}
    table = pa.table({"s": ["a\u2028b\x85c", 'd\ne"']})
    texts = table["s"].to_pylist()
    assert [json.loads(line)["s"] for line in write("jsonl", table).split("\n")[:-1]] == texts
    assert [row["s"] for row in json.loads(write("json", table))] == texts


@pytest.mark.parametrize(
    "form, expected",
    [
        *((form, "2024-01-01 01:00:00+0100") for form in ("table", "csv")),
        ("jsonl", "2024-01-01T00:00:00.000000Z"),
    ],
)
def test_times_have_their_zone(form, expected):
    stamps = pd.to_datetime(["2024-01-01"], utc=True).tz_convert("Europe/Berlin")
    assert expected in write(form, pa.table({"t": pa.array(stamps)}))


@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
@pytest.mark.parametrize(
    "interval, expected",
    [
        *(((14, 3, 500_000_000), "P14M3DT0.5S"), ((0, 0, -60 * 10**9), "PT-60S")),
        *(((0, -3, 0), "P-3D"), ((0, 0, 0), "PT0S")),
    ],
)
def test_intervals_of_sql(form, interval, expected):
    values = pa.array([pa.MonthDayNano(interval), None], pa.month_day_nano_interval())
    assert expected in re.split(r'[\s",]+', write(form, pa.table({"i": values})))


BYTES = [b"\xffa", None]


@pytest.mark.parametrize(
    "values, expected",
    [
        (pa.array(BYTES, pa.binary(2)), "ff61"),
        (pa.array(BYTES, pa.binary_view()), "ff61"),
        (pa.array(BYTES).dictionary_encode(), "ff61"),
        (pa.array([BYTES], pa.list_(pa.binary(2))), "ff61"),
        (pa.array(["ü", None], pa.string_view()), "ü"),
        (pa.array([1, None], pa.time64("ns")), "00:00:00.000000001"),
    ],
)
@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
def test_rare_types(form, values, expected):
    assert expected in re.split(r'[\s",\[\]}]+', write(form, pa.table({"v": values})))


NESTED = [
    # JSON has no NaN
    (pa.list_(pa.float64()), [[float("nan"), float("-inf"), 0.5], None, []], "[[null, null, 0.5], null, []]"),
    (pa.list_(pa.float32(), 2), [[0.1, None], None, [1, 2]], "[[0.1, null], null, [1.0, 2.0]]"),
    (pa.map_(pa.string(), pa.binary()), [[("ü", b"\x00a")], None, []], '[[["ü", "0061"]], null, []]'),
    (pa.struct([]), [{}, None, {}], "[{}, null, {}]"),
    (
        pa.list_(pa.struct([("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(4, 2))])),
        [[{"t": 0, "d": Decimal("1.5")}, None], None, [{"t": None, "d": None}]],
        '[[{"t": "1970-01-01T00:00:00.000000Z", "d": 1.50}, null], null, [{"t": null, "d": null}]]',
    ),
    # times that Python does not have
    (pa.list_(pa.timestamp("s")), [[316516204800], None], '[["12000-01-01T00:00:00.000000"], null]'),
]


@pytest.mark.parametrize("dtype, values, expected", NESTED)
@pytest.mark.parametrize("start", [0, 1])
def test_nested_values(dtype, values, expected, start):
    table = pa.table({"v": pa.chunked_array([pa.array(values, dtype)] * 2)}).slice(start)
    cells = (json.loads(expected) * 2)[start:]
    assert [row["v"] for row in json.loads(write("json", table), parse_constant=pytest.fail)] == cells
    texts = list(csv.reader(io.StringIO(write("csv", table))))[1:]
    # CSV writes null as an empty line, which is a row without cells
    assert [json.loads(text) for row in texts for text in row] == [cell for cell in cells if cell is not None]


@pytest.mark.parametrize("form", ["table", "csv"])
def test_infinite_times_of_sql(form):
    """They are limits of their type, which Arrow does not convert to other units."""
    times = pa.array([-(2**63) + 1, 2**63 - 1], pa.timestamp("us"))
    assert "out of range" in write(form, pa.table({"t": times}))


def test_equal_names_in_results_of_sql():
    assert write("table", pa.table([pa.array([1]), pa.array(["x"])], names=["a", "a"])) == "a  a\n1  x\n"


def test_types_that_parquet_does_not_have():
    table = pa.table({"i": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(click.UsageError, match=r"cast the column, or write .arrow"):
        write("parquet", table)


def show(columns: int, *args: str) -> tuple[list[str], str]:
    """Run the command in a terminal of a width; returns the lines on stdout, and stderr."""
    stdout, stderr = map(text_of, run_in_terminal(*args, columns=columns))
    return stdout.splitlines(), stderr


@pytest.fixture
def wide(tmp_path: Path) -> str:
    numbers = {f"v{i}": 1.5 for i in range(30)}
    frame = pd.DataFrame({"x": [1], "p": ["a"], "long": ["ö" * 300], "wide": ["漢字" * 20], **numbers})
    url = f"hfs://{tmp_path}/wide?create_if_missing=true"
    build_cube(frame, Cube(["x"], ["p"], "wide"), url)
    return url


@pytest.mark.slow("starts the command in a terminal")
def test_texts_are_cut_to_the_width_of_the_terminal(wide):
    options = ["--columns", "long,v1", "-o", "table"]
    lines, stderr = show(60, "--store", wide, "wide", "query", *options)
    assert max(map(len, lines)) == 60
    assert "ö…" in lines[1]
    assert lines[1].split()[-2:] == ["1.5", "1"] or "1.5" in lines[1]
    assert stderr == ""
    lines, _ = show(40, "--store", wide, "wide", "query", "--columns", "wide", "-o", "table")
    assert "漢…" in lines[1] or "字…" in lines[1]
    assert len(lines[1].encode("utf-16-le")) // 2 < 40


def test_columns_and_texts_fit_the_terminal_and_pipes_get_everything(wide, ok):
    lines, stderr = show(50, "--store", wide, "wide", "query", "-o", "table")
    assert max(map(len, lines)) <= 50
    assert "more columns (" in stderr
    assert stderr.rstrip().endswith("select some with --columns")
    text = ok("wide", "query", "-o", "table", store=wide)
    assert "ö" * 300 in text
    assert "v29" in text


@pytest.mark.slow("starts the command in a terminal")
def test_terminals_of_80_columns_keep_names_and_round_floats(tmp_path):
    values = {"average_temperature": 19.10885061964363, "relative_humidity": 1 / 3, "sales_total": 1e5 / 7}
    frame = pd.DataFrame({"shop": [1], "p": ["a"], "customers_served": [12345678], **values})
    url = f"hfs://{tmp_path}/floats?create_if_missing=true"
    build_cube(frame, Cube(["shop"], ["p"], "floats"), url)
    (header, cells), stderr = show(80, "--store", url, "floats", "query", "-o", "table")
    assert header.split() == sorted(frame.columns)
    assert cells.split() == ["19.1089", "12345678", "a", "0.333333", "14285.7", "1"]
    (_, cells), _ = show(120, "--store", url, "floats", "query", "-o", "table")
    assert "19.10885061964363" in cells.split(), "where they fit, all digits are shown"
    assert stderr == ""


def test_names_are_not_cut(tmp_path):
    names = [f"a_name_of_some_length_{n}" for n in range(5)]
    frame = pd.DataFrame({"x": [1], "p": ["a"], **{name: ["text" * 20] for name in names}})
    url = f"hfs://{tmp_path}/names?create_if_missing=true"
    build_cube(frame, Cube(["x"], ["p"], "names"), url)
    lines, stderr = show(80, "--store", url, "names", "query", "-o", "table")
    assert lines[0].split() == names[:3] and max(map(len, lines)) <= 80
    assert f"4 more columns ({names[3]}, {names[4]}, p, x)" in stderr


def test_times_of_the_history_are_not_cut(url):
    lines, _ = show(45, "--store", url, "cube", "history")
    assert max(map(len, lines)) <= 45
    assert re.search(r" \d\d:\d\d:\d\d\.\d{6} UTC", lines[-1])


@pytest.mark.slow("starts the command in a terminal")
def test_explanations_fit_the_terminal(url):
    options = ["cube", "query", "--explain", "--where", "p == a"]
    lines, _ = show(40, "--store", url, *options)
    assert max(map(len, lines)) == 40
    assert any(line.endswith("…") for line in lines)
    whole, _ = show(200, "--store", url, *options)
    assert not any("…" in line for line in whole)


@pytest.mark.parametrize("value, coloured", [("", True), ("1", False)])
def test_no_color(wide, monkeypatch, value, coloured):
    monkeypatch.setenv("NO_COLOR", value)
    lines, _ = show(80, "--store", wide, "wide", "info")
    assert any("\x1b[" in line for line in lines) is coloured
