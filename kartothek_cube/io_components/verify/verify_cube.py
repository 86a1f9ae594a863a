"""The arguments of the verification of a cube, without its rules, which are loaded when they are needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic

import attrs

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.verify.report import Report


@attrs.frozen
class VerifyCube(Generic[StoreT]):
    """
    Check the datasets of a cube against their headers and the rules of the cube; nothing is changed.

    In addition to :func:`~kartothek_cube.io.eager.verify_dataset`: the seed exists, types agree, a payload
    column belongs to one dataset, rows are sorted by cell, keys are not null, all indices of the cube exist,
    and no cell of the seed is in several partitions.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.
    deep
        Whether all rows are read; otherwise only the footers of files are, and indices are not compared with
        the data.

    Returns
    -------
    Report
        ``report.ok`` is True without problems; ``report.problems`` also say what to do.

    Raises
    ------
    ValueError
        There is no such cube or dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube, repair_cube, verify_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> dataset = build_cube(cities, cube, store)["seed"]
    >>> verify_cube(cube, store).ok
    True
    >>> store.delete(dataset.indices["CITY"].index_storage_key)
    >>> repair_cube(cube, store)  # doctest: +ELLIPSIS
    no problems in 1 dataset, 2 files, 2 rows, 1 index
    repaired: geodata++seed: missing-index: the index of CITY does not exist [...]
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    deep: bool = attrs.field(default=True, kw_only=True)
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[Any, Any, Any, Report]:
        """Check the headers, and plan the check of the files."""
        # importing the façades stays quick
        from kartothek_cube.io_components.verify.cube_rules import verify_cube_job

        return verify_cube_job(self.cube, self.store, self.ktk_cube_dataset_ids, deep=self.deep)
