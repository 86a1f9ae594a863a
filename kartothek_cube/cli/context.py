"""Context of all commands: store, cube and threads, loaded on first use; options, completion, errors."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property, partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from kartothek_cube.core.errors import format_count, unknown_names
from kartothek_cube.display import escape_controls

if TYPE_CHECKING:
    from simplekv import KeyValueStore

    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset import DatasetMetadata
    from kartothek_cube.core.store import Blob, StoreFactory, StoreInput
    from kartothek_cube.io.opened_cube import OpenedCube
    from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
    from kartothek_cube.io_components.write.write_commit import StagedWrite

F = TypeVar("F", bound=Callable[..., Any])
Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


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

    @cached_property
    def store(self) -> StoreFactory:
        """Factory of the store; a missing directory is not created."""
        return self.open_store(self.store_name, create=False)

    def open_store(self, name: str, *, create: bool) -> StoreFactory:
        """Return the factory of a store by name or URL; ``create`` permits a missing directory."""
        try:
            factory = find_store(name, self.skv)
            # the first write to a local store creates its directory, which hides a typo
            if not create and (directory := _missing_directory(factory)) is not None:
                raise ValueError(f"no directory {directory}")
            factory()
        except (ValueError, TypeError, KeyError, OSError, ImportError) as error:
            usage_error(f"Could not open store {mask_store(name)}: {one_line(error)}")
        return factory

    @cached_property
    def _loaded(self) -> tuple[Cube, dict[str, DatasetMetadata]]:
        from kartothek_cube.core.cube.discover import discover_cube_unchecked

        try:
            # a cube that breaks a rule is to be verified, rolled back and deleted
            cube, datasets = discover_cube_unchecked(self.prefix, self.store)
            return cube, {name: datasets[name].load_partition_indices() for name in sorted(datasets)}
        except (ValueError, KeyError, NotImplementedError) as error:
            self._problem = f"Could not load cube: {one_line(error)}"
            remainder = self._load_remainder()
            if remainder is None:
                usage_error(self._problem)
            return remainder

    def _load_remainder(self) -> tuple[Cube, dict[str, DatasetMetadata]] | None:
        """Load what is left without the seed, to be shown and deleted; None if there is a seed or nothing."""
        from kartothek_cube.core.cube import constants, discover
        from kartothek_cube.core.cube.consistency import read_specification as read
        from kartothek_cube.core.cube.cube import Cube
        from kartothek_cube.core.store import open_blobs

        try:
            datasets = discover.discover_datasets_unchecked(self.prefix, self.store)
            specifications = [dataset.metadata for dataset in datasets.values()]
            is_seed = any(read(each, constants.KTK_CUBE_METADATA_KEY_IS_SEED) for each in specifications)
            keys = self.prefix + constants.KTK_CUBE_UUID_SEPARATOR
            if is_seed or (not datasets and not open_blobs(self.store).list(keys)):
                return None
            metadata = specifications[0] if specifications else {}
            # a placeholder for a name that is not in the header: the cube has to be valid
            dimensions = read(metadata, constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS)
            partitions = read(metadata, constants.KTK_CUBE_METADATA_PARTITION_COLUMNS) or ()
            seed = "seed" if "seed" not in datasets else "deleted_seed"
            cube = Cube(dimensions or ["unknown_dimension"], partitions, self.prefix, seed_dataset=seed)
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

    @property
    def opened(self) -> OpenedCube:
        """The cube with its operations; they are imported before a progress bar measures time."""
        from kartothek_cube.io.opened_cube import OpenedCube

        return OpenedCube(self.cube, self.store)

    def as_of(self, moment: CubeAsOf) -> None:
        """Replace the datasets by those of another state."""
        from kartothek_cube.io_components.maintenance.cube_history import datasets_as_of

        self._loaded = (self.any_cube, datasets_as_of(self.any_cube, self.store, moment))

    @contextmanager
    def limit_threads(self) -> Iterator[None]:
        """Limit the number of threads, in this library and in Arrow."""
        import pyarrow as pa

        from kartothek_cube.io_components.runtime import limit_threads

        before = pa.cpu_count()
        pa.set_cpu_count(self.n_threads)
        try:
            with limit_threads(self.n_threads):
                yield
        finally:
            pa.set_cpu_count(before)

    def progress(self, title: str) -> AbstractContextManager[None]:
        """Show a progress bar on stderr after the first second, if stderr is a terminal."""
        from kartothek_cube.io_components.runtime import progress_bar

        return progress_bar(title, True, disable=None, delay=1, leave=False, dynamic_ncols=True)


pass_state = click.make_pass_decorator(CliContext)
#: an option with its default in the help text
option = partial(click.option, show_default=True)
FILE = click.Path(dir_okay=False)

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


def describe_garbage(files: Collection[Blob]) -> str:
    """Return the number of orphaned files, and their size."""
    from kartothek_cube.io_components.runtime import bytes_text

    size = bytes_text(sum(blob.size or 0 for blob in files))
    return f"{format_count(len(files), 'orphaned file')} ({size})"


# -- stores ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfiguredStore:
    """Factory of a store from its configuration in the YAML file, the arguments of `storefact.get_store`."""

    config: Mapping[str, Any] = field(repr=False)

    def __call__(self) -> KeyValueStore:
        """Open the store."""
        from storefact import get_store

        return get_store(**self.config)


def find_store(name: str, skv: str) -> StoreFactory:
    """Return the factory of a store by directory, URL or name; a name wins over a directory of that name."""
    if is_path(name):
        return _at(name)
    has_names = os.path.exists(skv)
    stores = read_stores(skv) if has_names else {}
    if name not in stores and os.path.isdir(name):
        return _at(name)
    if not has_names:
        usage_error(
            f"Store {name} is neither a directory nor a name in {skv}, which does not exist: pass a "
            f"directory (/data, ./{name}), a URL (s3://bucket), or another file with --skv"
        )
    if name not in stores:
        usage_error(f"Could not find store {name} in {skv}: {unknown_names('store', [name], stores)}")
    config = stores[name]
    if isinstance(config, str):
        return _at(config)
    if not isinstance(config, dict) or "type" not in config:
        expected = "expected a URL, or 'type' (hfs, s3, ...) and its parameters"
        usage_error(f"Store {name} in {skv} has no type: {expected}")
    return ConfiguredStore(config)


def _missing_directory(factory: StoreFactory) -> str | None:
    from kartothek_cube.core.store import open_blobs

    if isinstance(factory, ConfiguredStore) and "path" in factory.config:
        # storefact would create it
        path = str(factory.config["path"])
        return None if os.path.isdir(path) else path
    return open_blobs(factory).missing_directory


def is_path(name: str) -> bool:
    """Whether a name can only be that of a directory, or a URL."""
    return "/" in name or os.sep in name or name in (".", "..", "~")


def _at(location: str) -> StoreFactory:
    from kartothek_cube.core.store.resolve import lazy_store

    return lazy_store(location if "://" in location else Path(location))


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
#: packages of the extra ``cli``, imported by the commands that need them
_OPTIONAL = ("IPython", "jinja2", "prompt_toolkit", "yaml")


def echo(text: str = "", *, err: bool = False, **style: Any) -> None:
    """Print a line; names in foreign files must not steer the terminal."""
    escaped = escape_controls(text)
    click.echo(click.style(escaped, **style) if style else escaped, err=err)


def usage_error(message: str) -> NoReturn:
    """End the command with a usage error."""
    raise click.UsageError(message)


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])  # its str is a repr
    return " ".join(text.split()) or type(error).__name__


def open_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller has closed."""
    # None for Python, which then fails where a terminal is looked for
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the process ends


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
    # errors of functions of the user have a note
    notes = " ".join(getattr(error, "__notes__", ()))
    expected = bool(notes) or isinstance(error, (click.ClickException, *_EXPECTED))
    text = one_line(error)
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in _OPTIONAL:
        text = f"This command needs {package}: pip install 'kartothek_cube[cli]'"
    elif notes:
        text = f"{notes}: {type(error).__name__}: {text} (--debug shows the traceback)"
    elif not expected:
        text = f"{type(error).__name__}: {text} (internal error; --debug shows the traceback)"
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')} (see {error.ctx.command_path} -h)" if text.endswith(".") else text
    click.secho("Error:", fg="red", bold=True, err=True, nl=False, color=color)
    echo(f" {text}", err=True)
    return USAGE if expected else INTERNAL


