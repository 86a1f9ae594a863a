"""Cubes of any number of partitions out of headers alone, to look at plans and graphs."""

from collections.abc import Mapping

import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.naming import metadata_key_from_uuid, schema_key
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema import make_meta, schema_to_bytes
from kartothek_cube.core.store import open_blobs

CUBE = Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube", suppress_index_on=["x"])
PAYLOAD = {"seed": "v1", "enrich": "v2"}


def store_headers(
    store_factory, n: int, datasets=tuple(PAYLOAD), indices: Mapping[str, npt.ArrayLike] | None = None
):
    """Store the headers of a cube of two datasets with n partitions; there are no data files.

    ``indices`` has dimensions that the seed has indices of, with a value for each partition.
    """
    blobs, dimensions = open_blobs(store_factory), list(indices or ["x"])
    labels = pa.array([f"p={i}/{i:032x}" for i in range(n)])
    for name in datasets:
        uuid = f"cube++{name}"
        rows = pd.DataFrame({**{column: [1] for column in dimensions}, "p": 0, PAYLOAD[name]: 0.5})
        schema = make_meta(rows, origin="test", partition_keys=["p"])
        stored = {}
        for dimension, values in (indices or {}).items() if name == "seed" else ():
            index = ExplicitSecondaryIndex(dimension, IndexColumns.from_pairs(pa.array(values), labels))
            index.store(blobs, uuid)
            stored[dimension] = index.unload()
        metadata = {"ktk_cube_is_seed": name == "seed", "ktk_cube_dimension_columns": dimensions}
        metadata["ktk_cube_partition_columns"] = ["p"]
        options = {"metadata": metadata, "partition_keys": ["p"], "schema": schema, "indices": stored}
        header = DatasetMetadata(uuid, PartitionTable.from_labels(uuid, "table", labels), **options)
        blobs.put(schema_key(uuid), schema_to_bytes(schema))
        blobs.put(metadata_key_from_uuid(uuid), header.to_json())
    return store_factory
