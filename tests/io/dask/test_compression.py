"""Packed payload comes back as it was."""

import datetime

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from kartothek_cube.io.dask import compression

FRAME = pd.DataFrame(
    {
        "a": [1, 1, 2, 2],
        "b": pd.Categorical(["x", "y", "x", "y"], ["y", "x"], ordered=True),
        "c": ["u", None, "v", "w"],
        "d": [datetime.date(2020, 1, i) for i in range(1, 5)],
        "e": [1.5, None, 2, 3],
        "f": pd.to_datetime(["2020-01-01"] * 4),
        "g": [b"a", b"", None, b"b"],
        "h": [None] * 4,
        "i": np.array([1, 2, 3, 4], "int8"),
        "j": [True, False, True, False],
    },
    index=[7, 3, 5, 4],
)


@pytest.mark.parametrize("keys", ["a", ["a"], ["b"], ["a", "b"], ["c"], ["d", "j"]], ids=str)
@pytest.mark.parametrize("length", [4, 1, 0])
def test_round_trip(keys, length):
    df = FRAME[:length]
    packed = compression.pack_payload_pandas(df, keys)
    assert len(packed) == len(df[[keys] if isinstance(keys, str) else keys].drop_duplicates())
    pd.testing.assert_frame_equal(compression.unpack_payload_pandas(packed, FRAME[:0]).loc[df.index], df)


@pytest.mark.parametrize("npartitions", [1, 2])
def test_round_trip_of_dask_dataframes(npartitions):
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = dd.from_pandas(FRAME, npartitions=npartitions, sort=False)
    packed = compression.pack_payload(ddf, ["a"])
    assert list(packed.columns)[:-1] == ["a"]
    again = compression.unpack_payload(packed, ddf._meta).compute(scheduler="sync")
    pd.testing.assert_frame_equal(again.loc[FRAME.index], FRAME)


def test_rows_of_several_frames_with_other_categories_and_nulls():
    first = pd.DataFrame({"a": [1], "b": pd.Categorical(["x"]), "c": [None]})
    second = pd.DataFrame({"a": [1], "b": pd.Categorical(["y"]), "c": ["u"]})
    packed = pd.concat([compression.pack_payload_pandas(df, "a") for df in (first, second)])
    again = compression.unpack_payload_pandas(packed, second[:0])
    assert again["b"].tolist() == ["x", "y"]
    assert again["c"].isna().tolist() == [True, False]


def test_many_equal_rows_shrink():
    df = pd.DataFrame({"a": np.zeros(100_000, int), "b": np.zeros(100_000)})
    (payload,) = compression.pack_payload_pandas(df, "a")["__KTK_PAYLOAD"]
    assert len(payload) < 200_000
    with pytest.raises(KeyError, match="z"):
        compression.pack_payload_pandas(FRAME, "z")
