"""
The whole cube API: ``from kartothek_cube.api.cube import *``.

Importing this module loads neither dask nor pyspark, and neither does taking a name of the pandas, Arrow or
iterator façades from it. Taking a name of another façade loads that façade. A star import takes all names: it
loads the façades of all engines that are installed, and leaves out those of the others.
"""

# ruff: noqa: F403 - this module is nothing but the names of others

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kartothek_cube.core.cube.conditions import *
from kartothek_cube.core.cube.constants import *
from kartothek_cube.core.cube.cube import *
from kartothek_cube.core.cube.discover import *
from kartothek_cube.io.arrow_cube import *
from kartothek_cube.io.eager_cube import *
from kartothek_cube.io.iter_cube import *

if TYPE_CHECKING:
    from kartothek_cube.io.dask.bag_cube import *
    from kartothek_cube.io.dask.dataframe_cube import *
    from kartothek_cube.io.dask.delayed_cube import *
    from kartothek_cube.io.spark.cube import *

#: how the names of a façade end -> its engine, its extra, its module
_ENGINES = {
    "_delayed": ("dask", "dask", "kartothek_cube.io.dask.delayed_cube"),
    "_bag": ("dask", "dask", "kartothek_cube.io.dask.bag_cube"),
    "_dataframe": ("dask", "dask", "kartothek_cube.io.dask.dataframe_cube"),
    "_spark": ("pyspark", "spark", "kartothek_cube.io.spark.cube"),
}

#: modules all of whose names are here
_ALWAYS = (
    "kartothek_cube.core.cube.conditions",
    "kartothek_cube.core.cube.constants",
    "kartothek_cube.core.cube.cube",
    "kartothek_cube.core.cube.discover",
    "kartothek_cube.io.arrow_cube",
    "kartothek_cube.io.eager_cube",
    "kartothek_cube.io.iter_cube",
)


def __getattr__(name: str) -> Any:
    """Load the façade of a name when somebody asks for it."""
    if name == "__all__":
        return _all_names()
    engine, extra, module = _ENGINES.get(name[name.rfind("_") :], (None, None, ""))
    if name.startswith("_") or engine is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(engine) is None:
        raise ImportError(f"{name} needs {engine}: pip install 'kartothek_cube[{extra}]'", name=engine)
    return getattr(import_module(module), name)


def _all_names() -> list[str]:
    installed = [module for engine, _, module in _ENGINES.values() if find_spec(engine) is not None]
    return sorted({name for module in (*_ALWAYS, *installed) for name in import_module(module).__all__})
