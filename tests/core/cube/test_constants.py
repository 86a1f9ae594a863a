import pickle

import pytest

import kartothek_cube.core.cube
from kartothek_cube.core.cube import constants
from kartothek_cube.serialization import ParquetSerializer

STAR_EXPORT = {f"KTK_CUBE_{name}" for name in ("DF_SERIALIZER", "UUID_SEPARATOR", "UUID_SEPERATOR")}
METADATA = ("DIMENSION_COLUMNS", "KEY_IS_SEED", "STORAGE_FORMAT", "VERSION")
STAR_EXPORT |= {f"KTK_CUBE_METADATA_{name}" for name in METADATA}


def _star_import(module: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(f"from {module} import *", names)  # noqa: S102 (the subject of the test)
    return {name: value for name, value in names.items() if name != "__builtins__"}


def test_star_import():
    assert set(_star_import("kartothek_cube.core.cube.constants")) == STAR_EXPORT
    package = _star_import("kartothek_cube.core.cube")
    assert set(package) > STAR_EXPORT
    assert package["KTK_CUBE_DF_SERIALIZER"] is constants.KTK_CUBE_DF_SERIALIZER


def test_serializer_is_made_once():
    from kartothek_cube.core.cube import KTK_CUBE_DF_SERIALIZER as from_package
    from kartothek_cube.core.cube.constants import KTK_CUBE_DF_SERIALIZER as from_module

    assert from_package is from_module
    assert from_module == ParquetSerializer(compression="ZSTD", chunk_size=None)
    assert pickle.loads(pickle.dumps(from_module)) == from_module


@pytest.mark.parametrize("module", [constants, kartothek_cube.core.cube])
def test_unknown_constant(module):
    with pytest.raises(AttributeError, match="KTK_CUBE_NOTHING"):
        module.KTK_CUBE_NOTHING  # noqa: B018


def test_values_of_old_cubes():
    assert constants.KLEE_METADATA_KEY_IS_SEED == "klee_is_seed"
    assert constants.KLEE_METADATA_DIMENSION_COLUMNS == "klee_dimension_columns"
    assert constants.KLEE_METADATA_PARTITION_COLUMNS == "klee_partition_columns"
    assert constants.KLEE_METADATA_TIMESTAMP_COLUMN == "klee_timestamp_column"
    assert constants.KLEE_TIMESTAMP_COLUMN == "KLEE_TS"
