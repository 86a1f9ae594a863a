"""Object stores (S3, Google Cloud Storage, Azure) by obstore: URLs, clients, driver, simplekv store."""

# ruff: noqa: D102 (the protocol documents the methods)

from __future__ import annotations

import errno
import http.client
import importlib
import importlib.util
import io
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from simplekv import KeyValueStore, UrlMixin

from kartothek_cube.core.errors import nearest_names
from kartothek_cube.core.store import blob_store

# -- URLs ---------------------------------------------------------------------------------------------------

# Options are parsed here: obstore's `from_url` ignores the query of a URL, and its errors show secrets.

SCHEMES = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Scheme of a URL -> kind of store."""

_BUCKET = re.compile(r"[A-Za-z0-9$_][A-Za-z0-9$._-]*").fullmatch
_HOST = re.compile(r"([a-z0-9]+)\.(?:dfs|blob)\.([a-z0-9.-]+)").fullmatch
_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_AZURE_CLOUD = "core.windows.net"
#: options that replace user and password in a URL
_CREDENTIALS = {"s3": "access_key_id and secret_access_key", "gs": "service_account or bearer_token"}


class _Kind(NamedTuple):
    """Kind of values of options: their form, their conversion, and what they must be."""

    pattern: str
    convert: Callable[[str], Any] = str
    expected: str = ""


def _to_duration(text: str) -> timedelta:
    number, unit = re.fullmatch(r"([0-9.]+)\s*(\w*)", text).groups()  # type: ignore[union-attr]
    return timedelta(seconds=float(number) * _SECONDS[unit or "s"])


_TEXT = _Kind("(?s:.+)")
_FLAG = _Kind(
    "(?i:true|1|yes|false|0|no)", lambda text: text.lower() in ("true", "1", "yes"), "true or false"
)
_COUNT = _Kind("[0-9]{1,9}", int, "a whole number from 0 to 999999999")
_FACTOR = _Kind(r"(?!0*1(\.0*)?$)0*[1-9]\d{0,2}(\.\d{1,6})?", float, "a number of more than 1")
_DURATION = _Kind(
    r"(?=.{1,15}$)\d+(\.\d+)?\s*(ms|s|sec|min|m|h)?", _to_duration, "a time such as 500ms, 30s or 2min"
)


#: options of retries in obstore -> in Polars, in milliseconds
_RETRY_OF_POLARS = {
    "max_retries": "max_retries",
    "retry_timeout": "retry_timeout_ms",
    "init_backoff": "retry_init_backoff_ms",
    "max_backoff": "retry_max_backoff_ms",
    "base": "retry_base_multiplier",
}


#: defaults of obstore
_INIT_BACKOFF, _MAX_BACKOFF = timedelta(milliseconds=100), timedelta(seconds=15)


class _Option(NamedTuple):
    """Option of a URL: its name in obstore, its group, and the kind of its values."""

    name: str
    group: str = "config"
    kind: _Kind = _TEXT
    secret: bool = False


def _make_options(texts: str, flags: str, secrets: str) -> dict[str, _Option]:
    options = {name: _Option(name) for name in texts.split()}
    options |= {name: _Option(name, kind=_FLAG) for name in flags.split()}
    return options | {name: _Option(name, secret=True) for name in secrets.split()}


_COMMON = {
    **{name: _Option(name, "client", _FLAG) for name in ("allow_http", "allow_invalid_certificates")},
    "timeout": _Option("timeout", "client", _DURATION),
    "connect_timeout": _Option("connect_timeout", "client", _DURATION),
    "pool_idle_timeout": _Option("pool_idle_timeout", "client", _DURATION),
    "pool_max_idle_per_host": _Option("pool_max_idle_per_host", "client"),
    # proxies may have passwords
    "proxy_url": _Option("proxy_url", "client", secret=True),
    "user_agent": _Option("user_agent", "client"),
    "max_retries": _Option("max_retries", "retry", _COUNT),
    "retry_timeout": _Option("retry_timeout", "retry", _DURATION),
    "init_backoff": _Option("init_backoff", "backoff", _DURATION),
    "max_backoff": _Option("max_backoff", "backoff", _DURATION),
    "backoff_base": _Option("base", "backoff", _FACTOR),
}
_OPTIONS = {
    "s3": {
        **_COMMON,
        **_make_options(
            "region endpoint checksum_algorithm server_side_encryption sse_kms_key_id conditional_put "
            "metadata_endpoint container_credentials_relative_uri",
            "virtual_hosted_style_request unsigned_payload skip_signature imdsv1_fallback s3_express "
            "sse_bucket_key_enabled request_payer",
            "access_key_id secret_access_key session_token sse_customer_key_base64",
        ),
    },
    "gs": {
        **_COMMON,
        **_make_options(
            "service_account application_credentials", "skip_signature", "service_account_key bearer_token"
        ),
        "endpoint": _Option("base_url"),
    },
    "az": {
        **_COMMON,
        **_make_options(
            "client_id tenant_id authority_host endpoint federated_token_file msi_endpoint object_id "
            "msi_resource_id",
            "use_emulator use_azure_cli use_fabric_endpoint skip_signature",
            "account_key client_secret sas_key token",
        ),
        "account": _Option("account_name"),
        "sas_token": _Option("sas_key", secret=True),
    },
}


@dataclass(frozen=True, repr=False)
class Location:
    """Kind of store (``s3``, ``gs``, ``az``), bucket, prefix and options; no secrets in its repr."""

    kind: str
    bucket: str
    prefix: str = ""
    options: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url + ('?...' if self.options else '')!r})"

    @property
    def url(self) -> str:
        """The URL without options."""
        return f"{self.kind}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def secrets(self) -> list[str]:
        """Values of secret options."""
        return [value for name, value in self.options if _OPTIONS[self.kind][name].secret]


def parse_url(url: str) -> Location:
    """Parse the URL of an object store; ValueError names an invalid option, but no secret value."""
    scheme, _, remainder = url.partition("://")
    kind = SCHEMES[scheme.lower()]
    path, _, query = remainder.partition("?")
    if "#" in path or "#" in query:
        raise ValueError("a URL of an object store has no '#' part; write %23 for the character")
    authority, _, prefix = path.partition("/")
    options = _parse_query(kind, query)
    bucket = _parse_account(kind, authority, options) if "@" in authority else authority
    if not _BUCKET(bucket):
        raise ValueError("it names no bucket" if not bucket else f"{bucket!r} is no name of a bucket")
    prefix = unquote(prefix).strip("/")
    if prefix and not blob_store.is_key(prefix):
        raise ValueError(f"{prefix!r} is no prefix of keys: {blob_store.KEY_RULE}")
    location = Location(kind, bucket, prefix, tuple(sorted(options.items())))
    settings(location)
    return location


def _parse_query(kind: str, query: str) -> dict[str, str]:
    known = _OPTIONS[kind]
    options: dict[str, str] = {}
    for option in filter(None, query.split("&")):
        name, equals, value = option.partition("=")
        if name not in known:
            close = nearest_names(name, known)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            # a secret with an unescaped & looks like an option
            shown = repr(name) if re.fullmatch(r"[A-Za-z_]{1,40}", name) and equals else "(not shown)"
            raise ValueError(f"unknown option {shown}{hint}; known options: {', '.join(sorted(known))}")
        if name in options:
            raise ValueError(f"option {name!r} is given twice")
        options[name] = unquote(value)
    return options


def _parse_account(kind: str, authority: str, options: dict[str, str]) -> str:
    """Container of ``container@account.dfs.core.windows.net``; the account is added to the options."""
    bucket, _, host = authority.rpartition("@")
    if kind != "az":
        names = _CREDENTIALS[kind]
        raise ValueError(f"user and password belong into the environment, or into the options {names}")
    match = _HOST(host)
    if match is None:
        raise ValueError("after '@', a host such as account.dfs.core.windows.net is expected")
    account, cloud = match.groups()
    if options.setdefault("account", account) != account:
        raise ValueError("the account in the host and the option 'account' differ")
    if cloud != _AZURE_CLOUD:
        options.setdefault("endpoint", f"https://{account}.blob.{cloud}")
    return bucket


def settings(location: Location) -> tuple[dict[str, Any], ...]:
    """Arguments of obstore (config, client, retry) by the options; ValueError names an invalid option."""
    groups: dict[str, dict[str, Any]] = {"config": {}, "client": {}, "retry": {}, "backoff": {}}
    for name, text in location.options:
        option = _OPTIONS[location.kind][name]
        if not re.fullmatch(option.kind.pattern, text):
            problem = f"{text!r}, but must be {option.kind.expected}" if text else "empty"
            raise ValueError(f"option {name!r} is {problem}")
        groups[option.group][option.name] = option.kind.convert(text)
    if backoff := groups["backoff"]:
        groups["retry"]["backoff"] = backoff
        first, longest = backoff.get("init_backoff", _INIT_BACKOFF), backoff.get("max_backoff", _MAX_BACKOFF)
        # else the first retry would end in a panic
        if not timedelta(0) < first <= longest:
            raise ValueError("option 'init_backoff' (100ms) must be above 0, and at most 'max_backoff' (15s)")
    if location.kind == "gs":
        _point_to_emulator(groups["config"])
    return groups["config"], groups["client"], groups["retry"]


def client_options(location: Location) -> dict[str, str | int]:
    """The same, by the names that other clients of the library object_store know, such as Polars."""
    config, client, retry = settings(location)
    options: dict[str, str | int] = {n: _to_text(value) for n, value in {**config, **client}.items()}
    if location.kind == "s3":
        # as obstore; Polars would take it from `~/.aws/config`
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        options.setdefault("region", region)
    for name, value in (retry.pop("backoff", {}) | retry).items():
        is_duration = isinstance(value, timedelta)
        options[_RETRY_OF_POLARS[name]] = round(value.total_seconds() * 1000) if is_duration else value
    return options


def _to_text(value: object) -> str:
    return f"{int(value.total_seconds() * 1000)}ms" if isinstance(value, timedelta) else str(value)


def _point_to_emulator(config: dict[str, Any]) -> None:
    """Without signatures, obstore requests a token all the same, unless the account disables it."""
    if config.get("skip_signature") and "base_url" in config and "service_account_key" not in config:
        endpoint = config.pop("base_url").replace("\\", "").replace('"', "")
        config["service_account_key"] = (
            f'{{"gcs_base_url": "{endpoint}", "disable_oauth": true, "client_email": "", "private_key": "", '
            '"private_key_id": ""}'
        )


# -- clients ------------------------------------------------------------------------------------------------

_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}
_ENVIRONMENT = re.compile(r"AWS_|GOOGLE_|AZURE_|.*_PROXY$", re.IGNORECASE).match
_SECRET_NAME = re.compile(r"SECRET|TOKEN|KEY|SAS|PASS", re.IGNORECASE).search
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist").search
# what messages of obstore do not say
_HINTS = {
    "builder error": "an endpoint without TLS needs the option allow_http=true",
    "object with invalid path": "delete this object of other software, or keep datasets under another prefix",
    # requests for the role of the machine
    "/latest/api/token|/metadata/identity/|/computeMetadata/": "URL and environment have no credentials",
}
_MAX_MESSAGE = 500
_MIN_SECRET = 6

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ObjectStoreError(OSError):
    """A request to an object store failed, in spite of retries."""


class ObstoreModules(NamedTuple):
    """Modules of obstore: functions, classes of stores, classes of errors."""

    functions: Any
    stores: Any
    errors: Any


class _ProcessState:
    """The library and the clients of one process."""

    def __init__(self, forked: bool) -> None:
        self.lock = threading.Lock()
        self.forked = forked
        self.library: ObstoreModules | None = None
        self.clients: dict[object, Any] = {}


_state = _ProcessState(forked=False)
# Clients of the parent process: their threads do not exist here; dropping them could wait for these forever.
_parent_states: list[_ProcessState] = []


def _after_fork() -> None:
    global _state
    _parent_states.append(_state)
    _state = _ProcessState(forked="obstore" in sys.modules)


os.register_at_fork(after_in_child=_after_fork)


def load_library(kind: str) -> ObstoreModules:
    """Import obstore, once per process; ModuleNotFoundError names the extra of the kind of store."""
    state = _state
    with state.lock:
        if state.library is None:
            try:
                names = ("obstore", "obstore.store", "obstore.exceptions")
                modules = _load_second_copy() if state.forked else map(importlib.import_module, names)
                state.library = ObstoreModules(*modules)
            except ModuleNotFoundError:
                message = f"stores at {kind}:// need obstore: pip install 'kartothek_cube[{_EXTRAS[kind]}]'"
                raise ModuleNotFoundError(message, name="obstore") from None
        return state.library


def _load_second_copy() -> tuple[Any, ...]:
    """Load obstore a second time, from a copy of its extension module in memory."""
    # obstore's runtime is global to its extension module. A fork does not copy the runtime's threads, and new
    # clients do not start new ones: their requests would wait forever. A second copy has its own runtime.
    if not hasattr(os, "memfd_create"):
        raise RuntimeError(
            "object stores were used before this process was forked: "
            "start processes by 'spawn' or 'forkserver'"
        )
    extension = importlib.import_module("obstore._obstore").__file__
    assert extension is not None
    with os.fdopen(os.memfd_create("obstore"), "wb") as file:
        file.write(Path(extension).read_bytes())
        file.flush()
        # the last part of the name determines the entry point
        name = f"kartothek_cube_{os.getpid()}._obstore"
        loader = ExtensionFileLoader(name, f"/proc/self/fd/{file.fileno()}")
        copy = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))  # type: ignore[arg-type]
        loader.exec_module(copy)
    return copy, copy._store, copy.exceptions


def _read_environment() -> tuple[tuple[str, str], ...]:
    """Settings in the environment; credentials may be replaced during the life of a process."""
    return tuple(item for item in os.environ.items() if _ENVIRONMENT(item[0]))


def get_client(location: Location) -> Any:
    """The client of a location, with its pool of connections: one per process, location and environment."""
    state = _state
    environment = _read_environment()
    modules = load_library(location.kind)
    config, options, retry = settings(location)
    problem: Exception
    with state.lock:
        try:
            if (location, environment) not in state.clients:
                state.clients[location, environment] = modules.stores.from_url(
                    quote(location.url, safe=":/$"),
                    config=config,
                    client_options=options or None,
                    retry_config=retry or None,
                )
            return state.clients[location, environment]
        except (modules.errors.BaseError, ValueError, TypeError, OverflowError) as error:
            problem = error
    raise ValueError(remove_secrets(problem, location))


def call_translated(
    location: Location, key: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a function of obstore; translate its errors into those of stores, without secrets."""
    errors = load_library(location.kind).errors
    problem: Exception
    try:
        return function(*args, **kwargs)
    except (errors.BaseError, FileNotFoundError) as error:
        problem = error
    # outside of the handler: obstore's error may show secrets, so it must not become the context
    text = remove_secrets(problem, location)
    text = "; ".join([text, *(hint for pattern, hint in _HINTS.items() if re.search(pattern, text))])
    if _NO_BUCKET(str(problem)):
        raise ObjectStoreError(f"there is no bucket {location.bucket!r} at {location.kind}:// ({text})")
    if isinstance(problem, FileNotFoundError):
        raise KeyError(key)
    if isinstance(problem, (errors.AlreadyExistsError, errors.PreconditionError)):
        raise FileExistsError(errno.EEXIST, text, key)
    if isinstance(problem, (errors.PermissionDeniedError, errors.UnauthenticatedError)):
        raise PermissionError(errno.EACCES, text, location.url)
    if isinstance(problem, errors.NotSupportedError):
        raise NotImplementedError(text)
    raise ObjectStoreError(f"{location.url}: {text}")


