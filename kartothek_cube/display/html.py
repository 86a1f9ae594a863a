"""How objects look in a notebook: tables in HTML that suit light and dark pages; all text is escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset.base import DatasetMetadataBase

__all__ = ("card", "cube_html", "dataset_html", "facts", "plain_text_table", "table")

#: rows of a table that are shown; the rest is counted
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
    """
    Parts of a view under a title.

    Parameters
    ----------
    title
        Text; it is escaped here.
    parts
        HTML.

    Returns
    -------
    str
        HTML.
    """
    return f'<div class="ktk-cube">{_STYLE}<p><strong>{escape(title)}</strong></p>{"".join(parts)}</div>'


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"


def table(caption: str, header: Sequence[str], rows: Collection[Sequence[Any]]) -> str:
    """
    A table.

    Parameters
    ----------
    caption, header, rows
        Text and numbers; they are escaped here. Whole numbers are aligned to the right.

    Returns
    -------
    str
        HTML; nothing if there are no rows.

    Examples
    --------
    >>> "&lt;b&gt;" in table("Columns", ["Name"], [["<b>"]])
    True
    """
    if not rows:
        return ""
    shown = list(rows)[:MAX_ROWS]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown)
    more = f"<p>… and {len(rows) - len(shown):,} more</p>" if len(rows) > len(shown) else ""
    caption = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def facts(pairs: Mapping[str, Any]) -> str:
    """
    Names and values, one pair per line.

    Parameters
    ----------
    pairs
        Text; it is escaped here. Lists are joined.

    Returns
    -------
    str
        HTML.
    """
    rows = "".join(f'<tr><th scope="row">{escape(k)}</th>{_cell(_joined(v))}</tr>' for k, v in pairs.items())
    return f"<table><tbody>{rows}</tbody></table>"


def _joined(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    return ", ".join(map(str, value)) or "none"


def plain_text_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """
    A table as text, its columns aligned.

    Parameters
    ----------
    header, rows
        Text and numbers. Whole numbers are aligned to the right.

    Returns
    -------
    str

    Examples
    --------
    >>> print(plain_text_table(["dataset", "files"], [["seed", 1200], ["weather", 30]]))
    dataset  files
    seed     1,200
    weather     30
    """
    rows = list(rows)
    numbers = [all(isinstance(value, int) for value in column) for column in zip(*rows, strict=True)]
    texts = [list(header)] + [[f"{v:,}" if isinstance(v, int) else str(v) for v in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = numbers or [False] * len(widths)
    return "\n".join(
        "  ".join(
            t.rjust(w) if r else t.ljust(w) for t, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in texts
    )


def cube_html(cube: Cube) -> str:
    """
    The specification of a cube: its columns and what they are for.

    Parameters
    ----------
    cube
        The cube.

    Returns
    -------
    str
        HTML.
    """
    suppressed = cube.suppress_index_on
    rows: list[tuple[str, str, str]] = [
        *((name, "dimension", "no" if name in suppressed else "seed") for name in cube.dimension_columns),
        *((name, "partition", "labels") for name in cube.partition_columns),
        *((name, "payload", "every dataset that has it") for name in sorted(cube.index_columns)),
    ]
    return card(
        f"Cube {cube.uuid_prefix}",
        facts({"seed dataset": cube.seed_dataset, "datasets are named": f"{cube.uuid_prefix}++<id>"}),
        table("Columns of the specification", ["column", "role", "indexed"], rows),
    )


def dataset_html(dataset: DatasetMetadataBase) -> str:
    """
    A dataset: its columns, partitions, indices and metadata.

    Parameters
    ----------
    dataset
        The dataset.

    Returns
    -------
    str
        HTML.
    """
    keys = list(dataset.partition_keys)
    indexed = [name for name in dataset.indices if name not in keys]
    labels = dataset.partition_table.labels[:5].to_pylist()
    columns = [
        (name, str(field.type), "partition key" if name in keys else "indexed" if name in indexed else "")
        for field in (dataset.schema or ())
        for name in (field.name,)
    ]
    metadata = [(name, str(value)) for name, value in sorted(dataset.metadata.items())]
    listed = table("", ["key", "value"], metadata)
    return card(
        f"Dataset {dataset.uuid}",
        facts(
            {
                "files": len(dataset.partition_table),
                "partition keys": keys,
                "secondary indices": indexed,
                "first files": labels,
            }
        ),
        table("Columns", ["column", "type", ""], columns),
        f"<details><summary>Metadata ({len(metadata)})</summary>{listed}</details>",
    )
