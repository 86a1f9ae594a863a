"""Directive ``terminal``: runs commands on a small cube during the build and shows their output.

Commands share a store, in the order of the page. A command that fails unexpectedly fails the build. The page
of ``report`` is written next to the other pages.
"""

from __future__ import annotations

import contextlib
import html
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from click.testing import CliRunner
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from kartothek_cube.cli import cli
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, keep_cube_history

#: escape codes of click.style and the corresponding CSS
_STYLES = {
    "1": "font-weight:bold",
    "4": "text-decoration:underline",
    "31": "color:#ff8f8f",
    "32": "color:#8fd694",
    "33": "color:#f2c66d",
}


class Sandbox:
    """A directory with a store configuration and a cube, created when the first command runs."""

    def __init__(self) -> None:
        self.folder: Path | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Change to the directory within the block."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="kartothek_cube_docs_"))
            with contextlib.chdir(self.folder):
                _make_cube()
        with contextlib.chdir(self.folder):
            yield

    def close(self) -> None:
        """Remove the directory."""
        if self.folder is not None:
            shutil.rmtree(self.folder)


SANDBOX = Sandbox()


def _make_cube() -> None:
    Path("skv.yml").write_text(
        "dataset:\n  type: hfs\n  path: data\nbackup:\n  type: hfs\n  path: backup\n", encoding="utf-8"
    )
    store = "hfs://data?create_if_missing=true"
    cube = Cube(["city", "day"], ["country"], "geodata", index_columns=["latitude"])
    days = pd.date_range("2020-01-01", periods=4)
    cities = {
        "Hamburg": ("DE", 53.6),
        "Dresden": ("DE", 51.1),
        "London": ("UK", 51.5),
        "Santiago": ("CL", -33.4),
    }
    weather = pd.DataFrame(
        [
            (city, day, country, round(abs(latitude) % 7 + number - 2, 1))
            for city, (country, latitude) in cities.items()
            for number, day in enumerate(days)
        ],
        columns=["city", "day", "country", "avg_temp"],
    )
    places = pd.DataFrame(
        [(city, country, latitude) for city, (country, latitude) in cities.items()],
        columns=["city", "country", "latitude"],
    )
    build_cube({"seed": weather, "latlong": places}, cube, store)
    keep_cube_history(cube, store, 3)
    append_to_cube(weather[weather.city == "Hamburg"].assign(avg_temp=9.5), cube, store)


def to_html(text: str) -> str:
    """Convert escape codes to HTML."""
    parts, spans = [], 0
    for plain, codes in re.findall(r"([^\x1b]*)(?:\x1b\[([\d;]*)m)?", text):
        parts.append(html.escape(plain))
        for code in codes.split(";") if codes else []:
            if code in _STYLES:
                parts.append(f'<span style="{_STYLES[code]}">')
                spans += 1
            elif code == "0":
                parts.append("</span>" * spans)
                spans = 0
    return "".join(parts) + "</span>" * spans


class Terminal(SphinxDirective):
    """Runs the commands in its content, one per line."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "exit": directives.nonnegative_int,
        "input": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Run the commands and return them with their output."""
        blocks = [self._run(line) for line in self.content if line.strip()]
        return [nodes.raw("", f'<pre class="terminal">{"".join(blocks).strip()}</pre>', format="html")]

    def _run(self, line: str) -> str:
        command, *arguments = shlex.split(line)
        if command != "kartothek_cube":
            raise self.error(f"only kartothek_cube can be run here, not {command}")
        answer = self.options.get("input")
        with SANDBOX.entered():
            result = CliRunner().invoke(
                cli,
                ["--color", "always", *arguments],
                prog_name="kartothek_cube",
                input=None if answer is None else answer + "\n",
                terminal_width=100,
            )
        expected = self.options.get("exit", 0)
        if result.exit_code != expected:
            raise self.error(f"{line}: exit code {result.exit_code}, expected {expected}: {result.output}")
        return f"<b>$ {html.escape(line)}</b>\n{to_html(result.output)}\n"


def _write_report(app: Sphinx, exception: Exception | None) -> None:
    """Write an example of the report next to the pages."""
    if exception is None and app.builder.format == "html" and SANDBOX.folder is not None:
        target = Path(app.outdir) / "report.html"
        with SANDBOX.entered():
            result = CliRunner().invoke(cli, ["geodata", "report", "--output", str(target)])
        if result.exit_code:
            raise ExtensionError(f"cannot write {target}: {result.output}")
    SANDBOX.close()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("terminal", Terminal)
    app.connect("build-finished", _write_report)
    app.add_css_file("terminal.css")
    # commands run in the order of the page
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
