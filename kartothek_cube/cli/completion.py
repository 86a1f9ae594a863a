"""Shell completion; errors yield no suggestions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from kartothek_cube.cli.context import CliContext

__all__ = ("columns", "cubes", "datasets", "files", "stores")


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete file names."""
    return [CompletionItem(incomplete, type="file")]


def stores(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of stores in the YAML file."""
    from kartothek_cube.cli.stores import read_stores

    try:
        names = read_stores(ctx.find_root().params.get("skv") or "skv.yml")
    except click.UsageError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _context(ctx: click.Context) -> CliContext:
    from kartothek_cube.cli.context import CliContext

    params = ctx.find_root().params
    return CliContext(params["skv"], params["store"], 0, None, params.get("cube") or "")


def cubes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of cubes in the store."""
    from kartothek_cube.cli.context import list_cubes

    try:
        return [name for name in list_cubes(_context(ctx).store) if name.startswith(incomplete)]
    except (click.UsageError, OSError, ValueError):
        return []


def datasets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete comma-separated dataset ids of the cube."""
    try:
        names = list(_context(ctx).datasets)
    except (click.UsageError, OSError, ValueError):
        return []
    return _complete_last(names, incomplete)


def columns(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
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
