from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from kartothek_cube.core import clock, testing
from kartothek_cube.core.naming import quote
from kartothek_cube.serialization.testing import get_dataframe_not_nested

NUMBERS = ["float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
SCALARS = {name: pa.type_for_alias(name) for name in [*NUMBERS, "bool", "null"]}
SCALARS |= {"date": pa.date32(), "datetime64": pa.timestamp("ns"), "unicode": pa.string()}
ARRAYS = {f"array_{name}": pa.list_(SCALARS[name]) for name in [*NUMBERS, "unicode"]}


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


@pytest.mark.parametrize(
    "df, n, expected",
    [
        (testing.get_dataframe_not_nested(), 1, {**SCALARS, "byte": pa.binary()}),
        (testing.get_dataframe_alltypes(), 1, {**SCALARS, **ARRAYS, "byte": pa.binary()}),
        (get_dataframe_not_nested(3), 3, {**SCALARS, "bytes": pa.binary()}),
    ],
    ids=["scalars", "all types", "several rows"],
)
def test_frames_have_a_column_of_each_type(df, n, expected):
    fields = pa.Schema.from_pandas(df)
    types = [pa.string() if dtype == pa.large_string() else dtype for dtype in fields.types]
    assert dict(zip(fields.names, types, strict=True)) == expected
    assert (len(df), fields.names) == (n, sorted(expected))


@pytest.mark.parametrize("n", [0, 1, 300])
def test_rows_differ_and_types_do_not(n):
    df = get_dataframe_not_nested(n)
    assert df.dtypes.equals(get_dataframe_not_nested(5).dtypes)
    assert [df[name].nunique() for name in ("int64", "unicode", "date", "bytes")] == 4 * [n]
