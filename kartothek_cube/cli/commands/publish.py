"""Command that publishes a cube as tables for other engines."""

from __future__ import annotations

import click

from kartothek_cube.cli.context import CliContext, pass_state
from kartothek_cube.cli.options import CubeCommand, as_json, datasets_option, select_datasets
from kartothek_cube.cli.terminal import print_json
from kartothek_cube.core.errors import format_count

__all__ = ("publish",)


@click.command(cls=CubeCommand)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta"]),
    default="delta",
    show_default=True,
    help="Format of the tables.",
)
@click.option("--compact", is_flag=True, help="Compact the datasets first, so that no cell is overwritten.")
@datasets_option("published")
@as_json
@pass_state
def publish(
    state: CliContext,
    table_format: str,
    compact: bool,
    include: str | None,
    exclude: str | None,
    as_json: bool,
) -> None:
    """
    Publish the datasets as Delta tables, which other engines read.

    Each dataset becomes a table in its directory; no data file is rewritten. Repeat it after changes.
    """
    from kartothek_cube.io.eager_cube import publish_cube

    names = select_datasets(state.datasets, include, exclude)
    with state.progress("publish"):
        counts = publish_cube(state.cube, state.store, names, compact=compact)
    if as_json:
        print_json(counts)
        return
    for name, count in sorted(counts.items()):
        changed = count["added"] or count["removed"]
        change = f"{count['added']:,} added, {count['removed']:,} removed" if changed else "nothing changed"
        files = format_count(count["files"], "file")
        click.echo(click.style(name, bold=True) + f": version {count['version']}, {files} ({change})")
