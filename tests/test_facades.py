"""The derived façades are those that ``tools/make_facades.py`` writes, which follow the eager ones."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("ruff")


@pytest.fixture(scope="module")
def make_facades():
    spec = importlib.util.spec_from_file_location("make_facades", ROOT / "tools" / "make_facades.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def io(make_facades, monkeypatch, tmp_path):
    """The directory ``io`` of a copy of the library, on which the script works."""
    shutil.copytree(
        ROOT / "kartothek_cube", tmp_path / "kartothek_cube", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(make_facades, "ROOT", tmp_path)
    return tmp_path / "kartothek_cube" / "io"


def replace(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_facades_are_current(make_facades, capsys):
    assert make_facades.main(["--check"]) == 0, capsys.readouterr().out


def test_a_change_of_an_eager_function_changes_the_derived_ones(make_facades, io, capsys):
    path = io / "dask" / "bag_cube.py"
    before = path.read_text(encoding="utf-8")
    replace(io / "eager_cube.py", "min_files: int = 2", "min_files: int = 3")
    assert make_facades.main(["--check"]) == 1
    assert "bag_cube.py is not current" in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == before
    assert make_facades.main([]) == 0
    assert path.read_text(encoding="utf-8") == before.replace("min_files: int = 2", "min_files: int = 3")


def test_a_new_operation_is_an_eager_function_and_a_row(make_facades, io, monkeypatch, tmp_path):
    signature = "count_rows(cube: Cube, store: StoreInput, datasets: DatasetsInput = None) -> dict[str, int]"
    with (io / "eager_cube.py").open("a", encoding="utf-8") as file:
        file.write(f'\n\ndef {signature}:\n    """Count rows. Hidden ones are included."""\n')
    table = make_facades.TABLE.read_text(encoding="utf-8")
    row = (
        '[[operation]]\neager = "count_rows"\nkind = "answer"\nplan = "collect_stats_job"\n'
        'note = "It is fast."\n\n'
    )
    marker = "# -- what façades have in common"
    (tmp_path / "facades.toml").write_text(table.replace(marker, row + marker), encoding="utf-8")
    monkeypatch.setattr(make_facades, "TABLE", tmp_path / "facades.toml")
    assert make_facades.main([]) == 0
    bag = (io / "dask" / "bag_cube.py").read_text(encoding="utf-8")
    assert bag.endswith(
        '''
def count_rows_bag(cube: Cube, store: StoreFactoryInput, datasets: DatasetsInput = None) -> Bag:
    """
    Count rows.

    See :func:`kartothek_cube.io.eager_cube.count_rows`. ``store`` is a factory, a directory or a URL. The
    only element of the bag is its result. It is fast.
    """
    store = as_factory(store)
    return answer_as_bag(collect_stats_job(cube, store, datasets))
'''
    )
    for module, name in (
        ("iter_cube", "count_rows__iter"),
        ("dask/bag_cube", "count_rows_bag"),
        ("dask/delayed_cube", "count_rows_delayed"),
        ("dask/dataframe_cube", "count_rows_dataframe"),
        ("spark/cube", "count_rows_spark"),
    ):
        text = (io / f"{module}.py").read_text(encoding="utf-8")
        assert f'    "{name}",\n' in text
        assert f"def {name}(" in text
        names = (io.parent / "api" / "_lazy_facades.py").read_text(encoding="utf-8")
        assert (f'"{name}",\n' in names) == (module != "iter_cube")


def test_a_changed_function_below_the_marker_is_restored(make_facades, io):
    path = io / "iter.py"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("overwrite: bool = False", "overwrite: bool = True"), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    assert make_facades.main([]) == 0
    assert path.read_text(encoding="utf-8") == before


def test_a_new_parameter_that_no_call_has_is_an_error(make_facades, io, capsys):
    before = {path: path.read_bytes() for path in io.rglob("*.py")}
    replace(io / "eager_cube.py", "min_files: int = 2", "min_files: int = 2,\n    max_files: int = 9")
    assert make_facades.main([]) == 1
    assert (
        capsys.readouterr().out == "facades.toml: compact_cube__iter: no call has the parameters max_files\n"
    )
    assert [path.name for path, text in before.items() if path.read_bytes() != text] == ["eager_cube.py"]


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('plan = "verify_cube_job"', 'plan = "check_cube_job"', "unknown function check_cube_job"),
        ('eager = "verify_cube"', 'eager = "check_cube"', "unknown verify_cube"),
        ('eager = "delete_dataset"', 'eager = "drop_dataset"', "delayed: unknown drop_dataset"),
        ('eager = "read_table"', 'eager = "read_table"\ntype = "1"', "read_table_arrow: unknown type"),
        ('data = "Bag"', 'dtaa = "Bag"', "io.dask.bag_cube: unknown dtaa"),
        ('verify_cube = "One task', 'verify_cubes = "One task', "io.iter_cube: unknown verify_cubes"),
        ("is_graph = false", "is_grph = false", "unknown is_grph"),
        ('"cube store blocksize', '"cube store blocksiz', "delete_cube_bag: unknown parameter blocksiz"),
        ("One task runs at a time.", "A sentence of some length. " * 40, "the docstring has"),
        ("_execute_in_order({})", "_execute_in_order({}(x=1))", "compact_cube_job has no parameters x"),
        ('"_write(plan_store)"', '"_write(1)"', "no call: 1"),
        (
            '"_write(plan_store)"',
            '"_write(plan_store"',
            "store_dataframes_as_dataset__iter: no call: _write(plan",
        ),
        ("{planned}", "{plannd}", "query_cube_bag: unknown plannd"),
        ('kind = "query"\n', "", "'kind' is missing"),
        ('inherits = ["dask_dataset"]', 'inherits = ["dusk_dataset"]', "'dusk_dataset' is missing"),
    ],
)
def test_a_mistake_in_the_table_is_one_sentence(
    make_facades, monkeypatch, tmp_path, capsys, old, new, message
):
    table = make_facades.TABLE.read_text(encoding="utf-8")
    assert old in table
    (tmp_path / "facades.toml").write_text(table.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(make_facades, "TABLE", tmp_path / "facades.toml")
    assert make_facades.main(["--check"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert message in line
