"""Cubes of any number of partitions out of headers alone, to look at plans and graphs."""

import pandas as pd

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.naming import metadata_key_from_uuid, schema_key
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema import make_meta, schema_to_bytes
from kartothek_cube.core.store import open_blobs

CUBE = Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube", suppress_index_on=["x"])


def store_headers(store_factory, n: int) -> None:
    """Store the headers of a cube of two datasets with n partitions; there are no data files."""
    blobs = open_blobs(store_factory)
    for name, payload in (("seed", "v1"), ("enrich", "v2")):
        uuid = f"cube++{name}"
        rows = pd.DataFrame({"x": [1], "p": [0], payload: [0.5]})
        schema = make_meta(rows, origin="test", partition_keys=["p"])
        partitions = PartitionTable.from_labels(uuid, "table", [f"p={i}/{i:032x}" for i in range(n)])
        metadata = {"ktk_cube_is_seed": name == "seed"}
        header = DatasetMetadata(uuid, partitions, metadata=metadata, partition_keys=["p"], schema=schema)
        blobs.put(schema_key(uuid), schema_to_bytes(schema))
        blobs.put(metadata_key_from_uuid(uuid), header.to_json())
