"""Context of all commands: store, cube and number of threads, loaded on first use."""

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

__all__ = ("CliContext", "list_cubes", "pass_state", "mask_store")


@dataclass
class CliContext:
    """Global options, and what they refer to."""

    #: YAML file of store configurations
    skv: str
    #: name in that file, or URL
    store_name: str
    #: maximum number of threads; 0 for the number of cores
    threads: int
    #: whether to use colours; None: only on terminals
    color: bool | None
    #: prefix of the cube
    prefix: str

    @cached_property
    def store(self) -> StoreFactory:
        """Factory of the store; a missing directory is not created."""
        return self.open_store(self.store_name, create=False)

    def open_store(self, name: str, *, create: bool) -> StoreFactory:
        """Return the factory of a store by name or URL; ``create`` permits a missing directory."""
        from kartothek_cube.cli.stores import find_store

        try:
            factory = find_store(name, self.skv, create=create)
            factory()
        except (ValueError, TypeError, KeyError, OSError, ImportError) as error:
            usage_error(f"Could not open store {mask_store(name)}: {one_line(error)}")
        return factory

    @cached_property
    def _loaded(self) -> tuple[Cube, dict[str, DatasetMetadata]]:
        from kartothek_cube.core.cube.discover import discover_cube

        try:
            return discover_cube(self.prefix, self.store)
        except (ValueError, KeyError, NotImplementedError) as error:
            usage_error(f"Could not load cube: {one_line(error)}{self._suggest_cubes()}")

    def _suggest_cubes(self) -> str:
        """Name similar cubes of the store if this one does not exist."""
        from kartothek_cube.core.errors import unknown_names

        cubes = list_cubes(self.store)
        if self.prefix in cubes:
            return ""
        return f"; {unknown_names('cube', [self.prefix], cubes)}"

    @property
    def cube(self) -> Cube:
        """The cube."""
        return self._loaded[0]

    @property
    def any_cube(self) -> Cube:
        """The cube without index columns, as older states may lack an index."""
        return self.cube.copy(index_columns=())

    @property
    def datasets(self) -> dict[str, DatasetMetadata]:
        """Datasets of the cube by id, sorted."""
        return self._loaded[1]

    def as_of(self, moment: str) -> None:
        """Replace the datasets by their states at an earlier time."""
        from kartothek_cube.core.errors import KartothekCubeError
        from kartothek_cube.io_components.maintenance.cube_history import datasets_as_of

        try:
            older = datasets_as_of(self.any_cube, self.store, moment)
        except (ValueError, KartothekCubeError) as error:
            usage_error(one_line(error))
        self._loaded = (self.any_cube, older)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the number of threads, in this library and in Arrow."""
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
        """Show a progress bar on stderr after the first second, if stderr is a terminal."""
        from functools import partial

        from tqdm import tqdm

        from kartothek_cube.io_components.runtime.progress import progress_bar

        with progress_bar(title, True, partial(tqdm, disable=None, delay=1, leave=False, dynamic_ncols=True)):
            yield


pass_state = click.make_pass_decorator(CliContext)


def mask_store(name: str) -> str:
    """Return the name or URL of a store without passwords."""
    from kartothek_cube.core.store.resolve import redact_url

    return redact_url(name) if "://" in name else name


def list_cubes(store: StoreFactory) -> dict[str, list[str]]:
    """Map the prefix of each cube of a store to its sorted dataset ids, by one listing of the top level."""
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
