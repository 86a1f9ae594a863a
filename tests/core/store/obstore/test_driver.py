"""The driver for object stores, on servers over HTTP: moto, Azurite, and a small one that misbehaves."""

from dataclasses import replace

import pytest

from kartothek_cube.core.store import NoCompareAndSwapWarning, PreconditionFailed, open_blobs
from kartothek_cube.core.store.blob_store import _WARNED
from kartothek_cube.core.store.object_store import ObjectBlobStore, ObjectStoreError
from kartothek_cube.core.store.resolve import ensure_store
from kartothek_cube.testing import CompareAndSwapContract
from tests.support.object_server import ObjectServer, Stored, running
from tests.support.servers import azure_url, s3_url

AZURE = pytest.param(azure_url, marks=pytest.mark.slow("starts Azurite"))


def prefixed() -> str:
    url = s3_url()
    ensure_store(url).put("other", b"not ours")
    return url.replace("?", "/some%20where/deep?", 1)


class TestContract(CompareAndSwapContract):
    """No registry has an emulator of the protocol of Google that the library speaks: our own server does.

    Its S3 behaves like moto, as the tests below need it.
    """

    driver = ObjectBlobStore
    lists_details = True

    @pytest.fixture(params=[s3_url, prefixed, AZURE, "gs", "s3"])
    def store(self, request):
        if callable(request.param):
            yield ensure_store(request.param())
            return
        with running(page=3) as server:
            yield ensure_store(server.url(request.param))


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture(params=["s3", "gs"])
def blobs(server, request):
    blobs = open_blobs(server.url(request.param))
    assert blobs.can_swap
    return blobs


@pytest.mark.parametrize("fault", ["refuse", "lose answer", "fail after"])
@pytest.mark.parametrize("times", [1, 2])
def test_conditional_write_is_repeated(server, blobs, fault, times):
    server.fail("PUT", "f", fault, times)
    first = blobs.put_if("f", b"1", None)
    server.fail("PUT", "f", fault, times)
    second = blobs.put_if("f", b"2", first)
    assert not server.faults
    assert blobs.get_with_token("f") == (b"2", second)


@pytest.mark.parametrize("fault", ["lose answer", "fail after"])
def test_conditional_write_whose_answers_are_all_lost(server, blobs, fault):
    server.fail("PUT", "f", fault, 4)
    token = blobs.put_if("f", b"1", None)
    assert blobs.get_with_token("f") == (b"1", token)


def test_conditional_writes_that_do_not_happen(server, blobs):
    server.fail("PUT", "f", "refuse", 4)
    with pytest.raises(ObjectStoreError, match="503"):
        blobs.put_if("f", b"1", None)
    assert not blobs.exists("f")
    assert not server.faults
    token = blobs.put_if("f", b"1", None)
    with pytest.raises(PreconditionFailed):
        blobs.put_if("f", b"1", None)
    blobs.put_if("f", b"2", token)
    with pytest.raises(PreconditionFailed):
        blobs.put_if("f", b"2", token)


@pytest.mark.parametrize("fault", ["refuse", "cut"])
def test_reads_are_repeated(server, blobs, fault):
    blobs.put("f", b"0123456789")
    server.fail("GET", "f", fault)
    assert blobs.get("f") == b"0123456789"
    assert not server.faults


@pytest.mark.parametrize("listing, expected", [("list", 2), ("list_dir", 1)])
def test_listings_are_repeated(server, blobs, listing, expected):
    for key in ("d/f", "d/g"):
        blobs.put(key, b"1")
    server.fail("GET", "", "cut", 3)
    assert len(getattr(blobs, listing)("")) == expected
    assert not server.faults
    server.fail("GET", "", "cut", 4)
    with pytest.raises(ObjectStoreError, match="response body"):
        getattr(blobs, listing)("")


def test_read_that_fails_again_and_again(server, blobs):
    blobs.put("f", b"1")
    server.fail("GET", "f", "refuse", 4)
    with pytest.raises(ObjectStoreError, match="503") as caught:
        blobs.get("f")
    assert caught.value.__context__ is None


def test_deletion_by_condition_is_one_request(server):
    """A blob that is put between two requests of the caller is not lost."""
    blobs = open_blobs(server.url())
    token = blobs.put_if("f", b"1", None)
    blobs.delete_if("f", token)
    token = blobs.put_if("f", b"1", None)
    server.requests.clear()
    blobs.delete_if("f", token)
    assert [(r.method, r.headers.get("if-match")) for r in server.requests] == [("DELETE", token[0][1])]
    token = blobs.put_if("f", b"2", None)
    newer = blobs.put_if("f", b"3", token)
    for outdated in (token, None):
        with pytest.raises(PreconditionFailed):
            blobs.delete_if("f", outdated)
    assert blobs.get_with_token("f") == (b"3", newer)


@pytest.mark.parametrize("fault", ["refuse", "lose answer", "fail after"])
def test_deletion_by_condition_that_fails(server, fault):
    blobs = open_blobs(server.url())
    blobs.delete_if("g", blobs.put_if("g", b"1", None))
    token = blobs.put_if("f", b"1", None)
    server.fail("DELETE", "f", fault)
    with pytest.raises(ObjectStoreError):
        blobs.delete_if("f", token)
    assert blobs.exists("f") == (fault == "refuse")


