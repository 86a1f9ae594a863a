"""Names that files, directories or other engines cannot have: one sentence, and nothing is written."""

import os
from functools import partial

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager_cube import build_cube, query_cube, update_schema

CUBE = Cube(["X"], ["P"], "names")
FRAME = pd.DataFrame({"X": [1, 2], "P": ["a", "b"], "V": [1.0, 2.0]})
#: 780 bytes in a storage key
LONG = "ü" * 130
VIRTUAL = "filename fragment_index batch_index last_in_fragment"
TOO_LONG = r"has \d+ bytes, too many for the name of a file or directory"


def fails(function, store, text):
    with pytest.raises(ValueError, match=text):
        function(store)
    assert open_blobs(store).list("") == []


@pytest.mark.parametrize(
    "frame, arguments",
    [
        (FRAME.assign(P=["a", LONG]), {}),
        (FRAME.rename(columns={"V": LONG}), {"index_columns": [LONG]}),
        (FRAME.rename(columns={"X": LONG}), {"dimension_columns": [LONG]}),
        (FRAME.rename(columns={"P": LONG}), {"partition_columns": [LONG]}),
        (FRAME, {"uuid_prefix": "a" * 250}),
        (FRAME, {"seed_dataset": "a" * 250}),
    ],
)
def test_names_that_are_too_long_for_files_are_refused(tmp_path, frame, arguments):
    given = {"dimension_columns": ["X"], "partition_columns": ["P"], "uuid_prefix": "names", **arguments}
    fails(partial(build_cube, frame, Cube(**given)), tmp_path, TOO_LONG)


def test_long_names_of_payload_columns_are_none_of_files(tmp_path):
    build_cube(FRAME.rename(columns={"V": LONG}), CUBE, tmp_path)
    assert query_cube(CUBE, tmp_path)[0][LONG].tolist() == [1.0, 2.0]


def test_an_index_whose_name_is_too_long_changes_nothing(tmp_path):
    frame = FRAME.rename(columns={"V": LONG})
    api.store_dataframes_as_dataset(dfs=[frame], store=tmp_path, dataset_uuid="names")
    before = sorted(open_blobs(tmp_path).list(""))
    with pytest.raises(ValueError, match=TOO_LONG):
        api.build_dataset_indices(store=tmp_path, dataset_uuid="names", columns=[LONG])
    assert sorted(open_blobs(tmp_path).list("")) == before
    assert len(api.read_table(store=tmp_path, dataset_uuid="names")) == 2


def test_a_partition_column_may_have_the_name_of_labels(store_factory):
    """Indices, discovery and the command line refused what a write had stored."""
    frame = FRAME.rename(columns={"P": "partition"})
    build_cube(frame, Cube(["X"], ["partition"], "names"), store_factory)
    seed = DatasetFactory("names++seed", store_factory).load_all_indices().dataset_metadata
    labels = [f"partition={value}" for value in "ab"]
    found = seed.get_indices_as_dataframe(["partition"])
    assert [os.path.dirname(label) for label in found.index] == labels
    assert (found["partition"].tolist(), found.index.name) == (["a", "b"], "partition")
    series = seed.indices["partition"].as_flat_series(partitions_as_index=True)
    assert (series.tolist(), series.index.tolist()) == (["a", "b"], found.index.tolist())
    read = partial(api.read_dataset_as_dataframes__iterator, "names++seed", store_factory)
    assert [len(group) for group in read(dispatch_by=["partition"])] == [1, 1]


@pytest.mark.parametrize("name", ["a\0b", *(f"__{name}" for name in VIRTUAL.split())])
@pytest.mark.parametrize("column", ["X", "P", "V"])
def test_columns_that_other_engines_cannot_read_are_refused(store_factory, name, column):
    frame = FRAME.rename(columns={column: name})
    keys = {"X": "X", "P": "P"} | {column: name}
    text = "in its name|reserves for a virtual column"
    cube, data = Cube([keys["X"]], [keys["P"]], "names"), [pa.Table.from_pandas(frame)]
    fails(partial(build_cube, frame, cube), store_factory, text)
    store = partial(api.store_dataframes_as_dataset, dataset_uuid="names", dfs=data, partition_on=keys["P"])
    fails(store, store_factory, text)


@pytest.mark.parametrize("change", [{"add": {"a\0b": "int64"}}, {"rename": {"V": "__filename"}}])
def test_columns_are_not_renamed_to_what_other_engines_cannot_read(store_factory, change):
    build_cube(FRAME, CUBE, store_factory)
    with pytest.raises(ValueError, match=r"in its name|reserves for|no name of a column|shown by no query"):
        update_schema(CUBE, store_factory, "seed", **change)
    assert query_cube(CUBE, store_factory)[0].columns.tolist() == ["P", "V", "X"]


def test_stored_columns_that_other_engines_cannot_read_are_not_published(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("kartothek_cube.core.naming._VIRTUAL_COLUMNS", set())
        frame = FRAME.rename(columns={"V": "__filename"})
        api.store_dataframes_as_dataset(dfs=[frame], store=tmp_path, dataset_uuid="names")
    with pytest.raises(ValueError, match="cannot be published: Column '__filename' has a name that"):
        api.publish_dataset(store=tmp_path, dataset_uuid="names")
