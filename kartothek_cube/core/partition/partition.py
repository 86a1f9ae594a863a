"""``Partition``: a single partition for users; the library works on `PartitionTable`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kartothek_cube.core.header.parse import partition_texts

__all__ = ("Partition", "PartitionDictType")

PartitionDictType = dict[str, dict[str, str]]


class Partition:
    """
    One partition of a dataset: its files, one per table.

    Parameters
    ----------
    label
        Name of the partition within its dataset.
    files
        Storage key of the file of each table.
    metadata
        Ignored; metadata per partition of old versions.

    Attributes
    ----------
    label : str
    files : dict of str to str

    Examples
    --------
    >>> Partition("COUNTRY_CODE=DE/a1", {"table": "sales/table/COUNTRY_CODE=DE/a1.parquet"}).to_dict()
    {'files': {'table': 'sales/table/COUNTRY_CODE=DE/a1.parquet'}}
    """

    __slots__ = ("files", "label")

    def __init__(
        self, label: str, files: Mapping[str, str] | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.label = label
        self.files: dict[str, str] = dict(files or {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return self.label == other.label and self.files == other.files

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Partition(label={self.label!r}, files={self.files!r})"

    @staticmethod
    def from_dict(label: str, dct: Mapping[str, Any]) -> Partition:
        """
        Read a partition from its form in the header.

        Parameters
        ----------
        label
            Name of the partition.
        dct
            ``{"files": {<table>: <storage key>}}``.

        Returns
        -------
        Partition

        Raises
        ------
        CorruptDatasetError
            ``dct`` has another form.

        Examples
        --------
        >>> Partition.from_dict("a1", {"files": {"table": "sales/table/a1.parquet"}}).files
        {'table': 'sales/table/a1.parquet'}
        """
        _, files = partition_texts({label: dct}, label)
        return Partition(label, {table: keys[0].as_py() for table, keys in files.items()})

    def to_dict(self, version: int | None = None) -> PartitionDictType:
        """
        The form of the partition in the header.

        Parameters
        ----------
        version
            Not used; there is one version.

        Returns
        -------
        dict
        """
        return {"files": dict(self.files)}
