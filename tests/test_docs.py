"""The reference has a page per module, references lead to pages, and the pages name every command."""

import re
from importlib import import_module

import pytest

import kartothek_cube
from kartothek_cube.cli.main import cli
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "api").glob("*.rst"))
#: façades that only collect names; the names are on the pages of the modules that users import
NAMES = ("consistency", "cube", "dataset", "discover", "serialization")
COLLECTIONS = [f"kartothek_cube.api.{name}" for name in NAMES]
ALIASES = {"StoreFactory", "StoreInput"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_reference_is_one_module(page):
    text = page.read_text(encoding="utf-8")
    directives = re.findall(r"^\.\. auto(module|function):: (\S+)", text, re.MULTILINE)
    assert directives in ([("module", page.stem)], [("function", f"{page.stem}.clear")])
    assert import_module(page.stem).__all__
    listed = (DOCS / "api.rst").read_text(encoding="utf-8")
    assert listed.count(f"\n   api/{page.stem}\n") == 1


def test_every_public_name_is_on_a_page():
    documented = {name for page in PAGES for name in import_module(page.stem).__all__}
    names = {name for module in COLLECTIONS for name in import_module(module).__all__}
    names |= {name for name in kartothek_cube.__all__ if not name.startswith("__")}
    # constants and aliases of types have no documentation of their own
    assert sorted(name for name in names - documented - ALIASES if not name.isupper()) == []
    # numbers and titles of sections that are on no page say nothing to a reader
    sources = [*DOCS.rglob("*.rst"), *ROOT.glob("*.rst"), *(ROOT / "kartothek_cube").rglob("*.py")]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sources
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"§|\bsections? [\"'\d]|specification, section", line)
    ]
    assert found == []


@pytest.mark.parametrize("command", cli.list_commands(None))
def test_every_command_is_on_the_page_of_the_command_line(command):
    text = (DOCS / "cli.rst").read_text(encoding="utf-8")
    assert re.search(rf"^    kartothek_cube [^|\n]*\b{command}\b", text, re.MULTILINE), command


@pytest.mark.parametrize("page", ["faq", "comparison"])
def test_questions_and_comparisons_are_in_the_contents_and_executed(page):
    assert f"\n   {page}\n" in (DOCS / "index.rst").read_text(encoding="utf-8")
    assert ">>> " in (DOCS / f"{page}.rst").read_text(encoding="utf-8")


def test_tests_that_the_pages_name_exist():
    named = {
        name for page in DOCS.glob("*.rst") for name in re.findall(r"``(test_\w+)", page.read_text("utf-8"))
    }
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert named
    assert named <= {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
