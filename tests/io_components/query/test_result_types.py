"""Types of numbers where no header records widths: those of the widest file that the query may read.

With a record, tests/support/query_fuzz.py compares them.
"""

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core import tuning
from kartothek_cube.core.cube.conditions import C
from tests.support.cube_facades import FACADES
from tests.support.cubes import edit_header, memory
from tests.support.stores import Same

CUBE = api.Cube(["x"], ["p"], "cube", index_columns=["i"])
#: dataset -> frames that are written one after the other; ``many`` has several files without partitions
DATASETS = {
    "seed": [("v", "int8", [0, 1, 2]), ("v", "int16", [1]), ("v", "int64", [2])],
    "same": [("w", "float32", [0, 1]), ("w", "float64", [0])],
    "many": [("z", "int8", [0, 1, 2]), ("z", "int32", [1])],
}


@pytest.fixture(scope="module")
def store():
    store = Same.of(memory())
    for name, frames in DATASETS.items():
        for number, (column, dtype, p) in enumerate(frames):
            df = pd.DataFrame({"x": np.arange(2 * len(p)), "p": np.repeat(p, 2)})
            df[column] = (df["x"] % 2).astype(dtype)
            df = df.assign(i=df["x"] % 3) if name == "seed" else df
            df = df.drop(columns="p").drop_duplicates("x") if name == "many" else df
            if number:
                api.append_to_cube({name: df}, CUBE, store)
            elif name == "seed":
                api.build_cube(df, CUBE, store)
            else:
                api.extend_cube({name: df}, CUBE, store, partition_on={"many": []})
        edit_header(store, f"cube++{name}", lambda header: header.pop("kartothek_cube_widths", None))
    return store


@pytest.mark.parametrize("block_bytes", [None, 1], ids=["whole", "block per partition"])
@pytest.mark.parametrize("partition_by", [None, "p", "i"])
@pytest.mark.parametrize(
    "conditions, bits",
    [
        (None, {"v": 64, "w": 64, "z": 32}),
        (C("v") > 5, {"v": 64, "w": 64, "z": 32}),
        (C("p") == 0, {"v": 8, "w": 64, "z": 32}),
        (C("p") == 1, {"v": 16, "w": 32, "z": 32}),
        # no file is read
        (C("p") == 2, {"v": 64, "w": 32, "z": 32}),
        # an inner join leaves out the partition that the dataset lacks
        (C("w") >= 0.0, {"v": 16, "w": 64, "z": 32}),
    ],
    ids=str,
)
def test_types_of_groups(store, monkeypatch, conditions, bits, partition_by, block_bytes):
    monkeypatch.setattr(tuning, "BLOCK_BYTES", block_bytes or tuning.BLOCK_BYTES)
    query = {"cube": CUBE, "store": store, "conditions": conditions, "partition_by": partition_by}
    for table in api.query_cube_arrow(**query):
        assert {name: table[name].type.bit_width for name in bits} == bits
    expected = [df.dtypes.to_dict() for df in api.query_cube(**query)]
    # façades do not know of blocks
    for facade in FACADES.values() if block_bytes is None else ():
        assert [df.dtypes.to_dict() for df in facade().query_cube(**query)] == expected