def headline(text: str) -> None:
    """Print a headline."""
    echo(text, fg="yellow", bold=True, underline=True)


def label(text: str, value: str = "") -> None:
    """Print a bold label and its value."""
    click.echo(click.style(escape_controls(text), bold=True) + escape_controls(value))


def print_json(content: Any) -> None:
    """Print JSON; values without a JSON type become text."""
    for line in json.dumps(content, indent=2, sort_keys=True, default=str, ensure_ascii=False).split("\n"):
        click.echo("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line))


# -- shell completion; errors yield no suggestions --------------------------------------------------


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete file names."""
    return [CompletionItem(incomplete, type="file")]


def _complete(list_names: Callable[[CliContext], Iterable[str]], *, is_list: bool = False) -> Completer:
    """Make a function that completes names; or the last one of those that commas separate."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        root = ctx.find_root().params
        state = CliContext(root["skv"], root["store_name"], 0, "auto", root.get("cube") or "")
        for name in ("skv", "store_name"):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                setattr(state, name, ctx.params[name])
        previous, comma, last = incomplete.rpartition(",") if is_list else ("", "", incomplete)
        try:
            return [f"{previous}{comma}{name}" for name in list_names(state) if name.startswith(last)]
        except (click.UsageError, OSError, ValueError):
            return []

    return complete


def _list_cubes(state: CliContext) -> Iterable[str]:
    from kartothek_cube.core.cube.discover import list_cubes

    return list_cubes(state.store)


def _list_columns(state: CliContext) -> Iterable[str]:
    from kartothek_cube.core.cube.consistency import get_dataset_columns

    return sorted(set().union(*map(get_dataset_columns, state.datasets.values())))


complete_stores = _complete(lambda state: read_stores(state.skv))
complete_cubes = _complete(_list_cubes)
complete_datasets = _complete(lambda state: state.datasets, is_list=True)
complete_columns = _complete(_list_columns, is_list=True)


# -- global options --------------------------------------------------------------------------------

COLORS = {"always": True, "auto": None, "off": False}


def use_color(name: str) -> bool | None:
    """Whether to use colours; None: on a terminal."""
    if name == "auto" and os.environ.get("NO_COLOR"):  # see no-color.org
        return False
    return COLORS[name]


def global_options() -> list[click.Parameter]:
    """Make the options of all commands."""
    make = partial(click.Option, show_default=True, show_envvar=True)
    named = partial(make, ["--skv"], default="skv.yml", metavar="FILE", shell_complete=complete_files)
    store = partial(make, ["--store", "store_name"], default="dataset", shell_complete=complete_stores)
    count = partial(make, ["-j", "--n_threads"], default=0, metavar="N", type=click.IntRange(0, 10_000))
    color = partial(make, ["--color"], default="auto", type=click.Choice(list(COLORS)))
    url = "Directory (/data), URL (s3://bucket), or a name in the YAML file."
    return [
        named(envvar="KARTOTHEK_CUBE_SKV", help="YAML file with names of stores."),
        store(envvar="KARTOTHEK_CUBE_STORE", metavar="STORE", help=url),
        count(help="Number of threads; 0: one per core."),
        color(help="Colours; auto: on a terminal, unless NO_COLOR is set."),
        make(["--debug"], is_flag=True, help="Show tracebacks of errors."),
    ]


class CubeCommand(click.Command):
    """A command, whose global options may precede the cube or follow the command."""

    _global_options = global_options()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """List own and global parameters."""
        own = super().get_params(ctx)
        return [*own[:-1], *self._global_options, *own[-1:]]  # --help is the last one

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List own options, then the global ones."""
        for title, are_global in (("Options", False), ("Global options", True)):
            options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
            records = [p.get_help_record(ctx) for p in options if (p in self._global_options) is are_global]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])

    def invoke(self, ctx: click.Context) -> Any:
        """Apply the global options behind the command, load the cube and run."""
        state = ctx.find_object(CliContext)
        assert state is not None
        for option in self._global_options:
            value = ctx.params.pop(str(option.name))
            if ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
                setattr(state, str(option.name), value)
        ctx.color = use_color(state.color)
        if state.n_threads > 0:
            ctx.with_resource(state.limit_threads())
        self.load_cube(ctx, state)
        return super().invoke(ctx)

    def load_cube(self, ctx: click.Context, state: CliContext) -> None:
        """Load the cube; it is an error if the seed dataset is gone."""
        state.require_seed()


class StoreCommand(CubeCommand):
    """A command that also runs without a cube, or on what is left of one without its seed dataset."""

    def load_cube(self, ctx: click.Context, state: CliContext) -> None:
        """Load the cube when it is needed."""


# -- options of commands ---------------------------------------------------------------------------


def add_dataset_options(verb: str) -> Callable[[F], F]:
    """Add the options ``--include`` and ``--exclude``; ``verb`` completes their help texts."""
    named = partial(click.option, metavar="NAMES", shell_complete=complete_datasets)
    text = f"Datasets to be {verb}: comma-separated ids or patterns, e.g. enrich,climate_*."
    include, exclude = named("--include", help=text), named("--exclude", help="Datasets to exclude.")
    return lambda command: include(exclude(command))


def pass_datasets(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add these options, and pass the ids of the selected datasets as ``names``, sorted, behind the state."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        def run(state: CliContext, /, *, include: str | None, exclude: str | None, **options: Any) -> None:
            command(state, sorted(select_datasets(state.datasets, include, exclude)), **options)

        update_wrapper(run, command)
        return add_dataset_options(verb)(pass_state(run))

    return add


class _Formats(click.Choice[str]):
    """Formats of a table; the error about a file in place of a format names its option."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"{super().get_invalid_choice_message(value, ctx)} A file is named by --to."


def output_options(command: F) -> F:
    """Add the options ``--output`` and ``--to`` of commands whose result is a table."""
    formats = _Formats(["table", "csv", "parquet", "arrow", "feather", "json", "jsonl"])
    derived = "Output format; by default derived from the file name, or a table."
    file = "Output file, e.g. a.csv, a.parquet, a.jsonl.gz; by default stdout."
    to = click.option("--to", type=FILE, help=file)
    return click.option("-o", "--output", type=formats, help=derived)(to(command))


def where_option(text: str) -> Callable[[F], F]:
    """Make the option ``--where`` of a command."""
    return click.option("-w", "--where", multiple=True, help=f"{text} Repeat to add conditions.")


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def match(patterns: str, candidates: Iterable[str], kind: str) -> set[str]:
    """Expand comma-separated names and patterns; a usage error if one matches nothing."""
    names = sorted(candidates)
    selected: set[str] = set()
    for pattern in (text.strip() for text in patterns.split(",")):
        matches = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not matches:
            usage_error(unknown_names(kind, [pattern], names))
        selected |= matches
    return selected


def select_datasets(candidates: Iterable[str], include: str | None, exclude: str | None) -> set[str]:
    """Return the dataset ids that are included (by default all) and not excluded."""
    names = set(candidates)
    included = names if include is None else match(include, names, "dataset")
    return included - (set() if exclude is None else match(exclude, names, "dataset"))


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless ``yes``; abort if the answer is no or stdin is not a terminal."""
    if yes:
        return
    try:
        click.confirm(escape_controls(question), abort=True, err=True)
    except click.Abort:
        if not is_interactive():
            click.echo("\nNo answer: pass --yes to skip the confirmation.", err=True)
        raise


def read_staged(path: str) -> StagedWrite:
    """Read a staged write from a file of ``--stage``, which is a pickle."""
    from kartothek_cube.io_components.write.write_commit import StagedWrite

    try:
        with open(path, "rb") as file:
            # the user names the file, and the help text explains pickles
            staged = pickle.load(file)  # noqa: S301
    except OSError as error:
        usage_error(f"Cannot read {path}: {error.strerror}")
    # a file that is no pickle, or that of another version, raises whatever its bytes lead to
    except Exception:
        staged = None
    if not isinstance(staged, StagedWrite):
        usage_error(f"{path} is no staged write: pass a file of --stage")
    return staged


def parse_as_of(text: str, option: str) -> int | str | StagedWrite:
    """Read a version, token or staged write of the cube, or check a time of ``history``; without zone UTC."""
    if option == "--as-of" and os.path.isfile(text):
        return read_staged(text)
    if text.isdecimal():
        return int(text)
    if "@" in text:
        # a token, which names states of datasets
        return text
    time = re.sub(r"\s+UTC$", "+00:00", text.strip())
    try:
        datetime.fromisoformat(time)
    except ValueError:
        expected = "expected a version, a token, or a time such as '2024-01-31 12:00 UTC'; see history"
        usage_error(f"Invalid {option} {text!r}: {expected}")
    return time
