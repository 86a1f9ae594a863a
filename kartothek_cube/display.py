"""Building blocks of representations as HTML and text."""

from __future__ import annotations

import unicodedata
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


def escape_controls(text: str) -> str:
    """Text without control characters, line ends and marks of direction, which would steer the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def facts(pairs: Mapping[str, Any]) -> str:
    """HTML table of names and values, one pair per row; lists are joined."""
    rows = "".join(f'<tr><th scope="row">{escape(k)}</th>{_cell(_joined(v))}</tr>' for k, v in pairs.items())
    return f"<table><tbody>{rows}</tbody></table>"


def _joined(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else ", ".join(map(str, value)) or "none"


def plain_text_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Text table with aligned columns, integers to the right."""
    columns = []
    for name, *cells in zip(header, *rows, strict=True):
        is_number = bool(cells) and all(isinstance(value, int) for value in cells)
        texts = [f"{value:,}" if isinstance(value, int) else escape_controls(str(value)) for value in cells]
        texts.insert(0, name)
        width = max(map(text_width, texts))
        columns.append([pad_text(text, width, right=is_number) for text in texts])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def text_width(text: str) -> int:
    """Number of terminal cells of a text: two for wide characters, none for accents."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def pad_text(text: str, width: int, *, right: bool) -> str:
    """Fill a text with blanks up to a width."""
    blanks = " " * (width - text_width(text))
    return blanks + text if right else text + blanks


def cut_text(text: str, width: int) -> str:
    """Cut a text to a width."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) >= width:
        text = text[:-1]
    return text + "…" if width else ""
