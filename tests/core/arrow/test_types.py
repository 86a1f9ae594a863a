import pyarrow as pa
import pytest

from kartothek_cube.core import arrow

STRINGS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())]


@pytest.mark.parametrize(
    "narrow, wide",
    [
        (pa.int8(), pa.int64()),
        (pa.uint16(), pa.uint64()),
        (pa.float16(), pa.float64()),
        (pa.float32(), pa.float64()),
        *((same, same) for same in (pa.int64(), pa.bool_(), pa.decimal128(5, 2), pa.null())),
        *((flavour, pa.string()) for flavour in STRINGS),
        *((flavour, pa.binary()) for flavour in (pa.large_binary(), pa.binary(16))),
        (pa.timestamp("s"), pa.timestamp("ns")),
        (pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("ns", "Europe/Berlin")),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "Europe/Berlin")),
        (pa.date64(), pa.date32()),
        (pa.time32("ms"), pa.time64("us")),
        (pa.large_list(pa.field("element", pa.int8())), pa.list_(pa.int64())),
        (pa.list_(pa.large_string(), 2), pa.list_(pa.string())),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())])),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int64())),
        (pa.run_end_encoded(pa.int32(), pa.int8()), pa.int64()),
        (pa.bool8(), pa.int64()),
    ],
)
def test_widen(narrow, wide):
    assert arrow.widen(narrow) == wide
    assert arrow.widen(wide) == wide
    assert arrow.same_type(narrow, wide)


@pytest.mark.parametrize(
    "a, b",
    [
        *((pa.int64(), other) for other in (pa.uint64(), pa.float64(), pa.null())),
        *((pa.timestamp("ns"), other) for other in (pa.date32(), pa.timestamp("ns", "UTC"))),
        (pa.string(), pa.binary()),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
    ],
)
def test_different_types(a, b):
    assert not arrow.same_type(a, b)


@pytest.mark.parametrize("narrow", [pa.int8(), pa.uint16(), pa.float32()])
def test_storage_and_memory_keep_the_width(narrow):
    assert arrow.storage_type(narrow) == narrow
    assert arrow.memory_type(narrow) == narrow


def test_memory_type_of_dates():
    nested = pa.list_(pa.date32())
    assert arrow.memory_type(nested) == nested
    assert arrow.memory_type(nested, dates_as_object=False) == pa.list_(pa.timestamp("ns"))


@pytest.mark.parametrize("values", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int8()])
@pytest.mark.parametrize("dates_as_object", [False, True])
def test_memory_type_of_encoded_values_is_that_of_the_values(values, dates_as_object):
    expected = arrow.memory_type(values, dates_as_object=dates_as_object)
    for encoded in (pa.dictionary(pa.int32(), values), pa.run_end_encoded(pa.int32(), values)):
        assert arrow.memory_type(encoded, dates_as_object=dates_as_object) == expected
