from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from kartothek_cube.core import clock, testing
from kartothek_cube.core.naming import quote

SCALARS = {
    "bool", "byte", "date", "datetime64", "float32", "float64", "int16", "int32", "int64", "int8", "null",
    "uint16", "uint32", "uint64", "uint8", "unicode",
}  # fmt: skip


def test_clock_is_naive_utc_and_can_be_frozen():
    now = clock.datetime_utcnow()
    assert now.tzinfo is None
    assert abs(now - datetime.now(UTC).replace(tzinfo=None)) < timedelta(minutes=1)
    with pytest.raises(KeyError), testing.cm_frozen_time(testing.TIME_TO_FREEZE):
        assert clock.datetime_utcnow() == testing.TIME_TO_FREEZE
        raise KeyError
    assert clock.datetime_utcnow() >= now  # thawed, also after an error
    assert testing.TIME_TO_FREEZE.isoformat() == testing.TIME_TO_FREEZE_ISO
    assert quote(testing.TIME_TO_FREEZE_ISO) == testing.TIME_TO_FREEZE_ISO_QUOTED


def test_frame_of_scalars_has_one_row_of_each_type():
    df = testing.get_dataframe_not_nested()
    assert df.columns.tolist() == sorted(SCALARS)
    assert len(df) == 1
    assert df["datetime64"].dtype == "datetime64[ns]"
    assert len(df["byte"][0]) == 16
    fields = pa.Schema.from_pandas(df)
    assert fields.field("null").type == pa.null()
    assert fields.field("date").type == pa.date32()
    assert fields.field("uint8").type == pa.uint8()


def test_frame_of_all_types_adds_arrays():
    df = testing.get_dataframe_alltypes()
    arrays = [name for name in df.columns if name.startswith("array_")]
    assert set(df.columns) - set(arrays) == SCALARS
    assert df.columns.tolist() == sorted(df.columns)
    assert {name: df[name][0].dtype.name for name in arrays} == {
        **{f"array_{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
        "array_float32": "float32",
        "array_float64": "float64",
        "array_unicode": "object",
    }
    assert all(isinstance(df[name][0], np.ndarray) for name in arrays)
