"""The contract of stores: the documented example passes; a store that breaks the contract fails."""

import doctest
import re
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

from kartothek_cube.api.cube import C, Cube, append_to_cube, build_cube, cleanup_cube, delete_cube, query_cube
from kartothek_cube.core.store import open_blobs, register_scheme
from kartothek_cube.testing import CompareAndSwapContract
from tests.support.paths import ROOT

#: what the examples of docs/stores.rst define
EXAMPLES: dict[str, Any] = {"__name__": __name__}
for example in doctest.DocTestParser().get_examples((ROOT / "docs/stores.rst").read_text()):
    if re.match(r"import |from .* import |class ", example.source):
        exec(example.source, EXAMPLES)  # noqa: S102 (our own documentation)


class TestExample(EXAMPLES["TestMyStore"]):
    """The test in docs/stores.rst."""


class TestMemoryStore(CompareAndSwapContract):
    """The store in docs/stores.rst, which is none of simplekv."""

    driver = EXAMPLES["MemoryStore"]

    @pytest.fixture
    def store(self):
        return self.driver()

    def test_cube(self, store):
        cube = Cube(["p"], uuid_prefix="cube", partition_columns=["k"])
        frame = pd.DataFrame({"p": [1, 2], "k": ["a", "b"], "v": [0.5, 1.5]})
        build_cube(frame, cube, lambda: store)
        append_to_cube(frame.assign(p=[3, 4]), cube, lambda: store)
        result = query_cube(cube, lambda: store, conditions=C("p") > 2)[0]
        assert result.set_index("p")["v"].to_dict() == {3: 0.5, 4: 1.5}
        delete_cube(cube, lambda: store)
        cleanup_cube(cube, lambda: store)
        assert store.list("") == []

    def test_url(self, store):
        register_scheme("mymemory", opener=lambda url: store)
        assert open_blobs("mymemory://x") is store


MODULE = """
import pytest
from simplekv.contrib import ExtendedKeyspaceMixin
from simplekv.memory import DictStore

from kartothek_cube.testing import CompareAndSwapContract


class ForgetfulStore(ExtendedKeyspaceMixin, DictStore):
    def _put(self, key, data):
        return super()._put(key, data[:2])


class TestForgetful(CompareAndSwapContract):
    @pytest.fixture
    def store(self):
        return ForgetfulStore()
"""


@pytest.mark.slow("runs pytest in another process")
def test_a_store_that_breaks_the_contract(tmp_path):
    (tmp_path / "test_forgetful.py").write_text(MODULE)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "-k", "test_put or test_list_dir"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "TestForgetful::test_put[f-small-False]" in output
    assert "assert b'ne' == b'new'" in output
    assert "TestForgetful::test_list_dir" not in output
