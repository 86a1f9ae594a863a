"""The command ``query``: one query into a table or file, or as many as you like interactively."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from kartothek_cube.cli import completion
from kartothek_cube.cli.commands.inspect import column_types, print_json
from kartothek_cube.cli.context import CliContext, pass_state
from kartothek_cube.cli.errors import one_line, usage_error
from kartothek_cube.cli.options import ALL, chosen_datasets, datasets_option, match, parse_conditions

if TYPE_CHECKING:
    from kartothek_cube.io_components.query.physical_plan import PhysicalPlan

__all__ = ("query",)


@click.command()
@click.option(
    "-w",
    "--where",
    multiple=True,
    help='Conditions, joined by "&", e.g. "country == DE & avg_temp > 5"; several times: all have to hold.',
)
@click.option(
    "-c",
    "--columns",
    shell_complete=completion.columns,
    help=f"Columns wanted, names or patterns, separated by commas; all by default (or {ALL}).",
)
@click.option(
    "--dimensions", shell_complete=completion.columns, help="Dimensions of the result, in sort order."
)
@click.option(
    "--partition-by",
    shell_complete=completion.columns,
    help="Indexed columns by whose values rows are grouped.",
)
@datasets_option("queried")
@click.option("-n", "--limit", type=click.IntRange(min=0), help="At most so many rows.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "csv", "parquet", "arrow", "json"]),
    help="Form of the result; by default that of the file name, or a table.",
)
@click.option("--to", type=click.Path(dir_okay=False), help="File to write; by default standard output.")
@click.option("--as-of", help="Query the states of this time (UTC); see ``history``.")
@click.option("--explain", is_flag=True, help="Only show what the query would read, and why.")
@pass_state
def query(
    state: CliContext, /, limit: int | None, output: str | None, to: str | None, explain: bool, **wanted: Any
) -> None:
    """
    Query the cube: interactively without options, else into a table or file.

    Values of text need no quotes. Conditions are ``column operator value`` with ``== != < <= > >=``.
    """
    if not any((limit is not None, output, to, explain, *wanted.values())):
        from kartothek_cube.cli.commands.interactive import run_interactively

        run_interactively(state)
        return
    arguments = _arguments(state, **wanted)
    try:
        if explain:
            _explain(state, arguments, output)
            return
        from kartothek_cube.io_components.query.planner import plan_query

        plan = plan_query(state.cube, state.store, **arguments)
    except (ValueError, TypeError) as error:
        usage_error(one_line(error))
    _run(state, plan, limit, output, to)


def _arguments(
    state: CliContext,
    where: Sequence[str],
    columns: str | None,
    dimensions: str | None,
    partition_by: str | None,
    include: str | None,
    exclude: str | None,
    as_of: str | None,
) -> dict[str, Any]:
    """Arguments of a query out of options."""
    if as_of is not None:
        state.as_of(as_of)
    chosen = chosen_datasets(state.datasets, include, exclude)
    datasets = {name: dataset for name, dataset in state.datasets.items() if name in chosen}
    if state.cube.seed_dataset not in datasets:
        usage_error(
            f"The seed dataset {state.cube.seed_dataset!r} takes part in every query, it cannot be left out"
        )
    types = column_types(datasets)
    payload = None if columns in (None, ALL) else sorted(match(columns, types, "column")) if columns else []
    return {
        "conditions": parse_conditions(" & ".join(where), types),
        "datasets": datasets,
        "dimension_columns": _names(dimensions),
        "partition_by": _names(partition_by),
        "payload_columns": payload,
    }


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _explain(state: CliContext, arguments: dict[str, Any], output: str | None) -> None:
    from kartothek_cube.io.eager_cube import explain_query

    explained = explain_query(state.cube, state.store, **arguments)
    if output == "json":
        print_json(explained.to_dict())
    else:
        click.echo(repr(explained))


def _run(
    state: CliContext, plan: PhysicalPlan, limit: int | None, output: str | None, to: str | None
) -> None:
    from kartothek_cube.cli.output import opened_writer
    from kartothek_cube.core.arrow.pandas_conversion import to_memory

    schema = to_memory(plan.context.output.empty_table()).schema
    with opened_writer(output, to, schema) as writer:
        for table in _limited(map(to_memory, _tables(state, plan)), limit):
            writer.write(table)


def _tables(state: CliContext, plan: PhysicalPlan) -> Iterator[pa.Table]:
    """The groups, each read when it is asked for."""
    from kartothek_cube.io_components.query.executor import run_task

    tasks = plan.tasks()
    with state.progress("query"):
        for task in tasks:
            yield from run_task(plan.context, task)


def _limited(tables: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """The first rows of all tables together."""
    left = limit
    while left is None or left > 0:
        table = next(tables, None)
        if table is None:
            return
        yield table if left is None else table.slice(0, left)
        left = None if left is None else left - len(table)