def remove_secrets(problem: Exception, location: Location) -> str:
    """First paragraph of an error message, without secrets."""
    text = str(problem).partition("\n\nDebug source")[0]
    # signatures are parameters of URLs
    text = re.sub(r"\?[^\s'\"]+", "?...", " ".join(text.split()))
    variables = [value for name, value in os.environ.items() if _ENVIRONMENT(name) and _SECRET_NAME(name)]
    for secret in sorted(location.secrets + variables, key=len, reverse=True):
        if len(secret) >= _MIN_SECRET:
            text = text.replace(secret, "***")
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} ..."


# -- the driver, and the simplekv store ----------------------------------------------------------------------

Version: TypeAlias = tuple[tuple[str, str], ...]
"""ETag and, where it counts, version of a blob."""

Mode: TypeAlias = Literal["create"] | Version | None

# larger blobs are sent in parts of this size, concurrently
_PART = 16 << 20
_PAGE = 1000
_SIGNED_FOR = timedelta(hours=1)
# a signed request of our own is sent at once; how long to wait for its response
_SIGNED_BRIEFLY = timedelta(minutes=5)
_TIMEOUT_S = 30
# servers' responses to a range that starts behind the end
_PAST_END = ("416 Range Not Satisfiable", "non-partial response", "Wanted range starting at", "bytes 0--1/0")
# attribute that identifies a conditional write; letters only, since proxies and Azure accept few other names
_WRITE_ID = "kartothekwrite"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_NO_VERSION: Version = (("e_tag", '"0"'),)
# results of the probes: conditional writes, conditional deletions
_CAN_SWAP: dict[Location, bool] = {}
_CAN_DELETE: dict[Location, bool] = {}
# bytes of a blob's end that are fetched when it is opened
_TAIL = 64 << 10
_BUFFER = 1 << 20


