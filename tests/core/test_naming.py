from datetime import UTC, datetime

import pytest

from kartothek_cube.core import naming

INDEX_KEY = naming.index_key("u", "x y/ü", datetime(2000, 1, 2, 3, 4, 5))


@pytest.mark.parametrize("uuid", ["u", "a++b", "A-z_0+", "0"])
def test_legal_uuid(uuid):
    assert naming.validate_uuid(uuid) is True
    naming.check_uuid(uuid)


@pytest.mark.parametrize("uuid", ["", "a/b", "a.b", "..", "ü", "a b", "a\n", "a%20", None, b"a", 1])
def test_illegal_uuid(uuid):
    assert naming.validate_uuid(uuid) is False
    builders = {naming.check_uuid: (), naming.metadata_key_from_uuid: (), naming.schema_key: ("table",)}
    builders |= {naming.get_partition_file_prefix: ("l", "table"), naming.legacy_index_key: ("x",)}
    builders |= {naming.index_key: ("x", datetime(2000, 1, 1))}
    for build, arguments in builders.items():
        with pytest.raises(ValueError, match="cannot be a dataset uuid") as error:
            build(uuid, *arguments)
        assert repr(uuid) in str(error.value)


@pytest.mark.parametrize(
    "key, expected",
    [
        (naming.metadata_key_from_uuid("u"), "u.by-dataset-metadata.json"),
        (naming.metadata_key_from_uuid("u", format="msgpack"), "u.by-dataset-metadata.msgpack.zstd"),
        (naming.schema_key("u"), "u/table/_common_metadata"),
        (naming.schema_key("u", "core"), "u/core/_common_metadata"),
        (naming.get_partition_file_prefix("u", "p=1/q=x/ff", "table"), "u/table/p=1/q=x/ff"),
        (naming.get_partition_file_prefix("u", "ff", "t", metadata_version=4), "u/t/ff"),
        (INDEX_KEY, "u/indices/x%20y%2F%C3%BC/2000-01-02T03%3A04%3A05.000000.by-dataset-index.parquet"),
        (naming.legacy_index_key("u", "x y"), "u.x y.by-dataset-index.parquet"),
    ],
)
def test_keys(key, expected):
    assert key == expected


TABLES = ["", ".", "..", "indices", "a/b", "a\\b", "a\n", "\0", None]
FORMATS = ["JSON", "xml", "", None]
LABELS = ["", "/a", "a/", "a//b", "../b", "a/../b", "a/."]
#: what makes a key, illegal parts of it, and the error
ILLEGAL = [
    (lambda kind: naming.metadata_key_from_uuid("u", kind), FORMATS, "available: json, msgpack"),
    (lambda table: naming.schema_key("u", table), TABLES, "cannot be the name of a table"),
    (lambda table: naming.get_partition_file_prefix("u", "l", table), TABLES, "the name of a table"),
    (lambda label: naming.get_partition_file_prefix("u", label, "t"), LABELS, "cannot be a partition label"),
    (lambda v: naming.get_partition_file_prefix("u", "l", "t", v), [3, 5, "4", True, None], "only version 4"),
    (lambda column: naming.index_key("u", column, datetime.now(UTC)), ["", ".", ".."], "cannot be indexed"),
    (lambda column: naming.legacy_index_key("u", column), ["x/y"], "slash"),
]


@pytest.mark.parametrize("build, value, problem", [(b, v, p) for b, values, p in ILLEGAL for v in values])
def test_illegal_parts_of_keys_are_refused(build, value, problem):
    with pytest.raises(NotImplementedError if "version" in problem else ValueError, match=problem):
        build(value)


@pytest.mark.parametrize("table", ["table", "core", "my table", "indices2", "a.b", "..."])
def test_legal_table_name(table):
    assert naming.schema_key("u", table) == f"u/{table}/_common_metadata"
