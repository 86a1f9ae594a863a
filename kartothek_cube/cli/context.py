"""What all commands share: the store, the cube, the number of threads; found out when first needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import click

from kartothek_cube.cli.errors import one_line, usage_error

if TYPE_CHECKING:
    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset import DatasetMetadata
    from kartothek_cube.core.typing import StoreFactory

__all__ = ("CliContext", "list_cubes", "pass_state", "shown_store")


@dataclass
class CliContext:
    """
    The options in front of the command.

    Attributes
    ----------
    skv
        File of stores.
    store_name
        Name of a store there, or a URL.
    threads
        At most so many; 0 for the number of cores.
    color
        Whether output is coloured; None for: if it is read in a terminal.
    prefix
        Prefix of the cube.
    """

    skv: str
    store_name: str
    threads: int
    color: bool | None
    prefix: str

    @cached_property
    def store(self) -> StoreFactory:
        """Factory of the store; nothing is created where there is none."""
        return self.open_store(self.store_name, create=False)

    def open_store(self, name: str, *, create: bool) -> StoreFactory:
        """Factory of a store by its name or URL; ``create``: a directory that is missing."""
        from kartothek_cube.cli.stores import find_store

        try:
            factory = find_store(name, self.skv, create=create)
            factory()
        except (ValueError, TypeError, KeyError, OSError, ImportError) as error:
            usage_error(f"Could not open store {shown_store(name)}: {one_line(error)}")
        return factory

    @cached_property
    def _found(self) -> tuple[Cube, dict[str, DatasetMetadata]]:
        from kartothek_cube.core.cube.discover import discover_cube

        try:
            return discover_cube(self.prefix, self.store)
        except (ValueError, KeyError, NotImplementedError) as error:
            usage_error(f"Could not load cube: {one_line(error)}{self._others()}")

    def _others(self) -> str:
        from kartothek_cube.core.errors import unknown_names

        cubes = list_cubes(self.store)
        if self.prefix in cubes:
            return ""
        return f"; {unknown_names('cube', [self.prefix], cubes)}"

    @property
    def cube(self) -> Cube:
        """The cube."""
        return self._found[0]

    @property
    def any_cube(self) -> Cube:
        """The cube as it may have been before: without the indices that were built since."""
        return self.cube.copy(index_columns=())

    @property
    def datasets(self) -> dict[str, DatasetMetadata]:
        """Its datasets by id, sorted."""
        return self._found[1]

    def as_of(self, moment: str) -> None:
        """Look at the states of another time from now on."""
        from kartothek_cube.core.errors import KartothekCubeError
        from kartothek_cube.io_components.maintenance.cube_history import datasets_as_of

        try:
            older = datasets_as_of(self.any_cube, self.store, moment)
        except (ValueError, KartothekCubeError) as error:
            usage_error(one_line(error))
        self._found = (self.any_cube, older)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Use the wanted number of threads, here and in Arrow."""
        if self.threads <= 0:
            yield
            return
        import pyarrow as pa

        from kartothek_cube.io_components.runtime.threads import limit_threads

        before = pa.cpu_count()
        pa.set_cpu_count(self.threads)
        try:
            with limit_threads(self.threads):
                yield
        finally:
            pa.set_cpu_count(before)

    @contextmanager
    def progress(self, title: str) -> Iterator[None]:
        """Show the progress of the block on stderr, if that is a terminal, from the first second on."""
        from functools import partial

        from tqdm import tqdm

        from kartothek_cube.io_components.runtime.progress import progress_bar

        with progress_bar(title, True, partial(tqdm, disable=None, delay=1, leave=False, dynamic_ncols=True)):
            yield


pass_state = click.make_pass_decorator(CliContext)


def shown_store(name: str) -> str:
    """The name or URL of a store, without passwords."""
    from kartothek_cube.core.store.resolve import redact_url

    return redact_url(name) if "://" in name else name


def list_cubes(store: StoreFactory) -> dict[str, list[str]]:
    """
    All cubes of a store, found by one listing of its top level.

    Parameters
    ----------
    store
        Factory of the store.

    Returns
    -------
    dict
        Prefix of each cube to the ids of its datasets, sorted.
    """
    from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
    from kartothek_cube.core.naming import METADATA_BASE_SUFFIX
    from kartothek_cube.core.store import open_blobs

    cubes: dict[str, set[str]] = {}
    for name in open_blobs(store).list_dir(""):
        uuid, suffix, _ = name.partition(METADATA_BASE_SUFFIX)
        prefix, separator, dataset = uuid.partition(KTK_CUBE_UUID_SEPARATOR)
        if suffix and separator and prefix and dataset:
            cubes.setdefault(prefix, set()).add(dataset)
    return {prefix: sorted(ids) for prefix, ids in sorted(cubes.items())}
