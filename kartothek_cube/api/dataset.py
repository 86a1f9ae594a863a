"""The complete dataset API: ``from kartothek_cube.api.dataset import *``.

Importing this module imports neither dask nor pyspark, and neither do the names of the pandas, Arrow and
iterator façades. The dask and Spark façades are imported when one of their names is used; a star import uses
all names.
"""

# ruff: noqa: F401, F403 - this module only re-exports names

from __future__ import annotations

from typing import TYPE_CHECKING

from kartothek_cube.api import lazy_names
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBase
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexBase, PartitionIndex
from kartothek_cube.core.schema import (
    SchemaWrapper,
    empty_dataframe_from_schema,
    make_meta,
    normalize_column_order,
    normalize_type,
    validate_compatible,
)
from kartothek_cube.core.store import StoreFactory, StoreInput
from kartothek_cube.core.store.resolve import ensure_store, lazy_store
from kartothek_cube.io import arrow, eager
from kartothek_cube.io import iter as iter_facade
from kartothek_cube.io.arrow import *
from kartothek_cube.io.eager import *
from kartothek_cube.io.iter import *
from kartothek_cube.kartothek_paths import names_of

if TYPE_CHECKING:
    from kartothek_cube.io.dask.bag import *
    from kartothek_cube.io.dask.dataframe import *
    from kartothek_cube.io.dask.delayed import *
    from kartothek_cube.io.spark.dataset import *

#: façades that are imported on first use, and words that only their names have
_FACADES = {
    "kartothek_cube.io.dask.bag": ("_bag",),
    "kartothek_cube.io.dask.delayed": ("_delayed",),
    "kartothek_cube.io.dask.dataframe": ("ddf", "collect_dataset_metadata", "hash_dataset"),
    "kartothek_cube.io.spark.dataset": ("_spark",),
}

__getattr__ = lazy_names(
    __name__, [*names_of("core"), *arrow.__all__, *eager.__all__, *iter_facade.__all__], _FACADES
)
