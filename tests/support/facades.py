"""One class per façade, all with the same methods, so that a test of behaviour is written once.

Methods take the arguments of ``kartothek_cube.io.eager_cube`` and give back plain results: frames in a list,
statistics and written datasets in a dict, whatever the façade makes of them (generators, graphs, Spark jobs).
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io import eager_cube

Written = dict[str, DatasetMetadata]


class Eager:
    """pandas in, pandas out, at once."""

    name = "eager"

    def build_cube(self, **kwargs: Any) -> Written:
        return eager_cube.build_cube(**kwargs)

    def extend_cube(self, **kwargs: Any) -> Written:
        return eager_cube.extend_cube(**kwargs)

    def append_to_cube(self, **kwargs: Any) -> Written:
        return eager_cube.append_to_cube(**kwargs)

    def update_cube(self, **kwargs: Any) -> Written:
        return eager_cube.update_cube(**kwargs)

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        return eager_cube.query_cube(**kwargs)

    def remove_partitions(self, **kwargs: Any) -> Written:
        return eager_cube.remove_partitions(**kwargs)

    def delete_cube(self, **kwargs: Any) -> None:
        eager_cube.delete_cube(**kwargs)

    def copy_cube(self, **kwargs: Any) -> None:
        eager_cube.copy_cube(**kwargs)

    def collect_stats(self, **kwargs: Any) -> dict[str, dict[str, int]]:
        return eager_cube.collect_stats(**kwargs)

    def cleanup_cube(self, **kwargs: Any) -> None:
        eager_cube.cleanup_cube(**kwargs)


#: name for ``--facade`` -> class
FACADES: dict[str, type[Eager]] = {cls.name: cls for cls in (Eager,)}
