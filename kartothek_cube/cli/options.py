"""Options that choose datasets and columns by name or pattern, and questions before something is deleted."""

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
    "chosen_datasets",
    "confirm",
    "datasets_option",
    "match",
    "parse_conditions",
    "yes_option",
)

F = TypeVar("F", bound=Callable[..., Any])


def datasets_option(verb: str) -> Callable[[F], F]:
    """The options ``--include`` and ``--exclude``."""

    def add(command: F) -> F:
        include = click.option(
            "--include",
            metavar="<include>",
            shell_complete=completion.datasets,
            help=f"Datasets to be {verb}: ids or patterns, separated by commas, e.g. ``enrich,climate_*``.",
        )
        exclude = click.option(
            "--exclude",
            metavar="<exclude>",
            shell_complete=completion.datasets,
            help="Datasets to leave out; the same form.",
        )
        return include(exclude(command))

    return add


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def match(patterns: str, known: Iterable[str], kind: str) -> set[str]:
    """
    Names that a list of names and patterns stands for.

    Parameters
    ----------
    patterns
        Separated by commas.
    known
        The names that there are.
    kind
        What they are names of.

    Returns
    -------
    set of str

    Raises
    ------
    click.UsageError
        One part stands for nothing.

    Examples
    --------
    >>> sorted(match("CITY, COUNTRY_*", ["CITY", "COUNTRY_CODE", "DAY"], "column"))
    ['CITY', 'COUNTRY_CODE']
    """
    names = sorted(known)
    result: set[str] = set()
    for part in (text.strip() for text in patterns.split(",")):
        found = {name for name in names if name == part or fnmatchcase(name, part)}
        if not found:
            hint = closest(part, names)
            usage_error(
                f"Could not find {kind} {part!r}.{hint} Known {kind}s are {', '.join(names) or 'none'}."
            )
        result |= found
    return result


def chosen_datasets(known: Iterable[str], include: str | None, exclude: str | None) -> set[str]:
    """Dataset ids that are included (by default all) and not excluded."""
    names = set(known)
    wanted = names if include is None else match(include, names, "dataset")
    return wanted - (set() if exclude is None else match(exclude, names, "dataset"))


def confirm(question: str, yes: bool) -> None:
    """
    Ask before something is done that cannot be undone.

    Parameters
    ----------
    question
        The question, without a question mark.
    yes
        The answer was given as an option.

    Raises
    ------
    click.Abort
        The answer is no, or there is nobody to answer.
    """
    if yes:
        return
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            click.echo("\nNobody answered: --yes does it without a question.", err=True)
        raise


#: stands for all columns
ALL = "__all__"


def parse_conditions(text: str, types: dict[str, pa.DataType]) -> Conjunction:
    """
    Read conditions.

    Parameters
    ----------
    text
        ``column operator value``, joined by ``&``.
    types
        Types of all columns.

    Returns
    -------
    Conjunction

    Raises
    ------
    click.UsageError
        One cannot be read.
    """
    from kartothek_cube.core.cube import conditions

    try:
        return conditions.parse_conditions(text, types)
    except ValueError as error:
        usage_error(one_line(error))
