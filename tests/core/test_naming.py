from datetime import datetime

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


@pytest.mark.parametrize("format", ["JSON", "xml", "", None])
def test_unknown_header_format_is_refused(format):
    with pytest.raises(ValueError, match="available: json, msgpack"):
        naming.metadata_key_from_uuid("u", format)


@pytest.mark.parametrize("table", ["", ".", "..", "indices", "a/b", "a\\b", "a\n", "\0", None])
def test_illegal_table_name(table):
    for build in (naming.schema_key, lambda uuid, table: naming.get_partition_file_prefix(uuid, "l", table)):
        with pytest.raises(ValueError, match="cannot be the name of a table"):
            build("u", table)


@pytest.mark.parametrize("table", ["table", "core", "my table", "indices2", "a.b", "..."])
def test_legal_table_name(table):
    assert naming.schema_key("u", table) == f"u/{table}/_common_metadata"


@pytest.mark.parametrize("label", ["", "/a", "a/", "a//b", "../b", "a/../b", "a/."])
def test_label_that_leaves_the_dataset_is_refused(label):
    with pytest.raises(ValueError, match="cannot be a partition label"):
        naming.get_partition_file_prefix("u", label, "table")


@pytest.mark.parametrize("version", [3, 5, "4", True, None])
def test_only_version_4(version):
    with pytest.raises(NotImplementedError, match="only version 4"):
        naming.get_partition_file_prefix("u", "l", "table", version)


@pytest.mark.parametrize("column", ["", ".", ".."])
def test_column_without_index_key(column):
    with pytest.raises(ValueError, match="cannot be indexed"):
        naming.index_key("u", column, datetime(2000, 1, 1))


def test_column_without_legacy_index_key():
    with pytest.raises(ValueError, match="slash"):
        naming.legacy_index_key("u", "x/y")
