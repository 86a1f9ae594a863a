"""The command ``verify``: check the files of a cube, and repair indices and schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kartothek_cube.cli.context import CliContext, list_cubes, pass_state
from kartothek_cube.cli.errors import DAMAGED, one_line, usage_error
from kartothek_cube.cli.options import as_json, datasets_option, select_datasets
from kartothek_cube.cli.terminal import pluralize, print_json

if TYPE_CHECKING:
    from kartothek_cube.io_components.verify.report import Report

__all__ = ("verify",)

_SINGULAR = {"datasets": "dataset", "files": "file", "rows": "row", "indices": "index"}


@click.command()
@click.option("--quick", is_flag=True, help="Read file footers only instead of all rows.")
@click.option("--repair", is_flag=True, help="Rebuild wrong and missing indices, restore the schema.")
@datasets_option("checked")
@as_json
@pass_state
@click.pass_context
def verify(
    ctx: click.Context,
    state: CliContext,
    quick: bool,
    repair: bool,
    include: str | None,
    exclude: str | None,
    as_json: bool,
) -> None:
    """
    Check all files of the cube against its headers. Nothing is changed without --repair.

    The exit code is 3 if there are problems.
    """
    if quick and repair:
        usage_error("--repair reads all rows and cannot be combined with --quick")
    _check_loadable(ctx, state)
    report = _verify(state, quick, repair, select_datasets(state.datasets, include, exclude))
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    if not report.ok:
        ctx.exit(DAMAGED)


def _check_loadable(ctx: click.Context, state: CliContext) -> None:
    """Exit with DAMAGED if the cube exists but cannot be loaded."""
    try:
        _ = state.cube
    except click.UsageError as error:
        if state.prefix not in list_cubes(state.store):
            raise
        click.echo(f"{state.prefix}: {one_line(error)}")
        ctx.exit(DAMAGED)


def _verify(state: CliContext, quick: bool, repair: bool, names: set[str]) -> Report:
    from kartothek_cube.io.eager_cube import repair_cube, verify_cube

    with state.progress("verify"):
        if repair:
            return repair_cube(state.cube, state.store, names)
        return verify_cube(state.cube, state.store, names, deep=not quick)


def _print_report(report: Report) -> None:
    for problem in report.problems:
        click.secho(str(problem), fg="red")
        click.echo(f"    {problem.remedy}")
    for problem in report.repaired:
        click.secho(f"repaired: {problem}", fg="green")
    checked = ", ".join(pluralize(n, _SINGULAR[kind], kind) for kind, n in report.checked.items())
    problems = pluralize(len(report.problems), "problem") if report.problems else "no problems"
    click.echo(f"{problems} in {checked}")
