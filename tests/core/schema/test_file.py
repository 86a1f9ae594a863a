"""A header and a schema are two files: whoever dies in between, each header finds its own schema."""

import itertools

import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core import schema as schemas
from kartothek_cube.core.errors import CorruptDatasetError
from tests.support.factories import memory as new_memory
from tests.support.stored_files import frame
from tests.support.stores import Died, FaultyStore

OLD, NEW = frame(x=[1]), frame(x=["a"], y=[1.5])
A, B = (schemas.make_meta(pa.schema([(name, pa.int64())]), name) for name in "ab")


@pytest.fixture
def memory(tmp_path):
    return new_memory(tmp_path)


def content(store) -> bytes:
    return store().get("u/table/_common_metadata")


def test_round_trip():
    stored = schemas.render_schema_file(A, {"creation_time": "today"}, (B, {"creation_time": "yesterday"}))
    found = schemas.schema_file_from_bytes(stored, "k")
    assert (found.schema, found.version, dict(found.others)) == (A, "today", {"yesterday": B})
    for version, schema in {"today": A, "yesterday": B, "other": A, None: A}.items():
        assert found.of(version) == schema
    found = schemas.schema_file_from_bytes(schemas.schema_to_bytes(A), "k")
    assert (found.schema, found.version, dict(found.others)) == (A, None, {})


@pytest.mark.parametrize(
    "marks",
    [
        *(b"", b"{", b"[]", b"[" * 100_000, b'{"creation_time": 1}', b'{"others": []}'),
        *(b'{"others": {"a": 1}}', b'{"others": {"a": "!"}}', b'{"others": {"a": "AAAA"}}'),
        b'{"others": {"1":"","2":"","3":"","4":"","5":"","6":"","7":"","8":"","9":""}}',
    ],
    ids=lambda b: repr(b[:40]),
)
def test_strange_marks(marks):
    with pytest.raises(CorruptDatasetError, match="k"):
        schemas.decode_version(A, {schemas.VERSIONS_KEY: marks}, "k")


@pytest.mark.parametrize("before", ["today", None])
def test_a_version_has_one_schema(before):
    stored = schemas.render_schema_file(A, {"creation_time": "today"}, (B, {"creation_time": before}))
    assert schemas.schema_file_from_bytes(stored, "k") == (A, "today", {})


def test_an_interrupted_overwrite_changes_nothing_for_readers_copies_and_writers(memory):
    api.store_dataframes_as_dataset(memory, "u", [OLD])
    before = content(memory)
    for _ in range(2):
        failing = FaultyStore(memory()).die("put", key="by-dataset-metadata")
        with pytest.raises(Died):
            api.store_dataframes_as_dataset(failing, "u", [NEW], overwrite=True)
        assert content(memory) != before
        assert api.read_table("u", memory)["x"].tolist() == [1]
    assert [p.kind for p in api.verify_dataset("u", memory).problems] == ["schema-pending"]
    api.copy_dataset("u", memory, "v")
    assert api.read_table("v", memory)["x"].tolist() == [1]
    api.update_dataset_from_dataframes([OLD], memory, "u")
    assert api.read_table("u", memory)["x"].tolist() == [1, 1]
    assert schemas.schema_file_from_bytes(content(memory), "k").schema.names == ["x"]
    assert api.verify_dataset("u", memory).ok
    api.store_dataframes_as_dataset(memory, "u", [NEW], overwrite=True)
    assert api.read_table("u", memory)["y"].tolist() == [1.5]
    assert api.verify_dataset("u", memory).ok


@pytest.mark.parametrize("first, second", list(itertools.product(range(1, 6), repeat=2)))
def test_two_writers_that_die(memory, first, second):
    """An overwrite and an append, each of which dies at one of its writes: there is one of the states."""
    api.store_dataframes_as_dataset(memory, "u", [OLD])
    for at, write in (
        (first, lambda s: api.store_dataframes_as_dataset(s, "u", [NEW], overwrite=True)),
        (second, lambda s: api.update_dataset_from_dataframes([frame(x=[2])], s, "u")),
    ):
        dying = FaultyStore(memory())
        for method in ("put", "delete"):
            dying.die(method, at=at, after=at % 2 == 0)
        try:
            write(dying)
        except (Died, ValueError):
            pass
        found = api.read_table("u", memory).to_dict("list")
        assert found in ({"x": [1]}, {"x": ["a"], "y": [1.5]}, {"x": [1, 2]})
        assert {p.kind for p in api.verify_dataset("u", memory).problems} <= {"schema-pending"}
