"""The ``kartothek_cube`` command. click and all commands are imported on first use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kartothek_cube.cli.main import cli

__all__ = ("cli",)


def __getattr__(name: str) -> Any:
    """Import ``cli`` on first use; without click, exit with an installation hint."""
    if name != "cli":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from kartothek_cube.cli import main
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("Error: the command line needs click: pip install 'kartothek_cube[cli]'")
    return main.cli
