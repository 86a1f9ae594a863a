"""The contract of stores: the documented example passes; a store that breaks the contract fails."""

from __future__ import annotations

import subprocess
import sys

import pytest
from simplekv.decorator import PrefixDecorator

from kartothek_cube.core.utils import ensure_store
from kartothek_cube.testing import StoreContract
from tests.support.paths import ROOT


class TestExample(StoreContract):
    """The example of docs/stores.rst."""

    @pytest.fixture
    def store(self, tmp_path):
        return PrefixDecorator("prefix/", ensure_store(f"hfs://{tmp_path}"))


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


def test_a_store_that_breaks_the_contract(tmp_path):
    (tmp_path / "test_forgetful.py").write_text(MODULE)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "-k", "test_put or test_list_dir"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "TestForgetful::test_put[f-small-False]" in output
    assert "assert b'ne' == b'new'" in output
    assert "TestForgetful::test_list_dir" not in output
