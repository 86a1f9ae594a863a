"""
The complete cube API: ``from kartothek_cube.api.cube import *``.

Importing this module imports neither dask nor pyspark, and neither do the names of the pandas, Arrow and
iterator façades. The dask and Spark façades are imported when one of their names is used. A star import
imports the façades of all installed engines.
"""

# ruff: noqa: F403 - this module only re-exports names

from __future__ import annotations

from typing import TYPE_CHECKING

from kartothek_cube.api._lazy import Facade, lazy_names
from kartothek_cube.core.cube import conditions, constants, cube, discover
from kartothek_cube.core.cube.conditions import *
from kartothek_cube.core.cube.constants import *
from kartothek_cube.core.cube.cube import *
from kartothek_cube.core.cube.discover import *
from kartothek_cube.io import arrow_cube, eager_cube, iter_cube
from kartothek_cube.io.arrow_cube import *
from kartothek_cube.io.eager_cube import *
from kartothek_cube.io.iter_cube import *

if TYPE_CHECKING:
    from kartothek_cube.io.dask.bag_cube import *
    from kartothek_cube.io.dask.dataframe_cube import *
    from kartothek_cube.io.dask.delayed_cube import *
    from kartothek_cube.io.spark.cube import *

_MODULES = (conditions, constants, cube, discover, arrow_cube, eager_cube, iter_cube)

__getattr__ = lazy_names(
    __name__,
    [name for module in _MODULES for name in module.__all__],
    (
        Facade("kartothek_cube.io.dask.delayed_cube", "dask", "dask", frozenset({"delayed"})),
        Facade("kartothek_cube.io.dask.bag_cube", "dask", "dask", frozenset({"bag"})),
        Facade("kartothek_cube.io.dask.dataframe_cube", "dask", "dask", frozenset({"dataframe"})),
        Facade("kartothek_cube.io.spark.cube", "pyspark", "spark", frozenset({"spark"})),
    ),
)
