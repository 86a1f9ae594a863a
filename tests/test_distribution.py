"""The wheel runs in an empty environment, and the files of the forge agree with the repository."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from tests.test_readme import block_after

#: of the repository, not of its releases
NOT_PACKED = re.compile(r"\.(ci|github)/|\.git(attributes|ignore)$|\.pre-commit")
NOT_COPIED = shutil.ignore_patterns(
    ".venv", ".git", ".tox", "_build", "*.egg-info", "__pycache__", ".*_cache"
)
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def run(*command: object, directory: Path) -> str:
    """Run a command that finds nothing of this repository."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    options = {"cwd": directory, "env": env, "capture_output": True, "text": True, "timeout": 900}
    result = subprocess.run(list(map(str, command)), check=False, **options)
    assert result.returncode == 0, result.stdout[-5_000:] + result.stderr[-5_000:]
    return result.stdout


@pytest.mark.slow("builds and installs the wheel, with all it needs")
def test_the_wheel_runs_the_example_of_the_readme_in_an_empty_environment(tmp_path):
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=NOT_COPIED)
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", source, directory=tmp_path)
    (wheel,), (archive,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        in_archive = {name.partition("/")[2] for name in packed.getnames()}
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = set(packed.namelist())
    if (ROOT / ".git").exists():
        names = run("git", "ls-files", directory=ROOT).splitlines()
        tracked = {name for name in names if not NOT_PACKED.match(name) and (ROOT / name).exists()}
        assert tracked - in_archive == set()
        assert {name for name in tracked if name.startswith("kartothek_cube/")} - in_wheel == set()
    assert [name for name in in_wheel if not name.startswith("kartothek_cube")] == []

    # to compile the dependencies takes longer than to import them once
    python = tmp_path / "empty" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty", directory=tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-compile", wheel, directory=tmp_path)
    *statements, question = block_after(".. code-block:: python").split("\n\n")
    code = "\n".join([*statements, f"print({question})"]).replace("/tmp/geodata", str(tmp_path / "store"))
    assert run(python, "-c", code, directory=tmp_path).strip() == block_after("matching rows::")


def test_the_workflow_calls_commands_and_versions_that_exist():
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    makefile, tox = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "tox.ini"))
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    assert targets == {"lint", "docs", "test", "test-slow"}
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert set(re.search(r"for target in (.*);", ci)[1].split()) == targets
    assert "[testenv:oldest]" in tox and any(command.startswith("tox -e oldest ") for command in commands)
    classifiers = re.findall(r"Python :: (3\.\d+)\n", (ROOT / "setup.cfg").read_text(encoding="utf-8"))
    assert yaml.safe_load(WORKFLOW)["jobs"]["test"]["strategy"]["matrix"]["python"] == classifiers


def test_lower_bounds_are_those_of_the_tests_with_the_oldest_dependencies():
    declared = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    lines = (ROOT / "tools" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in lines if not line.startswith("#"))
    for name, version in oldest.items():
        bound = re.search(rf"(?m)^    {re.escape(name)}>=(\S+)$", declared)[1]
        assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", version), name
    of_library = re.search(r"(?s)\ninstall_requires =\n(.*?)\n\[.*\n(dask =\n.*?)\nall =\n", declared)
    assert set(re.findall(r"(?m)^    (\S+)>=", "\n".join(of_library.groups()))) <= oldest.keys()


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem
)
def test_templates_of_issues_are_forms(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem != "config":
        assert {"name", "description", "body"} <= set(form)
        assert {part["type"] for part in form["body"]} <= {"textarea", "input"}
        assert len({part["id"] for part in form["body"]}) == len(form["body"])
