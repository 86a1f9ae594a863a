"""Writes share the parsed states of datasets with later operations, and users get copies."""

import pandas as pd
import pytest

from kartothek_cube.api.cube import C, Cube, discover_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io.eager import store_dataframes_as_dataset, update_dataset_from_dataframes
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, extend_cube, remove_partitions

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