class ObjectBlobStore(blob_store.BlobStore):
    """Blobs in a bucket of S3, Google Cloud Storage or Azure; nothing is opened before the first request."""

    # Versions are ETags (on Google Cloud Storage with the generation), compared by the server. Other servers
    # of S3's protocol are probed once per process; if they do not compare, conditional writes read, compare
    # and put, and warn.
    # Conditional deletions are probed once per process, too; without them, `delete_if` compares before it
    # deletes, so that a blob put in between is lost.

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._location = store.location
        #: the client of this process, and its id
        self._opened: tuple[int, Any] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._location.url!r})"

    @property
    def store(self) -> ObjectStore:
        return self._store

    @property
    def can_swap(self) -> bool:
        if self._location not in _CAN_SWAP:
            _CAN_SWAP[self._location] = _is_known_to_swap(self._location) or self._probe_swap()
        return _CAN_SWAP[self._location]

    @property
    def identity(self) -> Location:
        return self._location

    def connect(self) -> Any:
        """Open the client of obstore, which checks options and environment; once per process."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), get_client(self._location)
        return self._opened[1]

    def _call(self, name: str, key: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(load_library(self._location.kind).functions, name)
        return call_translated(self._location, key, function, self.connect(), *args, **kwargs)

    # reading

    def get_with_token(self, key: str) -> tuple[bytes, blob_store.Token]:
        result = self._call("get", blob_store.check_key(key), key)
        return bytes(call_translated(self._location, key, result.bytes)), self._get_version(result.meta)

    def size(self, key: str) -> int:
        return int(self._call("head", blob_store.check_key(key), key)["size"])

    def open_read(self, key: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_RemoteFile(self, key), _BUFFER))

    def remote_url(self, key: str) -> tuple[str, dict[str, str | int]]:
        # Polars keeps a client for each URL and options, also if the environment changes
        variables: dict[str, str | int] = {name.lower(): value for name, value in _read_environment()}
        options = variables | client_options(self._location)
        return f"{self._location.url}/{blob_store.check_key(key)}", options

    def chunks(self, key: str) -> Iterator[bytes]:
        """Request a blob, to be read in chunks; KeyError if there is none."""
        stream = iter(self._call("get", blob_store.check_key(key), key).stream())
        read_next = partial(call_translated, self._location, key, next, stream, None)
        return map(bytes, iter(read_next, None))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a range of a blob, of at least one byte; fewer bytes, or none, where it ends before."""
        content = self._call_range("get_range", key, start=start, end=start + length)
        return self.get(key)[start : start + length] if content is None else bytes(content)

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """Read the last bytes of a blob (all bytes of a shorter one), and its size."""
        # Azure lacks suffix ranges: there, a read of the start returns the size
        is_azure = self._location.kind == "az"
        part = (0, length) if is_azure else {"suffix": length}
        result = self._call_range("get", key, options={"range": part})
        if result is None:
            data = self.get(key)
            return data[-length:], len(data)
        data, size = bytes(call_translated(self._location, key, result.bytes)), int(result.meta["size"])
        return self.get_range(key, size - length, length) if is_azure and size > length else data, size

    def _call_range(self, name: str, key: str, **kwargs: Any) -> Any | None:
        """Result of a request for a range; None if the blob is empty, or the server ignores ranges."""
        try:
            return self._call(name, blob_store.check_key(key), key, **kwargs)
        except ObjectStoreError as error:
            if any(text in str(error) for text in _PAST_END):
                return None
            raise

    def _read_attributes(self, key: str) -> tuple[Mapping[str, str], Version | None]:
        """Attributes that a blob was written with, and its version; None if there is none."""
        try:
            result = self._call("get", blob_store.check_key(key), key, options={"head": True})
        except KeyError:
            return {}, None
        return result.attributes, self._get_version(result.meta)

    def _get_version(self, meta: Mapping[str, Any]) -> Version:
        names = ("e_tag", "version") if self._location.kind == "gs" else ("e_tag",)
        version = tuple((name, meta[name]) for name in names if meta[name] is not None)
        if not version:
            raise ObjectStoreError(f"{self._location.url} returns no ETag of its blobs")
        return version

    # writing

    def put(self, key: str, data: blob_store.Data, *, durable: bool = False) -> None:
        self.put_object(key, data)

    def put_object(
        self, key: str, data: Any, mode: Mode = None, attributes: Mapping[str, str] | None = None
    ) -> Version:
        """Write a blob (content or file); FileExistsError if ``mode`` forbids it."""
        options: dict[str, Any] = {"chunk_size": _PART}
        if not hasattr(data, "read"):
            data = memoryview(data).cast("B")
            options["use_multipart"] = mode is None and data.nbytes > 2 * _PART
        if mode is not None:
            options["mode"] = mode if isinstance(mode, str) else dict(mode)
        if attributes:
            options["attributes"] = dict(attributes)
        return self._get_version(self._call("put", blob_store.check_key(key), key, data, **options))

    def put_if(self, key: str, data: blob_store.Data, token: blob_store.Token | None) -> blob_store.Token:
        blob_store.check_key(key)
        if not self.can_swap:
            return self._compare_and_put(key, data, token)
        write_id = uuid.uuid4().hex
        try:
            return self.put_object(key, data, "create" if token is None else token, {_WRITE_ID: write_id})
        except NotImplementedError:
            _CAN_SWAP[self._location] = False
            return self._compare_and_put(key, data, token)
        except (FileExistsError, ObjectStoreError) as error:
            failure = error
        is_unclear = isinstance(failure, ObjectStoreError)
        # the response to our write may be lost: obstore retries, and the server refuses the retry
        try:
            attributes, version = self._read_attributes(key)
        except OSError:
            if is_unclear:
                raise failure from None
            raise
        if version is not None and attributes.get(_WRITE_ID) == write_id:
            return version
        raise failure if is_unclear else blob_store.PreconditionFailed(key)

    def _compare_and_put(
        self, key: str, data: blob_store.Data, token: blob_store.Token | None
    ) -> blob_store.Token:
        blob_store.warn_no_swap(type(self._store))
        if self._read_attributes(key)[1] != token:
            raise blob_store.PreconditionFailed(key)
        return self.put_object(key, data)

    def _probe_swap(self) -> bool:
        """Probe conditional writes: replace a version that does not exist, which has to fail."""
        key = f"kartothek_cube-probe-{uuid.uuid4().hex}"
        try:
            self.put_object(key, b"", _NO_VERSION)
        except FileExistsError:
            return True
        except NotImplementedError:
            return False
        except ObjectStoreError as error:
            if "501 Not Implemented" in str(error):
                return False
            raise
        self.delete([key])
        return False

    # deleting

    def delete_if(self, key: str, token: blob_store.Token) -> None:
        blob_store.check_key(key)
        if token is None:
            raise blob_store.PreconditionFailed(key)
        if self._can_delete_if():
            try:
                self._delete_version(key, token)
            except (FileExistsError, KeyError):
                raise blob_store.PreconditionFailed(key) from None
            return
        if self._read_attributes(key)[1] != token:
            raise blob_store.PreconditionFailed(key)
        self.delete([key])

    def delete(self, keys: Iterable[str]) -> None:
        pending = [list(dict.fromkeys(blob_store.check_keys(keys)))]
        while pending:
            batch = pending.pop()
            try:
                if batch:
                    self._call("delete", batch[0], batch)
            except KeyError:
                # one key is missing, and it is unknown whether the others were deleted
                middle = len(batch) // 2
                pending += [batch[:middle], batch[middle:]] if middle else []

    def _delete_version(self, key: str, version: Version) -> None:
        """Delete a blob of a certain version; FileExistsError for another one, KeyError for none."""
        url: str = self._call("sign", key, "DELETE", key, _SIGNED_BRIEFLY)
        # a request of our own: obstore deletes without conditions only
        request = Request(url, method="DELETE", headers={"If-Match": dict(version)["e_tag"]})
        try:
            with urlopen(request, timeout=_TIMEOUT_S):
                return
        except HTTPError as error:
            code = error.code
            error.close()
        except (OSError, http.client.HTTPException) as error:
            raise ObjectStoreError(f"{self._location.url}: {remove_secrets(error, self._location)}") from None
        if code == http.HTTPStatus.PRECONDITION_FAILED:
            raise FileExistsError(errno.EEXIST, "another version is there", key)
        if code == http.HTTPStatus.NOT_FOUND:
            raise KeyError(key)
        raise ObjectStoreError(f"{self._location.url}: the answer to the deletion of {key!r} is {code}")

    def _can_delete_if(self) -> bool:
        """Probe conditional deletion: delete a version that does not exist, which has to fail."""
        if self._location in _CAN_DELETE:
            return _CAN_DELETE[self._location]
        key = f"kartothek_cube-probe-{uuid.uuid4().hex}"
        self.put_object(key, b"")
        can_delete = False
        try:
            self._delete_version(key, _NO_VERSION)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            # others: credentials that cannot sign, or a proxy that only obstore is configured for
            can_delete = isinstance(error, FileExistsError)
        self.delete([key])
        _CAN_DELETE[self._location] = can_delete
        return can_delete

    def sign(self, key: str) -> str:
        """Make a URL that grants read access to a blob for some time."""
        return str(self._call("sign", blob_store.check_key(key), "GET", key, _SIGNED_FOR))

    # listing

    def list(self, prefix: str) -> blob_store.Blobs:
        return self._repeat_listing(lambda: sorted(self.scan(prefix)))

    def _repeat_listing(self, listing: Callable[[], _T]) -> _T:
        """A listing, which obstore does not repeat where its response breaks off."""
        for _ in range(settings(self._location)[2].get("max_retries", 10)):
            try:
                return listing()
            except ObjectStoreError as error:
                if "list response body" not in str(error):
                    raise
        return listing()

    def scan(self, prefix: str) -> Iterator[blob_store.Blob]:
        """List blobs, in the order of the store."""
        folder, _, start = blob_store.check_prefix(prefix).rpartition("/")
        options = {"offset": offset} if (offset := self._listing_offset(prefix, start)) else {}
        stream = self._call("list", prefix, folder or None, chunk_size=_PAGE, **options)
        batches: Iterator[Any] = iter(stream)
        while (batch := call_translated(self._location, prefix, next, batches, None)) is not None:
            for entry in batch:
                key = entry["path"]
                if key.startswith(prefix):
                    if blob_store.is_key(key):
                        yield blob_store.Blob(key, entry["size"], entry["last_modified"].timestamp())
                elif options and key > prefix:
                    return

    def list_dir(self, prefix: str) -> blob_store.Keys:
        folder = blob_store.check_prefix(prefix).rpartition("/")[0]
        level = self._repeat_listing(lambda: self._call("list_with_delimiter", prefix, folder or None))
        names = [f"{path}/" for path in level["common_prefixes"]]
        names += [entry["path"] for entry in level["objects"]]
        legal = [name for name in names if blob_store.is_key(name.removesuffix("/"))]
        return sorted(name for name in legal if name.startswith(prefix))

    def _listing_offset(self, prefix: str, start: str) -> str | None:
        """A key just before a prefix, as offset of a listing; None if listings are unsorted."""
        # obstore lists whole directories only; where listings are sorted, the offset skips most other keys
        if not start or self._location.kind == "az" or ("s3_express", "true") in self._location.options:
            return None
        smaller = chr(ord(prefix[-1]) - 1)
        smaller = "." if smaller == "/" else smaller
        return None if smaller < " " else f"{prefix[:-1]}{smaller}~"


