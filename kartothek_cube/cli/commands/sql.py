"""The command ``sql``: a statement to a table or file, or interactive statements."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kartothek_cube.cli.context import (
    CliContext,
    is_interactive,
    list_cubes,
    one_line,
    pass_state,
    usage_error,
)
from kartothek_cube.cli.options import StoreCommand, output_options, parse_as_of

if TYPE_CHECKING:
    import duckdb
    from prompt_toolkit.history import History

try:
    from prompt_toolkit import prompt
except ImportError:  # reported on use
    prompt = None  # type: ignore[assignment]


@click.command(cls=StoreCommand)
@click.argument("statement", required=False)
@output_options
@click.option("--as-of", help="Query the states at this time (UTC); see ``history``.")
@pass_state
def sql(
    state: CliContext, /, statement: str | None, output: str | None, to: str | None, as_of: str | None
) -> None:
    """Run a SQL statement on the cube, by DuckDB; ``-`` reads it from stdin.

    Without CUBE, or with a directory or URL in its place, all cubes of the store can be queried and joined.
    A cube is a view of its name, and each dataset a view ``cube.dataset``, such as ``sales.seed``. Names
    with other characters than letters, digits and ``_`` need double quotes. Without a statement, statements
    are read from a prompt; each ends with ``;``, and Ctrl-D ends the command.
    """
    from kartothek_cube.cli.output import choose_format

    if state.prefix:
        state.require_seed()
    elif as_of is not None:
        usage_error("--as-of needs a cube: versions and times are those of its states")
    to = None if to == "-" else to
    choose_format(output, to)
    if statement is None and is_interactive():
        run_interactively(state, _connect(state, as_of), output, to)
        return
    if statement in (None, "-"):
        statement = sys.stdin.read()
    if not (statement or "").strip(" \t\r\n;"):
        usage_error("There is no statement")
    _write_result(state, _connect(state, as_of), str(statement), output, to)


def _connect(state: CliContext, as_of: str | None) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb  # noqa: F401 - before the cube is loaded
    except ImportError:
        usage_error("SQL needs DuckDB: pip install 'kartothek_cube[sql]'")
    from kartothek_cube.io.sql import connect

    if not state.prefix:
        return _connect_all(state)
    moment: int | str | None = None
    if as_of is not None:
        moment = parse_as_of(as_of, "--as-of")
        state.as_of(moment)  # an error if there is no such state
    return _limit_threads(state, connect(state.any_cube, state.store, as_of=moment))


def _connect_all(state: CliContext) -> duckdb.DuckDBPyConnection:
    """Open all cubes of the store that have a seed."""
    from kartothek_cube.core.cube.discover import discover_cube
    from kartothek_cube.io.sql import connect

    connection = None
    for prefix in list_cubes(state.store):
        try:
            cube, _ = discover_cube(prefix, state.store)
            connection = connect(cube.copy(index_columns=()), state.store, connection=connection)
        except (ValueError, KeyError, NotImplementedError) as error:
            click.echo(f"Cube {prefix} is left out: {one_line(error)}", err=True)
    if connection is None:
        usage_error("The store has no cubes")
    return _limit_threads(state, connection)


def _limit_threads(state: CliContext, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    if state.threads > 0:
        connection.execute(f"SET threads = {state.threads}")
    return connection


def _write_result(
    state: CliContext,
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    output: str | None,
    to: str | None,
) -> None:
    import duckdb
    import pyarrow as pa

    from kartothek_cube.cli.output import report_rows, write_tables

    try:
        relation: duckdb.DuckDBPyRelation | None = connection.sql(statement)
        if relation is None:  # such as CREATE
            return
        with state.progress("sql"):
            reader = pa.RecordBatchReader.from_stream(_as_arrow_types(relation))
            tables = (pa.Table.from_batches([batch]) for batch in reader)
            n_rows = write_tables(output, to, reader.schema, tables)
    except (duckdb.Error, pa.ArrowException) as error:
        usage_error(one_line(error))
    report_rows(n_rows, to)


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
    return relation.select(
        *(
            column.cast(duckdb.type("VARCHAR")).alias(name) if cast else column
            for column, name, cast in zip(columns, relation.columns, is_text, strict=True)
        )
    )


# -- interactive statements ------------------------------------------------------------------------


def run_interactively(
    state: CliContext, connection: duckdb.DuckDBPyConnection, output: str | None, to: str | None
) -> None:
    """Prompt for statements until Ctrl-D; an error does not end it."""
    if prompt is None:
        usage_error("Interactive statements need prompt_toolkit: pip install 'kartothek_cube[cli]'")
    names = [f"{prefix}{name}" for prefix, name in _list_views(connection)]
    click.echo(f"Views: {', '.join(names)}; statements end with ;, Ctrl-D ends the session.", err=True)
    words = [*names, *_list_columns(connection), *_KEYWORDS]
    from prompt_toolkit.history import InMemoryHistory

    history = InMemoryHistory()
    while True:
        try:
            statement = _ask(words, history)
        except EOFError:
            return
        if not statement.strip(" \t\r\n;"):
            continue
        try:
            _write_result(state, connection, statement, output, to)
        except click.UsageError as error:
            click.echo(f"Error: {error.format_message()}", err=True)


#: words that the prompt completes, besides views and columns
_KEYWORDS = ("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "DESCRIBE")


def _ask(words: list[str], history: History) -> str:
    """Read lines up to one that ends with a semicolon; the arrow keys recall earlier ones."""
    from prompt_toolkit.completion import WordCompleter

    completer = WordCompleter(words, ignore_case=True, WORD=True)
    lines = [prompt("sql> ", completer=completer, history=history)]
    while lines[-1].strip() and not lines[-1].rstrip().endswith(";"):
        lines.append(prompt("...> ", completer=completer, history=history))
    return "\n".join(lines)


def _list_views(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """List the views, those of datasets with the name of their cube."""
    query = (
        "SELECT CASE WHEN schema_name = 'main' THEN '' ELSE schema_name || '.' END, view_name "
        "FROM duckdb_views() WHERE NOT internal AND NOT temporary ORDER BY ALL"
    )
    return [(str(prefix), str(name)) for prefix, name in connection.execute(query).fetchall()]


def _list_columns(connection: duckdb.DuckDBPyConnection) -> list[str]:
    query = "SELECT DISTINCT column_name FROM duckdb_columns() WHERE NOT internal ORDER BY 1"
    return [str(name) for (name,) in connection.execute(query).fetchall()]
