"""Global options, which may follow the command, and shared options of commands; shell completion."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from kartothek_cube.cli.context import (
    CliContext,
    closest,
    is_interactive,
    list_cubes,
    one_line,
    read_stores,
    usage_error,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kartothek_cube.core.cube.conditions import Conjunction

F = TypeVar("F", bound=Callable[..., Any])

# -- shell completion; errors yield no suggestions --------------------------------------------------


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete file names."""
    return [CompletionItem(incomplete, type="file")]


def complete_stores(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of stores in the YAML file."""
    try:
        names = read_stores(ctx.find_root().params.get("skv") or "skv.yml")
    except click.UsageError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _context(ctx: click.Context) -> CliContext:
    root = ctx.find_root()
    state = CliContext(root.params["skv"], root.params["store"], 0, "auto", root.params.get("cube") or "")
    for name in ("skv", "store"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            state.set_option(name, ctx.params[name])
    return state


def complete_cubes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of cubes in the store."""
    try:
        return [name for name in list_cubes(_context(ctx).store) if name.startswith(incomplete)]
    except (click.UsageError, OSError, ValueError):
        return []


def complete_datasets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete comma-separated dataset ids of the cube."""
    try:
        names = list(_context(ctx).datasets)
    except (click.UsageError, OSError, ValueError):
        return []
    return _complete_last(names, incomplete)


def complete_columns(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete comma-separated columns of the cube."""
    from kartothek_cube.core.cube.consistency import get_dataset_columns

    try:
        names = set().union(*map(get_dataset_columns, _context(ctx).datasets.values()))
    except (click.UsageError, OSError, ValueError):
        return []
    return _complete_last(sorted(names), incomplete)


def _complete_last(names: list[str], incomplete: str) -> list[str]:
    previous, comma, last = incomplete.rpartition(",")
    return [f"{previous}{comma}{name}" for name in names if name.startswith(last)]


# -- global options --------------------------------------------------------------------------------

COLORS = {"always": True, "auto": None, "off": False}


def use_color(name: str) -> bool | None:
    """Whether to use colours; None: on a terminal."""
    if name == "auto" and os.environ.get("NO_COLOR"):  # see no-color.org
        return False
    return COLORS[name]


def global_options() -> list[click.Parameter]:
    """Make the options of all commands."""
    return [
        click.Option(
            ["--skv"],
            default="skv.yml",
            show_default=True,
            envvar="KARTOTHEK_CUBE_SKV",
            show_envvar=True,
            help="YAML file with store configurations.",
            shell_complete=complete_files,
        ),
        click.Option(
            ["--store"],
            default="dataset",
            envvar="KARTOTHEK_CUBE_STORE",
            show_envvar=True,
            show_default=True,
            shell_complete=complete_stores,
            help="Store: a directory (/data), a URL (s3://bucket), or a name in the YAML file.",
        ),
        click.Option(
            ["-j", "--n_threads"],
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Number of threads (0: number of cores).",
        ),
        click.Option(
            ["--color"],
            type=click.Choice(list(COLORS)),
            default="auto",
            show_default=True,
            help="When to use colours (auto: on a terminal, unless NO_COLOR is set).",
        ),
        click.Option(["--debug"], is_flag=True, help="Show tracebacks of errors."),
    ]


class CubeCommand(click.Command):
    """A command, whose global options may precede the cube or follow the command."""

    #: whether to load the cube before the command runs
    needs_cube = True
    #: whether that is an error if the seed dataset is gone
    needs_seed = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._global_options = global_options()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """List own and global parameters."""
        own = super().get_params(ctx)
        return [*own[:-1], *self._global_options, *own[-1:]]  # --help is the last one

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List own options, then the global ones."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Global options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections["Global options" if param in self._global_options else "Options"].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

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
        if self.needs_cube and self.needs_seed:
            state.require_seed()
        elif self.needs_cube:
            _ = state.cube
        return super().invoke(ctx)


class StoreCommand(CubeCommand):
    """A command that also runs if the cube cannot be loaded, or does not exist."""

    needs_cube = False


class RemainderCommand(CubeCommand):
    """A command that also runs on what is left of a cube without its seed dataset."""

    needs_seed = False


# -- options of commands ---------------------------------------------------------------------------


def datasets_option(verb: str) -> Callable[[F], F]:
    """Add the options ``--include`` and ``--exclude``; ``verb`` completes their help texts."""

    def add(command: F) -> F:
        include = click.option(
            "--include",
            metavar="<include>",
            shell_complete=complete_datasets,
            help=f"Datasets to be {verb}: comma-separated ids or patterns, e.g. ``enrich,climate_*``.",
        )
        exclude = click.option(
            "--exclude",
            metavar="<exclude>",
            shell_complete=complete_datasets,
            help="Datasets to exclude, in the same format.",
        )
        return include(exclude(command))

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
    """Expand comma-separated names and patterns; a usage error if one matches nothing.

    >>> sorted(match("CITY, COUNTRY_*", ["CITY", "COUNTRY_CODE", "DAY"], "column"))
    ['CITY', 'COUNTRY_CODE']
    """
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


def parse_as_of(text: str, option: str) -> int | str:
    """Read a version of the cube, or check a time, such as one that ``history`` prints; without zone UTC."""
    if text.isdecimal():
        return int(text)
    time = re.sub(r"\s+UTC$", "+00:00", text.strip())
    try:
        datetime.fromisoformat(time)
    except ValueError:
        usage_error(f"Invalid {option} {text!r}: expected a time such as '2024-01-31 12:00 UTC'; see history")
    return time


#: all columns
ALL = "__all__"


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
