"""The simplekv store in front of object stores: its methods, its travels, its needs."""

import copy
import io
import multiprocessing
import os
import pickle
import urllib.request

import pytest
from simplekv import KeyValueStore

from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.store.object_store import ObjectStore
from kartothek_cube.core.store.resolve import ensure_store, lazy_store
from tests.support.object_server import running
from tests.support.paths import run_python
from tests.support.servers import azure_url, s3_url

# Python 3.12 and later warn of what is tested here
forks = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


AZURE = pytest.param("azure", marks=pytest.mark.slow("starts Azurite"))


@pytest.fixture(scope="module", params=["s3", AZURE, "gs"])
def url(request):
    if request.param != "gs":
        yield {"s3": s3_url, "azure": azure_url}[request.param]()
        return
    with running() as server:
        yield server.url("gs")


@pytest.fixture
def store(url):
    store = ensure_store(url)
    yield store
    for key in store.keys():
        store.delete(key)


def test_methods_and_missing_keys(store, tmp_path):
    assert isinstance(store, KeyValueStore)
    assert store.put("d/f", b"123") == "d/f"
    assert store.get("d/f") == store.open("d/f").read() == b"123"
    assert "d/f" in store
    assert "d/g" not in store
    store.put("e", b"")
    assert store.keys() == list(store) == list(store.iter_keys()) == ["d/f", "e"]
    assert store.keys("d") == ["d/f"]
    assert list(store.iter_prefixes("/")) == ["d/", "e"]
    assert list(store.iter_prefixes("f", "d/")) == ["d/f"]
    store.delete("e")
    store.delete("e")
    assert store.keys() == ["d/f"]
    for read in (store.get, store.open, lambda key: store.get_file(key, str(tmp_path / "f"))):
        with pytest.raises(KeyError, match="missing"):
            read("missing")
    assert not (tmp_path / "f").exists()


def test_files(store, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 100_000)
    store.put_file("a", str(source))
    store.put_file("b", io.BytesIO(b"y" * 100_000))
    store.get_file("a", str(target))
    assert target.read_bytes() == source.read_bytes()
    buffer = io.BytesIO()
    store.get_file("b", buffer)
    assert buffer.getvalue() == b"y" * 100_000


def test_large_file_in_parts():
    store = ensure_store(s3_url())
    data = os.urandom(1 << 20) * 40
    store.put("f", data)
    assert store.get("f") == data


@pytest.mark.parametrize("key", ["", "/a", "a/../b", "ä", None])
def test_illegal_key(store, key):
    with pytest.raises(ValueError, match="illegal key"):
        store.get(key)


def test_signed_url(monkeypatch):
    store = ensure_store(s3_url())
    store.put("d/f", b"1")
    url = store.url_for("d/f")
    assert "secret_of_tests" not in url
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"1"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_duplicates(store, duplicate):
    store.put("f", b"1")
    other = duplicate(store)
    assert other == store
    assert hash(other) == hash(store)
    assert other.get("f") == b"1"
    assert lazy_store(store)() == store


def test_clients_are_shared_unless_credentials_differ(url, monkeypatch):
    first, second = ensure_store(url), ensure_store(url)
    assert first is not second
    assert first.blobs.connect() is second.blobs.connect()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    clients = set()
    for secret in ("one", "two"):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        clients.add(id(ensure_store("s3://b").blobs.connect()))
    assert len(clients) == 2


def read(store: ObjectStore) -> bytes:
    return store.get("f")


@forks
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(store, method):
    store.put("f", b"1")
    with multiprocessing.get_context(method).Pool(2 if method == "fork" else 1) as pool:
        assert pool.map(read, [store] * 4) == [b"1"] * 4
    assert store.get("f") == b"1"


@forks
def test_fork_of_a_fork(store):
    store.put("f", b"1")
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        # no pool here: its workers must not have children
        good = store.get("f") == b"1"
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if store.get("f") == b"1" else 1)
        os._exit(0 if good and os.waitpid(grandchild, 0)[1] == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_forked_process_ends():
    """Nothing waits at its exit for threads that stayed behind."""
    program = """
import os, sys
from kartothek_cube.core.store.resolve import ensure_store
store = ensure_store(sys.argv[1])
store.put("f", b"1")
if os.fork() == 0:
    sys.exit(0 if store.get("f") == b"1" else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    run_python(program, s3_url(), timeout=60)


@pytest.mark.parametrize("kind, extra", [("s3", "s3"), ("gs", "gcs"), ("az", "azure"), ("abfss", "azure")])
def test_without_obstore(kind, extra):
    program = f"""
import sys
sys.modules["obstore"] = None
from kartothek_cube.core.store.resolve import ensure_store, lazy_store
factory = lazy_store("{kind}://bucket")
try:
    factory()
except ModuleNotFoundError as error:
    sys.exit(0 if "pip install 'kartothek_cube[{extra}]'" in str(error) else str(error))
sys.exit("no error")
"""
    run_python(program)


def test_obstore_is_imported_when_it_is_needed():
    program = "import sys, kartothek_cube.io.eager_cube; sys.exit('obstore' in sys.modules)"
    run_python(program)


def test_standard_environment(monkeypatch):
    url = s3_url()
    bucket, _, query = url.partition("?")
    options = dict(part.split("=", 1) for part in query.split("&"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    open_blobs(bucket).put_if("f", b"1", None)
    assert ensure_store(url).get("f") == b"1"
