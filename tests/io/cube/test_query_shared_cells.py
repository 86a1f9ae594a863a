"""Conditions select rows by number in files of other datasets with the same cells, as their names tell."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kartothek_cube.api.cube import C, Cube, append_to_cube, build_cube, extend_cube, update_cube
from kartothek_cube.core import tuning
from kartothek_cube.core.partition import cells_of_names
from kartothek_cube.io.eager_cube import compact_cube, query_cube, query_cube_df, verify_cube
from kartothek_cube.io_components import scan
from kartothek_cube.io_components.query import executor, physical_plan
from kartothek_cube.io_components.write import table_writer
from tests.support.cubes import frame, memory

CUBE = Cube(["x", "t"], ["p"], "cube", index_columns=["w", "s"])
V, W = C("v"), C("w")
CONDITIONS = (
    {
        "nothing": None,
        "seed": V > 60,
        "enrichment": W > 60,
        "both": (V > 20) & (W > 20),
        "all": V >= 0,
        "none": W < 0,
    }
    | {"either": (V > 90) | (W > 90), "three": (V > 20) & (W > 20) & (C("u") > 20), "dimension": C("x") == 3}
    | {"text": C("t") == "b", "dimension and payload": (C("x") > 3) & (W > 20), "shared files": C("s") > 50}
    | {"partition": (C("p") == 1) & (V > 20), "shared files and payload": (C("s") > 20) & (W > 20)}
)


def cells(n_partitions=4, n_x=12):
    grid = np.meshgrid(np.arange(n_partitions), np.arange(n_x), [0, 1, 2], indexing="ij")
    p, x, t = map(np.ravel, grid)
    return pd.DataFrame({"p": p, "x": x, "t": np.array(["a", "b", "c"])[t]})


def with_values(df, name, random):
    df = df.assign(**{name: random.integers(0, 100, len(df)).astype(float)})
    return df.sample(frac=1, random_state=random.integers(1 << 30))


def build(url, seed):
    """A cube whose enrichments have the cells of the seed in all, some or none of the partitions."""
    random, full = np.random.default_rng(seed), cells()
    data = {
        "seed": with_values(full, "v", random),
        "enrich": with_values(full, "w", random),
        # a partition is missing, and one lacks cells
        "holes": with_values(full[(full.p != 2) & ((full.p != 3) | (full.x > 2))], "u", random),
        "shops": with_values(full[["t"]].drop_duplicates(), "s", random),
    }
    build_cube(data, CUBE, url, partition_on={"shops": []})
    changed = full[full.p == seed % 4]
    if seed % 3 == 1:
        # a partition of several files
        append_to_cube({"enrich": with_values(changed.sample(9, random_state=1), "w", random)}, CUBE, url)
    if seed % 5 == 2:
        data = {"seed": with_values(changed.iloc[4:], "v", random)}
        update_cube(data, CUBE, url, C("p") == seed % 4, datasets="seed")
    if seed % 2:
        compact_cube(CUBE, url)


def forget_cells(monkeypatch):
    """Queries do not know that datasets have the same cells."""
    monkeypatch.setattr(physical_plan.ScanFiles, "cells", lambda files: None)


SEEDS = (0, 2, 4, 7)
READERS = ("blocks of partitions", "one block", "pyarrow", "bytes", "many rows")
GROUPS = ("w", ("p", "s"), "x")


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Cubes whose datasets have equal cells in all partitions, or several files in one."""
    urls = [f"hfs://{tmp_path_factory.mktemp('cube')}?durable=false" for _ in SEEDS]
    for seed, url in zip(SEEDS, urls, strict=True):
        build(url, seed)
    return urls


@pytest.fixture
def reader(request, monkeypatch):
    match request.param:
        case "blocks of partitions":
            monkeypatch.setattr(tuning, "BLOCK_BYTES", 1)
        case "pyarrow":
            monkeypatch.setattr(scan, "can_use_polars", lambda keys: False)
        case "bytes":
            locate = lambda blobs, keys: ([blobs.get(key) for key in keys], None)  # noqa: E731
            monkeypatch.setattr(scan, "_locate", locate)
        case "many rows":
            monkeypatch.setattr(tuning, "MAX_RESTRICTING_CELLS", 3)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("reader", READERS, indirect=True)
def test_rows_are_those_of_a_join_by_cells(urls, reader, condition, request, monkeypatch):
    # each reader and each condition meet each cube
    turn = READERS.index(request.node.callspec.params["reader"]) + [*CONDITIONS].index(condition)
    url, condition = urls[turn % len(urls)], CONDITIONS[condition]
    run = executor._run_blocks
    # the names are right: no block is read again
    monkeypatch.setattr(executor, "_run_blocks", lambda context, task: run(context, task))
    by_position = query_cube(CUBE, url, conditions=condition)
    forget_cells(monkeypatch)
    by_cells = query_cube(CUBE, url, conditions=condition)
    assert len(by_position) == len(by_cells)
    for a, b in zip(by_position, by_cells, strict=True):
        pdt.assert_frame_equal(a, b)


