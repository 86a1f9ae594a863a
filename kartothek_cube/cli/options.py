"""Shared options: selection of datasets and columns, conditions, confirmation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click
import pyarrow as pa

from kartothek_cube.cli import completion
from kartothek_cube.cli.errors import closest, one_line, usage_error

if TYPE_CHECKING:
    from kartothek_cube.core.cube.conditions import Conjunction

__all__ = (
    "ALL",
    "as_json",
    "confirm",
    "datasets_option",
    "match",
    "parse_conditions",
    "select_datasets",
    "yes_option",
)

F = TypeVar("F", bound=Callable[..., Any])


def datasets_option(verb: str) -> Callable[[F], F]:
    """Add the options ``--include`` and ``--exclude``; ``verb`` completes their help texts."""

    def add(command: F) -> F:
        include = click.option(
            "--include",
            metavar="<include>",
            shell_complete=completion.datasets,
            help=f"Datasets to be {verb}: comma-separated ids or patterns, e.g. ``enrich,climate_*``.",
        )
        exclude = click.option(
            "--exclude",
            metavar="<exclude>",
            shell_complete=completion.datasets,
            help="Datasets to exclude, in the same format.",
        )
        return include(exclude(command))

    return add


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def match(patterns: str, candidates: Iterable[str], kind: str) -> set[str]:
    """
    Expand comma-separated names and patterns; a usage error if one matches nothing.

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
        if not sys.stdin.isatty():
            click.echo("\nNo answer: pass --yes to skip the confirmation.", err=True)
        raise


#: all columns
ALL = "__all__"


def parse_conditions(text: str, types: dict[str, pa.DataType]) -> Conjunction:
    """Parse conditions of the form ``column operator value``, joined by ``&``."""
    from kartothek_cube.core.cube import conditions

    try:
        return conditions.parse_conditions(text, types)
    except ValueError as error:
        usage_error(one_line(error))
