"""The command ``query``: a single query to a table or file, or interactive queries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from kartothek_cube.cli.commands.inspect import column_types
from kartothek_cube.cli.context import (
    CliContext,
    is_interactive,
    one_line,
    pass_state,
    print_json,
    usage_error,
)
from kartothek_cube.cli.options import (
    ALL,
    CubeCommand,
    complete_columns,
    datasets_option,
    match,
    output_options,
    parse_as_of,
    parse_conditions,
    select_datasets,
)
from kartothek_cube.core.errors import format_count

if TYPE_CHECKING:
    from kartothek_cube.io_components.query.physical_plan import PhysicalPlan

try:
    from prompt_toolkit import prompt
except ImportError:  # reported on use
    prompt = None  # type: ignore[assignment]


@click.command(cls=CubeCommand)
@click.option(
    "-w",
    "--where",
    multiple=True,
    help="Conditions, e.g. \"country = 'DE' AND avg_temp > 5\". Repeat to add conditions.",
)
@click.option(
    "-c",
    "--columns",
    shell_complete=complete_columns,
    help=f"Payload columns: comma-separated names or patterns; all by default (or {ALL}).",
)
@click.option(
    "--dimensions", shell_complete=complete_columns, help="Dimensions of the result, in sort order."
)
@click.option(
    "--partition-by",
    shell_complete=complete_columns,
    help="Indexed columns to group rows by.",
)
@datasets_option("queried")
@click.option("-n", "--limit", type=click.IntRange(min=0), help="Maximum number of rows to read.")
@output_options
@click.option("--as-of", help="Query the states at this time (UTC); see ``history``.")
@click.option("--explain", is_flag=True, help="Only show which files the query would read, and why.")
@pass_state
def query(
    state: CliContext, /, limit: int | None, output: str | None, to: str | None, explain: bool, **options: Any
) -> None:
    r"""Query the cube: interactively without options on a terminal, otherwise to a table or file.

    Conditions are those of SQL, with keywords in any case:

    \b
    x = 1, != <> < <= > >=         values that compare like this (also ==)
    x IN (1, 2), NOT IN            one of the values, none of them
    x BETWEEN 1 AND 5, NOT ...     1 and 5 included
    x LIKE 'Bad%', NOT LIKE        texts with a prefix (also x startswith Bad)
    x IS NULL, IS NOT NULL         rows without a value, with one
    AND, OR, NOT, ( )              (also & | ~)

    Dates are written as 2020-01-31. Text needs quotes only if it contains ``&``, ``|``, ``=`` or ``)``, or
    one of these words; within quotes, a quote is written twice.
    """
    # an empty text is a value: no columns
    has_options = explain or any(value not in (None, ()) for value in (limit, output, to, *options.values()))
    if not has_options and is_interactive():
        run_interactively(state)
        return
    to = None if to == "-" else to
    if not explain:
        _check_format(output, to)
    arguments = _build_arguments(state, **options)
    try:
        if explain:
            _explain(state, arguments, output)
            return
        from kartothek_cube.io_components.query.cube_query import QueryCube
        from kartothek_cube.io_components.query.planner import plan_query

        plan = plan_query(QueryCube(state.cube, state.store, **arguments))
    except (ValueError, TypeError) as error:
        usage_error(one_line(error))
    _write_result(state, plan, limit, output, to, is_sorted=arguments["dimension_columns"] is not None)


def _check_format(output: str | None, to: str | None) -> None:
    """Raise for an unknown format, before anything is read."""
    from kartothek_cube.cli.output import choose_format

    choose_format(output, to)


def _build_arguments(
    state: CliContext,
    where: Sequence[str],
    columns: str | None,
    dimensions: str | None,
    partition_by: str | None,
    include: str | None,
    exclude: str | None,
    as_of: str | None,
) -> dict[str, Any]:
    """Build the arguments of a query from the options."""
    if as_of is not None:
        state.as_of(parse_as_of(as_of, "--as-of"))
    selected = select_datasets(state.datasets, include, exclude)
    datasets = {name: dataset for name, dataset in state.datasets.items() if name in selected}
    if state.cube.seed_dataset not in datasets:
        usage_error(f"The seed dataset {state.cube.seed_dataset!r} cannot be excluded from a query")
    types = column_types(datasets)
    payload = None if columns in (None, ALL) else sorted(match(columns, types, "column")) if columns else []
    return {
        "conditions": parse_conditions(where, types),
        "datasets": datasets,
        "dimension_columns": _split_names(dimensions),
        "partition_by": _split_names(partition_by),
        "payload_columns": payload,
    }


def _split_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _explain(state: CliContext, arguments: dict[str, Any], output: str | None) -> None:
    from kartothek_cube.io.eager_cube import explain_query

    explanation = explain_query(state.cube, state.store, **arguments)
    if output == "json":
        print_json(explanation.to_dict())
    else:
        from kartothek_cube.cli.output import fit_lines

        click.echo(fit_lines(repr(explanation)))


def _write_result(
    state: CliContext,
    plan: PhysicalPlan,
    limit: int | None,
    output: str | None,
    to: str | None,
    *,
    is_sorted: bool,
) -> None:
    """Write the rows; partition by partition, in bounded memory, unless they are sorted as a whole."""
    from kartothek_cube.cli.output import choose_format, report_rows, write_tables

    is_table = choose_format(output, to) == "table"
    # rows and a bar would overwrite each other
    bar = state.progress("query") if is_table or to is not None or not sys.stdout.isatty() else nullcontext()
    is_sorted = is_sorted or is_table
    tables = _limit_rows(_read_tables(plan, limit, bar, is_sorted=is_sorted), limit)
    report_rows(write_tables(output, to, plan.context.output, tables), to)


def _read_tables(
    plan: PhysicalPlan, limit: int | None, bar: AbstractContextManager[None], *, is_sorted: bool
) -> Iterator[pa.Table]:
    """Yield the groups; each is read on demand. Without groups, a limit ends the read."""
    from kartothek_cube.io_components.query.executor import run_table, run_task
    from kartothek_cube.io_components.row_sources import CubeScan
    from kartothek_cube.io_components.runtime import progress_add_total

    with bar:
        if limit is not None and plan.groups is None:
            yield run_table(plan, limit)
            return
        if plan.groups is None and not is_sorted:
            yield from CubeScan(plan, tuple(plan.context.output.names)).tables()
            return
        progress_add_total(plan.n_files)
        for task in plan.tasks():
            yield from run_task(plan.context, task)


def _limit_rows(tables: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """Yield the first ``limit`` rows of all tables."""
    if limit is None:
        yield from tables
        return
    # checked before the next table is read
    while limit > 0 and (table := next(tables, None)) is not None:
        yield table.slice(0, limit)
        limit -= len(table)


# -- interactive queries ---------------------------------------------------------------------------


def run_interactively(state: CliContext) -> None:
    """Prompt for a query, run it and open a shell, repeatedly until Ctrl-D."""
    embed = _make_shell()
    datasets = {name: ds.load_all_indices(state.store) for name, ds in state.datasets.items()}
    types = column_types(datasets)
    conditions, payload = "", ""
    while True:
        conditions = _ask("Conditions: ", conditions, list(types), lambda text: parse_conditions(text, types))
        payload = _ask("Payload:    ", payload, [ALL, *types], lambda text: _parse_payload(text, types))
        frame = _query_frame(state, datasets, conditions, payload, types)
        if frame is None:
            click.echo("No rows.")
        else:
            embed(frame)


def _make_shell() -> Callable[[Any], None]:
    """Return a function that opens a shell on a frame; a usage error if a package is missing."""
    try:
        from IPython.terminal.embed import InteractiveShellEmbed
    except ImportError:
        usage_error("Interactive queries need IPython: pip install 'kartothek_cube[cli]'")
    if prompt is None:
        usage_error("Interactive queries need prompt_toolkit: pip install 'kartothek_cube[cli]'")

    def embed(frame: Any) -> None:
        size = f"{format_count(len(frame), 'row')} and {format_count(len(frame.columns), 'column')}"
        banner = f"{size} in df; press Ctrl-D to return to the query."
        shell: Any = InteractiveShellEmbed
        shell(banner1=banner, banner2="")(local_ns={"df": frame})

    return embed


def _ask(title: str, default: str, words: list[str], check: Callable[[str], object]) -> str:
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.validation import Validator

    def is_valid(text: str) -> bool:
        try:
            check(text)
        except click.UsageError:
            return False
        return True

    validator = Validator.from_callable(
        is_valid,
        error_message="unknown column or invalid value",
        move_cursor_to_end=True,
    )
    answer: str = prompt(
        title, default=default, completer=WordCompleter(words, WORD=True), validator=validator
    )
    check(answer)
    return answer


def _parse_payload(text: str, types: dict[str, pa.DataType]) -> list[str] | None:
    """Parse payload columns; None for all."""
    from kartothek_cube.core.errors import unknown_names

    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if ALL in names:
        return None
    unknown = set(names) - set(types)
    if unknown:
        usage_error(unknown_names("column", unknown, types))
    return names


def _query_frame(
    state: CliContext, datasets: dict[str, Any], conditions: str, payload: str, types: dict[str, pa.DataType]
) -> Any:
    from kartothek_cube.io.eager_cube import query_cube

    with state.progress("query"):
        try:
            frames = query_cube(
                state.cube,
                state.store,
                conditions=parse_conditions(conditions, types),
                datasets=datasets,
                payload_columns=_parse_payload(payload, types),
            )
        except (ValueError, TypeError) as error:
            usage_error(one_line(error))
    return frames[0] if frames else None
