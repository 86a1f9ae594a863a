"""Input of dataset writes: tables of any kind, results of earlier writes, lists of both, None."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import as_table
from kartothek_cube.core.arrow.types import Frame
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.io_components.read.pandas_index import as_table_with_index
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult

__all__ = (
    "DatasetElement",
    "DatasetInput",
    "HandlesInput",
    "SchemaInput",
    "as_input",
    "check_handles",
    "check_result_target",
    "flatten",
    "iter_inputs",
)

DatasetElement: TypeAlias = "Frame | WriteResult | list[DatasetElement] | None"
"""One input of a write: a table, files that are written already, lists of these, or nothing."""

DatasetInput: TypeAlias = "DatasetElement | Iterable[DatasetElement]"
"""Inputs of a write."""

HandlesInput: TypeAlias = "WriteResult | list[HandlesInput] | None"
"""Files that are written already and not committed, also in nested lists."""

SchemaInput: TypeAlias = pa.Schema | SchemaWrapper | Frame
"""A schema, or a table that has it."""


def iter_inputs(data: Any) -> Iterator[Any]:
    """Iterate over the inputs of a write: any iterable of them, or a single one."""
    if data is None or isinstance(data, (pd.DataFrame, WriteResult)) or hasattr(data, "__arrow_c_stream__"):
        yield data
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        yield from data
    else:
        raise TypeError(f"Expected DataFrames (or what Arrow reads as tables), got {type(data).__name__}.")


def flatten(data: Any) -> Iterator[Any]:
    """Iterate over the elements of nested lists.

    >>> list(flatten([["CITY", []], "DAY"]))
    ['CITY', 'DAY']
    """
    if isinstance(data, list):
        for item in data:
            yield from flatten(item)
    else:
        yield data


def as_input(item: Any, keep_index: bool = False, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Convert one input to an Arrow table; ``types`` are those of the stored columns."""
    is_table = isinstance(item, (pd.DataFrame, pa.RecordBatch)) or hasattr(item, "__arrow_c_stream__")
    if not is_table or isinstance(item, (pd.Series, pa.ChunkedArray)):
        raise ValueError(
            f"Cannot write {type(item).__name__}: input is a DataFrame, a table that Arrow reads, None, "
            "or a list of these"
        )
    if keep_index and isinstance(item, pd.DataFrame):
        return as_table_with_index(item, types)
    return as_table(item, types)


def check_handles(context: WriteContext, handles: Iterable[Any]) -> list[WriteResult]:
    """Check that all handles are results of `write_single_partition` for this dataset."""
    results = []
    for handle in handles:
        if not isinstance(handle, WriteResult) or handle.schema is None:
            raise ValueError(
                f"Cannot commit {type(handle).__name__} to dataset {context.uuid!r}: it has no information "
                "about files. Pass what write_single_partition returned"
            )
        check_result_target(context, handle)
        results.append(handle)
    return results


def check_result_target(context: WriteContext, result: WriteResult) -> None:
    """Check that partitions were written for the dataset to which they are added."""
    if (result.uuid, result.table) != (context.uuid, context.table):
        raise RuntimeError(
            f"Partitions written for table {result.table!r} of dataset {result.uuid!r} cannot be committed "
            f"to table {context.table!r} of dataset {context.uuid!r}"
        )
