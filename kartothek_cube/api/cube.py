"""The complete cube API: ``from kartothek_cube.api.cube import *``.

Importing this module imports neither dask nor pyspark, and neither do the names of the pandas, Arrow and
iterator façades. The dask and Spark façades are imported when one of their names is used; a star import uses
all names.
"""

# ruff: noqa: F403 - this module only re-exports names

from __future__ import annotations

from typing import TYPE_CHECKING

from kartothek_cube.api import lazy_names
from kartothek_cube.core import contract, transforms
from kartothek_cube.core.contract import *
from kartothek_cube.core.cube import conditions, constants, cube, discover
from kartothek_cube.core.cube.conditions import *
from kartothek_cube.core.cube.constants import *
from kartothek_cube.core.cube.cube import *
from kartothek_cube.core.cube.discover import *
from kartothek_cube.core.transforms import *
from kartothek_cube.io import arrow_cube, eager_cube, iter_cube, opened_cube, sql
from kartothek_cube.io.arrow_cube import *
from kartothek_cube.io.eager_cube import *
from kartothek_cube.io.iter_cube import *
from kartothek_cube.io.opened_cube import *
from kartothek_cube.io.sql import *

if TYPE_CHECKING:
    from kartothek_cube.io.dask.bag_cube import *
    from kartothek_cube.io.dask.dataframe_cube import *
    from kartothek_cube.io.dask.delayed_cube import *
    from kartothek_cube.io.spark.cube import *

_MODULES = [contract, conditions, constants, cube, discover, transforms]
_MODULES += [arrow_cube, eager_cube, iter_cube, opened_cube, sql]

#: façades that are imported on first use, and words that only their names have
_FACADES = {
    "kartothek_cube.io.dask.bag_cube": ("_bag",),
    "kartothek_cube.io.dask.delayed_cube": ("_delayed",),
    "kartothek_cube.io.dask.dataframe_cube": ("_dataframe",),
    "kartothek_cube.io.spark.cube": ("_spark",),
}

__getattr__ = lazy_names(__name__, [name for module in _MODULES for name in module.__all__], _FACADES)
