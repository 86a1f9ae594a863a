"""Exit codes of the command, and errors as one line on stderr."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from typing import NoReturn

import click

__all__ = (
    "ABORTED",
    "BROKEN_PIPE",
    "DAMAGED",
    "INTERNAL",
    "USAGE",
    "closest",
    "usage_error",
    "forget_pipe",
    "one_line",
    "report_error",
)

#: the person in front of it said no, or pressed Ctrl-C
ABORTED = 1
#: the command cannot be done as it was given; the reason is on stderr
USAGE = 2
#: ``verify`` found damage
DAMAGED = 3
#: an error of the program
INTERNAL = 4
#: whoever read the output stopped reading: 128 + SIGPIPE, as shells say it
BROKEN_PIPE = 141

#: errors that tell what is wrong with the arguments, the data or the store, and not with the program
_EXPECTED = (ValueError, TypeError, KeyError, RuntimeError, NotImplementedError, OSError, ImportError)


def usage_error(message: str) -> NoReturn:
    """End the command: it cannot be done as it was given."""
    raise click.UsageError(message)


def closest(name: str, known: Iterable[str]) -> str:
    """Name what was probably meant, as a question; nothing if there is nothing alike."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, KeyError) and error.args:
        text = str(error.args[0])  # its str is a repr
    else:
        text = str(error)
    return " ".join(text.split()) or type(error).__name__


def forget_pipe() -> None:
    """Write to nowhere from now on: nobody reads any more, and Python must not notice when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report_error(error: BaseException, color: bool | None) -> int:
    """
    Print an error as one line.

    Parameters
    ----------
    error
        What was raised.
    color
        Whether it is coloured; None for: if it is read in a terminal.

    Returns
    -------
    int
        The exit code.
    """
    if isinstance(error, click.Abort):
        click.echo("Aborted!", err=True)
        return ABORTED
    expected = isinstance(error, (click.ClickException, *_EXPECTED))
    text = one_line(error)
    if not expected:
        text = f"{type(error).__name__}: {text} (an error of the program; --debug shows where)"
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')} (see {error.ctx.command_path} -h)" if text.endswith(".") else text
    click.secho("Error:", fg="red", bold=True, err=True, nl=False, color=color)
    click.echo(f" {text}", err=True)
    return USAGE if expected else INTERNAL
