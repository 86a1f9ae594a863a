"""Context of all commands: store, cube and number of threads, loaded on first use; their errors."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kartothek_cube.core.errors import nearest_names

if TYPE_CHECKING:
    from simplekv import KeyValueStore

    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset import DatasetMetadata
    from kartothek_cube.core.store import Blob
    from kartothek_cube.core.typing import StoreFactory, StoreInput
    from kartothek_cube.io_components.maintenance.history import CubeAsOf


def is_interactive() -> bool:
    """Whether a user can answer prompts."""
    return sys.stdin.isatty()


@dataclass
class CliContext:
    """Global options, and what they refer to."""

    #: YAML file of store configurations
    skv: str
    #: name in that file, or URL
    store_name: str
    #: maximum number of threads; 0 for the number of cores
    n_threads: int
    #: when to use colours: a key of ``COLORS``
    color: str
    #: prefix of the cube
    prefix: str
    #: main looks for it in the arguments
    debug: bool = False
    #: why the cube has no seed dataset
    _problem: str | None = None

    def set_option(self, option: str, value: Any) -> None:
        """Replace a global option, before the store is opened."""
        setattr(self, "store_name" if option == "store" else option, value)

    @cached_property
    def store(self) -> StoreFactory:
        """Factory of the store; a missing directory is not created."""
        return self.open_store(self.store_name, create=False)

    def open_store(self, name: str, *, create: bool) -> StoreFactory:
        """Return the factory of a store by name or URL; ``create`` permits a missing directory."""
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
            self._problem = f"Could not load cube: {one_line(error)}"
            remainder = self._load_remainder()
            if remainder is None:
                usage_error(self._problem)
            return remainder

    def _load_remainder(self) -> tuple[Cube, dict[str, DatasetMetadata]] | None:
        """Load what is left without the seed, to be shown and deleted; None if there is a seed or nothing."""
        from kartothek_cube.core.cube import constants, discover
        from kartothek_cube.core.cube.consistency import read_specification
        from kartothek_cube.core.cube.cube import Cube
        from kartothek_cube.core.store import open_blobs

        try:
            datasets = discover.discover_datasets_unchecked(self.prefix, self.store)
            specifications = [dataset.metadata for dataset in datasets.values()]
            if any(read_specification(m, constants.KTK_CUBE_METADATA_KEY_IS_SEED) for m in specifications):
                return None
            keys = self.prefix + constants.KTK_CUBE_UUID_SEPARATOR
            if not datasets and not open_blobs(self.store).list(keys):
                return None
            metadata = specifications[0] if specifications else {}
            # a name that a header does not tell serves no purpose but to make a valid cube
            cube = Cube(
                read_specification(metadata, constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS)
                or ["unknown_dimension"],
                read_specification(metadata, constants.KTK_CUBE_METADATA_PARTITION_COLUMNS) or (),
                self.prefix,
                seed_dataset="seed" if "seed" not in datasets else "deleted_seed",
            )
        except (ValueError, TypeError):
            return None
        return cube, {name: dataset.load_partition_indices() for name, dataset in datasets.items()}

    def require_seed(self) -> None:
        """Raise a usage error if the cube has no seed dataset."""
        _ = self.cube
        if self._problem is not None:
            usage_error(f"{self._problem}; only info, delete and cleanup work without it")

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

    def as_of(self, moment: CubeAsOf) -> None:
        """Replace the datasets by those of another state."""
        from kartothek_cube.core.errors import KartothekCubeError
        from kartothek_cube.io_components.maintenance.history import datasets_as_of

        try:
            older = datasets_as_of(self.any_cube, self.store, moment)
        except (ValueError, KartothekCubeError) as error:
            usage_error(one_line(error))
        self._loaded = (self.any_cube, older)

    @contextmanager
    def limit_threads(self) -> Iterator[None]:
        """Limit the number of threads, in this library and in Arrow."""
        if self.n_threads <= 0:
            yield
            return
        import pyarrow as pa

        from kartothek_cube.io_components.runtime import limit_threads

        before = pa.cpu_count()
        pa.set_cpu_count(self.n_threads)
        try:
            with limit_threads(self.n_threads):
                yield
        finally:
            pa.set_cpu_count(before)

    @contextmanager
    def progress(self, title: str) -> Iterator[None]:
        """Show a progress bar on stderr after the first second, if stderr is a terminal."""
        from tqdm import tqdm

        from kartothek_cube.io_components.runtime import progress_bar

        with progress_bar(title, True, partial(tqdm, disable=None, delay=1, leave=False, dynamic_ncols=True)):
            yield


pass_state = click.make_pass_decorator(CliContext)

#: by which ``cleanup`` and ``report`` distinguish garbage from files of running writes
DEFAULT_RETENTION = timedelta(hours=24)


def mask_store(name: str) -> str:
    """Return the name or URL of a store without passwords."""
    from kartothek_cube.core.store.resolve import redact_url

    return redact_url(name) if "://" in name else name


def is_internal_column(name: str) -> bool:
    """Whether a column is the index of a frame that pandas has stored."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None


def list_garbage_by_age(
    cube: Cube, store: StoreInput, retention: timedelta | None
) -> tuple[list[Blob], list[Blob]]:
    """List the orphaned files that a cleanup deletes, and the younger ones, which it keeps; with sizes."""
    from kartothek_cube.core.store import open_blobs
    from kartothek_cube.io_components.maintenance.garbage import list_cube_garbage, with_sizes

    blobs = open_blobs(store)
    old = list_cube_garbage(cube, blobs, retention)
    deleted = {blob.key for blob in old}
    young = [blob for blob in list_cube_garbage(cube, blobs) if blob.key not in deleted]
    return with_sizes(blobs, old), with_sizes(blobs, young)


