"""The benchmarks run, on a small cube, and give the answers that pandas gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, load_script
from tests.support.spark_session import shared_session

pytestmark = pytest.mark.slow("runs each benchmark, with Spark, on a small cube")

BENCH = ROOT / "asv_bench"
SIZE = {"BENCH_P": "8", "BENCH_X": "4", "BENCH_Y": "12"}


def run(script, *args, **env):
    """Run a benchmark; the content of the file that it writes."""
    command = [sys.executable, str(BENCH / script), *map(str, args)]
    subprocess.run(command, check=True, env={**os.environ, **SIZE, "PYTHONPATH": str(ROOT), **env})
    return json.loads(Path(next(arg for arg in command if arg.endswith(".json"))).read_text())


@pytest.fixture
def workload(monkeypatch):
    for name, value in SIZE.items():
        monkeypatch.setenv(name, value)
    # other tests have another size
    monkeypatch.setitem(sys.modules, "workload", None)
    return load_script(BENCH / "workload.py")


def test_queries_of_the_workload(tmp_path, workload):
    result = run(
        "peers/cube.py", "kartothek_cube", tmp_path / "store", tmp_path / "out.json", "build,query", 1
    )

    df = workload.whole(workload.seed).merge(workload.whole(workload.enrich))
    expected = {"full_join": df, "one_column": df, "strings": df, "one_part": df[df.p == 7]}
    expected |= {
        "dim_index": df[df.x == 2900],
        "payload_cond": df[df.v1 > 2.5],
        "regroup_y": df[df.y < "2020-01-11"],
    }
    assert set(expected) == set(workload.QUERIES)
    for name, rows in expected.items():
        assert (name, result[name]["rows"]) == (name, len(rows))
        assert result[name]["check"] == pytest.approx(rows.v0.sum()), name
    assert result["regroup_y"]["groups"] == 10


@pytest.mark.parametrize("dimensions", [{}, {"BENCH_TEXT": "1"}], ids=["numbers", "texts"])
def test_engines_agree_about_selective_scans(tmp_path, dimensions):
    env = {"BENCH_WORKLOAD": "scan_workload", "BENCH_X": "100", **dimensions}
    out = tmp_path / "ours.json"
    ours = run("peers/cube.py", "kartothek_cube", tmp_path / "store", out, "build,query", 1, **env)
    assert sum(value["rows"] > 0 for name, value in ours.items() if name not in ("build", "maxrss_mb")) > 3
    for engine in ("duckdb", "polars"):
        theirs = run("peers/sql.py", engine, tmp_path / "store", tmp_path / "out.json", 1, **env)
        for name, value in theirs.items():
            if name != "maxrss_mb":
                assert (name, value["rows"]) == (name, ours[name]["rows"])
                assert value["check"] == pytest.approx(ours[name]["check"]), name


@pytest.mark.parametrize("script, env", [("shapes", {}), ("reads", {"BENCH_SCALE": "10"})])
def test_engines_agree_about_other_shapes(tmp_path, script, env):
    result = run(f"peers/{script}.py", tmp_path / "cubes", 1, tmp_path / "out.json", **env)
    ours = result.pop("kartothek_cube")
    assert {"polars"} <= set(result)
    assert all(value["rows"] for value in ours.values())
    for engine, measured in result.items():
        for name, value in measured.items():
            assert (engine, name, value["rows"]) == (engine, name, ours[name]["rows"])
            assert value["check"] == pytest.approx(ours[name]["check"]), (engine, name)


def test_planning(tmp_path):
    result = run("peers/plan.py", "kartothek_cube", tmp_path / "store", tmp_path / "out.json", 100, 1)
    works = {"build", "point_query_p", "point_query_y", "range_query_x", "read_all", "append_one"}
    assert works <= set(result)


def test_spark(tmp_path, workload, monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.syspath_prepend(BENCH / "peers")
    monkeypatch.setitem(sys.modules, "workload", workload)
    # it imports the workload, whose size is that of this test
    monkeypatch.delitem(sys.modules, "_common", raising=False)
    peer = load_script(BENCH / "peers" / "spark.py")
    # a session of its own would take longer to start than all the rest
    result = peer.measure(shared_session(), tmp_path / "store", tmp_path / "other", 1, 0)

    df = workload.whole(workload.seed).merge(workload.whole(workload.enrich))
    expected = {"query": df, "query, payload": df[df.v1 > 2.5], "query, partition": df[df.p == 7]}
    assert set(result["build"]) == {"kartothek_cube", "spark parquet"}
    for name, rows in expected.items():
        assert set(result[name]) == {"kartothek_cube", "data source", "spark parquet"}
        for (value,) in result[name].values():
            assert value["rows"] == len(rows)
            assert value["check"] == pytest.approx(rows.v0.sum())


def test_other_shapes(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_X", "2")
    shapes = load_script(BENCH / "benchmarks" / "shapes.py")
    monkeypatch.chdir(tmp_path)
    bench = shapes.Shapes()
    urls = bench.setup_cache()
    cells = shapes.grid()
    v = shapes.simple(cells)["seed"]["v"]
    expected = {"isin": (cells.x % 5 == 0).sum(), "seed condition": (v > 2.5).sum()}
    expected["days"] = (cells.y >= "2020-03-01").sum()
    for name in shapes.SHAPES:
        frames = bench.query(urls, name)
        assert (name, sum(map(len, frames))) == (name, expected.get(name, len(cells)))
        assert len(frames) == {"groups of x": shapes.X, "groups of y": len(shapes.DAYS)}.get(name, 1)


@pytest.mark.parametrize("values", ["ids", "with holes", "hours", "random"])
def test_sorted_integers_take_less_space_than_with_zstd(tmp_path, monkeypatch, values):
    monkeypatch.setenv("BENCH_X", "2")
    monkeypatch.chdir(tmp_path)
    bench, sizes = load_script(BENCH / "benchmarks" / "integers.py").Integers(), {}
    for encoding in bench.params[1]:
        bench.setup(values, encoding)
        bench.time_read(values, encoding)
        sizes[encoding] = bench.track_bytes(values, encoding)
    assert sizes["library"] < sizes["zstd"] < sizes["plain"]


@pytest.mark.parametrize("missing", [0.03, 0.5])
def test_rows_without_a_match_are_null_either_way(monkeypatch, missing):
    monkeypatch.setenv("BENCH_X", "2")
    bench = load_script(BENCH / "benchmarks" / "joins.py").Unmatched()
    bench.setup(missing, None)
    taken = bench.take("library")
    assert taken.equals(bench.take("nulls")) and 0 < taken.null_count < len(taken)


def test_headers_of_many_partitions(tmp_path):
    scale = load_script(BENCH / "benchmarks" / "scale.py")
    url = f"hfs://{tmp_path}/store?create_if_missing=true"
    scale.make_headers(url, 100)
    for condition, units in {"partition key": 1, "index": 1, "none": 100}.items():
        scale.caching.clear()
        plan = scale.plan_query(scale.QueryCube(scale.CUBE, url, scale.CONDITIONS[condition]))
        assert plan.n_partitions == units


def test_computation_of_small_files():
    scale = load_script(BENCH / "benchmarks" / "scale.py")
    bench = scale.SmallFiles()
    bench.setup(3)
    for measure in (bench.time_read_all, bench.time_groups, bench.time_compute):
        measure(3)
    (frame,) = scale.query_cube(scale.CUBE, bench.url)
    assert len(frame) == 60 and frame["u"].equals(frame["v"].rename("u"))
    bench.teardown(3)


@pytest.mark.parametrize("engine", ["duckdb", "polars", "cube + duckdb", "cube + polars"])
def test_aggregation_of_lazy_scans(tmp_path, workload, engine):
    run("peers/cube.py", "kartothek_cube", tmp_path / "store", tmp_path / "out.json", "build")
    result = run("peers/lazy.py", engine, tmp_path / "store", tmp_path / "out.json", 1)
    result = result["GROUP BY over four datasets"]
    assert result["rows"] == workload.P
    assert result["check"] == pytest.approx(workload.whole(workload.seed)["v0"].sum(), abs=1e-3)


def test_small_queries_have_equal_answers(tmp_path):
    measured = run("peers/small.py", tmp_path / "small", 1, tmp_path / "out.json")
    answers = [
        {name: (value["rows"], round(value["check"], 6)) for name, value in works.items() if "check" in value}
        for works in measured.values()
    ]
    assert len(answers) == 3
    assert len(answers[0]) == 4
    assert answers.count(answers[0]) == 3


def test_growth_is_measured():
    size = json.dumps({"rows": 100, "files": 2, "columns": 1, "datasets": 2})
    command = [sys.executable, str(BENCH / "growth.py"), size]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    # a listing, two headers, the footer of the first file of each dataset, and four files
    assert json.loads(done.stdout)["requests"] == 9


def test_upserts_of_other_engines_have_the_same_rows(tmp_path):
    found = run("peers/merge.py", tmp_path / "tables", 1, tmp_path / "out.json", BENCH_ROWS="20000")
    assert {engine: len(measured) for engine, measured in found.items()} == {"kartothek_cube": 2, "delta": 2}


def test_jobs_that_add_columns_have_equal_answers(tmp_path):
    """The peer compares them; Lance is not among the dependencies of the tests."""
    out = tmp_path / "out.json"
    env = {"BENCH_ROWS": "3000", "BENCH_ENGINES": "kartothek_cube,delta"}
    measured = run("peers/jobs.py", tmp_path / "tables", 1, out, **env)
    assert measured["kartothek_cube"]["four jobs: columns lost"] == {"s": 0}
    assert measured["delta"]["add a column: MB written"]["s"] > 0


def test_all_forms_give_their_answer_on_a_cluster_of_dask(tmp_path, workload):
    result = run("peers/cluster.py", tmp_path / "store", tmp_path / "out.json", 1)
    assert set(result["build"]) == {"eager", "delayed", "bag"}
    assert set(result["query"]) == {"eager", "delayed", "bag", "dataframe"}
    seed = workload.whole(workload.seed)
    for form, found in result["query"].items():
        assert (form, found["rows"]) == (form, len(seed))
        assert found["check"] == pytest.approx(seed.v0.sum())
        assert found["ratio"] > 0 and found["cpu_ratio"] > 0
