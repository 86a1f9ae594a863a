"""Formatted text on the terminal: headlines, labels, JSON, numbers with nouns."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ("headline", "label", "pluralize", "print_json")


def headline(text: str) -> None:
    """Print a headline."""
    click.secho(text, fg="yellow", bold=True, underline=True)


def label(text: str, value: str = "") -> None:
    """Print a bold label and its value."""
    click.echo(click.style(text, bold=True) + value)


def print_json(content: Any) -> None:
    """Print JSON; values without a JSON type become text."""
    click.echo(json.dumps(content, indent=2, sort_keys=True, default=str, ensure_ascii=False))


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """
    Format a number with its noun.

    >>> pluralize(1, "file"), pluralize(2000, "file"), pluralize(2, "index", "indices")
    ('1 file', '2,000 files', '2 indices')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
