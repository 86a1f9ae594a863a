"""A store with a small cube, a YAML file with its configuration, and fixtures that run the command."""

import pandas as pd
import pytest
from click.testing import CliRunner

from kartothek_cube.cli import cli
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import append_to_cube, build_cube

CUBE = Cube(["x", "d"], ["p"], "cube", index_columns=["i1"])


def append_cell(url, x=1, p="a", v1=9.5, time="2020-01-01"):
    """Append a cell to the seed; by default, a version of its first one."""
    cell = pd.DataFrame({"x": [x], "d": pd.to_datetime([time]), "p": [p], "v1": [v1]})
    append_to_cube(cell, CUBE, url)


@pytest.fixture
def url(tmp_path):
    """A directory with a cube of two datasets."""
    seed = pd.DataFrame({"x": [1, 2, 3, 4], "p": ["a", "a", "b", "b"], "v1": [0.5, 1.5, 2.5, None]})
    seed.insert(1, "d", pd.to_datetime(["2020-01-01", "2020-01-02"] * 2))
    enrich = pd.DataFrame({"x": [1, 2, 3], "p": ["a", "a", "b"], "v2": ["m", "n", None]})
    enrich.insert(2, "i1", [True, False, True])
    url = f"hfs://{tmp_path}/store?create_if_missing=true"
    build_cube({"seed": seed, "enrich": enrich}, CUBE, url)
    return url


@pytest.fixture
def skv(tmp_path, url):
    path = tmp_path / "skv.yml"
    path.write_text(
        f"dataset:\n  type: hfs\n  path: {tmp_path}/store\n"
        f"other:\n  type: hfs\n  path: {tmp_path}/other\n"
        f"by_url: {url}\n"
    )
    return str(path)


@pytest.fixture
def call(skv):
    """Run the command with the YAML file; returns the result with output and exit code."""

    def call(*args, input=None, store="dataset"):
        return CliRunner().invoke(cli, ["--skv", skv, "--store", store, *args], input=input)

    return call


@pytest.fixture
def ok(call):
    """Run the command, which must succeed; returns its stdout."""

    def ok(*args, **kwargs):
        result = call(*args, **kwargs)
        assert result.exit_code == 0, result.output
        return result.stdout

    return ok


@pytest.fixture
def error(call):
    """Run the command, which must fail; returns the line on stderr."""

    def error(*args, code=2, **kwargs):
        result = call(*args, **kwargs)
        assert result.exit_code == code, result.output
        lines = result.stderr.splitlines()
        assert [line for line in lines if line.startswith("Error: ")] == lines
        assert len(lines) == 1
        return lines[0]

    return error


class Dialogue:
    """Answers prompts, then presses Ctrl-D; records their arguments."""

    def __init__(self, monkeypatch, *answers):
        self.answers = iter(answers)
        self.prompts = []
        monkeypatch.setattr("prompt_toolkit.prompt", self.prompt)
        monkeypatch.setattr("kartothek_cube.cli.context.is_interactive", lambda: True)

    def prompt(self, title, **options):
        self.prompts.append({"title": title, **options})
        answer = next(self.answers, None)
        if answer is None:
            raise EOFError
        return answer

    def arguments(self, name):
        return [prompt[name] for prompt in self.prompts]
