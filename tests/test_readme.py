"""What the README shows happens."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.rst").read_text(encoding="utf-8")


def block_after(marker: str) -> str:
    """Give the indented block that follows a line with a marker."""
    found = re.search(rf"{re.escape(marker)}\n\n((?:(?:    .*)?\n)+)", README)
    assert found, f"no block after {marker!r}"
    return textwrap.dedent(found.group(1)).strip()


@pytest.fixture
def example(tmp_path):
    code = block_after(".. code-block:: python")
    # the directory that a reader would use; another one here, so that runs do not meet
    assert code.count("/tmp/geodata") == 1
    code = code.replace("/tmp/geodata", str(tmp_path))
    *statements, question = code.split("\n\n")
    return "\n".join(statements), question


def test_first_cube(example):
    statements, question = example
    names: dict = {}
    exec(statements, names)  # noqa: S102 (the README is ours)
    assert repr(eval(question, names)) == block_after("one per group::")  # noqa: S307


def test_a_second_run_says_that_the_cube_exists(example):
    statements, _ = example
    exec(statements, {})  # noqa: S102 (the README is ours)
    with pytest.raises(ValueError, match=r"^Cube geodata exists; pass overwrite=True to replace it"):
        exec(statements, {})  # noqa: S102


@pytest.mark.parametrize("target", ["demo", "test"])
def test_commands_exist(target):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"    make {target}\n" in README or f"    make {target} " in README
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_links_lead_somewhere():
    links = re.findall(r"`[^`<]+<([^>]+)>`_", README)
    assert links != []
    assert [link for link in links if not (ROOT / link).exists()] == []
