"""What the command says: exit codes, errors as one line, headlines, labels, JSON, numbers with nouns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import click

from kartothek_cube.core.errors import nearest_names

__all__ = (
    "ABORTED",
    "BROKEN_PIPE",
    "DAMAGED",
    "INTERNAL",
    "USAGE",
    "closest",
    "forget_pipe",
    "headline",
    "label",
    "one_line",
    "print_json",
    "report_error",
    "usage_error",
)

#: the user answered no or pressed Ctrl-C
ABORTED = 1
#: wrong usage or data; the reason is on stderr
USAGE = 2
#: ``verify`` found problems
DAMAGED = 3
#: an internal error
INTERNAL = 4
#: the reader of the output closed the pipe: 128 + SIGPIPE, like in shells
BROKEN_PIPE = 141
#: 128 + SIGTERM
TERMINATED = 143

#: errors caused by the arguments, the data or the store; all others are internal errors
_EXPECTED = (ValueError, TypeError, KeyError, RuntimeError, NotImplementedError, OSError, ImportError)


def usage_error(message: str) -> NoReturn:
    """End the command with a usage error."""
    raise click.UsageError(message)


def closest(name: str, candidates: Iterable[str]) -> str:
    """Suggest the most similar name as a question; empty if there is none."""
    return "".join(f" Did you mean {match!r}?" for match in nearest_names(name, candidates))


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, KeyError) and error.args:
        text = str(error.args[0])  # its str is a repr
    else:
        text = str(error)
    return " ".join(text.split()) or type(error).__name__


def forget_pipe() -> None:
    """Redirect the standard streams to /dev/null after a broken pipe."""
    # otherwise the interpreter reports a second BrokenPipeError when it flushes them at exit
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report_error(error: BaseException, color: bool | None) -> int:
    """Print an error as one line and return the exit code."""
    if isinstance(error, click.Abort):
        click.echo("Aborted!", err=True)
        return ABORTED
    expected = isinstance(error, (click.ClickException, *_EXPECTED))
    text = one_line(error)
    if not expected:
        text = f"{type(error).__name__}: {text} (internal error; --debug shows the traceback)"
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')} (see {error.ctx.command_path} -h)" if text.endswith(".") else text
    click.secho("Error:", fg="red", bold=True, err=True, nl=False, color=color)
    click.echo(f" {text}", err=True)
    return USAGE if expected else INTERNAL


def headline(text: str) -> None:
    """Print a headline."""
    click.secho(text, fg="yellow", bold=True, underline=True)


def label(text: str, value: str = "") -> None:
    """Print a bold label and its value."""
    click.echo(click.style(text, bold=True) + value)


def print_json(content: Any) -> None:
    """Print JSON; values without a JSON type become text."""
    click.echo(json.dumps(content, indent=2, sort_keys=True, default=str, ensure_ascii=False))
