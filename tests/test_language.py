"""Text of the library and its documentation uses standard terms, no private words."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: text that users and contributors read
TEXT = ("README.rst", "CONTRIBUTING.rst", "CHANGES.rst", "Makefile", "docs", "examples", "tools", "asv_bench")
CODE = ("kartothek_cube",)
SUFFIXES = {".py", ".rst", ".html", ".svg", ""}

#: regular expressions of whole words -> what to write instead
BANNED: dict[str, str] = {
    "gets? through": "succeeds",
    "given? back": "return",
    "in vain": "unused",
    "let somebody": "name the caller",
    "lives? there": "contains",
    "look(s|ed|ing)? after": "maintain",
    "mend(s|ed|ing)?": "repair",
    "nobody": "name who or what",
    "partners?": "matching rows",
    "rooms?": "buffer, package",
    "slip of the pen": "typing error",
    "strangers?": "untrusted input",
    "tak(e|es|ing) care": "maintain",
    "thrown? away": "delete, expire",
    "travel(s|led|ling)": "is sent, picklable",
    "twins?": "co-located datasets",
    "what is there": "existing data",
    "whoever": "name who or what",
    "worth a look": "the condition that is tested",
    "anew": "again, rebuild",
    "shall": "should, must",
    "somebody": "another writer, a user",
    "time[ -]stamps?": "timestamp",
}


def files(*names: str) -> Iterator[Path]:
    """Text files of the repository, without build products."""
    for name in names:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and file.suffix in SUFFIXES and "_build" not in file.parts:
                yield file


def occurrences(words: Iterable[str], paths: Iterable[Path]) -> list[str]:
    """Lines with one of the words, as ``path:line: word``."""
    pattern = re.compile(rf"(?<!\w)({'|'.join(words)})(?!\w)", re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(line)
    ]


def test_no_private_words(tmp_path, monkeypatch):
    assert occurrences(BANNED, files(*TEXT, *CODE)) == []
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "a.rst").write_text("Nobody.\nA mushroom is worth a look.\n", encoding="utf-8")
    assert occurrences(BANNED, files("a.rst")) == ["a.rst:1: Nobody", "a.rst:2: worth a look"]
