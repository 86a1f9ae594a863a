"""Reading datasets as Arrow tables and record batches."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.io import arrow
from kartothek_cube.io.eager import store_dataframes_as_dataset
from tests.support.stored_files import frame
from tests.support.stores import CountingStore

DAY = datetime.date(2020, 1, 31)
TABLE = pa.table(
    {
        "p": pa.array([2, 1, 2], pa.int8()),
        "i": pa.array([1, None, 3], pa.int16()),
        "f": pa.array([1.5, None, float("nan")], pa.float32()),
        "b": pa.array([True, None, False]),
        "s": pa.array(["a", None, "ü"], pa.large_string()),
        "d": pa.array([DAY, None, DAY]),
        "t": pa.array([datetime.datetime(2020, 1, 31), None, None], pa.timestamp("ms")),
        "z": pa.array([datetime.datetime(2020, 1, 31), None, None], pa.timestamp("s", "Europe/Berlin")),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "r": pa.array([{"a": 1}, None, {"a": 2}], pa.struct([("a", pa.int64())])),
        "c": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
)
TYPES = {"p": pa.int64(), "i": pa.int16(), "f": pa.float32(), "b": pa.bool_(), "s": pa.string()}
TYPES |= {"d": pa.date32(), "t": pa.timestamp("ns"), "z": pa.timestamp("ns", "Europe/Berlin")}
TYPES |= {"l": pa.list_(pa.int32()), "r": pa.struct([("a", pa.int64())]), "c": pa.string()}


@pytest.fixture
def stored(memory):
    store_dataframes_as_dataset(memory, "u", [TABLE], partition_on="p", secondary_indices=["s", "i"])
    return memory


def values(table):
    wanted = pa.schema([(name, TYPES[name]) for name in table.column_names])
    return [str(row) for row in table.cast(wanted).to_pylist()]  # NaN does not equal itself


def test_types_options_and_partitions(stored):
    table = arrow.read_table_arrow("u", stored)
    assert table.column_names == ["p", *sorted(set(TYPES) - {"p"})]
    assert {field.name: field.type for field in table.schema} == TYPES
    assert values(table.select(TABLE.column_names)) == values(TABLE.take([0, 2, 1]))
    tables = arrow.read_dataset_as_arrow("u", stored)
    assert [len(table) for table in tables] == [2, 1]
    assert tables[0].column_names == ["p", *TABLE.column_names[1:]]
    assert [values(t) for t in arrow.read_dataset_as_arrow__iterator("u", stored)] == [
        values(t) for t in tables
    ]
    options = {"columns": ["s", "p"], "predicates": [[("p", "==", 2), ("s", "==", "ü")]]}
    expected = [{"s": "ü", "p": 2}]
    assert arrow.read_table_arrow("u", stored, **options).to_pylist() == expected
    assert [t.to_pylist() for t in arrow.read_dataset_as_arrow("u", stored, **options)] == [expected]
    assert arrow.read_dataset_as_record_batches("u", stored, **options).read_all().to_pylist() == expected
    groups = list(arrow.read_dataset_as_arrow__iterator("u", stored, dispatch_by="s", columns=["p"]))
    assert [t.to_pydict() for t in groups] == [{"p": [2]}, {"p": [2]}]
    table = arrow.read_table_arrow("u", stored, categoricals=["c", "p", "d"])
    for name in ("c", "p", "d"):
        column = table.column(name)
        assert column.type == pa.dictionary(pa.int32(), TYPES[name])
        assert len({tuple(chunk.dictionary.to_pylist()) for chunk in column.chunks}) == 1
    assert table.column("c").to_pylist() == ["x", "x", "y"]


@pytest.mark.parametrize("columns", [None, ["s", "p"]])
def test_nothing_to_read(stored, columns):
    options = {"predicates": [[("p", "==", 7)]], "columns": columns}
    table = arrow.read_table_arrow("u", stored, **options)
    assert table.num_rows == 0
    assert table.column_names == (["p", *sorted(set(TYPES) - {"p"})] if columns is None else columns)
    assert table.schema.field("s").type == pa.string()
    assert arrow.read_dataset_as_arrow("u", stored, **options) == []
    assert arrow.read_dataset_as_record_batches("u", stored, **options).read_all().num_rows == 0


def test_batches_have_one_schema(memory):
    inputs = [frame(x=np.array([1], "int8")), frame(x=[2**40]), pa.table({"x": pa.nulls(1)})]
    store_dataframes_as_dataset(memory, "u", inputs)
    assert [t.schema.field("x").type for t in arrow.read_dataset_as_arrow("u", memory)] == [pa.int64()] * 3
    reader = arrow.read_dataset_as_record_batches("u", memory)
    assert reader.schema.types == [pa.int64()]
    assert reader.read_all().to_pydict() == {"x": [1, 2**40, None]}


def test_batches_are_read_when_asked(memory):
    store_dataframes_as_dataset(memory, "u", [TABLE] * 3)
    counting = CountingStore(memory())
    reader = arrow.read_dataset_as_record_batches("u", counting)
    for count in range(3):
        assert sum(".parquet" in key for _, key in counting.log) == count
        reader.read_next_batch()


def test_file_that_does_not_fit_its_schema(memory):
    """Somebody replaced a file by one with texts."""
    store_dataframes_as_dataset(memory, "u", [frame(x=[1]), frame(x=[2])])
    store_dataframes_as_dataset(memory, "v", [frame(x=["a"])])
    (other,) = [key for key in memory().keys() if key.startswith("v/") and key.endswith(".parquet")]
    key = next(key for key in memory().keys() if key.startswith("u/") and key.endswith(".parquet"))
    memory().put(key, memory().get(other))
    with pytest.raises(CorruptDatasetError, match="u"):
        arrow.read_table_arrow("u", memory)
