"""URLs of object stores, their options, and what must never be shown."""

import json
import pickle
from datetime import timedelta
from urllib.parse import quote

import pytest

from kartothek_cube.core.store import object_store
from kartothek_cube.core.store.object_store import ObjectStoreError
from kartothek_cube.core.store.resolve import UrlStoreFactory, ensure_store, lazy_store
from tests.support.paths import ROOT

MS = timedelta(milliseconds=1)
CHINESE = "{}acc.{}.core.chinacloudapi.cn"
BLOB = CHINESE.format("https://", "blob")


@pytest.mark.parametrize(
    "url, kind, bucket, prefix",
    [
        ("s3://b-1.x", "s3", "b-1.x", ""),
        ("S3://b/", "s3", "b", ""),
        ("s3://b/p/q/", "s3", "b", "p/q"),
        ("gs://b_1/a%20b?timeout=3s", "gs", "b_1", "a b"),
        ("az://c/p?account=acc", "az", "c", "p"),
        ("abfs://$root?account=acc", "az", "$root", ""),
        ("abfss://c@acc.dfs.core.windows.net/p", "az", "c", "p"),
        ("abfs://c@acc.blob.core.windows.net/p", "az", "c", "p"),
    ],
)
def test_places(url, kind, bucket, prefix):
    location = object_store.parse_url(url)
    assert (location.kind, location.bucket, location.prefix) == (kind, bucket, prefix)
    assert ("?..." in repr(location)) == bool(location.options)


@pytest.mark.parametrize(
    "query, config, client, retry",
    [
        ("region=eu-west-1", {"region": "eu-west-1"}, {}, {}),
        ("secret_access_key=a+b%2Fc%26d", {"secret_access_key": "a+b/c&d"}, {}, {}),
        ("virtual_hosted_style_request=TRUE", {"virtual_hosted_style_request": True}, {}, {}),
        ("allow_http=0&timeout=1.5s", {}, {"allow_http": False, "timeout": timedelta(seconds=1.5)}, {}),
        ("connect_timeout=2min", {}, {"connect_timeout": timedelta(minutes=2)}, {}),
        ("max_retries=0&retry_timeout=7", {}, {}, {"max_retries": 0, "retry_timeout": timedelta(seconds=7)}),
        ("init_backoff=5ms&backoff_base=1.5", {}, {}, {"backoff": {"init_backoff": 5 * MS, "base": 1.5}}),
    ],
)
def test_options(query, config, client, retry):
    assert object_store.settings(object_store.parse_url(f"s3://b?{query}")) == (config, client, retry)


def test_polars_retries_as_often():
    query = "max_retries=0&retry_timeout=7&init_backoff=5ms&max_backoff=1s&backoff_base=1.5"
    assert object_store.client_options(object_store.parse_url(f"gs://b?{query}")) == {
        "max_retries": 0,
        "retry_timeout_ms": 7000,
        "retry_init_backoff_ms": 5,
        "retry_max_backoff_ms": 1000,
        "retry_base_multiplier": 1.5,
    }


def test_polars_gets_the_region_that_obstore_takes_from_the_environment(monkeypatch):
    names, regions = ("AWS_DEFAULT_REGION", "AWS_REGION"), ["us-east-1", "eu-west-1", "eu-west-2"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    location = object_store.parse_url("s3://b")
    found = [object_store.client_options(location)["region"]]
    for name, region in zip(names, regions[1:], strict=True):
        monkeypatch.setenv(name, region)
        found.append(object_store.client_options(location)["region"])
    assert found == regions


@pytest.mark.parametrize(
    "url, expected",
    [
        ("az://c?account=acc&sas_token=sig", {"account_name": "acc", "sas_key": "sig"}),
        ("abfss://c@acc.dfs.core.windows.net", {"account_name": "acc"}),
        (CHINESE.format("abfss://c@", "dfs"), {"account_name": "acc", "endpoint": BLOB}),
        ("gs://b?endpoint=http://x", {"base_url": "http://x"}),
    ],
)
def test_names_of_obstore(url, expected):
    assert object_store.settings(object_store.parse_url(url))[0] == expected


NO_PREFIX = "no prefix of keys: a key is made of .* no empty, '.' or '..' component"


@pytest.mark.parametrize(
    "url, message",
    [
        *((url, "no bucket") for url in ("s3://", "s3:///p")),
        ("s3://b*", "'b.' is no name of a bucket"),
        *((f"s3://b/{prefix}", NO_PREFIX) for prefix in ("../x", "a//x", "%2e%2e/x")),
        ("s3://b#wrap:readonly", "no '#' part"),
        ("s3://b?regoin=x", "'regoin' .did you mean 'region'..; known options: access_key_id, allow_http"),
        ("gs://b?service_acount=x", "did you mean 'service_account'"),
        ("s3://b?account=x", "unknown option 'account'"),
        ("s3://b?region", "option 'region' is empty"),
        ("s3://b?region=a&region=b", "'region' is given twice"),
        ("s3://b?allow_http=maybe", "'allow_http' is 'maybe', but must be true or false"),
        ("s3://b?timeout=1lightyear", "'timeout' is '1lightyear', but must be a time such as"),
        ("s3://b?timeout=" + "9" * 400, "must be a time"),
        ("s3://b?max_retries=-1", "'max_retries' is '-1', but must be a whole number from 0 to 999999999"),
        ("s3://b?max_retries=" + "9" * 400, "must be a whole number"),
        *((f"s3://b?backoff_base={n}", f"'{n}', but must be a number of more") for n in (0, 1, "01.0")),
        *((f"s3://b?{o}", "'init_backoff' .* above 0") for o in ("init_backoff=0s", "max_backoff=50ms")),
        ("s3://b?checksum_algorithm=rot13", "rot13"),
        ("s3://user:password@b", "the options access_key_id and secret_access_key$"),
        ("gs://user:password@b", "the options service_account or bearer_token$"),
        ("az://c@host", "account.dfs.core.windows.net"),
        ("az://c@acc.dfs.core.windows.net?account=other", "differ"),
        ("az://c", "Account must be specified"),
    ],
)
def test_unusable(url, message, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ValueError, match=message):
        ensure_store(url)


@pytest.mark.parametrize("url", ["s3://b?regoin=x", "s3://", "az://c?timeout=x"])
def test_mistakes_are_found_before_anything_is_opened(url):
    with pytest.raises(ValueError, match="cannot open a store at"):
        lazy_store(url)


SECRET = "hush/hush+hush"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://b?region=x&secret_access_key={SECRET}",
        f"gs://b?bearer_token={SECRET}",
        f"az://c?account=acc&account_key={SECRET}",
        f"az://c?account=acc&sas_key=sig%3D{SECRET}",
    ],
)
def test_secrets_are_not_shown(url):
    factory = lazy_store(url)
    assert isinstance(factory, UrlStoreFactory)
    location = object_store.parse_url(url)
    assert "hush" not in f"{factory!r} {location!r} {location.url}"
    assert pickle.loads(pickle.dumps(location)) == location


