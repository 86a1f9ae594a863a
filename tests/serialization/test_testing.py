import datetime

import pytest

from kartothek_cube.serialization.testing import get_dataframe_not_nested


@pytest.mark.parametrize("n", [0, 1, 3, 300])
def test_frame_has_n_rows_of_the_same_types(n):
    df = get_dataframe_not_nested(n)
    assert len(df) == n
    assert df.dtypes.equals(get_dataframe_not_nested(5).dtypes)
    assert df.columns.tolist() == sorted(df.columns)


def test_rows_differ():
    df = get_dataframe_not_nested(3)
    assert df["int64"].tolist() == df["float32"].tolist() == [0, 1, 2]
    assert df["unicode"].tolist() == ["0", "1", "2"]
    assert df["date"].tolist() == [datetime.date(2018, 1, day) for day in (2, 3, 4)]
    assert df["bytes"].nunique() == 3
    assert set(df["bool"]) == {True, False}
    assert df["null"].tolist() == [None] * 3
