"""The types of a group do not depend on its rows, façade, other groups, or cuts of blocks.

Numbers are as wide as in the widest file of their dataset, as its header says. Without a record of that, they
are as wide as in the widest file that the query may read.
"""

import contextlib
from unittest import mock

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.core import tuning
from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io_components.query.executor import run_frames
from kartothek_cube.io_components.query.logical_plan import QueryFrames
from kartothek_cube.io_components.query.physical_plan import plan_query
from tests.support.cubes import edit_header, memory

CUBE = api.Cube(["x"], ["p", "q"], "cube", index_columns=["i"])
#: partition keys, column and types of each dataset; ``many`` has several files although it has no partitions
DATASETS = {
    "seed": (("p", "q"), "v", ("int8", "int16", "int64")),
    "same": (("p", "q"), "w", ("float32", "float64")),
    "part": (("q",), "u", ("uint8", "uint64")),
    "many": ((), "z", ("int8", "int32")),
}
UNITS = [(p, q) for p in (0, 1, 2) for q in (0, 1)]
CELLS = st.lists(st.tuples(st.sampled_from(UNITS), st.integers(0, 4)), min_size=1, max_size=9)


@st.composite
def writes(draw):
    """Draw for each dataset the frames that are written one after the other."""
    result = {}
    for name, (keys, column, types) in DATASETS.items():
        size = st.integers(1, 4)
        result[name] = frames = []
        for _ in range(draw(size)):
            df = pd.DataFrame([{"p": p, "q": q, "x": x} for (p, q), x in draw(CELLS)])
            df = df[["x", *keys]].drop_duplicates(ignore_index=True)
            df[column] = np.arange(len(df)).astype(draw(st.sampled_from(types)))
            if name == "seed":
                df["i"] = df["x"] % 2
            frames.append(df)
    return result


@contextlib.contextmanager
def written(data, where, tmp_path_factory):
    """Give a store with a cube of these frames."""
    path = tmp_path_factory.mktemp("store")
    store = memory() if where == "memory" else get_store_from_url(f"hfs://{path}")
    first = {name: frames[0] for name, frames in data.items()}
    api.build_cube(first, CUBE, store, partition_on={name: list(DATASETS[name][0]) for name in data})
    for name, frames in data.items():
        for df in frames[1:]:
            api.append_to_cube({name: df}, CUBE, store)
    yield store


def bits_in_files(store):
    """Give for each dataset its files: values of the partition keys, and the width of its column."""
    result = {}
    for name, (_, column, _) in DATASETS.items():
        dataset = DatasetMetadata.load_from_store(f"cube++{name}", store)
        result[name] = []
        for label, partition in dataset.partitions.items():
            steps = [step.split("=") for step in label.split("/")[:-1]]
            schema = pq.read_schema(pa.BufferReader(store.get(partition.files["table"])))
            result[name].append(({k: int(v) for k, v in steps}, schema.field(column).type.bit_width))
    return result


def expected_bits(files, conditions, recorded):
    """Work out the widths of all groups: those of all files, or of files in the partitions of the query."""
    if recorded:
        return {column: max(bits for _, bits in files[name]) for name, (_, column, _) in DATASETS.items()}
    units = [keys for keys, _ in files["seed"]]
    if conditions is not None and conditions.column == "w":
        # an inner join leaves out the partitions that it lacks
        units = [unit for unit in units if any(unit == keys for keys, _ in files["same"])]
    return {
        column: max(
            (bits for keys, bits in files[name] if any(keys.items() <= unit.items() for unit in units)),
            default=files[name][0][1],
        )
        for name, (_, column, _) in DATASETS.items()
    }


#: one block, blocks of few partitions, a block per partition
BLOCKS = {"whole": {}, "small": {(tuning, "BLOCK_BYTES"): 3000}, "alone": {(tuning, "BLOCK_BYTES"): 1}}


def types_of(frames):
    return [frame.dtypes.astype(str).to_dict() for frame in frames]


@pytest.mark.slow("10 random cubes, queried with all façades")
@pytest.mark.parametrize("blocks", BLOCKS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=writes(), draw=st.data())
def test_types_of_groups(tmp_path_factory, blocks, data, draw):
    where = draw.draw(st.sampled_from(["memory", "disk"]), label="where")
    partition_by = draw.draw(st.sampled_from([None, "p", "x", "i", ["i", "q"], "q"]), label="partition_by")
    conditions = draw.draw(st.sampled_from([None, C("x") > 1, C("v") > 2, C("w") >= 1.0]), label="conditions")
    recorded = draw.draw(st.booleans(), label="recorded")
    with written(data, where, tmp_path_factory) as store, contextlib.ExitStack() as stack:
        for (module, name), value in BLOCKS[blocks].items():
            stack.enter_context(mock.patch.object(module, name, value))
        query = {"cube": CUBE, "store": lambda: store, "conditions": conditions, "partition_by": partition_by}
        if not recorded:
            # as another library writes headers
            for name in DATASETS:
                edit_header(lambda: store, f"cube++{name}", lambda h: h.pop("kartothek_cube_widths", None))
        files = bits_in_files(store)
        # a condition on an indexed column leaves out files, whose types do not count without a record
        if recorded or conditions is None or conditions.column != "x":
            for table in api.query_cube_arrow(**query):
                found = {column: table[column].type.bit_width for _, column, _ in DATASETS.values()}
                assert found == expected_bits(files, conditions, recorded)
        frames = api.query_cube(**query)
        expected = types_of(frames)
        lists = [list(api.query_cube__iterator(**query))]
        with dask.config.set(scheduler="sync"):
            parts = dask.compute(api.query_cube_delayed(**query))[0]
            # a group without rows is an empty frame there
            lists.append([frame for frame in parts if len(frame)])
            lists.append(api.query_cube_bag(**query, blocksize=2).compute())
        plan = plan_query(QueryFrames(**query))
        if plan.groups:
            cut = draw.draw(st.integers(0, len(plan.groups)), label="cut")
            tasks = plan.slice_tasks(np.unique([0, cut, len(plan.groups)]))
            lists.append([frame for task in tasks for frame in run_frames(plan.context, task)])
        for other in lists:
            assert types_of(other) == expected
            for one, two in zip(other, frames, strict=True):
                pd.testing.assert_frame_equal(one, two)
