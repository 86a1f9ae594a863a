"""What users may pass as a store, and which driver it gets."""

import os
import pickle
from pathlib import Path

import pytest
from simplekv.decorator import ReadOnlyDecorator
from simplekv.memory import DictStore
from storefact import get_store_from_url

from kartothek_cube.core.store import PreconditionFailed, open_blobs, register_driver, resolve
from kartothek_cube.core.store.local import LocalBlobStore
from tests.support.stores import MinimalIterStore, MinimalStore, WrapperStore


def test_a_directory_that_somebody_else_creates_at_the_same_time(tmp_path, monkeypatch):
    makedirs = os.makedirs

    def late(path, *args, **kwargs):
        if path == f"{tmp_path}/new":
            makedirs(path)
        makedirs(path, *args, **kwargs)

    monkeypatch.setattr(os, "makedirs", late)
    open_blobs(f"hfs://{tmp_path}/new?create_if_missing=true").put("d/f", b"1")
    assert (tmp_path / "new/d/f").read_bytes() == b"1"


def test_new_scheme_and_driver(monkeypatch):
    class Cloud(WrapperStore):
        pass

    class CloudBlobs(resolve.GenericBlobStore):
        pass

    monkeypatch.setattr(resolve, "_REGISTRY", dict(resolve._REGISTRY))
    monkeypatch.setattr(resolve, "_DRIVERS", list(resolve._DRIVERS))
    resolve.register_scheme("cloud", "s3", opener=lambda url: Cloud(DictStore({"url": url.encode()})))
    register_driver(lambda store: isinstance(store, Cloud), CloudBlobs)
    assert type(open_blobs("cloud://bucket")) is CloudBlobs
    assert open_blobs("s3://bucket").get("url") == b"s3://bucket"
    assert type(open_blobs("hmemory://")) is resolve.GenericBlobStore
    with pytest.raises(ValueError, match="cloud://"):
        open_blobs("nothing://")


def test_decorated_directory_is_generic(tmp_path):
    assert type(open_blobs(f"hfs://{tmp_path}")) is LocalBlobStore
    assert type(open_blobs(f"hfs://{tmp_path}#wrap:readonly")) is resolve.GenericBlobStore


def test_failure_survives_pickle():
    error = pickle.loads(pickle.dumps(PreconditionFailed("f")))
    assert error.key == "f"
    assert "'f' was" in str(error)


@pytest.mark.parametrize("kind", [MinimalStore, MinimalIterStore, lambda: ReadOnlyDecorator(DictStore())])
def test_stores_stay_as_they_are(kind):
    store = kind()
    assert resolve.ensure_store(store) is store
    assert resolve.ensure_store(lambda: store) is store
    assert resolve.lazy_store(store)() is store
    assert open_blobs(store).store is store
    assert open_blobs(lambda: store).store is store


@pytest.mark.parametrize("kind", [DictStore, MinimalStore])
def test_class_is_a_factory(kind):
    assert isinstance(resolve.ensure_store(kind), kind)


@pytest.mark.parametrize("result", [None, 3, "hmemory://", DictStore])
def test_factory_of_something_else(result):
    with pytest.raises(TypeError, match=type(result).__name__):
        resolve.ensure_store(lambda: result)


@pytest.mark.parametrize("url", ["hmemory://", "memory://", "HFS:///data?create_if_missing=false"])
def test_lazy_store_of_url(url):
    factory = resolve.lazy_store(url)
    assert pickle.loads(pickle.dumps(factory)) == factory == resolve.lazy_store(url)


def test_only_a_write_creates_the_directory(tmp_path):
    store = resolve.lazy_store(f"hfs://{tmp_path}/new")()
    blobs = open_blobs(store)
    assert blobs.list("") == []
    assert not blobs.exists("d/f")
    assert blobs.missing_directory == f"{tmp_path}/new"
    assert not (tmp_path / "new").exists()
    blobs.put("d/f", b"1")
    assert blobs.missing_directory is None
    assert store.get("d/f") == b"1"


def test_a_directory_that_must_exist(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path}/new does not exist, and create_if_missing=false"):
        resolve.ensure_store(f"hfs://{tmp_path}/new?create_if_missing=false")
    resolve.ensure_store(f"hfs://{tmp_path}?create_if_missing=false").put("f", b"1")


