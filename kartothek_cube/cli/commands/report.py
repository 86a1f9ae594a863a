"""The command ``report``: the cube as one HTML page that needs nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from kartothek_cube.cli.context import CliContext, pass_state, shown_store
from kartothek_cube.cli.errors import usage_error

if TYPE_CHECKING:
    from kartothek_cube.cli.report.page import Page

__all__ = ("report",)


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    default="report.html",
    show_default=True,
    help="File to write; - for standard output.",
)
@pass_state
def report(state: CliContext, output: str) -> None:
    """
    Draw the cube: partitions, growth, columns, index selectivity, warnings.

    The page is a single file without scripts that loads nothing from anywhere.
    """
    from importlib.metadata import version

    from kartothek_cube.cli.report.page import build_page
    from kartothek_cube.core.store import open_blobs

    with state.progress("report"):
        name = shown_store(state.store_name)
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
    """
    Fill the template.

    Parameters
    ----------
    page
        What to show.

    Returns
    -------
    str
        HTML; all text in it that came from the store is escaped.
    """
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
    return environment.get_template("report.html").render(page=page)
