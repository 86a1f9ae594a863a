"""Global options, which may follow the command, and shared options of commands; shell completion."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from kartothek_cube.cli.context import (
    CliContext,
    closest,
    is_interactive,
    one_line,
    pass_state,
    read_stores,
    usage_error,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kartothek_cube.core.cube.conditions import Conjunction
    from kartothek_cube.io_components.write.write_commit import StagedWrite

F = TypeVar("F", bound=Callable[..., Any])
Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]

# -- shell completion; errors yield no suggestions --------------------------------------------------


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete file names."""
    return [CompletionItem(incomplete, type="file")]


def _complete(list_names: Callable[[CliContext], Iterable[str]], *, is_list: bool = False) -> Completer:
    """Make a function that completes names; or the last one of those that commas separate."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        root = ctx.find_root().params
        state = CliContext(root["skv"], root["store"], 0, "auto", root.get("cube") or "")
        for name in ("skv", "store"):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                state.set_option(name, ctx.params[name])
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
    option = partial(click.Option, show_default=True)
    return [
        option(
            ["--skv"],
            default="skv.yml",
            envvar="KARTOTHEK_CUBE_SKV",
            show_envvar=True,
            metavar="FILE",
            help="YAML file with names of stores.",
            shell_complete=complete_files,
        ),
        option(
            ["--store"],
            default="dataset",
            envvar="KARTOTHEK_CUBE_STORE",
            show_envvar=True,
            shell_complete=complete_stores,
            metavar="STORE",
            help="Directory (/data), URL (s3://bucket), or a name in the YAML file.",
        ),
        option(
            ["-j", "--n_threads"],
            type=click.IntRange(min=0),
            metavar="N",
            default=0,
            help="Number of threads; 0: one per core.",
        ),
        option(
            ["--color"],
            type=click.Choice(list(COLORS)),
            default="auto",
            help="Colours; auto: on a terminal, unless NO_COLOR is set.",
        ),
        click.Option(["--debug"], is_flag=True, help="Show tracebacks of errors."),
    ]


class CubeCommand(click.Command):
    """A command, whose global options may precede the cube or follow the command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._global_options = global_options()

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
                state.set_option(str(option.name), value)
        ctx.color = use_color(state.color)
        ctx.with_resource(state.limit_threads())
        self.load_cube(ctx, state)
        return super().invoke(ctx)

    def load_cube(self, ctx: click.Context, state: CliContext) -> None:
        """Load the cube; it is an error if the seed dataset is gone."""
        state.require_seed()


class StoreCommand(CubeCommand):
    """A command that also runs if the cube cannot be loaded, or does not exist."""

    def load_cube(self, ctx: click.Context, state: CliContext) -> None:
        """Load the cube when it is needed."""


class RemainderCommand(CubeCommand):
    """A command that also runs on what is left of a cube without its seed dataset."""

    def load_cube(self, ctx: click.Context, state: CliContext) -> None:
        """Load what there is."""
        _ = state.cube


# -- options of commands ---------------------------------------------------------------------------


def add_dataset_options(verb: str) -> Callable[[F], F]:
    """Add the options ``--include`` and ``--exclude``; ``verb`` completes their help texts."""

    def add(command: F) -> F:
        include = click.option(
            "--include",
            metavar="NAMES",
            shell_complete=complete_datasets,
            help=f"Datasets to be {verb}: comma-separated ids or patterns, e.g. enrich,climate_*.",
        )
        exclude = click.option(
            "--exclude",
            metavar="NAMES",
            shell_complete=complete_datasets,
            help="Datasets to exclude.",
        )
        return include(exclude(command))

    return add


def pass_datasets(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add these options, and pass the ids of the selected datasets as ``names``, sorted, behind the state."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        def run(state: CliContext, /, *, include: str | None, exclude: str | None, **options: Any) -> None:
            command(state, sorted(select_datasets(state.datasets, include, exclude)), **options)

        update_wrapper(run, command)
        return add_dataset_options(verb)(pass_state(run))

    return add


def output_options(command: F) -> F:
    """Add the options ``--output`` and ``--to`` of commands whose result is a table."""
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "csv", "parquet", "arrow", "feather", "json", "jsonl"]),
        help="Output format; by default derived from the file name, or a table.",
    )
    to = click.option(
        "--to",
        type=click.Path(dir_okay=False),
        help="Output file, e.g. a.csv, a.parquet, a.jsonl.gz; by default stdout.",
    )
    return output(to(command))


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def match(patterns: str, candidates: Iterable[str], kind: str) -> set[str]:
    """Expand comma-separated names and patterns; a usage error if one matches nothing."""
    names = sorted(candidates)
    selected: set[str] = set()
    for pattern in (text.strip() for text in patterns.split(",")):
        matches = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not matches:
            hint = closest(pattern, names)
            usage_error(
                f"Could not find {kind} {pattern!r}.{hint} Available {kind}s: {', '.join(names) or 'none'}."
            )
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
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not is_interactive():
            click.echo("\nNo answer: pass --yes to skip the confirmation.", err=True)
        raise


def read_staged(path: str) -> StagedWrite:
    """Read a staged write from a file of ``--stage``, which is a pickle."""
    from kartothek_cube.io_components.write.write_commit import StagedWrite

    try:
        with open(path, "rb") as file:
            # the user names the file, whose help text tells what a pickle is
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
    """Read a version or token of the cube, or check a time, as ``history`` prints it; without zone UTC.

    What is read may also be a file of a staged write.
    """
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
        usage_error(f"Invalid {option} {text!r}: expected a time such as '2024-01-31 12:00 UTC'; see history")
    return time


def parse_conditions(texts: str | Sequence[str], types: dict[str, pa.DataType]) -> Conjunction:
    """Parse conditions, all of which have to hold."""
    from kartothek_cube.core.cube import conditions

    texts = [texts] if isinstance(texts, str) else texts
    try:
        # one by one, so that an unbalanced quote in one of them is an error
        parsed = [conditions.parse_conditions(text, types) for text in texts]
        return conditions.Conjunction([single for each in parsed for single in each.conditions])
    except ValueError as error:
        usage_error(one_line(error))
