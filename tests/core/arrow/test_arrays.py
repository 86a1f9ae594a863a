import pyarrow as pa
import pytest

from kartothek_cube.core.arrow import convert_layouts, storage_type
from kartothek_cube.core.pandas_conversion import as_table, to_memory, to_storage

# rows in another order than their elements, that share elements, and that skip some
OFFSETS, SIZES = [4, 0, 1, 0, 3], [1, 2, 3, 0, 2]
NULLS = pa.array([False, True, False, False, False])
LAYOUTS = {
    "list_view": pa.ListViewArray.from_arrays(OFFSETS, SIZES, [1, 2, None, 4, 5], mask=NULLS),
    "large_list_view of text": pa.LargeListViewArray.from_arrays(
        OFFSETS, SIZES, pa.array(["a", None, "b" * 40, "", "c"], pa.string_view())
    ),
    "string_view": pa.array(["a", "b" * 40, None, "", "c"], pa.string_view()),
    "binary_view": pa.array([b"a", b"b" * 40, None, b"", b"c"], pa.binary_view()),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5], pa.int16()), pa.array(["a", None, "b"])),
}
OUTER = {
    "slice": lambda array: array[1:4],
    "nothing": lambda array: array[:0],
    "struct": lambda array: pa.StructArray.from_arrays([array, array], ["a", "b"], mask=NULLS)[1:],
    "list": lambda array: pa.ListArray.from_arrays(pa.array([0, 2, None, 2, 5], pa.int32()), array)[1:],
    "fixed_size_list": lambda array: pa.FixedSizeListArray.from_arrays(array[:4], 2, mask=NULLS[:2]),
    "list_view": lambda array: pa.ListViewArray.from_arrays([3, 0, 1], [2, 0, 3], array, mask=NULLS[:3]),
    "dictionary": lambda array: pa.DictionaryArray.from_arrays(pa.array([2, None, 0], pa.int8()), array[1:4]),
    "map": lambda array: pa.MapArray.from_arrays(
        pa.array([0, 2, None, 2, 5], pa.int32()), pa.array(list("abcde"), pa.string_view()), array
    )[1:],
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_stay_what_they_are(layout, outer):
    array = OUTER[outer](LAYOUTS[layout])
    column = pa.chunked_array([array, array[1:]])
    stored = to_storage(pa.table({"v": column}))["v"]
    stored.validate(full=True)
    assert stored.type == storage_type(array.type)
    assert stored.to_pylist() == column.to_pylist()


def test_maps_with_large_texts_as_keys():
    keys = pa.array(["a", "b"], pa.large_string()).take(pa.array([0, 1]))
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 1, 2], pa.int32()), keys, pa.array([1, 2]))
    for array in (maps, maps[1:], pa.StructArray.from_arrays([maps], ["a"])):
        stored = to_storage(pa.table({"v": array}))["v"]
        assert stored.type == storage_type(array.type)
        assert stored.to_pylist() == array.to_pylist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_input_of_arrow_is_converted(layout):
    table = pa.table({"v": LAYOUTS[layout]})
    expected = table["v"].to_pylist()
    batch = table.to_batches()[0]
    for source in (table, batch, pa.RecordBatchReader.from_batches(table.schema, [batch[:2], batch[2:]])):
        assert as_table(source)["v"].to_pylist() == expected
    assert as_table(table[:0])["v"].type == storage_type(table["v"].type)
    assert to_memory(table)["v"].to_pylist() == expected


def test_other_layouts_are_returned_as_they_are_or_refused():
    table = pa.table({"v": pa.array([[1], None], pa.list_(pa.int8()))})
    assert convert_layouts(table) is table
    union = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [LAYOUTS["list_view"][:2]])
    table = pa.table({"v": pa.StructArray.from_arrays([union], ["u"])})
    with pytest.raises(TypeError, match=r"Column 'v' of type .* cannot be stored"):
        to_storage(table)
