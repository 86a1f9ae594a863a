import importlib.metadata
import os
import pickle

import pytest
from simplekv import KeyValueStore

import kartothek_cube
from kartothek_cube.core.store import StoreFactory, StoreInput
from tests.support.paths import run_python


def test_version():
    try:
        expected = importlib.metadata.version("kartothek_cube")
    except importlib.metadata.PackageNotFoundError:
        expected = "0+unknown"
    assert kartothek_cube.__version__ == expected
    with pytest.raises(AttributeError, match="nothing"):
        kartothek_cube.nothing  # noqa: B018


def test_importing_cubes_loads_no_serialization_and_the_package_loads_nothing():
    code = (
        "import sys, kartothek_cube; assert 'pandas' not in sys.modules and 'pyarrow' not in sys.modules\n"
        "import kartothek_cube.core.cube, kartothek_cube.utils.predicate_converter\n"
        "assert not [m for m in sys.modules if m.startswith('kartothek_cube.serialization')]\n"
        "assert not {'dask', 'pyspark'} & set(sys.modules)\n"
    )
    run_python(code)


def test_store_types():
    assert set(StoreInput.__args__) == {str, os.PathLike[str], KeyValueStore, StoreFactory}
    assert pickle.loads(pickle.dumps(StoreInput)) == StoreInput
