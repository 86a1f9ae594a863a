"""Makes ``python -m kartothek_cube`` the same as the command ``kartothek_cube``."""

from __future__ import annotations

from kartothek_cube.cli import cli

if __name__ == "__main__":
    cli(prog_name="kartothek_cube")
