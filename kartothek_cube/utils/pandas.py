"""Operations on frames of sorted rows: concatenate, sort, drop duplicates, aggregate, join."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from kartothek_cube.core.arrow.types import Mask

_CONSTANT = "__ktk_cube_join_dummy"


def concat_dataframes(dfs: Iterable[pd.DataFrame], default: pd.DataFrame | None = None) -> pd.DataFrame:
    """Concatenate frames, column by column: less memory is needed than by :func:`pandas.concat`.

    Parameters
    ----------
    dfs
        Frames with the same set of columns. A list is emptied, so that the frames can be freed.
    default
        What is returned if there are no frames.

    Returns
    -------
    pandas.DataFrame
        Columns in the order of the first frame. The index is undefined; a single frame is returned as it is.

    Raises
    ------
    ValueError
        There are no frames and no default, or the sets of columns differ.

    Examples
    --------
    >>> frames = [pd.DataFrame({"DAY": [1], "SALES": [7]}), pd.DataFrame({"SALES": [8], "DAY": [2]})]
    >>> concat_dataframes(frames)
       DAY  SALES
    0    1      7
    1    2      8
    >>> frames
    []
    """
    frames = dfs if isinstance(dfs, list) else list(dfs)
    if not frames:
        if default is None:
            raise ValueError("Cannot concatenate 0 dataframes.")
        return default
    result = frames[0] if len(frames) == 1 else _concat_columns(frames)
    frames.clear()
    return result


def _concat_columns(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    columns = list(frames[0].columns)
    for df in frames:
        if set(df.columns) != set(columns):
            raise ValueError(
                f"Not all DataFrames have the same set of columns: {columns} and {list(df.columns)}."
            )
    columns_data = {column: pd.concat([df[column] for df in frames], ignore_index=True) for column in columns}
    return pd.DataFrame(columns_data, index=pd.RangeIndex(sum(map(len, frames))), copy=False)


def is_dataframe_sorted(df: pd.DataFrame, columns: Iterable[str]) -> bool:
    """Whether the rows of a frame are sorted; faster than sorting them.

    Parameters
    ----------
    df
        The frame.
    columns
        Columns to compare rows by, the most significant one first; values must not be null. Categories are
        compared by value.

    Returns
    -------
    bool
        True for a frame without rows.

    Raises
    ------
    ValueError
        No columns are given.
    KeyError
        A column does not exist.

    Examples
    --------
    >>> df = pd.DataFrame({"DAY": [1, 1, 2], "SHOP": [5, 6, 4]})
    >>> is_dataframe_sorted(df, ["DAY", "SHOP"]), is_dataframe_sorted(df, ["SHOP"])
    (True, False)
    """
    names = list(columns)
    if not names:
        raise ValueError("`columns` must contain at least 1 column")
    arrays = [_values(df[name]) for name in names]
    is_sorted = is_tied = np.ones(max(len(df) - 1, 0), dtype=bool)
    for array in arrays:
        rows, following = array[:-1], array[1:]
        same = _as_mask(rows == following)
        is_sorted = is_sorted & (~is_tied | same | _as_mask(rows < following))
        is_tied = is_tied & same
    return bool(is_sorted.all())


def sort_dataframe(df: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Sort the rows of a frame; rows that are equal in these columns keep their order.

    Parameters
    ----------
    df
        The frame.
    columns
        Columns to sort by, as in :func:`is_dataframe_sorted`.

    Returns
    -------
    pandas.DataFrame
        The frame itself if it is sorted; else a sorted one, with a new index.

    Raises
    ------
    ValueError
        No columns are given.
    KeyError
        A column does not exist.

    Examples
    --------
    >>> sort_dataframe(pd.DataFrame({"DAY": [2, 1], "SALES": [7, 8]}), ["DAY"])
       DAY  SALES
    0    1      8
    1    2      7
    """
    names = list(columns)
    if is_dataframe_sorted(df, names):
        return df
    # the last key of lexsort is the primary one
    order = np.lexsort([np.asarray(_values(df[name])) for name in reversed(names)])
    return df.iloc[order].reset_index(drop=True)


def mask_sorted_duplicates_keep_last(df: pd.DataFrame, columns: Iterable[str]) -> Mask:
    """Mask of the rows of a sorted frame that are followed by one that is equal in some columns.

    Parameters
    ----------
    df
        A frame sorted by the columns; the result for others is undefined.
    columns
        Columns to compare, without nulls.

    Returns
    -------
    numpy.ndarray of bool
        One per row; nothing but False if no columns are given.

    Raises
    ------
    KeyError
        A column does not exist.

    Examples
    --------
    >>> df = pd.DataFrame({"DAY": [1, 1, 2]})
    >>> mask_sorted_duplicates_keep_last(df, ["DAY"]).tolist()
    [True, False, False]
    """
    mask = np.zeros(len(df), dtype=bool)
    names = list(columns)
    if len(df) > 1 and names:
        mask[:-1] = _same_as_next(df, names)
    return mask


