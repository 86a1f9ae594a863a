"""The contract of stores: the documented example passes; a store that breaks the contract fails."""

import itertools
import subprocess
import sys
import threading

import attrs
import pandas as pd
import pytest
from simplekv.decorator import PrefixDecorator

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.store import (
    Blob,
    BlobStore,
    PreconditionFailed,
    check_key,
    check_keys,
    check_prefix,
    open_blobs,
    register_scheme,
)
from kartothek_cube.core.utils import ensure_store
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, cleanup_cube, delete_cube, query_cube
from kartothek_cube.testing import CompareAndSwapContract, StoreContract
from tests.support.paths import ROOT


class TestExample(StoreContract):
    """The example of docs/stores.rst."""

    @pytest.fixture
    def store(self, tmp_path):
        return PrefixDecorator("prefix/", ensure_store(f"hfs://{tmp_path}"))


@attrs.frozen
class MemoryStore(BlobStore):
    """That of docs/stores.rst, with the methods that a store must have."""

    blobs: dict = attrs.field(factory=dict)
    lock: threading.RLock = attrs.field(factory=threading.RLock)
    versions: itertools.count = attrs.field(factory=itertools.count)

    def get_with_token(self, key):
        return self.blobs[check_key(key)]

    def size(self, key):
        return len(self.get(key))

    def put(self, key, data, *, durable=False):
        self.blobs[check_key(key)] = bytes(data), next(self.versions)

    def put_if(self, key, data, token):
        with self.lock:
            if self.blobs.get(check_key(key), (b"", None))[1] != token:
                raise PreconditionFailed(key)
            self.put(key, data)
            return self.blobs[key][1]

    def delete_if(self, key, token):
        with self.lock:
            if self.blobs.get(check_key(key), (b"", None))[1] != token or token is None:
                raise PreconditionFailed(key)
            del self.blobs[key]

    def delete(self, keys):
        with self.lock:
            for key in check_keys(keys):
                self.blobs.pop(key, None)

    def list(self, prefix):
        check_prefix(prefix)
        return [Blob(key) for key in sorted(self.blobs.copy()) if key.startswith(prefix)]


class TestMemoryStore(CompareAndSwapContract):
    """A store of its author, without simplekv."""

    driver = MemoryStore

    @pytest.fixture
    def store(self):
        return MemoryStore()

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
