"""report: a valid, self-contained, accessible and small page."""

import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.cli import report
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager_cube import append_to_cube, build_cube
from tests.cli.conftest import append_cell
from tests.support.cubes import memory
from tests.support.pages import Page

EVIL = "\"'><script>alert(1)</script>&lt;"


def test_structure_and_words(ok, url):
    append_cell(url)
    page = ok("cube", "report", "--output", "-")
    parsed = Page(page)
    assert page.lstrip().startswith("<!DOCTYPE html>")
    assert parsed.attributes("html") == [{"lang": "en"}]
    assert not parsed.attributes("script")
    targets = [a["href"][1:] for a in parsed.attributes("a")]
    assert targets
    assert set(targets) <= parsed.ids
    for tag, attrs in parsed.tags:
        for name in ("src", "href", "action", "data", "xlink:href", "poster", "srcset"):
            assert attrs.get(name, "#").startswith(("#", "data:,")), (tag, attrs)
    assert not re.search(r"@import|url\(|https?:|//[a-z]", page.replace("hfs://", ""))
    (policy,) = [a["content"] for a in parsed.attributes("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    pictures = parsed.attributes("svg")
    assert len(pictures) == 3  # growth, two heat maps
    for picture in pictures:
        assert picture["role"] == "img"
        assert set(picture["aria-labelledby"].split()) <= parsed.ids
    assert "prefers-color-scheme: dark" in page
    text = " ".join(" ".join(Page(page).text).split())
    assert "2 partitions by p · 3 files" in text
    assert "seed · Small files: 1 of 2 partitions has several files" in text
    assert "compact --include seed" in text
    assert "a: 2 files" not in text
    assert re.search(r"a: 2 rows, [\d.]+ kB, 2 files", text)
    assert "4 rows and 1 superseded row" in text
    assert re.search(r"· [-\d]{10} [:\d]{5} UTC", text)  # of the page
    times = re.findall(r"[-\d]{10} [:\d]{5}(?: UTC)?", text)
    assert len(times) > 4
    assert all(time.endswith(" UTC") for time in times)
    assert re.search(r"i1 2 1\.5 25\.0 %", text)  # values, files per value, files skipped


def test_visible_cells_are_counted(ok, call, url, tmp_path):
    """As many rows as a query returns, also with extra partition keys and without any."""
    cube = Cube(["x", "d"], ["p"], "visible", index_columns=[])
    frame = pd.DataFrame({"x": [1, 1, 2], "d": [1, 2, 1], "p": ["a", "a", "b"], "v": 1})
    other = pd.DataFrame({"x": [1, 2, 3], "w": 1})
    by_x = frame.rename(columns={"v": "u"})
    datasets = {"seed": frame, "other": other, "by_x": by_x}
    build_cube(datasets, cube, url, partition_on={"other": [], "by_x": ["p", "x"]})
    for _ in range(2):
        append_to_cube({"seed": frame[:2], "other": other[1:], "by_x": by_x[1:]}, cube, url)
    text = " ".join(" ".join(Page(ok("visible", "report", "-o", "-")).text).split())
    assert text.count("3 rows and 4 superseded rows") == 3
    ok("visible", "compact")
    assert "superseded row" not in " ".join(Page(ok("visible", "report", "-o", "-")).text)


def test_garbage_is_that_of_cleanup(ok, call, tmp_path):
    folder = tmp_path / "store" / "cube++seed" / "table" / "p=a"
    for name, content in {"old": b"1234567", "young": b"12345"}.items():
        (folder / f"{name}.parquet").write_bytes(content)
    os.utime(folder / "old.parquet", (0, 0))
    assert call("cube", "cleanup", "--dry-run").stderr.startswith("1 orphaned file (7 B)")
    text = " ".join(Page(ok("cube", "report", "-o", "-")).text)
    assert "Garbage: 1 orphaned file (7 B)" in text
    assert "1 orphaned file (5 B) younger than 24 hours" in text
    ok("cube", "cleanup", "-y")
    text = " ".join(Page(ok("cube", "report", "-o", "-")).text)
    assert "Garbage" not in text
    assert "no orphaned file is older than 24 hours" in text or "Maintenance" in text
    assert "1 orphaned file (5 B) younger than 24 hours" in text


def test_indices_that_skip_nothing(ok, url):
    cube = Cube(["x", "y"], ["p"], "indexed", index_columns=["good", "bad"])
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "y": [1, 2, 1, 2], "p": [1, 1, 2, 2]})
    build_cube(frame.assign(good=frame.x, bad=7), cube, url)
    text = " ".join(Page(ok("indexed", "report", "-o", "-")).text)
    assert "2 indices skip no files: bad, y" in text
    copied = "cube.copy(suppress_index_on=['y'], index_columns=['good'])"
    assert f"build_cube(data, {copied}, store, overwrite=True)" in text
    assert cube.copy(suppress_index_on=["y"], index_columns=["good"]).index_columns == {"good"}


def test_text_from_the_store_is_escaped(tmp_path, ok):
    frame = pd.DataFrame({"x": [1, 2], "p": [EVIL, "b"], EVIL: [1, 2]})
    build_cube(frame, Cube(["x"], ["p"], "evil"), f"hfs://{tmp_path}/store")
    html = ok("evil", "report", "-o", "-")
    assert "<script" not in html
    assert EVIL in "".join(Page(html).text)


