"""Finding the datasets of a cube, and the cube itself, in a store."""

import pytest

from kartothek_cube.api import discover as api
from kartothek_cube.api.dataset import DatasetMetadata, store_dataframes_as_dataset
from kartothek_cube.core.header import COMMIT_RECORD
from kartothek_cube.io.eager_cube import query_cube
from kartothek_cube.io_components.write import write_commit
from tests.support.cubes import CUBE, HEADER, build, edit_header, frame, memory, rows
from tests.support.stores import CountingStore, Same

CUBE_PQ = CUBE.copy(dimension_columns=["x", "y"], partition_columns=["p", "q"])
CUBE_PQ = CUBE_PQ.copy(index_columns=["i1", "v2"], suppress_index_on=["y"])
SEED = frame(x=[0, 1], y=[0, 1], p=[0, 1], q=[0, 1], v1=[10, 11], i1=[1, 2])
ENRICH = frame(x=[0, 1], p=[0, 1], q=[0, 1], v2=[20, 21])


@pytest.fixture
def built(store_factory):
    """A store with a cube of two datasets."""
    build(store_factory, CUBE_PQ, seed=SEED, enrich=ENRICH)
    return store_factory


def edit(store, id_, remove=(), **new):
    """Change the metadata of a dataset."""

    def change(content):
        kept = {name: value for name, value in content["metadata"].items() if name not in remove}
        content["metadata"] = {**kept, **new}

    edit_header(store, f"cube++{id_}", change)


NAMES = ("is_seed", "dimension_columns", "partition_columns", "suppress_index_on")
KTK, KLEE = ([f"{prefix}_{name}" for name in NAMES] for prefix in ("ktk_cube", "klee"))


def test_ids_are_those_of_headers_below_the_prefix(built):
    headers = ("cube++zz.by-dataset-metadata.msgpack.zstd", "cube2++a.by-dataset-metadata.json")
    for key in (*headers, "cube++b/x"):
        built().put(key, b"data")
    for key in ["cube.by-dataset-metadata.json", "cube++c.json", "xcube++d.by-dataset-metadata.json"]:
        built().put(key, b"data")
    assert api.discover_ktk_cube_dataset_ids("cube", built) == {"seed", "enrich", "zz"}
    assert api.discover_ktk_cube_dataset_ids("nope", built) == set()


@pytest.mark.parametrize(
    "only, ids",
    [
        *((None, ["enrich", "seed"]), ({"seed", "enrich"}, ["enrich", "seed"])),
        *(("seed", ["seed"]), (["seed", "nope"], ["seed"]), ([], [])),
    ],
)
def test_unchecked_datasets_are_sorted_and_as_stored(built, only, ids):
    found = api.discover_datasets_unchecked("cube", built, only)
    assert list(found) == ids
    for id_, dataset in found.items():
        assert dataset == DatasetMetadata.load_from_store(f"cube++{id_}", built())
        assert dataset.schema is not None
        assert not dataset.primary_indices_loaded


def test_stores_may_be_given_in_any_form(tmp_path):
    url = f"hfs://{tmp_path}/store?create_if_missing=true"
    build(url, CUBE_PQ, seed=SEED)
    for store in (url, memory):
        assert isinstance(api.discover_datasets_unchecked("cube", store), dict)
    assert api.discover_cube("cube", url)[0].uuid_prefix == "cube"


def test_discovery_lists_once_and_loads_each_dataset_once():
    factory = Same.of(CountingStore(memory()))
    build(factory, CUBE_PQ, seed=SEED, enrich=ENRICH)
    store = factory()
    for number in range(20):
        store.put(f"other{number}", b"data")
    store.reset()
    api.discover_datasets_unchecked("cube", factory)
    assert store.counts["iter_prefixes"] <= 1
    assert all(key.startswith("cube++") for method, key in store.log if "keys" in method)
    reads = [key for method, key in store.log if method in ("get", "open")]
    assert len(reads) == len(set(reads))
    assert all(key.startswith(("cube++seed", "cube++enrich")) for key in reads)


@pytest.mark.parametrize("lost", [f"cube++enrich{HEADER}json", "cube++enrich/table/_common_metadata"])
def test_broken_datasets_are_skipped(built, lost):
    # as other libraries write it: without the schema in the header
    edit_header(built, "cube++enrich", lambda header: header.pop(COMMIT_RECORD))
    built().delete(lost)
    assert list(api.discover_datasets_unchecked("cube", built)) == ["seed"]
    assert list(api.discover_datasets(CUBE_PQ.copy(index_columns=["i1"]), built)) == ["seed"]
    with pytest.raises(ValueError, match="enrich"):
        api.discover_datasets(CUBE_PQ, built, ["seed", "enrich"])


def test_datasets_without_schema_file_and_in_msgpack_are_found(built):
    before = api.discover_datasets(CUBE_PQ, built)
    built().delete("cube++enrich/table/_common_metadata")
    assert api.discover_datasets(CUBE_PQ, built) == before
    options = {"metadata_storage_format": "msgpack"}
    store_dataframes_as_dataset(built, "cube++other", [frame(x=[0], v3=[1])], **options)
    assert list(api.discover_datasets_unchecked("cube", built)) == ["enrich", "other", "seed"]
    assert rows(query_cube(cube=CUBE_PQ, store=built))["v3"] == [1, None]


