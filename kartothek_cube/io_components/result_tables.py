"""Results by dataset id, as dicts that notebooks show as tables."""

from __future__ import annotations

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.display.html import card, table

__all__ = ("CountsByDataset", "DatasetsById")


class CountsByDataset(dict[str, dict[str, int]]):
    """Dataset id to numbers by name.

    >>> CountsByDataset(seed={"files": 2})
    {'seed': {'files': 2}}
    """

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for counts in self.values() for name in counts))
        header = ["dataset", *(name.replace("_", " ") for name in names)]
        rows = [(name, *(counts.get(n, "") for n in names)) for name, counts in self.items()]
        return card("", table("", header, rows)) if rows else card("No datasets")


class DatasetsById(dict[str, DatasetMetadata]):
    """Dataset id to metadata, as writes of cubes return them."""

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                dataset.uuid,
                len(dataset.partition_table),
                ", ".join(dataset.partition_keys or ()) or "none",
                ", ".join(dataset.schema.names) if dataset.schema is not None else "",
            )
            for name, dataset in self.items()
        ]
        header = ["dataset", "uuid", "files", "partition keys", "columns"]
        return card("", table("", header, rows)) if rows else card("No datasets")