def _is_known_to_swap(location: Location) -> bool:
    """Whether the store is one of the three clouds; other endpoints of S3's protocol are probed."""
    if location.kind != "s3":
        return True
    endpoints = [dict(location.options).get("endpoint"), *(os.environ.get(name) for name in _ENDPOINTS)]
    endpoint = next(filter(None, endpoints), None)
    return endpoint is None or (urlsplit(endpoint).hostname or "").endswith(".amazonaws.com")


# obstore.open_reader takes more requests. To read the footer, a value and then all of a file: 4 instead of 1
# (up to 64 kB), 4 instead of 3 (200 kB), 7 instead of 3 (5 MB).
class _RemoteFile(io.RawIOBase):
    """A blob as an unbuffered file; its end is fetched when it is opened."""

    def __init__(self, source: ObjectBlobStore, key: str) -> None:
        super().__init__()
        self._source = source
        self._key = key
        self._tail, self._size = source.get_tail(key, _TAIL)
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"negative position in {self._key!r}")
        self._position = position
        return position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer up to the end of the blob."""
        length = min(len(buffer), max(0, self._size - self._position))
        if length:
            buffer[:length] = self._fetch(self._position, length)
            self._position += length
        return length

    def readall(self) -> bytes:
        """Read all remaining bytes in one request."""
        length = max(0, self._size - self._position)
        data = self._fetch(self._position, length) if length else b""
        self._position += len(data)
        return data

    def _fetch(self, start: int, length: int) -> bytes:
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return self._tail[start - tail_start : start - tail_start + length]
        data = self._source.get_range(self._key, start, min(start + length, tail_start) - start)
        return data + self._tail[: max(0, start + length - tail_start)]


class ObjectStore(UrlMixin, KeyValueStore):  # type: ignore[misc]
    """A bucket of S3, Google Cloud Storage or Azure as a simplekv store."""

    # It holds nothing but its location: it can be pickled, copied and sent to tasks, and used by threads and
    # by forked processes. Connections are shared by all stores of the same location in a process.

    def __init__(self, location: Location) -> None:
        self.location = location
        self.blobs = ObjectBlobStore(self)

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[Location]]:
        return type(self), (self.location,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and other.location == self.location

    def __hash__(self) -> int:
        return hash(self.location)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location.url!r})"

    def iter_keys(self, prefix: str = "") -> Iterator[str]:
        """Iterate over the keys that start with a prefix."""
        return (blob.key for blob in self.blobs.scan(prefix))

    def iter_prefixes(self, delimiter: str, prefix: str = "") -> Iterator[str]:
        """Iterate over the distinct keys that start with a prefix, cut after the next delimiter."""
        if delimiter == "/":
            return iter(self.blobs.list_dir(prefix))
        prefixes: Iterator[str] = super().iter_prefixes(delimiter, prefix)
        return prefixes

    def _check_valid_key(self, key: str) -> None:
        blob_store.check_key(key)

    def _has_key(self, key: str) -> bool:
        return self.blobs.exists(key)

    def _get(self, key: str) -> bytes:
        return self.blobs.get(key)

    def _get_file(self, key: str, file: BinaryIO) -> str:
        for chunk in self.blobs.chunks(key):
            file.write(chunk)
        return key

    def _get_filename(self, key: str, filename: str) -> str:
        # requested first: a missing blob leaves no file behind
        chunks = self.blobs.chunks(key)
        with open(filename, "wb") as file:
            file.writelines(chunks)
        return key

    def _open(self, key: str) -> BinaryIO:
        return self.blobs.open_read(key)

    def _put(self, key: str, data: bytes) -> str:
        self.blobs.put(key, data)
        return key

    def _put_file(self, key: str, file: BinaryIO) -> str:
        self.blobs.put_object(key, file)
        return key

    def _delete(self, key: str) -> str:
        self.blobs.delete([key])
        return key

    def _url_for(self, key: str) -> str:
        return self.blobs.sign(key)


def open_url(url: str) -> ObjectStore:
    """Open the store at a URL without a request; ValueError for an invalid URL, option or variable."""
    store = ObjectStore(parse_url(url))
    store.blobs.connect()
    return store
