"""Module paths of kartothek whose names are defined elsewhere: the one place that maps them.

These modules have no files: a finder makes them from the table below when they are imported, also in the
workers of dask and Spark, as every import of a submodule runs ``kartothek_cube/__init__.py`` first. Type
checkers do not see them: typed code imports the names from ``kartothek_cube``, ``api.cube``, ``api.dataset``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ROOT = "kartothek_cube"

#: names of modules and packages by the module that defines them; ``core`` has a file, the others have none
_NAMES: dict[str, dict[str, str]] = {
    "api.consistency": {"core.cube.consistency": "check_datasets get_cube_payload get_payload_subset"},
    "api.discover": {
        "core.cube.discover": "discover_cube discover_datasets discover_datasets_unchecked "
        "discover_ktk_cube_dataset_ids"
    },
    "api.serialization": {
        "serialization": "ConjunctionType CsvSerializer DataFrameSerializer LiteralType LiteralValue "
        "ParquetSerializer PredicatesType check_predicates columns_in_predicates default_serializer "
        "filter_array_like filter_df filter_df_from_predicates filter_predicates_by_column"
    },
    "core": {
        "core.dataset": "DatasetMetadata DatasetMetadataBase",
        "core.factory": "DatasetFactory",
        "core.index": "ExplicitSecondaryIndex IndexBase PartitionIndex",
        "core.schema": "SchemaWrapper empty_dataframe_from_schema make_meta normalize_column_order "
        "normalize_type validate_compatible",
        "core.store.resolve": "ensure_store lazy_store",
        "core.store": "StoreFactory StoreInput",
    },
    "core.common_metadata": {
        "core.schema": "SchemaWrapper empty_dataframe_from_schema make_meta normalize_column_order "
        "normalize_type read_schema_metadata store_schema_metadata validate_compatible "
        "validate_shared_columns"
    },
    "core.typing": {"core.store": "StoreFactory StoreFactoryInput StoreInput"},
    "core.urlencode": {"core.naming": "decode_key quote quote_indices unquote unquote_indices"},
    "core.utils": {
        "core.store.resolve": "ensure_store lazy_store",
        "core.naming": "verify_metadata_version",
        "core.arguments": "ensure_string_type",
    },
    "io.dask.common_cube": {"core.cube.consistency": "ensure_valid_cube_indices"},
    "io.dask.compression": {
        "io.dask.dataframe": "pack_payload pack_payload_pandas unpack_payload unpack_payload_pandas"
    },
    "io_components.cube": {},
    "io_components.cube.write": {"core.errors": "MultiTableCommitAborted"},
    "io_components.metapartition": {"core.naming": "SINGLE_TABLE"},
    "io_components.utils": {
        "io_components.dataset_arguments": "align_categories combine_metadata extract_duplicates "
        "normalize_arg normalize_args sort_values_categorical"
    },
    "serialization._csv": {"serialization._generic": "CsvSerializer"},
    "serialization._parquet": {
        "serialization.parquet": "BACKOFF_TIME MAX_NB_RETRIES ParquetReadError ParquetSerializer"
    },
    "utils": {},
    "utils.converters": {
        "core.arguments": "converter_str converter_str_set converter_str_set_optional converter_str_tupleset "
        "converter_tuple get_str_to_python_converter"
    },
    "utils.ktk_adapters": {
        "core.cube.consistency": "get_dataset_columns",
        "kartothek_helpers": "get_dataset_keys get_partition_dataframe get_physical_partition_stats "
        "metadata_factory_from_dataset",
    },
    "utils.pandas": {
        "kartothek_helpers": "aggregate_to_lists concat_dataframes drop_sorted_duplicates_keep_last "
        "is_dataframe_sorted mask_sorted_duplicates_keep_last merge_dataframes_robust sort_dataframe"
    },
    "utils.predicate_converter": {
        "core.cube.implied_conditions": "convert_predicates_to_cube_conditions "
        "write_predicate_as_cube_condition"
    },
    "utils.store": {"kartothek_helpers": "copy_keys copy_rename_keys"},
}


class _Finder(MetaPathFinder, Loader):
    """Makes the modules of the table when they are imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, name = fullname.partition(".")
        if root != _ROOT or name == "core" or name not in _NAMES:
            return None
        is_package = any(other.startswith(f"{name}.") for other in _NAMES)
        return ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix(f"{_ROOT}.")
        exported = names_of(name)
        module.__dict__.update({each: load_name(name, each) for each in exported}, __all__=exported)
        owners = ", ".join(f"``{_ROOT}.{owner}``" for owner in _NAMES[name])
        module.__doc__ = f"Names of kartothek, which are defined in {owners or 'its modules'}."


def names_of(module: str) -> tuple[str, ...]:
    """Names of a module of the table, sorted."""
    return tuple(sorted(name for names in _NAMES.get(module, {}).values() for name in names.split()))


def load_name(module: str, name: str) -> Any:
    """A name of a module of the table, from the module that defines it."""
    for owner, names in _NAMES[module].items():
        if name in names.split():
            return getattr(import_module(f"{_ROOT}.{owner}"), name)
    raise AttributeError(f"module '{_ROOT}.{module}' has no attribute {name!r}")


def install_finder() -> None:
    """Make the modules of the table importable."""
    # first, as directories that former versions have left are packages for Python
    sys.meta_path.insert(0, _Finder())
