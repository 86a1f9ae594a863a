"""The commands ``query`` and ``sql``: once, to a table or file, or interactively."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
import pyarrow as pa

from kartothek_cube.cli import context as cli
from kartothek_cube.cli.context import CliContext, CubeCommand, StoreCommand, one_line, usage_error
from kartothek_cube.cli.inspect import column_types
from kartothek_cube.cli.output import choose_format, echo_cut, write_tables
from kartothek_cube.core.arguments import split_names
from kartothek_cube.core.cube.conditions import parse_conditions
from kartothek_cube.core.cube.discover import discover_cube, list_cubes
from kartothek_cube.core.errors import format_count

if TYPE_CHECKING:
    import duckdb
    from prompt_toolkit.history import History

    from kartothek_cube.io_components.query.physical_plan import PhysicalPlan

T = TypeVar("T")

#: all columns
ALL = "__all__"

as_of_option = click.option(
    "--as-of",
    metavar="VERSION|TIME|TOKEN|FILE",
    help="Query an older state, of those that history lists, or a staged one.",
)


# -- query -----------------------------------------------------------------------------------------

_column_option = partial(click.option, shell_complete=cli.complete_columns)


@click.command(cls=CubeCommand)
@cli.where_option("Conditions, e.g. \"country = 'DE' AND avg_temp > 5\".")
@_column_option("-c", "--columns", help="Payload columns: comma-separated names or patterns; by default all.")
@_column_option("--dimensions", help="Dimensions of the result, in sort order.")
@_column_option("--partition-by", help="Indexed columns to group rows by.")
@cli.add_dataset_options("queried")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), metavar="N", help="Maximum number of rows to read."
)
@cli.output_options
@as_of_option
@click.option(
    "--since",
    metavar="TOKEN|VERSION|TIME",
    help="Earlier state, as of changes: only partitions that have changed since.",
)
@click.option("--explain", is_flag=True, help="Only show which files the query would read, and why.")
@cli.pass_state
def query(
    state: CliContext, /, limit: int | None, output: str | None, to: str | None, explain: bool, **options: Any
) -> None:
    """Query the cube: interactively without options on a terminal, otherwise to a table or file.

    Conditions are those of SQL, with keywords in any case:

    \b
    x = 1, != <> < <= > >=         values that compare like this (also ==)
    x IN (1, 2), NOT IN            one of the values, none of them
    x BETWEEN 1 AND 5, NOT ...     1 and 5 included
    x LIKE 'Bad%', NOT LIKE        texts with a prefix (also x startswith Bad)
    x IS NULL, IS NOT NULL         rows without a value, with one
    AND, OR, NOT, ( )              (also & | ~)

    Dates are written as 2020-01-31. Text needs quotes if it is a number or a column, contains & | = ( ) or a
    quote, one of these words, or in a list a comma, or begins or ends with a blank; within them, a quote is
    written twice.
    """  # noqa: D301 - "\b" keeps the lines of a paragraph as they are
    from kartothek_cube.io_components.query import executor, logical_plan
    from kartothek_cube.io_components.query.physical_plan import plan_query

    # an empty text is a value: no columns
    has_options = explain or any(value not in (None, ()) for value in (limit, output, to, *options.values()))
    if not has_options and cli.is_interactive():
        _query_interactively(state)
        return
    to = None if to == "-" else to
    if not explain:
        choose_format(output, to)  # an error before anything is read
    arguments = _build_arguments(state, options)
    if explain:
        _explain(state, {**arguments, "limit": limit}, output)
        return
    plan = plan_query(logical_plan.QueryCube(state.cube, state.store, **arguments))
    is_table = choose_format(output, to) == "table"
    is_sorted = is_table or arguments["dimension_columns"] is not None
    rows = _read_tables(attrs.evolve(plan, info=None), limit, is_sorted=is_sorted)
    tables = executor.announce_end(plan, _limit_rows(rows, limit))
    # rows and a bar would overwrite each other
    if is_table or to is not None or not sys.stdout.isatty():
        tables = _show_progress(state, "query", tables)
    write_tables(output, to, plan.context.output, tables)


def _build_arguments(state: CliContext, options: dict[str, Any]) -> dict[str, Any]:
    """Build the arguments of a query from the options."""
    since = options["since"]
    if options["as_of"] is not None:
        state.as_of(cli.parse_as_of(options["as_of"], "--as-of"))
    selected = cli.select_datasets(state.datasets, options["include"], options["exclude"])
    datasets = {name: dataset for name, dataset in state.datasets.items() if name in selected}
    if state.cube.seed_dataset not in datasets:
        usage_error(f"The seed dataset {state.cube.seed_dataset!r} cannot be excluded from a query")
    return {
        "conditions": options["where"],
        "datasets": datasets,
        "dimension_columns": _split_names(options["dimensions"]),
        "partition_by": _split_names(options["partition_by"]),
        "payload_columns": _parse_columns(options["columns"], column_types(datasets)),
        "changed_since": None if since is None else cli.parse_as_of(since, "--since"),
    }


def _split_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _parse_columns(text: str | None, types: dict[str, pa.DataType]) -> list[str] | None:
    """Parse names and patterns of payload columns; None for all."""
    names = split_names(text)
    if text is None or ALL in names:
        return None
    return sorted(cli.match(",".join(names), types, "column")) if names else []


def _explain(state: CliContext, arguments: dict[str, Any], output: str | None) -> None:
    """Print the plan of a query, as JSON or as text that is no wider than the terminal."""
    from kartothek_cube.io.eager_cube import explain_query

    explanation = explain_query(state.cube, state.store, **arguments)
    if output == "json":
        cli.print_json(explanation.to_dict())
        return
    echo_cut(repr(explanation))


def _read_tables(plan: PhysicalPlan, limit: int | None, *, is_sorted: bool) -> Iterator[pa.Table]:
    """Yield the rows; partition by partition, in bounded memory, unless they are sorted as a whole."""
    from kartothek_cube.io_components import arrow_dataset, runtime
    from kartothek_cube.io_components.query import executor

    if limit is not None and plan.groups is None:
        yield executor.run_table(plan, limit)
        return
    if plan.groups is None and not is_sorted:
        yield from arrow_dataset.CubeScan(plan, tuple(plan.context.output.names)).tables()
        return
    runtime.progress_add_total(plan.n_files)
    for task in plan.tasks():
        yield from executor.run_task(plan.context, task)


def _limit_rows(tables: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """Yield the first ``limit`` rows of all tables."""
    if limit is None:
        yield from tables
        return
    # checked before the next table is read
    while limit > 0 and (table := next(tables, None)) is not None:
        yield table.slice(0, min(limit, len(table)))
        limit -= len(table)


def _show_progress(state: CliContext, title: str, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables, with a progress bar until the last one."""
    with state.progress(title):
        yield from tables


