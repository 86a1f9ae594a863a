"""Dataset metadata: the parsed header and its builder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kartothek_cube.core.dataset.builder import (
    DatasetMetadataBuilder as DatasetMetadataBuilder,
)  # not in a star import
from kartothek_cube.core.dataset.metadata import DatasetMetadata, DatasetMetadataBase
from kartothek_cube.core.naming import quote_indices, validate_uuid

__all__ = ("DatasetMetadata", "DatasetMetadataBase")

_validate_uuid = validate_uuid  # kartothek's name


def create_partition_key(
    dataset_uuid: str, table: str, index_values: Iterable[tuple[str, Any]], filename: str = "data"
) -> str:
    """Build the storage key of a data file from the values of its partition keys.

    >>> create_partition_key("sales", "table", [("CITY", "Bad Homburg"), ("DAY", "2020-01-01")], "a1.parquet")
    'sales/table/CITY=Bad%20Homburg/DAY=2020-01-01/a1.parquet'
    """
    return "/".join([dataset_uuid, table, *quote_indices(index_values), filename])


def to_ordinary_dict(dct: Mapping[Any, Any]) -> dict[Any, Any]:
    """Turn nested mappings of any kind into plain dicts.

    >>> from collections import OrderedDict
    >>> to_ordinary_dict(OrderedDict(metadata=OrderedDict(source="weather service")))
    {'metadata': {'source': 'weather service'}}
    """
    return {
        key: to_ordinary_dict(value) if isinstance(value, Mapping) else value for key, value in dct.items()
    }
