"""What the README shows happens."""

import re
import textwrap

import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.rst").read_text(encoding="utf-8")


def block_after(marker: str) -> str:
    found = re.search(rf"{re.escape(marker)}\n\n((?:(?:    .*)?\n)+)", README)
    assert found, f"no block after {marker!r}"
    return textwrap.dedent(found.group(1)).strip()


def test_the_first_cube_can_be_built_and_queried_again(tmp_path):
    code = block_after(".. code-block:: python")
    # the directory that a reader would use; another one here, so that runs do not meet
    assert code.count("/tmp/geodata") == 1
    *statements, question = code.replace("/tmp/geodata", str(tmp_path)).split("\n\n")
    for _ in range(2):
        names: dict = {}
        exec("\n".join(statements), names)  # noqa: S102 (the README is ours)
        assert str(eval(question, names)).strip() == block_after("matching rows::")  # noqa: S307
    usage = block_after("receives the rows:\n\n.. code-block:: python")
    exec(usage, names)  # noqa: S102
    assert names["df"]["COUNTRY_CODE"].tolist() == ["DE", "DE"]
    with pytest.raises(ValueError, match=r"^Cube geodata exists; pass overwrite=True to replace it"):
        names["cube"].build(names["weather"])


def test_jobs_build_on_each_other(tmp_path):
    first, second = re.findall(r"\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", README)[::2]
    imports = "\n".join(textwrap.dedent(first).splitlines()[:2])
    code = textwrap.dedent(second).strip().replace("/tmp/energy", str(tmp_path))
    statements, _, question = code.rpartition("\n")
    for _ in range(2):
        names: dict = {}
        exec(f"{imports}\n{statements}", names)  # noqa: S102
        assert str(eval(question, names)).strip() == block_after("corrected day::")  # noqa: S307
        assert "forecast: version 2; compute from seed 2" in repr(names["energy"].lineage())
        names["energy"].delete()


@pytest.mark.parametrize("target", ["demo", "test"])
def test_commands_exist(target):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"    make {target}\n" in README or f"    make {target} " in README
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_links_lead_somewhere():
    links = re.findall(r"`[^`<]+<([^>]+)>`_", README)
    assert links != []
    assert [link for link in links if not (ROOT / link).exists()] == []
