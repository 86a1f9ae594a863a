"""Building blocks of the HTML representations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

#: rows of a table to show; others are counted
MAX_ROWS = 200

_STYLE = (
    "<style>"
    ".ktk-cube{font-size:.9em;line-height:1.4;max-width:70em}"
    ".ktk-cube table{border-collapse:collapse;margin:.3em 0 .8em}"
    ".ktk-cube th,.ktk-cube td{text-align:left;padding:.15em .9em .15em 0;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}"
    ".ktk-cube td.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".ktk-cube caption{text-align:left;font-weight:600}"
    ".ktk-cube summary{cursor:pointer}"
    ".ktk-cube code{background:none;color:inherit}"
    "</style>"
)


def card(title: str, *parts: str) -> str:
    """HTML of a view with a title, unless it is empty; `parts` are HTML."""
    heading = f"<p><strong>{escape(title)}</strong></p>" if title else ""
    return f'<div class="ktk-cube">{_STYLE}{heading}{"".join(parts)}</div>'


def code(text: str) -> str:
    """HTML of a view that is one piece of code."""
    return card("", f"<code>{escape(text)}</code>")


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"


def table(caption: str, header: Sequence[str], rows: Collection[Sequence[Any]]) -> str:
    """HTML table with a caption, numbers aligned to the right; empty without rows."""
    if not rows:
        return ""
    visible = list(rows)[:MAX_ROWS]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in visible)
    more = f"<p>… and {len(rows) - len(visible):,} more</p>" if len(rows) > len(visible) else ""
    caption = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def facts(pairs: Mapping[str, Any]) -> str:
    """HTML table of names and values, one pair per row; lists are joined."""
    rows = "".join(
        f'<tr><th scope="row">{escape(k)}</th>{_cell(_join_list(v))}</tr>' for k, v in pairs.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _join_list(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    return ", ".join(map(str, value)) or "none"


def plain_text_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Text table with aligned columns, integers to the right."""
    rows = list(rows)
    is_number = [all(isinstance(value, int) for value in column) for column in zip(*rows, strict=True)]
    texts = [list(header)] + [[f"{v:,}" if isinstance(v, int) else str(v) for v in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = is_number or [False] * len(widths)
    return "\n".join(
        "  ".join(
            t.rjust(w) if r else t.ljust(w) for t, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in texts
    )