def _query_interactively(state: CliContext) -> None:
    """Prompt for a query, run it and open a shell, repeatedly until Ctrl-D."""
    from kartothek_cube.io.eager_cube import query_cube

    embed = _make_shell()
    datasets = {name: ds.load_all_indices(state.store) for name, ds in state.datasets.items()}
    types = column_types(datasets)
    conditions, payload = "", ""
    while True:
        conditions = _ask("Conditions: ", conditions, [*types], partial(parse_conditions, types=types))
        payload = _ask("Payload:    ", payload, [ALL, *types], partial(_parse_columns, types=types))
        columns = _parse_columns(payload, types)
        with state.progress("query"):
            frames = query_cube(state.cube, state.store, conditions, datasets, payload_columns=columns)
        if frames:
            embed(frames[0])
        else:
            cli.echo("No rows.")


def _make_shell() -> Callable[[Any], None]:
    """Return a function that opens a shell on a frame."""
    from IPython.terminal.embed import InteractiveShellEmbed

    def embed(frame: Any) -> None:
        size = f"{format_count(len(frame), 'row')} and {format_count(len(frame.columns), 'column')}"
        banner = f"{size} in df; press Ctrl-D to return to the query."
        shell: Any = InteractiveShellEmbed
        shell(banner1=banner, banner2="")(local_ns={"df": frame})

    return embed


def _ask(title: str, default: str, words: list[str], check: Callable[[str], object]) -> str:
    from prompt_toolkit import prompt
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.validation import Validator

    def is_valid(text: str) -> bool:
        try:
            check(text)
        except (click.UsageError, ValueError):
            return False
        return True

    message = "unknown column or invalid value"
    validator = Validator.from_callable(is_valid, error_message=message, move_cursor_to_end=True)
    completer = WordCompleter(words, WORD=True)
    answer: str = prompt(title, default=default, completer=completer, validator=validator)
    return answer


# -- sql -------------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@click.argument("statement", required=False)
@cli.output_options
@as_of_option
@cli.pass_state
def sql(
    state: CliContext, /, statement: str | None, output: str | None, to: str | None, as_of: str | None
) -> None:
    """Run a SQL statement on the cube, by DuckDB; - reads it from stdin.

    Without CUBE, or with a directory or URL in its place, all cubes of the store can be queried and joined.
    A cube is a view of its name, and each dataset a view cube.dataset, such as sales.seed. Names with other
    characters than letters, digits and _ need double quotes. Without a statement, a prompt reads statements
    that end with a semicolon, until Ctrl-D.
    """
    if state.prefix:
        state.require_seed()
    elif as_of is not None:
        usage_error("--as-of needs a cube: versions and times are those of its states")
    to = None if to == "-" else to
    choose_format(output, to)  # an error before anything is read
    if statement is None and cli.is_interactive():
        _run_statements(state, _connect(state, as_of), output, to)
        return
    if statement in (None, "-"):
        statement = sys.stdin.read()
    if _is_blank(statement or ""):
        usage_error("There is no statement")
    _run_statement(state, _connect(state, as_of), str(statement), output, to)


def _is_blank(statement: str) -> bool:
    return not statement.strip(" \t\r\n;")


