"""The complete dataset API: ``from kartothek_cube.api.dataset import *``.

Importing this module imports neither dask nor pyspark, and neither do the names of the pandas, Arrow and
iterator façades. The dask and Spark façades are imported when one of their names is used; after a star
import, when one of their functions is called.
"""

# ruff: noqa: F401, F403 - this module only re-exports names

from __future__ import annotations

from typing import TYPE_CHECKING

from kartothek_cube.api import Facade, lazy_names
from kartothek_cube.core.common_metadata import (
    SchemaWrapper,
    empty_dataframe_from_schema,
    make_meta,
    normalize_column_order,
    normalize_type,
    validate_compatible,
)
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBase
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexBase, PartitionIndex
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.core.utils import ensure_store, lazy_store
from kartothek_cube.io.arrow import (
    dataset,
    read_dataset_as_arrow,
    read_dataset_as_arrow__iter,
    read_dataset_as_arrow__iterator,
    read_dataset_as_record_batches,
    read_table_arrow,
)
from kartothek_cube.io.eager import (
    build_dataset_indices,
    commit_dataset,
    copy_dataset,
    create_empty_dataset_header,
    delete_dataset,
    garbage_collect_dataset,
    keep_dataset_history,
    list_dataset_garbage,
    list_dataset_history,
    publish_dataset,
    read_dataset_as_dataframes,
    read_table,
    repair_dataset,
    rollback_dataset,
    store_dataframes_as_dataset,
    update_dataset_from_dataframes,
    update_dataset_schema,
    verify_dataset,
    write_single_partition,
)
from kartothek_cube.io.iter import (
    read_dataset_as_dataframes__iter,
    read_dataset_as_dataframes__iterator,
    store_dataframes_as_dataset__iter,
    update_dataset_from_dataframes__iter,
)

if TYPE_CHECKING:
    from kartothek_cube.io.dask.bag import *
    from kartothek_cube.io.dask.dataframe import *
    from kartothek_cube.io.dask.delayed import *
    from kartothek_cube.io.spark.dataset import *

_NAMES = (
    "DatasetFactory",
    "DatasetMetadata",
    "DatasetMetadataBase",
    "ExplicitSecondaryIndex",
    "IndexBase",
    "PartitionIndex",
    "SchemaWrapper",
    "StoreFactory",
    "StoreInput",
    "build_dataset_indices",
    "commit_dataset",
    "copy_dataset",
    "create_empty_dataset_header",
    "dataset",
    "delete_dataset",
    "empty_dataframe_from_schema",
    "ensure_store",
    "garbage_collect_dataset",
    "keep_dataset_history",
    "lazy_store",
    "list_dataset_garbage",
    "list_dataset_history",
    "make_meta",
    "normalize_column_order",
    "normalize_type",
    "publish_dataset",
    "read_dataset_as_arrow",
    "read_dataset_as_arrow__iter",
    "read_dataset_as_arrow__iterator",
    "read_dataset_as_dataframes",
    "read_dataset_as_dataframes__iter",
    "read_dataset_as_dataframes__iterator",
    "read_dataset_as_record_batches",
    "read_table",
    "read_table_arrow",
    "repair_dataset",
    "rollback_dataset",
    "store_dataframes_as_dataset",
    "store_dataframes_as_dataset__iter",
    "update_dataset_from_dataframes",
    "update_dataset_from_dataframes__iter",
    "update_dataset_schema",
    "validate_compatible",
    "verify_dataset",
    "write_single_partition",
)

__getattr__ = lazy_names(
    __name__,
    _NAMES,
    (
        Facade(
            "kartothek_cube.io.dask.delayed",
            "dask",
            "dask",
            (
                "delete_dataset__delayed",
                "garbage_collect_dataset__delayed",
                "read_dataset_as_delayed",
                "read_table_as_delayed",
                "store_delayed_as_dataset",
                "update_dataset_from_delayed",
            ),
        ),
        Facade(
            "kartothek_cube.io.dask.bag",
            "dask",
            "dask",
            ("build_dataset_indices__bag", "read_dataset_as_dataframe_bag", "store_bag_as_dataset"),
        ),
        Facade(
            "kartothek_cube.io.dask.dataframe",
            "dask",
            "dask",
            (
                "collect_dataset_metadata",
                "hash_dataset",
                "read_dataset_as_ddf",
                "store_dataset_from_ddf",
                "update_dataset_from_ddf",
            ),
        ),
        Facade(
            "kartothek_cube.io.spark.dataset",
            "pyspark",
            "spark",
            (
                "build_dataset_indices_spark",
                "garbage_collect_dataset_spark",
                "read_dataset_as_spark",
                "store_dataset_from_spark",
                "update_dataset_from_spark",
            ),
        ),
    ),
)
