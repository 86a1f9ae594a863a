"""What the shell offers when somebody presses the tab key; where anything is wrong, nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from kartothek_cube.cli.context import CliContext

__all__ = ("columns", "cubes", "datasets", "files", "stores")


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer files."""
    return [CompletionItem(incomplete, type="file")]


def stores(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the stores in the YAML file."""
    from kartothek_cube.cli.stores import read_stores

    try:
        names = read_stores(ctx.find_root().params.get("skv") or "skv.yml")
    except click.UsageError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _state(ctx: click.Context) -> CliContext:
    from kartothek_cube.cli.context import CliContext

    params = ctx.find_root().params
    return CliContext(params["skv"], params["store"], 0, None, params.get("cube") or "")


def cubes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the cubes in the store."""
    from kartothek_cube.cli.context import list_cubes

    try:
        return [name for name in list_cubes(_state(ctx).store) if name.startswith(incomplete)]
    except (click.UsageError, OSError, ValueError):
        return []


def datasets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the datasets of the cube; after a comma, of a further one."""
    try:
        names = list(_state(ctx).datasets)
    except (click.UsageError, OSError, ValueError):
        return []
    return _continued(names, incomplete)


def columns(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Columns of the cube; after a comma, a further one."""
    from kartothek_cube.core.cube.consistency import get_dataset_columns

    try:
        names = set().union(*map(get_dataset_columns, _state(ctx).datasets.values()))
    except (click.UsageError, OSError, ValueError):
        return []
    return _continued(sorted(names), incomplete)


def _continued(names: list[str], incomplete: str) -> list[str]:
    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name.startswith(last)]