# -- stores ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfiguredStore:
    """Factory of a store from its configuration in the YAML file, the arguments of `storefact.get_store`."""

    config: Mapping[str, Any] = field(repr=False)

    def __call__(self) -> KeyValueStore:
        """Open the store."""
        from storefact import get_store

        return get_store(**self.config)


def find_store(name: str, skv: str, *, create: bool) -> StoreFactory:
    """Return the factory of a store by directory, URL or name; ``create`` permits a missing directory."""
    if "://" in name or _is_path(name, skv):
        return _from_url(name, create)
    from kartothek_cube.core.errors import unknown_names

    if not os.path.exists(skv):
        usage_error(
            f"Store {name} is neither a directory nor a name in {skv}, which does not exist: pass a "
            "directory or URL (--store /data, --store s3://bucket), or another file with --skv"
        )
    stores = read_stores(skv)
    if name not in stores:
        usage_error(f"Could not find store {name} in {skv}: {unknown_names('store', [name], stores)}")
    config = stores[name]
    if isinstance(config, str):
        return _from_url(config, create)
    if not isinstance(config, dict) or "type" not in config:
        usage_error(
            f"Store {name} in {skv} has no type: expected a URL, or 'type' (hfs, s3, ...) and its parameters"
        )
    if config["type"] in ("hfs", "fs"):
        _check_directory(config.get("path"), create)
    return ConfiguredStore(config)


def _is_path(name: str, skv: str) -> bool:
    """Whether a store is a directory: with a slash, or an existing one that is no configured name."""
    if is_path(name):
        return True
    return os.path.isdir(name) and not (os.path.exists(skv) and name in read_stores(skv))


def is_path(name: str) -> bool:
    """Whether a name can only be that of a directory."""
    return "/" in name or os.sep in name or name in (".", "..", "~")


def _from_url(name: str, create: bool) -> StoreFactory:
    from kartothek_cube.core.store.resolve import lazy_store

    store = lazy_store(name if "://" in name else Path(name))
    # opening it creates nothing
    _check_directory(getattr(store(), "root", None), create)
    return store


def _check_directory(path: object, create: bool) -> None:
    """Raise if a directory does not exist and must not be created."""
    # the first write to a local store creates its directory, which hides a typo
    if not create and isinstance(path, str) and path and not os.path.isdir(path):
        raise ValueError(f"no directory {path}")


def read_stores(path: str) -> Mapping[str, Any]:
    """Read the YAML file of stores: name to configuration."""
    # main imports this module also for --help
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            stores = yaml.safe_load(file)
    except OSError as error:
        usage_error(f"Could not load store YAML {path}: {error.strerror}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        usage_error(f"Could not parse store YAML {path}: {one_line(error)}")
    if not isinstance(stores, dict):
        usage_error(f"Could not parse store YAML {path}: expected a mapping of store names to configurations")
    return {str(name): config for name, config in stores.items()}


# -- terminal -----------------------------------------------------------------------------------------------


#: the user answered no or pressed Ctrl-C
ABORTED = 1
#: wrong usage or data; the reason is on stderr
USAGE = 2
#: ``verify`` found problems
DAMAGED = 3
#: an internal error
INTERNAL = 4
#: the reader of the output closed the pipe: 128 + SIGPIPE, like in shells
BROKEN_PIPE = 141
#: 128 + SIGTERM
TERMINATED = 143

#: errors caused by the arguments, the data or the store; all others are internal errors
_EXPECTED = (ValueError, TypeError, KeyError, RuntimeError, NotImplementedError, OSError, ImportError)


def usage_error(message: str) -> NoReturn:
    """End the command with a usage error."""
    raise click.UsageError(message)


def closest(name: str, candidates: Iterable[str]) -> str:
    """Suggest the most similar name as a question; empty if there is none."""
    return "".join(f" Did you mean {match!r}?" for match in nearest_names(name, candidates))


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, KeyError) and error.args:
        text = str(error.args[0])  # its str is a repr
    else:
        text = str(error)
    return " ".join(text.split()) or type(error).__name__


def forget_pipe() -> None:
    """Redirect the standard streams to /dev/null after a broken pipe."""
    # otherwise the interpreter reports a second BrokenPipeError when it flushes them at exit
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report_error(error: BaseException, color: bool | None) -> int:
    """Print an error as one line and return the exit code."""
    if isinstance(error, click.Abort):
        click.echo("Aborted!", err=True)
        return ABORTED
    expected = isinstance(error, (click.ClickException, *_EXPECTED))
    text = one_line(error)
    if not expected:
        text = f"{type(error).__name__}: {text} (internal error; --debug shows the traceback)"
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')} (see {error.ctx.command_path} -h)" if text.endswith(".") else text
    click.secho("Error:", fg="red", bold=True, err=True, nl=False, color=color)
    click.echo(f" {text}", err=True)
    return USAGE if expected else INTERNAL


def headline(text: str) -> None:
    """Print a headline."""
    click.secho(text, fg="yellow", bold=True, underline=True)


def label(text: str, value: str = "") -> None:
    """Print a bold label and its value."""
    click.echo(click.style(text, bold=True) + value)


def print_json(content: Any) -> None:
    """Print JSON; values without a JSON type become text."""
    click.echo(json.dumps(content, indent=2, sort_keys=True, default=str, ensure_ascii=False))
