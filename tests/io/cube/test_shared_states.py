"""Writes share the parsed states of datasets with later operations, and users get copies."""

from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api.cube import C, Cube, discover_datasets, query_cube_df, verify_cube
from kartothek_cube.core import dataset_files
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import store_dataframes_as_dataset, update_dataset_from_dataframes
from kartothek_cube.io.eager_cube import (
    append_to_cube,
    build_cube,
    extend_cube,
    publish_staged,
    remove_partitions,
)
from kartothek_cube.io.iter_cube import build_cube__iter

CUBE = Cube(["x"], ["p"], "cube", index_columns=["v"])
FRAME = pd.DataFrame({"x": [0, 1], "p": [0, 1], "v": [5, 6]})


def spoil(state: DatasetMetadata) -> None:
    """Change everything that can be changed of a state."""
    state.metadata["spoilt"] = "yes"
    state.partitions.clear()
    for name in list(state.indices):
        state.indices.pop(name)
    state.extra.clear()


def update(store):
    store_dataframes_as_dataset(store=store, dataset_uuid="cube++seed", dfs=[FRAME], partition_on=["p"])
    return update_dataset_from_dataframes([FRAME], store=store, dataset_uuid="cube++seed", partition_on=["p"])


WRITES = {
    "append nothing": lambda store: append_to_cube(FRAME.iloc[:0], CUBE, store)["seed"],
    "append": lambda store: append_to_cube(FRAME.assign(x=[2, 3]), CUBE, store)["seed"],
    "extend": lambda store: extend_cube({"more": FRAME.rename(columns={"v": "w"})}, CUBE, store)["more"],
    "remove": lambda store: remove_partitions(CUBE, store, C("p") == 0)["seed"],
    "build": None,
    "update": update,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_state_that_users_change_is_theirs(write, store_factory):
    if write is not update:
        returned = build_cube(FRAME, CUBE, store_factory)["seed"]
    if write is not None:
        returned = write(store_factory)
    before = DatasetMetadata.load_from_store(returned.uuid, store_factory).to_dict()
    spoil(returned)
    assert DatasetMetadata.load_from_store(returned.uuid, store_factory).to_dict() == before
    if write is not update:
        spoil(discover_datasets(CUBE, store_factory)[returned.uuid.removeprefix("cube++")])
        after = append_to_cube(FRAME.assign(x=[8, 9]), CUBE, store_factory)
        assert "spoilt" not in after["seed"].metadata
        assert {*after["seed"].indices} == {"x", "v"}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_header_that_was_put_is_known_as_it_would_be_read(write, store_factory, monkeypatch):
    """Not parsed again by this process, and not different from what another process reads."""
    if write is not update:
        build_cube(FRAME, CUBE, store_factory, metadata={"seed": {"days": (1, 2), "notes": {3: None}}})
    uuid = "cube++seed" if write is None else write(store_factory).uuid
    stored = dataset_files.read_header(uuid, open_blobs(store_factory))
    expected = dataset_files._parse_header(stored, uuid)
    monkeypatch.setattr(dataset_files, "_parse_header", None)
    parsed = dataset_files.parse_header_shared(stored, uuid)
    assert (parsed.header, list(parsed.header)) == (expected.header, list(expected.header))
    assert parsed.partitions == expected.partitions


def build_one_by_one(data, x, store):
    def frames():
        yield data
        x[:] += 5

    build_cube__iter(frames(), CUBE, store)


def stage(data, x, store):
    staged = build_cube(data, CUBE, store, publish=False)
    x[:] += 5
    publish_staged(staged, store)


def build_and_change(data, x, store):
    build_cube(data, CUBE, store)
    x[:] += 5


@pytest.mark.parametrize("make", [partial(pd.DataFrame, copy=False), pa.table], ids=["pandas", "arrow"])
@pytest.mark.parametrize("write", [build_one_by_one, stage, build_and_change])
def test_input_that_changes_later_is_stored_as_it_was(write, make, store_factory):
    x = np.arange(4)
    write(make({"x": x, "p": x // 2, "v": x.copy()}), x, store_factory)
    assert query_cube_df(CUBE, store_factory, conditions=C("x") == 3)["x"].tolist() == [3]
    append_to_cube(FRAME.assign(x=[8, 9]), CUBE, store_factory)
    assert verify_cube(CUBE, store_factory).ok


def test_metadata_that_change_later_are_stored_as_they_were(store_factory):
    given = {"runs": ([1], 2)}
    staged = build_cube(FRAME, CUBE, store_factory, metadata={"seed": given}, publish=False)
    given["runs"][0].append(3)
    returned = publish_staged(staged, store_factory)["seed"].metadata["runs"]
    assert returned == discover_datasets(CUBE, store_factory)["seed"].metadata["runs"] == [[1], 2]
