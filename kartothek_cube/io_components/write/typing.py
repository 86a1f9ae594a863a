"""Types of arguments that functions which write datasets share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import pyarrow as pa

from kartothek_cube.core.arrow.types import Frame
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.io_components.write.table_writer import WriteResult

__all__ = ("DatasetElement", "DatasetInput", "HandlesInput", "SchemaInput")

DatasetElement: TypeAlias = "Frame | WriteResult | list[DatasetElement] | None"
"""One input of a write: a table, files that are written already, lists of these, or nothing."""

DatasetInput: TypeAlias = "DatasetElement | Iterable[DatasetElement]"
"""Inputs of a write."""

HandlesInput: TypeAlias = "WriteResult | list[HandlesInput] | None"
"""Files that are written already and not committed, also in nested lists."""

SchemaInput: TypeAlias = pa.Schema | SchemaWrapper | Frame
"""A schema, or a table that has it."""
