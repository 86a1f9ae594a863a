"""The command group: options, errors as one line, exit codes, typos, imports."""

import os
import subprocess
import sys

import click
import pandas as pd
import pytest
from click.testing import CliRunner

from kartothek_cube.cli import cli, context
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager_cube import build_cube, remove_partitions
from tests.support.paths import ROOT, run_python
from tests.support.terminal import run_in_terminal, text_of

COMMANDS = cli.list_commands(click.Context(cli))


def run(*args, code=0, **kwargs):
    command = [sys.executable, "-W", "error", "-m", "kartothek_cube", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **kwargs)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize("args", [[], ["-h"], ["--help"]])
def test_usage(args):
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")
    assert all(f"\n  {command} " in result.output for command in COMMANDS)
    groups = ["Inspect:", "Maintain:"]
    assert [line for line in result.output.splitlines() if line in groups] == groups


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_commands_needs_neither_store_nor_cube(command):
    for arguments in (["--store", "nowhere", "cube", command, "-h"], [command, "--help"]):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0
        assert "`" not in result.output
        assert f"CUBE {command} " in result.output or (arguments[0], command) == ("ls", "ls")


def test_a_process(url):
    assert "enrich, seed" in run("--store", url, "ls").stdout


@pytest.mark.slow("starts the command")
@pytest.mark.parametrize("args", ["cube query -o csv", "cube info", "cube report -o -", "--help"])
def test_a_broken_pipe_is_quiet(url, args):
    """The reading end of the pipe is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "kartothek_cube", "--store", url, *args.split()]
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (141, "")


def test_quick_commands_show_no_progress_even_in_a_terminal(url):
    stdout, stderr = run_in_terminal("--store", url, "cube", "stats", "--json", terminal="stderr")
    assert (text_of(stderr), text_of(stdout)[:1]) == ("", "{")


def test_help_imports_neither_pandas_nor_pyarrow():
    code = (
        "import sys; from click.testing import CliRunner; from kartothek_cube.cli import cli; "
        "CliRunner().invoke(cli, ['--help']); print(*{name.partition('.')[0] for name in sys.modules})"
    )
    heavy = {"pandas", "pyarrow", "numpy", "simplekv", "yaml", "jinja2", "prompt_toolkit", "IPython", "tqdm"}
    assert heavy & set(run_python(code).stdout.split()) == set()


def test_without_click():
    code = "import sys; sys.modules['click'] = None; from kartothek_cube.cli import cli"
    done = run_python(code, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: the command line needs click: pip install 'kartothek_cube[cli]'\n"


@pytest.mark.parametrize(
    "args, code",
    [(["query", "-o", "csv"], 0), (["query"], 0), (["delete"], context.ABORTED), (["inof"], context.USAGE)],
)
def test_streams_that_the_caller_has_closed_are_empty(url, monkeypatch, args, code):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as end:
        cli.main(["--store", url, "cube", *args])
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    assert end.value.code == code


@pytest.mark.parametrize(
    "args, expected",
    [
        (["cube", "inof"], "unknown command inof; did you mean info?"),
        (["info", "cube"], "kartothek_cube cube info"),
        (["cube"], "Missing command"),
        (["info"], "kartothek_cube CUBE info"),
        (["info", "--json"], "kartothek_cube CUBE info"),
        (["cube", "compact", "-w", "v1 > 1"], "partition columns (p), but got conditions on: v1"),
        (["cubee", "info"], "did you mean cube?"),
        (["cube", "stats", "--jsno"], "--json"),
        (["--colour", "off", "cube", "stats"], "--color"),
        (["cube", "stats", "--include", "sed"], "unknown dataset sed; did you mean seed?"),
        (["cube", "stats", "--exclude", "z*"], "unknown dataset z*; available: enrich, seed"),
        (["cube", "index", "sed", "v1"], "unknown dataset sed; did you mean seed?"),
        (["cube", "index", "seed", "vv1"], "unknown column vv1; did you mean v1?"),
        (["cube", "query", "--where", "v > 1"], "unknown column v"),
        (["cube", "query", "--columns", "v3"], "unknown column v3"),
        (["cube", "query", "--output", "cvs"], "csv"),
        (["cube", "query", "-o", "table.parquet"], "A file is named by --to"),
        *((["-j", number, "cube", "info"], number) for number in ("-1", str(2**31))),
    ],
)
def test_typos(call, args, expected):
    result = call(*args)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert expected in line


def test_unknown_stores_are_named_without_secrets(error, skv):
    assert "did you mean other?" in error("cube", "info", store="othre")
    assert skv in error("cube", "info", store="othre")
    assert "unknown scheme" in error("cube", "info", store="hsf:///data")
    assert f"{skv} is a file; a store is a directory" in error("cube", "info", store=skv)
    assert "s3cret" not in error("cube", "info", store="hfss://name:s3cret@host/path?key=s3cret")


def test_a_missing_directory_is_not_created(error, tmp_path):
    assert f"{tmp_path}/nowhere" in error("cube", "info", store=f"hfs://{tmp_path}/nowhere")
    assert not (tmp_path / "nowhere").exists()
    more = tmp_path / "more.yml"
    more.write_text(f"other:\n  type: hfile\n  path: {tmp_path}/other\n  create_if_missing: true\n")
    for options in ([], ["--skv", str(more)]):
        assert "no directory" in error("cube", "info", *options, store="other")
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("content", ["dataset: [", "- a\n- b\n", "dataset:\n  path: x\n", "data: 17\n", "\0"])
def test_bad_yaml(tmp_path, content):
    path = tmp_path / "bad.yml"
    path.write_text(content)
    result = CliRunner().invoke(cli, ["--skv", str(path), "cube", "info"])
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, str(path) in line) == (2, True)


def test_missing_yaml(tmp_path):
    result = CliRunner().invoke(cli, ["--skv", f"{tmp_path}/nowhere.yml", "cube", "info"])
    assert result.exit_code == 2
    assert "pass a directory (/data, ./dataset), a URL (s3://bucket)" in result.stderr


def test_store_by_url_and_by_environment(url, skv, ok):
    assert "cube" in ok("ls", store=url)
    assert "cube" in ok("ls", store="by_url")
    result = CliRunner().invoke(cli, ["ls"], env={"KARTOTHEK_CUBE_STORE": url})
    assert result.stdout == "cube  enrich, seed\n"


@pytest.mark.parametrize("color, coloured", [("always", True), ("off", False), ("auto", False)])
def test_color(ok, color, coloured):
    assert ("\x1b[" in ok("--color", color, "cube", "info")) is coloured


def test_an_error_of_the_program(call, monkeypatch):
    monkeypatch.setattr("kartothek_cube.core.cube.discover.list_cubes", lambda store: 1 // 0)
    result = call("ls")
    assert result.exit_code == 4
    assert result.stderr.startswith("Error: ZeroDivisionError")
    assert isinstance(call("--debug", "ls").exception, ZeroDivisionError)


def test_threads_are_put_back(ok):
    import pyarrow as pa

    from kartothek_cube.io_components.runtime import available_cores

    before = pa.cpu_count(), available_cores()
    assert "seed" in ok("-j", "1", "cube", "stats")
    assert (pa.cpu_count(), available_cores()) == before


def test_a_corrupt_header(call, tmp_path):
    (tmp_path / "store" / "cube++seed.by-dataset-metadata.json").write_text("{")
    result = call("cube", "info")
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, "cube++seed" in line) == (2, True)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("kartothek_cube --store URL ", "cube"),
        ("kartothek_cube --store URL cube inf", "info"),
        ("kartothek_cube --store URL cube query --wh", "--where"),
        ("kartothek_cube --store URL cube query --columns v1,v", "v1,v2"),
        ("kartothek_cube --store URL cube stats --include s", "seed"),
    ],
)
def test_completion(url, words, expected):
    env = {"_KARTOTHEK_CUBE_COMPLETE": "bash_complete", "COMP_WORDS": words.replace("URL", url)}
    env["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    result = CliRunner().invoke(cli, [], env=env, prog_name="kartothek_cube")
    assert expected in [line.partition(",")[2] for line in result.output.splitlines()]


@pytest.mark.parametrize("args", [["cube", "--help"], ["cube", "-h"], ["cube", "--store", "no", "--help"]])
def test_help_behind_the_cube(args):
    result = CliRunner().invoke(cli, args)
    assert (result.exit_code, result.output[:7]) == (0, "Usage: ")
    assert "\n  verify " in result.output


@pytest.mark.parametrize(
    "args",
    [
        "cube stats --json --store URL",
        "cube --store URL stats --json",
        "cube stats --skv SKV --json",
        "cube -j 1 stats --store=URL --color off --json --debug",
        "ls --json --store URL",
        "--store nowhere cube stats --json --store URL",
    ],
)
def test_global_options_behind_the_command(args, url, skv):
    result = CliRunner().invoke(cli, args.replace("URL", url).replace("SKV", skv).split())
    assert result.exit_code == 0, result.output
    assert '"seed"' in result.stdout


def test_help_shows_options_and_defaults(error):
    text = CliRunner().invoke(cli, ["cube", "query", "--help"]).output
    own, _, others = text.partition("Global options:")
    assert "--where" in own
    assert "\n  x IN (1, 2), NOT IN            one of the values" in own
    assert "--store" in others
    assert "--store" not in own
    assert "--store" in error("cube", "query", "--where", "--store")
    text = " ".join(CliRunner().invoke(cli, ["cube", "copy", "--help"]).output.split())
    assert "[default: no-overwrite]" in text and "[default: cleanup]" in text


@pytest.mark.parametrize(
    "store", ["{}/store", "file://{}/store", "file://localhost{}/store", "./store", "store", "store/"]
)
def test_directories_as_stores(ok, tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    assert ok("ls", store=store.format(tmp_path)) == "cube  enrich, seed\n"


def test_directories_with_special_characters(ok, tmp_path):
    target = tmp_path / "a b?c#d%20é"
    ok("cube", "copy", "--tgt-store", str(target))
    assert (target / "cube++seed.by-dataset-metadata.json").exists()
    assert ok("ls", store=str(target)) == "cube  enrich, seed\n"
    assert ok("ls", store=target.as_uri()) == "cube  enrich, seed\n"


def test_configured_names_win_over_directories(error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "by_url").mkdir()
    assert "Cube nope not found" in error("nope", "info", store="by_url")
    assert "available: cube" in error("nope", "info", store="by_url")


@pytest.mark.parametrize(
    "store", ["{}/nowhere", "file://{}/nowhere", "./nowhere", "file://host/d", "file://"]
)
def test_missing_directories(error, tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    assert "Could not open store" in error("cube", "info", store=store.format(tmp_path))
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_cube(ok, call, tmp_path):
    """All commands work after all partitions were removed."""
    cube = Cube(["x"], ["p"], "empty", index_columns=["v"])
    store = f"hfs://{tmp_path}/store"
    build_cube(pd.DataFrame({"x": [1], "p": ["a"], "v": [0.5]}), cube, store)
    remove_partitions(cube, store, "all")
    assert "  - v: double" in ok("empty", "info")
    assert "files:  0" in ok("empty", "stats")
    for options in (["-o", "csv"], ["-o", "csv", "-w", "v > 1"]):
        assert ok("empty", "query", *options) == '"p","v","x"\n'
    assert "seed" in ok("empty", "query", "--explain")
    assert "no problems" in ok("empty", "verify", "--quick")
    assert ok("empty", "compact") == "seed: nothing to do\n"
    for command in (["report", "-o", "-"], ["history"], ["cleanup", "--dry-run"], ["index", "seed", "x"]):
        ok("empty", *command)


@pytest.mark.parametrize(
    "args, code",
    [
        ("info", 0),
        ("info --json", 0),
        ("query --explain", 0),
        ("query --columns typo", 2),
        ("query --where typo=1", 2),
        ("index seed v*", 0),
        ("sql|explain select * from odd", 0),
        ("verify", 3),
        ("verify --json", 3),
        ("delete --include \x07\u202e", 2),
    ],
)
def test_names_in_foreign_files_do_not_steer_the_terminal(call, url, args, code):
    """A bell, an escape sequence of one character, a line end, and a mark of direction."""
    odd = "\x07\x9b31m\u202e\n"
    seed = pd.DataFrame({"x": [1], "p": odd, "v" + odd: 1.0})
    build_cube({"seed": seed}, Cube(["x"], ["p"], "odd"), url, metadata={"seed": {odd: odd}})
    if args.startswith("verify"):
        store = open_blobs(url)
        store.delete([next(blob.key for blob in store.list("odd++seed/table/p="))])
    name, _, statement = args.partition("|")
    result = call("odd", *name.split(" "), *filter(None, [statement]))
    assert result.exit_code == code, result.output
    assert [line for line in result.output.split("\n") if not line.isprintable()] == []
