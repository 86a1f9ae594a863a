"""Cleaning up a cube: files below its prefix that no header names go."""

from contextlib import suppress

import attrs
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.api.cube import publish_staged
from kartothek_cube.core.commit import header_store
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.io_components.job import execute
from kartothek_cube.io_components.maintenance import garbage
from kartothek_cube.io_components.publication import delta_log
from tests.support import cubes
from tests.support.crash import stores_after_faults
from tests.support.cubes import ENRICH, SEED


def test_a_tidy_cube_stays_as_it_is_and_so_does_an_empty_store(driver, built, other_store_factory):
    for store in (built, other_store_factory):
        with cubes.unchanged(store):
            driver.cleanup_cube(cube=cubes.CUBE, store=store)


def test_files_of_others_stay(driver, built):
    others = ["cube.foo", "cube/x", "foo_cube++seed/x", "cube2++seed/x", "cube+seed/x", "x/cube++seed/y"]
    for key in others:
        built().put(key, b"data")
    expected = cubes.keys(built)
    for key in ["cube++seed/x", "cube++new/table/x.parquet", "cube++seed.foo", "cube++x"]:
        built().put(key, b"data")
    driver.cleanup_cube(cube=cubes.CUBE, store=built)
    assert cubes.keys(built) == expected


@pytest.mark.parametrize("id_", ["seed", "enrich"])
def test_files_of_a_dataset_without_header_go(driver, built, id_):
    expected = {key for key in cubes.keys(built) if id_ not in key}
    built().delete(f"cube++{id_}{cubes.HEADER}json")
    driver.cleanup_cube(cube=cubes.CUBE, store=built)
    assert cubes.keys(built) == expected


@pytest.mark.parametrize("id_", ["seed", "enrich"])
def test_files_of_a_dataset_without_schema_stay(driver, built, id_):
    built().delete(f"cube++{id_}/table/_common_metadata")
    with cubes.unchanged(built):
        driver.cleanup_cube(cube=cubes.CUBE, store=built)


def test_an_unreadable_header_is_an_error_not_a_leftover(driver, built):
    built().put(f"cube++enrich{cubes.HEADER}json", b"{")
    with cubes.unchanged(built), pytest.raises(ValueError):
        driver.cleanup_cube(cube=cubes.CUBE, store=built)


@pytest.mark.parametrize("write", ["staged", "new"])
@pytest.mark.parametrize(
    "module, function",
    [(header_store, "put_tombstone_file"), (header_store, "read_versioned"), (delta_log, "delete_log_files")],
)
def test_a_first_commit_while_files_of_its_dataset_are_deleted(monkeypatch, module, function, write):
    """It is refused, or keeps its files and its schema."""
    store, original, results = cubes.memory(), getattr(module, function), []
    api.build_cube(SEED, cubes.CUBE, store)
    staged = api.extend_cube({"enrich": ENRICH}, cubes.CUBE, store, publish=False)
    # another writer has died after it put the schema
    schema = "cube++enrich/table/_common_metadata"
    store.put(schema, store.get("cube++seed/table/_common_metadata"))

    def commit_first(*args):
        if not results:
            results.append("refused")
            with suppress(ConcurrentWriteError):
                if write == "staged":
                    publish_staged(staged, store)
                else:
                    api.extend_cube({"enrich": ENRICH}, cubes.CUBE, store)
                results[0] = "committed"
        return original(*args)

    monkeypatch.setattr(module, function, commit_first)
    api.cleanup_cube(cubes.CUBE, store)
    # its files are listed by then
    is_late = write == "staged" and function != "put_tombstone_file"
    assert results == ["refused" if is_late else "committed"]
    assert ("v2" in api.query_cube(cubes.CUBE, store)[0]) == (not is_late)
    assert api.verify_cube(cubes.CUBE, store).ok


def cleanup_in_blocks(cube, store) -> None:
    """Clean up by a job of several tasks, which may run in any order."""
    job = garbage.CleanupCube(cube, store).job(blocksize=2)
    execute(attrs.evolve(job, tasks=[*job.tasks][::-1]))


@pytest.mark.parametrize("cleanup", [api.cleanup_cube, cleanup_in_blocks])
def test_a_cleanup_that_dies_leaves_no_state_without_its_files(cleanup):
    """At each request: what the history lists can be read."""
    store = cubes.memory()
    for v1 in (1, 2):
        api.build_cube(SEED.assign(v1=v1), cubes.CUBE, store, overwrite=True)
    before = cubes.snapshot(lambda: store)
    stores = stores_after_faults(before, lambda dying: cleanup(cubes.CUBE, dying))
    n_states = [len(api.list_cube_history(cubes.CUBE, store)) for store in stores]
    assert n_states == sorted(n_states, reverse=True) and set(n_states) == {1, 2}
    for store in stores:
        for state in api.list_cube_history(cubes.CUBE, store):
            (rows,) = api.query_cube(cubes.CUBE, store, as_of=state.version)
            assert rows["v1"].tolist() == [state.version] * len(SEED)
