"""Interactive queries: prompt for conditions and columns, open an IPython shell with the result as ``df``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kartothek_cube.cli.commands.inspect import column_types
from kartothek_cube.cli.context import CliContext
from kartothek_cube.cli.errors import one_line, usage_error
from kartothek_cube.cli.options import ALL, parse_conditions
from kartothek_cube.cli.terminal import pluralize

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from prompt_toolkit import prompt
except ImportError:  # reported on use
    prompt = None  # type: ignore[assignment]

__all__ = ("run_interactively",)


def run_interactively(state: CliContext) -> None:
    """Prompt for a query, run it and open a shell, repeatedly until Ctrl-D."""
    embed = _make_shell()
    datasets = {name: ds.load_all_indices(state.store) for name, ds in state.datasets.items()}
    types = column_types(datasets)
    conditions, payload = "", ""
    while True:
        conditions = _ask("Conditions: ", conditions, list(types), lambda text: parse_conditions(text, types))
        payload = _ask("Payload:    ", payload, [ALL, *types], lambda text: _parse_payload(text, types))
        frame = _run_query(state, datasets, conditions, payload, types)
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
        size = f"{pluralize(len(frame), 'row')} and {pluralize(len(frame.columns), 'column')}"
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


def _run_query(
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