def _connect(state: CliContext, as_of: str | None) -> duckdb.DuckDBPyConnection:
    """Open the cube, or all cubes of the store that have a seed."""
    from kartothek_cube.io.sql import connect

    connection = None
    if state.prefix:
        moment = None if as_of is None else cli.parse_as_of(as_of, "--as-of")
        if moment is not None:
            state.as_of(moment)  # an error if there is no such state
        connection = connect(state.any_cube, state.store, as_of=moment)
    else:
        for prefix in list_cubes(state.store):
            try:
                cube, _ = discover_cube(prefix, state.store)
                connection = connect(cube.copy(index_columns=()), state.store, connection=connection)
            except (ValueError, KeyError, NotImplementedError) as error:
                cli.echo(f"Cube {prefix} is left out: {one_line(error)}", err=True)
    if connection is None:
        usage_error("The store has no cubes")
    if state.n_threads > 0:
        connection.execute(f"SET threads = {state.n_threads}")
    return connection


def _run_statement(
    state: CliContext,
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    output: str | None,
    to: str | None,
) -> None:
    """Run a statement and write its result."""
    import duckdb

    try:
        relation: duckdb.DuckDBPyRelation | None = _call_duckdb(
            connection, partial(connection.sql, statement)
        )
        if relation is None:  # such as CREATE
            return
        with state.progress("sql"):
            stream = partial(pa.RecordBatchReader.from_stream, _as_arrow_types(relation))
            reader: pa.RecordBatchReader = _call_duckdb(connection, stream)
        batches = iter(partial(_call_duckdb, connection, partial(next, reader, None)), None)
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        if reader.schema.names == ["explain_key", "explain_value"] and output is None and to is None:
            # drawings of several lines
            texts = (text for table in tables for text in table.column(1).to_pylist())
            for line in chain.from_iterable(text.split("\n") for text in texts):
                cli.echo(line)
            return
        write_tables(output, to, reader.schema, _show_progress(state, "sql", tables))
    except (duckdb.Error, pa.ArrowException) as error:
        usage_error(one_line(error))


def _call_duckdb(connection: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """The result of a call that Ctrl-C ends: DuckDB and Arrow do not return to Python for it."""
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(call)
        try:
            return result.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise click.Abort from None


#: types of which Arrow has only a part of the values, or their bytes
_NOT_IN_ARROW = ("BIGNUM", "BIT", "TIME WITH TIME ZONE", "UHUGEINT")


def _as_arrow_types(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Cast columns to text that DuckDB would change without an error, such as large integers to -1."""
    is_text = [str(dtype) in _NOT_IN_ARROW for dtype in relation.types]
    if not any(is_text):
        return relation
    import duckdb

    # by number, as several columns may have one name
    columns = [duckdb.SQLExpression(f"#{number}") for number in range(1, len(is_text) + 1)]
    for number, name in enumerate(relation.columns):
        if is_text[number]:
            columns[number] = columns[number].cast(duckdb.type("VARCHAR")).alias(name)
    return relation.select(*columns)


#: words that the prompt completes, besides views and columns
_KEYWORDS = ("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "DESCRIBE")
#: the views, those of datasets with the name of their cube
_LIST_VIEWS = (
    "SELECT CASE WHEN schema_name = 'main' THEN '' ELSE schema_name || '.' END || view_name "
    "FROM duckdb_views() WHERE NOT internal AND NOT temporary "
    "ORDER BY schema_name <> 'main', schema_name, view_name"
)
_LIST_COLUMNS = "SELECT DISTINCT column_name FROM duckdb_columns() WHERE NOT internal ORDER BY 1"


def _run_statements(
    state: CliContext, connection: duckdb.DuckDBPyConnection, output: str | None, to: str | None
) -> None:
    """Prompt for statements until Ctrl-D; an error does not end it."""
    from prompt_toolkit.history import InMemoryHistory

    history = InMemoryHistory()
    listed = (connection.execute(statement).fetchall() for statement in (_LIST_VIEWS, _LIST_COLUMNS))
    views, columns = ([str(name) for (name,) in names] for names in listed)
    cli.echo(f"Views: {', '.join(views)}; statements end with ;, Ctrl-D ends the session.", err=True)
    while True:
        try:
            statement = _ask_statement([*views, *columns, *_KEYWORDS], history)
        except EOFError:
            return
        if _is_blank(statement):
            continue
        try:
            _run_statement(state, connection, statement, output, to)
        except click.UsageError as error:
            cli.echo(f"Error: {error.format_message()}", err=True)
        except click.Abort:
            cli.echo("Aborted!", err=True)


def _ask_statement(words: list[str], history: History) -> str:
    """Read lines up to one that ends with a semicolon; the arrow keys recall earlier ones."""
    from prompt_toolkit import prompt
    from prompt_toolkit.completion import WordCompleter

    completer = WordCompleter(words, ignore_case=True, WORD=True)
    lines = [prompt("sql> ", completer=completer, history=history)]
    while lines[-1].strip() and not lines[-1].rstrip().endswith(";"):
        lines.append(prompt("...> ", completer=completer, history=history))
    return "\n".join(lines)