@pytest.mark.parametrize(
    "given",
    [
        *(Path, str, "file://{}".format, "file:{}".format, "file://localhost{}".format),
        *("{}/../a b".format, lambda path: path.name),
    ],
    ids=["Path", "absolute", "file", "one slash", "localhost", "parts", "name"],
)
@pytest.mark.parametrize("convert", [resolve.ensure_store, resolve.lazy_store, open_blobs])
def test_directory(convert, given, tmp_path, monkeypatch):
    directory = tmp_path / "a b"
    directory.mkdir()
    monkeypatch.chdir(tmp_path)
    opened = convert(given(directory))
    monkeypatch.chdir("/")
    store = opened() if convert is resolve.lazy_store else opened
    store.put("f", b"1")
    assert (directory / "f").read_bytes() == b"1"


@pytest.mark.parametrize("kind", [str, Path])
def test_home_directory(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("HOME", str(tmp_path))
    resolve.ensure_store(kind("~/cubes")).put("f", b"1")
    assert (tmp_path / "cubes/f").read_bytes() == b"1"


def test_options_of_a_file_url(tmp_path):
    assert not resolve.ensure_store(f"file://{tmp_path}?durable=false").durable


def test_lazy_store_of_stores_and_factories():
    store = get_store_from_url("hmemory://")
    store.put("d/f", b"1")
    factory = resolve.lazy_store(store)
    assert factory() is factory() is store
    assert pickle.loads(pickle.dumps(factory))().get("d/f") == b"1"

    def factory():
        raise RuntimeError("must not be called")

    assert resolve.lazy_store(factory) is factory
    assert resolve.lazy_store(DictStore) is DictStore


@pytest.mark.parametrize("error", [TypeError, AttributeError, pickle.PicklingError, RuntimeError, ValueError])
def test_lazy_store_of_store_that_does_not_pickle(error):
    class Unpicklable(WrapperStore):
        def __reduce__(self):
            raise error("a lock")

    store = Unpicklable(DictStore())
    assert resolve.ensure_store(store) is store
    with pytest.raises(TypeError, match="Unpicklable cannot be pickled") as caught:
        resolve.lazy_store(store)
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("candidate", [None, 3, object(), {}, b"hmemory://"])
@pytest.mark.parametrize("convert", [resolve.ensure_store, resolve.lazy_store, open_blobs])
def test_neither(convert, candidate):
    given = "got None" if candidate is None else f"class builtins.{type(candidate).__name__}"
    with pytest.raises(TypeError, match=given):
        convert(candidate)


CONVERTERS = [resolve.ensure_store, resolve.lazy_store, open_blobs]
SCHEMES = "known schemes: .*hfs://, hmemory://"
UNKNOWN = {name: rf"is it a directory\? ./{name}.*" for name in ("cubes", "my redis")}
UNKNOWN |= {"hmemoy://": "did you mean 'hmemory'.*"}
UNKNOWN |= dict.fromkeys(("", "hfs", "hfoo:///data", "://", "hfs:/data", "nothing://x"), "")
UNUSABLE = ("hfs://", "hfs://?create_if_missing=false", "hazure://container", "redis://host/x")
TYPO = "unknown option creat_if_missing; did you mean create_if_missing"
REFUSED = [
    *((convert, url, hint + SCHEMES) for convert in CONVERTERS for url, hint in UNKNOWN.items()),
    *((resolve.ensure_store, url, "cannot open a store at .*known schemes") for url in UNUSABLE),
    (resolve.ensure_store, "hfs:///data#wrap:odd", "cannot open a store at .*known schemes"),
    *((resolve.ensure_store, url, "expected file:///path") for url in ("file://host/data", "file://")),
    *(
        (resolve.lazy_store, f"{url}?creat_if_missing=true", TYPO)
        for url in ("hfs:///data", "hmemory://", "hazure://name:key@container", "redis://host")
    ),
]


@pytest.mark.parametrize("convert, url, problem", REFUSED)
def test_urls_of_no_store_are_refused(convert, url, problem):
    with pytest.raises(ValueError, match=problem):
        convert(url)


@pytest.mark.parametrize("url", ["hazure://n:pa/ss@w@c?k=pass", "hazzure://n:pass@c", "hazure://pass@c?pass"])
def test_passwords_are_not_shown(url):
    assert "pass" not in repr(resolve.UrlStoreFactory(url))
    assert "pa/ss" not in repr(resolve.UrlStoreFactory(url))
    if "hazzure" in url:
        with pytest.raises(ValueError, match="did you mean 'hazure'") as caught:
            resolve.lazy_store(url)
        assert "pass" not in str(caught.value)


def test_a_directory_that_another_writer_creates_meanwhile_is_no_file(tmp_path, monkeypatch):
    """Two processes build the first cube of a store at the same time."""
    path = tmp_path / "store"

    def create_afterwards(checked: str, isdir=os.path.isdir) -> bool:
        found = isdir(checked)
        path.mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(os.path, "isdir", create_afterwards)
    assert resolve.ensure_store(f"hfs://{path}").keys() == []
