"""The notebook of the examples runs from top to bottom, and its objects are shown as tables."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow("starts a kernel of Jupyter")

for _package in ("nbclient", "nbformat", "ipykernel"):
    pytest.importorskip(_package)

# a process of its own, as the Jupyter client leaves sockets and event loops open
_RUN = """
import sys, nbclient, nbformat
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

# this interpreter, whatever kernels are registered on the machine
manager = KernelManager(kernel_name="python3")
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager._kernel_spec = KernelSpec(argv=command, language="python", display_name="tests")
notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
nbclient.NotebookClient(notebook, timeout=300, km=manager).execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    source, result = ROOT / "examples" / "cube.ipynb", tmp_path / "executed.ipynb"
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", _RUN, str(source), str(result)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    cells = json.loads(result.read_text(encoding="utf-8"))["cells"]
    streams = [o["text"] for cell in cells for o in cell.get("outputs", ()) if "text" in o]
    assert streams == []  # no warnings
    shown = [(cell, o["data"]) for cell in cells for o in cell.get("outputs", ()) if "data" in o]
    views = {"".join(cell["source"]): "".join(data.get("text/html", "")) for cell, data in shown}
    assert "weather" in views["cube"]
    tables = [
        "cube",
        "cube.stats()",
        "cube.compact()",
        "cube.history()",
        'cube.query(cube["COUNTRY"] == "IT")',
    ]
    tables.append("report = cube.verify()\nassert report.ok\nreport")
    assert [source for source in tables if "<table" not in views[source]] == []
