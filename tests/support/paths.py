"""Directories and scripts of the repository."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: datasets and cubes of other libraries and versions, never changed
DATA = ROOT / "tests" / "data"


def load_script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    # dataclasses look for their module
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_python(
    code: str, *arguments: str, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter, in the directory of the repository."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=check, capture_output=True, text=True, cwd=ROOT, **options)


def files_below(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
