"""The command in a real pseudo-terminal."""

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from typing import Literal

from tests.support.paths import ROOT

#: the command of users
COMMAND = ("-m", "kartothek_cube")
#: what was read, and when
Shown = list[tuple[float, bytes]]


def run_in_terminal(
    *args: str,
    columns: int = 80,
    terminal: Literal["stdout", "stderr"] = "stdout",
    command: tuple[str, ...] = COMMAND,
) -> tuple[Shown, Shown]:
    """Run the command, with stdin and another stream on a terminal; what stdout and stderr show."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, terminal: theirs}
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, *command, *args], stdin=theirs, cwd=ROOT, env=environment, **streams
    ) as process:
        os.close(theirs)
        descriptors = {
            name: ours if name == terminal else getattr(process, name).fileno()
            for name in ("stdout", "stderr")
        }
        shown: dict[int, Shown] = {descriptor: [] for descriptor in descriptors.values()}
        is_open = set(shown)
        while is_open:
            for descriptor in select.select(is_open, [], [])[0]:
                try:
                    part = os.read(descriptor, 100_000)
                except OSError:  # the end of a terminal
                    part = b""
                if part:
                    shown[descriptor].append((time.monotonic(), part))
                else:
                    is_open.remove(descriptor)
    os.close(ours)
    stdout, stderr = (shown[descriptor] for descriptor in descriptors.values())
    assert process.returncode == 0, text_of(stderr)
    return stdout, stderr


def text_of(shown: Shown) -> str:
    return b"".join(part for _, part in shown).decode().replace("\r\n", "\n")
