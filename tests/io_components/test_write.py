"""Writing one input: what is refused before anything of it is written, and what is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import store_dataframes_as_dataset
from kartothek_cube.io_components.index_build import plan_index_build
from kartothek_cube.io_components.update import run_update
from kartothek_cube.io_components.write import WriteContext, write_table

NESTED = [
    pa.array([[1], [2]]),
    pa.array([{"q": 1}, {"q": 2}]),
    pa.array([[("q", 1)], []], pa.map_("string", "int8")),
]
WHAT = {"partition_on": "partition", "indices": "index", "sort_by": "sort"}


@pytest.mark.parametrize("values", NESTED, ids=["list", "struct", "map"])
@pytest.mark.parametrize("use", WHAT)
def test_nested_values_have_no_order(store_factory, use, values):
    context = WriteContext(store_factory, "uuid", **{use: ("x",)})
    good, bad = pa.table({"x": [1, 2], "y": [1, 2]}), pa.table({"x": values, "y": [1, 2]})
    with pytest.raises(NotImplementedError, match=f"Cannot {WHAT[use]} dataset uuid by column x of type"):
        run_update(context, [good, bad])
    assert open_blobs(store_factory).list("") == []


def test_nested_columns_get_no_index_later(store_factory):
    store_dataframes_as_dataset(store_factory, "uuid", [pa.table({"x": NESTED[0], "y": [1, 2]})])
    with pytest.raises(NotImplementedError, match="Cannot index dataset uuid by column x of type list"):
        plan_index_build(DatasetFactory("uuid", store_factory), ["x", "y"])


@pytest.mark.parametrize("values", NESTED, ids=["list", "struct", "map"])
def test_nested_columns_that_are_only_stored(store_factory, values):
    result = write_table(
        WriteContext(store_factory, "uuid", partition_on=("x",)), pa.table({"x": [1, 2], "y": values})
    )
    assert len(result.labels) == 2
