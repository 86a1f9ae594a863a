"""Commands about the health and the past of cubes: ``verify``, ``compact``, ``history``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kartothek_cube.cli.commands.inspect import column_types, headline, print_json
from kartothek_cube.cli.context import CliContext, list_cubes, pass_state
from kartothek_cube.cli.errors import DAMAGED, one_line, usage_error
from kartothek_cube.cli.options import (
    as_json,
    chosen_datasets,
    confirm,
    datasets_option,
    parse_conditions,
    yes_option,
)

if TYPE_CHECKING:
    from kartothek_cube.core.history import DatasetState
    from kartothek_cube.io_components.verify.report import Report

__all__ = ("compact", "history", "verify")


# -- verify ----------------------------------------------------------------------------------------


@click.command()
@click.option("--quick", is_flag=True, help="Read the footers of files only, not all rows.")
@click.option("--repair", is_flag=True, help="Build anew what can be: indices that are wrong or missing.")
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
    Check that the cube is what its headers say; without --repair nothing is changed.

    The exit code is 3 if something is wrong.
    """
    if quick and repair:
        usage_error("--repair needs to read all rows, it does not go with --quick")
    _check_loadable(ctx, state)
    report = _verified(state, quick, repair, chosen_datasets(state.datasets, include, exclude))
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    if not report.ok:
        ctx.exit(DAMAGED)


def _check_loadable(ctx: click.Context, state: CliContext) -> None:
    """A cube that exists and cannot be loaded is damaged; one that does not exist is an error."""
    try:
        _ = state.cube
    except click.UsageError as error:
        if state.prefix not in list_cubes(state.store):
            raise
        click.echo(f"{state.prefix}: {one_line(error)}")
        ctx.exit(DAMAGED)


def _verified(state: CliContext, quick: bool, repair: bool, names: set[str]) -> Report:
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
    counts = ", ".join(f"{number:,} {what}" for what, number in report.checked.items())
    number = len(report.problems)
    click.echo(f"{number or 'no'} problem{'' if number == 1 else 's'} in {counts}")


# -- compact ---------------------------------------------------------------------------------------


@click.command()
@click.option("-w", "--where", default="", help='Conditions on partition columns, e.g. "country == DE".')
@click.option(
    "--min-files",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    help="Leave partitions with fewer files as they are.",
)
@datasets_option("compacted")
@as_json
@pass_state
def compact(
    state: CliContext, where: str, min_files: int, include: str | None, exclude: str | None, as_json: bool
) -> None:
    """
    Merge the files of each partition into one, without rows that newer ones hide.

    Queries give the same before and after. The old files stay until ``cleanup``.
    """
    from kartothek_cube.io.eager_cube import compact_cube

    names = chosen_datasets(state.datasets, include, exclude)
    conditions = parse_conditions(where, column_types(state.datasets))
    with state.progress("compact"):
        counts = compact_cube(state.cube, state.store, conditions or None, names, min_files=min_files)
    if as_json:
        print_json(counts)
        return
    for name, count in sorted(counts.items()):
        click.echo(click.style(name, bold=True) + f": {_compacted(count)}")


def _compacted(count: dict[str, int]) -> str:
    from kartothek_cube.io_components.runtime.progress import bytes_text

    if not count["partitions"]:
        return "nothing to do"
    return (
        f"{count['partitions']:,} partitions; {count['files_before']:,} → {count['files_after']:,} files, "
        f"{bytes_text(count['bytes_before'])} → {bytes_text(count['bytes_after'])}, "
        f"{count['rows_before']:,} → {count['rows_after']:,} rows"
    )


# -- history ---------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--keep", type=click.IntRange(min=0), help="Keep so many older states of each dataset from now on."
)
@click.option(
    "--rollback",
    metavar="TIME|VERSION",
    help="Return to the states of a time (UTC), or of one dataset (--include) to a version.",
)
@datasets_option("concerned")
@as_json
@yes_option
@pass_state
def history(
    state: CliContext,
    keep: int | None,
    rollback: str | None,
    include: str | None,
    exclude: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """
    List the states of the datasets that can be queried (``query --as-of``) and returned to.

    Only those states are there that were kept: ``--keep`` says how many from now on.
    """
    from kartothek_cube.io.eager_cube import keep_cube_history, list_cube_history, rollback_cube

    names = chosen_datasets(state.datasets, include, exclude)
    if keep is not None:
        keep_cube_history(state.cube, state.store, keep, names)
    if rollback is not None:
        as_of = _moment(rollback, names)
        confirm(
            f"Return to the state of {rollback} in {', '.join(sorted(names))} of cube {state.prefix}?", yes
        )
        rollback_cube(state.any_cube, state.store, as_of, names)
    states = {n: s for n, s in sorted(list_cube_history(state.cube, state.store).items()) if n in names}
    if as_json:
        print_json({name: [_state(entry) for entry in entries] for name, entries in states.items()})
        return
    for name, entries in states.items():
        headline(name)
        for entry in entries:
            mark = "  current" if entry.current else ""
            click.echo(f"{entry.version:>6}  {entry.time:%Y-%m-%d %H:%M:%S.%f}{mark}")


def _moment(text: str, names: set[str]) -> Any:
    """A time for all datasets, or a version for the only one."""
    if not text.isdecimal():
        return text
    if len(names) != 1:
        usage_error("Each dataset counts its own versions: choose one by --include, or give a time")
    return {name: int(text) for name in names}


def _state(entry: DatasetState) -> dict[str, Any]:
    return {"version": entry.version, "time": entry.time.isoformat(), "current": entry.current}