@pytest.mark.parametrize("number", range(len(SEEDS)))
@pytest.mark.parametrize("condition", ["nothing", "both", "text"])
def test_groups_are_those_of_a_join_by_cells(urls, number, condition, monkeypatch):
    groups, url = GROUPS[number % len(GROUPS)], urls[number]

    def query():
        return query_cube(CUBE, url, conditions=CONDITIONS[condition], partition_by=groups)

    by_position = query()
    forget_cells(monkeypatch)
    for a, b in zip(by_position, query(), strict=True):
        pdt.assert_frame_equal(a, b)


@pytest.mark.parametrize("condition", ["seed", "enrichment", "dimension", "nothing"])
@pytest.mark.parametrize("by_position", [True, False])
def test_rows_of_datasets_with_conditions_restrict_the_others(tmp_path, monkeypatch, condition, by_position):
    """By their numbers in files of the same cells, else by their cells."""
    url, scans, run_scans = f"hfs://{tmp_path}", [], executor.run_scans
    build(url, 0)
    if not by_position:
        forget_cells(monkeypatch)
    monkeypatch.setattr(
        executor, "run_scans", lambda blobs, found: scans.extend(found) or run_scans(blobs, found)
    )
    query_cube(CUBE, url, datasets=["seed", "enrich"], conditions=CONDITIONS[condition])
    restricted = [one for one in scans if one.cells or one.rows is not None]
    names = [one.keys[0].partition("/")[0].partition("++")[2] for one in restricted]
    assert names == {"seed": ["enrich"], "enrichment": ["seed"]}.get(condition, [])
    for one in restricted:
        if by_position:
            assert 0 < len(one.rows) < sum(one.n_rows)
        else:
            assert one.cells[0].column_names == ["x", "t"]
    assert len(scans) == 2


def test_files_of_equal_cells_have_equal_digests_whatever_the_types_of_the_input():
    store = memory()
    frames = {
        "seed": frame(x=[1, 2], t=["a", "b"], p=[0, 0], v=[1, 2]),
        "narrow": pa.table({"x": pa.array([2, 1], pa.int8()), "t": ["b", "a"], "p": [0, 0], "a": [1, 2]}),
        "coded": frame(x=[1, 2], t=["a", "b"], p=[0, 0], b=[1, 2]).astype({"t": "category"}),
        "other": frame(x=[1, 2], t=["a", "c"], p=[0, 0], c=[1, 2]),
    }
    datasets = build_cube(frames, CUBE, store)
    found = {name: cells_of_names(ds.partitions) for name, ds in datasets.items()}
    assert found["seed"] == found["narrow"] == found["coded"] != found["other"]
    assert found["seed"][0] == [2]


REPLACED = {"nothing": None, "some of the seed": V > 60, "two datasets": (V > 60) & (W > 60)}
REPLACED |= {"few of the seed": V > 96, "few of an enrichment": W > 96}


@pytest.mark.parametrize("condition", REPLACED.values(), ids=REPLACED)
@pytest.mark.parametrize("change", ["permuted", "reversed", "shorter", "longer", "other cells"])
def test_files_that_another_program_has_replaced_are_joined_by_their_cells(
    tmp_path, condition, change, monkeypatch
):
    url = f"hfs://{tmp_path}"
    build(url, 0)
    extend_cube({"third": cells().assign(q=1.0)}, CUBE, url)
    for path in tmp_path.glob("cube++enrich/table/*/*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        order = np.random.default_rng(0).permutation(len(rows))
        match change:
            case "permuted":
                rows = rows.take(order)
            case "reversed":
                rows = rows[::-1]
            case "shorter":
                rows = rows.slice(5)
            case "longer":
                extra = rows.set_column(rows.column_names.index("x"), "x", pc.add(rows["x"], -100))
                rows = pa.concat_tables([extra, rows])
            case "other cells":
                rows = rows.set_column(rows.column_names.index("x"), "x", pc.add(rows["x"], 1))
        pq.write_table(rows, path)
    found = query_cube_df(CUBE, url, conditions=condition)
    forget_cells(monkeypatch)
    expected = query_cube_df(CUBE, url, conditions=condition)
    pdt.assert_frame_equal(found, expected)
    assert len(found)


def test_verification_finds_names_that_tell_of_other_cells(monkeypatch):
    """An enrichment claims to have the cells of the seed."""
    store, known, suffixes = memory(), [], table_writer.cells_suffixes

    def first_suffix(dimensions, table, starts):
        known.append(suffixes(dimensions, table, starts))
        return known[0]

    monkeypatch.setattr(table_writer, "cells_suffixes", first_suffix)
    build_cube(frame(x=[0, 1, 2], t=["a"] * 3, p=[0] * 3, v=[1, 2, 3]), CUBE, store)
    extend_cube({"enrich": frame(x=range(9, 12), t=["a"] * 3, p=[0] * 3, w=range(3))}, CUBE, store)
    monkeypatch.undo()
    (problem,) = verify_cube(CUBE, store).problems
    assert (problem.dataset, problem.kind) == ("cube++enrich", "wrong-name")
    assert "other cells" in problem.message
