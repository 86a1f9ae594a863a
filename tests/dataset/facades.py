"""One class per façade of datasets, all with the same methods: a test of behaviour is written once."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.types import to_pandas
from kartothek_cube.io import arrow, eager
from kartothek_cube.io import iter as iter_


class Eager:
    """pandas in, pandas out, at once."""

    name = "eager"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        return eager.store_dataframes_as_dataset(store, uuid, dfs, **kwargs)

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        return eager.update_dataset_from_dataframes(dfs, store=store, dataset_uuid=uuid, **kwargs)

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        return eager.read_dataset_as_dataframes(uuid, store, **kwargs)


class Iter(Eager):
    """pandas in, pandas out, one frame after the other."""

    name = "iter"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        return iter_.store_dataframes_as_dataset__iter(iter(dfs), store, uuid, **kwargs)

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        return iter_.update_dataset_from_dataframes__iter(iter(dfs), store, uuid, **kwargs)

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        return list(iter_.read_dataset_as_dataframes__iterator(uuid, store, **kwargs))


class Arrow(Eager):
    """Arrow in, Arrow out."""

    name = "arrow"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        return super().store(store, map(as_arrow, dfs), uuid, **kwargs)

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        return super().update(store, map(as_arrow, dfs), uuid, **kwargs)

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        dates_as_object = kwargs.pop("dates_as_object", True)
        tables = arrow.read_dataset_as_arrow(uuid, store, **kwargs)
        categories = kwargs.get("categoricals") or ()
        return [to_pandas(t, dates_as_object=dates_as_object, categories=categories) for t in tables]


def as_arrow(item: Any) -> Any:
    return pa.Table.from_pandas(item) if isinstance(item, pd.DataFrame) else item


FACADES: dict[str, type[Eager]] = {cls.name: cls for cls in (Eager, Iter, Arrow)}