def test_a_store_without_times_and_a_dataset_without_partitions(monkeypatch):
    store, cube = memory(), Cube(["x"], ["p"], "cube")
    seed, enrich = pd.DataFrame({"x": [1], "p": [1]}), pd.DataFrame({"x": [1], "v1": [1]})
    built = build_cube({"seed": seed, "enrich": enrich}, cube, store, partition_on={"enrich": []})
    html = report.render(report.build_page(cube, built, open_blobs(store), "memory"))
    assert "does not report modification times of files" in html
    assert "(not partitioned)" in html
    Page(html)


def test_to_a_file(call, tmp_path):
    path = tmp_path / "page.html"
    result = call("cube", "report", "--output", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert str(path) in result.stderr
    Page(path.read_text(encoding="utf-8"))
    assert call("cube", "report", "--output", str(tmp_path / "no" / "page.html")).exit_code == 2


def files(sizes, times=None, partition=None, **keys):
    sizes, arrays = np.asarray(sizes, dtype=np.int64), {name: pa.array(v) for name, v in keys.items()}
    partition = np.arange(len(sizes)) if partition is None else np.asarray(partition)
    times = np.full(len(sizes), np.nan) if times is None else np.asarray(times, dtype=float)
    columns = {"keys": arrays, "partition": partition, "sizes": sizes, "rows": sizes // 10, "times": times}
    return report.DataFiles(**columns, column_bytes={})


@pytest.mark.parametrize("shape", [(100_000,), (400, 250), (10, 10_000), (100_000, 1)])
def test_many_partitions_stay_small(shape):
    numbers = np.indices(shape).reshape(len(shape), -1)
    heat = report.build_heat_map(
        files(np.ones(100_000), **{f"p{i}": values for i, values in enumerate(numbers)})
    )
    assert len(heat["cells"]) <= 1800
    assert 500 < len(heat["cells"]) <= heat["width"] * heat["height"]
    counts = [re.search(r"([\d,]+) files?", cell["text"])[1] for cell in heat["cells"]]
    assert sum(int(count.replace(",", "")) for count in counts) == 100_000
    assert heat["binned"] >= 100_000 // 1800


def test_heat_maps():
    heat = report.build_heat_map(files([10, 1000, 40], p=["b", "a", "a"], q=[2, 1, 3]))
    assert (heat["width"], heat["height"]) == (3, 2)
    assert heat["y_labels"] == ["a", "b"]
    assert heat["x_ends"] == ("1", "3")
    assert {(cell["x"], cell["y"]): cell["text"] for cell in heat["cells"]} == {
        (0, 0): "a / 1: 100 rows, 1.0 kB, 1 file",
        (2, 0): "a / 3: 4 rows, 40 B, 1 file",
        (1, 1): "b / 2: 1 row, 10 B, 1 file",
    }
    assert max(heat["cells"], key=lambda cell: cell["levels"][1])["text"].startswith("a / 1")
    assert "most bytes in a / 1 (1.0 kB), fewest in b / 2 (10 B)" in heat["summary"]
    heat = report.build_heat_map(files(np.arange(1, 131), p=pd.date_range("2020-01-01", periods=130)))
    assert (heat["width"], heat["height"]) == (60, 3)
    assert heat["y_labels"][0] == "2020-01-01 … 2020-02-29"
    assert len(heat["cells"]) == 130
    heat = report.build_heat_map(files([1, 2], p=pa.array(["a", None])))
    assert [cell["text"].partition(":")[0] for cell in heat["cells"]] == ["a", "null"]


def test_growth():
    lines = report.build_growth({"a": files([100, 300], times=[0, 1000]), "b": files([50], times=[500])})
    assert [line["name"] for line in lines["lines"]] == ["a", "b"]
    assert [line["added"] for line in lines["lines"]] == ["400 B in 2 files", "50 B in 1 file"]
    assert lines["lines"][0]["path"].endswith("V0.0H960.0")
    assert lines["y_ticks"][-1][1] == "400 B"
    assert report.build_growth({"a": files([100])}) is None
    lines = report.build_growth({f"d{i}": files([i + 1], times=[i]) for i in range(10)})
    assert [line["name"] for line in lines["lines"]] == ["d9", "d8", "d7", "d6", "d5", "d4", "others"]
    assert lines["lines"][-1]["added"] == "10 B"


@pytest.mark.parametrize(
    "sizes, partition, expected",
    [
        ([5 << 20] * 20, None, []),
        ([5 << 20] * 20 + [90 << 20], None, ["Skew"]),
        ([1000] * 40, None, ["Small partitions"]),
        ([1000] * 4, [0, 0, 1, 1], ["Small files"]),
        ([90 << 20] * 4, [0, 0, 1, 1], ["2 of 2 partitions have several files"]),
        ([], None, []),
    ],
)
def test_advice(sizes, partition, expected):
    data_files = files(sizes, partition=partition, p=list(range(len(sizes))))
    found = list(report.advise("e d", data_files, "s", "c", is_seed=False))
    assert [advice.title.partition(":")[0] for advice in found] == expected
    for advice in found:
        assert "e d" in advice.command