@pytest.mark.parametrize(
    "query",
    [
        *(f"region=x&secret_access_key=abc&{SECRET}", f"{SECRET}=x", f"secret_access_kye={SECRET}"),
        *(f"secret_access_key={SECRET}&{more}" for more in ("timeout=soon", f"secret_access_key={SECRET}")),
    ],
)
def test_mistakes_do_not_show_secrets(query):
    with pytest.raises(ValueError, match="cannot open a store at 's3://b'") as caught:
        ensure_store(f"s3://b?{query}")
    error: BaseException | None = caught.value
    while error is not None:
        assert "hush" not in str(error)
        error = error.__cause__ or error.__context__


def test_failures_do_not_show_secrets(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_CLIENT_SECRET", "of the environment")
    url = "az://c?account=acc&endpoint=http://127.0.0.1:1/acc&allow_http=true&max_retries=0"
    url += "&sas_key=sv%3D1%26sig%3Dhush%2Bhush"
    with pytest.raises(ObjectStoreError, match=r"az://c: .* HTTP error") as caught:
        ensure_store(url).get("f")
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


LOCAL = "http://127.0.0.1:1"
ACCOUNT = {"disable_oauth": True, "gcs_base_url": LOCAL, "type": "authorized_user"}
ACCOUNT |= dict.fromkeys(("client_email", "private_key", "private_key_id", "client_id"), "")
ACCOUNT |= {"client_secret": "", "refresh_token": ""}
VALUES = {"allow_http": "true", "backoff_base": "3", "conditional_put": "etag"}
VALUES |= {"checksum_algorithm": "sha256"}
VALUES |= {"endpoint": LOCAL, "proxy_url": LOCAL, "max_retries": "1", "pool_max_idle_per_host": "4"}
VALUES |= {"server_side_encryption": "AES256", "account_key": "c2VjcmV0"}
VALUES |= {"sas_token": "sig=secret", "sas_key": "sig=secret", "service_account_key": json.dumps(ACCOUNT)}
NO_TEXT = {object_store._FLAG: "false", object_store._DURATION: "2s"}
ALL = [(kind, name) for kind, options in sorted(object_store._OPTIONS.items()) for name in sorted(options)]


@pytest.mark.parametrize("kind, name", ALL)
def test_obstore_knows_every_option(kind, name, tmp_path, monkeypatch):
    # one of them alone would be refused
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    account_file = tmp_path / "account.json"
    account_file.write_text(json.dumps(ACCOUNT))
    files = {"service_account": str(account_file), "application_credentials": str(account_file)}
    value = (VALUES | files).get(name) or NO_TEXT.get(object_store._OPTIONS[kind][name].kind, "text")
    account = "account=acc&" if kind == "az" and name != "account" else ""
    ensure_store(f"{kind}://bucket?{account}{name}={quote(value, safe='')}")


def test_documentation_names_every_option():
    text = (ROOT / "docs/stores.rst").read_text()
    # another name of sas_token
    assert [name for _, name in ALL if f"``{name}``" not in text and name != "sas_key"] == []