@pytest.mark.parametrize(
    "only, ids", [(None, ["enrich", "seed"]), ("seed", ["seed"]), (["seed", "enrich"], ["enrich", "seed"])]
)
def test_checked_datasets(built, only, ids):
    assert list(api.discover_datasets(CUBE_PQ, built, only)) == ids


@pytest.mark.parametrize("only, fragment", [(["seed", "b", "a"], "a, b"), (["enrich"], "seed"), ([], "seed")])
def test_datasets_that_are_missing(built, only, fragment):
    with pytest.raises(ValueError, match=fragment):
        api.discover_datasets(CUBE_PQ, built, only)


@pytest.mark.parametrize("forget", [[], KTK[:3], KLEE, [KTK[1], KLEE[2]]])
def test_the_cube_is_found_by_either_family_of_keys(built, forget):
    for id_ in ("seed", "enrich"):
        edit(built, id_, remove=forget)
    cube, datasets = api.discover_cube("cube", built)
    assert cube == CUBE_PQ
    assert list(datasets) == ["enrich", "seed"]
    assert all(dataset.primary_indices_loaded for dataset in datasets.values())


def test_the_newer_keys_win(built):
    edit(built, "seed", klee_is_seed=False, klee_dimension_columns=["nope"], klee_partition_columns=["nope"])
    edit(built, "enrich", klee_is_seed=True)
    assert api.discover_cube("cube", built)[0] == CUBE_PQ


def test_only_the_named_datasets_are_looked_at(built):
    cube, datasets = api.discover_cube("cube", built, "seed")
    assert cube == CUBE_PQ.copy(index_columns=["i1"])
    assert list(datasets) == ["seed"]


def test_a_seed_of_another_name_and_no_suppressed_index(store_factory):
    cube = CUBE.copy(seed_dataset="main")
    build(store_factory, cube, main=frame(x=[0], p=[0], v1=[1]), seed=frame(x=[0], p=[0], v2=[1]))
    edit(store_factory, "main", remove=["ktk_cube_suppress_index_on"])
    assert api.discover_cube("cube", store_factory)[0] == cube


def test_partition_columns_of_old_cubes_are_the_keys_but_the_last(store_factory):
    df = frame(x=[0], p=[0], KLEE_TS=["2020"], v1=[1])
    options = {"partition_on": ["p", "KLEE_TS"], "secondary_indices": ["x"]}
    metadata = {"klee_is_seed": True, "klee_dimension_columns": ["x"]}
    store_dataframes_as_dataset(store_factory, "cube++seed", [df], metadata=metadata, **options)
    cube, datasets = api.discover_cube("cube", store_factory)
    assert cube == CUBE
    assert list(datasets) == ["seed"]


@pytest.mark.parametrize(
    "partition_on, metadata, exception, fragment",
    [
        (["p"], {}, ValueError, "seed"),
        ([], {}, ValueError, "seed"),
        (["p", "q"], {}, NotImplementedError, "q"),
        (["p"], {"klee_partition_columns": ["p"], "klee_timestamp_column": "q"}, NotImplementedError, "q"),
    ],
)
def test_old_cubes_that_are_not_understood(store_factory, partition_on, metadata, exception, fragment):
    metadata = {"klee_is_seed": True, "klee_dimension_columns": ["x"], **metadata}
    options = {"partition_on": partition_on, "secondary_indices": ["x"], "metadata": metadata}
    store_dataframes_as_dataset(store_factory, "cube++seed", [frame(x=[0], p=[0], q=[0], v1=[1])], **options)
    with pytest.raises(exception, match=fragment):
        api.discover_cube("cube", store_factory)


@pytest.mark.parametrize(
    "change, fragments",
    [
        (lambda s: edit(s, "seed", ktk_cube_is_seed=False), ["cube"]),
        (lambda s: [s().delete(key) for key in s().keys()], ["cube"]),
        (lambda s: edit(s, "enrich", ktk_cube_is_seed=True), ["cube", "enrich", "seed"]),
        (lambda s: edit(s, "seed", remove=[KTK[1], KLEE[1]]), ["seed"]),
    ],
)
def test_cubes_that_cannot_be_told(built, change, fragments):
    change(built)
    with pytest.raises(ValueError) as caught:
        api.discover_cube("cube", built)
    assert [part for part in fragments if part not in str(caught.value)] == []


def test_the_seed_must_be_there_and_all_must_fit(built, monkeypatch):
    # as other software does
    monkeypatch.setattr(write_commit, "check_rules", lambda *arguments: None)
    with pytest.raises(ValueError, match="cube"):
        api.discover_cube("cube", built, ["enrich"])
    store_dataframes_as_dataset(store=built, dataset_uuid="cube++other", dfs=[frame(x=[0], v1=[1])])
    with pytest.raises(ValueError, match="v1"):
        api.discover_cube("cube", built)
