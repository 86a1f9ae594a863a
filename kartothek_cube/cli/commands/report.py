"""The command ``report``: a self-contained HTML page about the cube."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from kartothek_cube.cli.context import CliContext, mask_store, pass_state
from kartothek_cube.cli.options import CubeCommand
from kartothek_cube.cli.terminal import usage_error
from kartothek_cube.core.errors import format_count

if TYPE_CHECKING:
    from kartothek_cube.cli.report.page import Page

__all__ = ("report",)


@click.command(cls=CubeCommand)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    default="report.html",
    show_default=True,
    help="Output file; - for standard output.",
)
@pass_state
def report(state: CliContext, output: str) -> None:
    """
    Write an HTML report: partitions, growth, columns, index selectivity, warnings.

    The page is a single file without scripts and external resources.
    """
    from importlib.metadata import version

    from kartothek_cube.cli.report.page import build_page
    from kartothek_cube.core.store import open_blobs

    with state.progress("report"):
        name = mask_store(state.store_name)
        page = build_page(
            state.cube, state.datasets, open_blobs(state.store), name, version("kartothek_cube")
        )
    html = render(page)
    if output == "-":
        click.echo(html)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(html)
    except OSError as error:
        usage_error(f"Cannot write {output}: {error.strerror}")
    click.echo(f"Written to {os.path.abspath(output)}", err=True)


def render(page: Page) -> str:
    """Render the page as HTML; all text from the store is escaped."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        usage_error("The report needs Jinja2: pip install 'kartothek_cube[cli]'")

    environment = Environment(
        loader=PackageLoader("kartothek_cube.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["format_count"] = format_count
    return environment.get_template("report.html").render(page=page)