def drop_sorted_duplicates_keep_last(df: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """The last row of each set of rows of a sorted frame that are equal in some columns.

    Parameters
    ----------
    df, columns
        As in :func:`mask_sorted_duplicates_keep_last`.

    Returns
    -------
    pandas.DataFrame
        The frame itself if there are no duplicates; else one with the index of the rows that remain.

    Raises
    ------
    KeyError
        A column does not exist.

    Examples
    --------
    >>> df = pd.DataFrame({"DAY": [1, 1, 2], "SALES": [7, 8, 9]})
    >>> drop_sorted_duplicates_keep_last(df, ["DAY"])
       DAY  SALES
    1    1      8
    2    2      9
    """
    mask = mask_sorted_duplicates_keep_last(df, columns)
    return df.iloc[~mask] if mask.any() else df


def aggregate_to_lists(df: pd.DataFrame, by: Iterable[str], data_col: str) -> pd.DataFrame:
    """Collect the values of a column in one list per group.

    Parameters
    ----------
    df
        The frame.
    by
        Grouping columns, without nulls; if empty, all rows are one group.
    data_col
        Column with the values.

    Returns
    -------
    pandas.DataFrame
        One row per group, sorted, with the columns ``by`` and ``data_col``; values have the order of the
        rows. A frame without rows is returned as it is.

    Raises
    ------
    KeyError
        A column does not exist.

    Examples
    --------
    >>> aggregate_to_lists(pd.DataFrame({"DAY": [2, 1, 2], "SHOP": ["a", "b", "c"]}), ["DAY"], "SHOP")
       DAY    SHOP
    0    1     [b]
    1    2  [a, c]
    """
    names = list(by)
    if df.empty:
        return df
    if not names:
        return pd.DataFrame({data_col: pd.Series([list(_values(df[data_col]))])})
    df = sort_dataframe(df, names)
    starts = np.flatnonzero(np.append(True, ~_same_as_next(df, names)))
    # lists, so that pandas finds the types of the values, as in kartothek: int64 for Int64
    result = {name: list(_values(df[name])[starts]) for name in names}
    values = np.asarray(_values(df[data_col]))
    result[data_col] = [list(group) for group in np.split(values, starts[1:])]
    return pd.DataFrame(result)


def merge_dataframes_robust(
    df1: pd.DataFrame, df2: pd.DataFrame, how: Literal["left", "right", "inner", "outer"]
) -> pd.DataFrame:
    """Join two frames by all columns that both have; if there is none, each row with each.

    Parameters
    ----------
    df1, df2
        The frames.
    how
        How to join, as in :meth:`pandas.DataFrame.merge`; without common columns it decides what becomes of
        rows if the other frame has none.

    Returns
    -------
    pandas.DataFrame

    Examples
    --------
    >>> shops = pd.DataFrame({"SHOP": ["a", "b"]})
    >>> merge_dataframes_robust(shops, pd.DataFrame({"DAY": [1, 2]}), "inner")
      SHOP  DAY
    0    a    1
    1    a    2
    2    b    1
    3    b    2
    """
    common = [column for column in df1.columns if column in df2.columns]
    if common:
        return df1.merge(df2, on=common, how=how, sort=False)
    left, right = df1.assign(**{_CONSTANT: 1}), df2.assign(**{_CONSTANT: 1})
    return left.merge(right, on=_CONSTANT, how=how, sort=False).drop(columns=_CONSTANT)


def _values(column: pd.Series[Any]) -> Any:
    """Array of a column: categories by value, whose order may differ; zoned times in UTC."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return np.asarray(column)
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return column.dt.tz_convert(None).to_numpy()
    return column.values


def _same_as_next(df: pd.DataFrame, columns: Sequence[str]) -> Mask:
    """Mask, one shorter than the frame, of rows that equal the following one."""
    same = np.ones(len(df) - 1, dtype=bool)
    for column in columns:
        values = _values(df[column])
        same &= _as_mask(values[:-1] == values[1:])
    return same


def _as_mask(compared: Any) -> Mask:
    """Boolean array of a comparison; null is False."""
    if isinstance(compared, np.ndarray):
        return compared.astype(bool, copy=False)
    mask: Mask = compared.to_numpy(dtype=bool, na_value=False)
    return mask