@pytest.mark.parametrize("kind, conditions", [("s3", "ignore"), ("s3", "refuse"), ("gs", "obey")])
def test_deletion_where_the_server_does_not_compare(kind, conditions):
    with running(conditions=conditions) as server:
        blobs = open_blobs(server.url(kind))
        blobs.put("f", b"1")
        _, token = blobs.get_with_token("f")
        blobs.put("f", b"2")
        with pytest.raises(PreconditionFailed):
            blobs.delete_if("f", token)
        blobs.delete_if("f", blobs.get_with_token("f")[1])
        assert server.blobs == {}


@pytest.mark.parametrize("conditions", ["ignore", "refuse"])
def test_server_without_conditional_writes(conditions):
    with running(conditions=conditions) as server:
        blobs = open_blobs(server.url())
        assert not blobs.can_swap
        assert not server.blobs
        _WARNED.clear()
        with pytest.warns(NoCompareAndSwapWarning, match="cannot compare and swap"):
            token = blobs.put_if("f", b"1", None)
        # warns once only: a second warning would be an error
        with pytest.raises(PreconditionFailed):
            blobs.put_if("f", b"2", None)
        blobs.put_if("f", b"2", token)
        with pytest.raises(PreconditionFailed):
            blobs.put_if("f", b"3", token)
        assert blobs.get("f") == b"2"


def test_server_is_asked_once_whether_it_compares():
    with running() as server:
        for _ in range(3):
            blobs = open_blobs(server.url())
            assert blobs.can_swap
            blobs.put_if("f", b"1", blobs.get_with_token("f")[1] if blobs.exists("f") else None)
        assert [request.method for request in server.requests if "probe" in request.key] == ["PUT"]
        assert list(server.blobs) == ["f"]


@pytest.mark.parametrize("size, requests", [(10, 1), (64 << 10, 1), (200 << 10, 3)])
def test_file_is_opened_by_its_end(server, size, requests):
    blobs = open_blobs(server.url())
    data = bytes(range(256)) * (size // 256 + 1)
    blobs.put("f", data[:size])
    server.requests.clear()
    with blobs.open_read("f") as file:
        file.seek(-8, 2)
        assert file.read() == data[size - 8 : size]
        file.seek(5)
        assert file.read(3) == data[5:8]
        file.seek(0)
        assert file.read() == data[:size]
    assert len(server.requests) <= requests


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_file_of_a_server_that_ignores_ranges(server, kind, monkeypatch):
    def ignore_range(request):
        headers = {name: value for name, value in request.headers.items() if name != "range"}
        return ObjectServer._get(server, replace(request, headers=headers))

    monkeypatch.setattr(server, "_get", ignore_range)
    blobs = open_blobs(server.url(kind))
    data = bytes(range(256)) * 800
    blobs.put("f", data)
    with blobs.open_read("f") as file:
        file.seek(-8, 2)
        assert file.read() == data[-8:]
        file.seek(5)
        assert file.read(3) == data[5:8]


def test_listing_skips_what_comes_before(server):
    server.blobs = {f"d/f{number:04}": Stored(b"1", 1, {}) for number in range(5000)}
    assert [blob.key for blob in open_blobs(server.url()).list("d/f2222")] == ["d/f2222"]
    assert len(server.requests) == 1


def test_many_are_deleted_at_once(server):
    blobs = open_blobs(server.url())
    for number in range(30):
        blobs.put(f"f{number}", b"1")
    server.requests.clear()
    blobs.delete(f"f{number}" for number in range(30))
    assert not server.blobs
    assert len(server.requests) == 1


@pytest.mark.parametrize("missing", [[0], [29], [7, 8, 20]])
def test_missing_ones_hide_no_others(server, missing):
    blobs = open_blobs(server.url("gs"))
    for number in set(range(30)) - set(missing):
        blobs.put(f"f{number}", b"1")
    blobs.delete(f"f{number}" for number in range(30))
    assert not server.blobs


@pytest.mark.parametrize("url", [s3_url, AZURE])
@pytest.mark.parametrize(
    "use",
    [
        lambda blobs: blobs.get("f"),
        lambda blobs: blobs.put("f", b"1"),
        lambda blobs: blobs.put_if("f", b"1", None),
        lambda blobs: blobs.put_if("f", b"1", (("e_tag", '"0"'),)),
        lambda blobs: blobs.list(""),
        lambda blobs: blobs.list_dir(""),
    ],
    ids=["get", "put", "create", "swap", "list", "list_dir"],
)
def test_missing_bucket_is_named(url, use):
    scheme, _, rest = url().partition("://")
    blobs = open_blobs(f"{scheme}://missing-bucket?{rest.partition('?')[2]}")
    with pytest.raises(ObjectStoreError, match="no bucket 'missing-bucket'"):
        use(blobs)


@pytest.mark.parametrize(
    "options, hint",
    [
        ("endpoint=http://127.0.0.1:1&access_key_id=a&secret_access_key=b", "option allow_http=true"),
        ("metadata_endpoint=http://127.0.0.1:1", "URL and environment have no credentials"),
    ],
)
def test_what_an_option_would_solve_is_named(options, hint, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ObjectStoreError, match=f"s3://bucket: .*{hint}$"):
        open_blobs(f"s3://bucket?max_retries=0&{options}").get("f")


def test_an_object_of_other_software_that_obstore_does_not_list_is_named(server):
    blobs = open_blobs(server.url())
    blobs.put("d/f", b"1")
    server.blobs["d//f"] = server.blobs["d/f"]
    assert blobs.list_dir("") == ["d/"]
    with pytest.raises(ObjectStoreError, match=r'"d//f" .*; delete this object'):
        blobs.list("d/")
