"""URLs of object stores, and clients of obstore: one per location and process, also after a fork."""
# Options are parsed here: obstore's `from_url` ignores the query of a URL, and its errors show secrets.

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from kartothek_cube.core.store.blob_store import is_key

SCHEMES = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Scheme of a URL -> kind of store."""

_BUCKET = re.compile(r"[A-Za-z0-9$_][A-Za-z0-9$._-]*").fullmatch
_HOST = re.compile(r"([a-z0-9]+)\.(?:dfs|blob)\.([a-z0-9.-]+)").fullmatch
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|min|m|h)?").fullmatch
_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_AZURE_CLOUD = "core.windows.net"


class Settings(NamedTuple):
    """Arguments of obstore's stores."""

    config: dict[str, Any]
    client: dict[str, Any]
    retry: dict[str, Any]


def _parse_text(value: str) -> str:
    if not value:
        raise ValueError("is empty")
    return value


def _parse_flag(value: str) -> bool:
    if value.lower() not in _TRUTH:
        raise ValueError(f"is {value!r}, but must be true or false")
    return _TRUTH[value.lower()]


def _parse_count(value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise ValueError(f"is {value!r}, but must be a whole number")
    return int(value)


def _parse_factor(value: str) -> float:
    if not re.fullmatch(r"\d{1,3}(\.\d{1,6})?", value) or float(value) < 1:
        raise ValueError(f"is {value!r}, but must be a number of at least 1")
    return float(value)


def _parse_duration(value: str) -> timedelta:
    match = _DURATION(value)
    if match is None or len(value) > 15:
        raise ValueError(f"is {value!r}, but must be a time such as 500ms, 30s or 2min")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2] or "s"])


class _Option(NamedTuple):
    """Option of a URL: its name in obstore, its group, and the parser of its value."""

    name: str
    group: str = "config"
    parse: Callable[[str], Any] = _parse_text
    secret: bool = False


Options: TypeAlias = Mapping[str, _Option]


def _make_options(texts: str, flags: str, secrets: str) -> dict[str, _Option]:
    options = {name: _Option(name) for name in texts.split()}
    options |= {name: _Option(name, parse=_parse_flag) for name in flags.split()}
    return options | {name: _Option(name, secret=True) for name in secrets.split()}


_COMMON: Options = {
    **{name: _Option(name, "client", _parse_flag) for name in ("allow_http", "allow_invalid_certificates")},
    **{
        name: _Option(name, "client", _parse_duration)
        for name in ("timeout", "connect_timeout", "pool_idle_timeout")
    },
    "pool_max_idle_per_host": _Option("pool_max_idle_per_host", "client"),
    # proxies may have passwords
    "proxy_url": _Option("proxy_url", "client", secret=True),
    "user_agent": _Option("user_agent", "client"),
    "max_retries": _Option("max_retries", "retry", _parse_count),
    "retry_timeout": _Option("retry_timeout", "retry", _parse_duration),
    "init_backoff": _Option("init_backoff", "backoff", _parse_duration),
    "max_backoff": _Option("max_backoff", "backoff", _parse_duration),
    "backoff_base": _Option("base", "backoff", _parse_factor),
}
_OPTIONS: Mapping[str, Options] = {
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
    """Kind of store (``s3``, ``gs``, ``az``), bucket, prefix and options; no secrets in its repr.

    >>> Location("s3", "sales", "2025", (("secret_access_key", "abc"),))
    Location('s3://sales/2025?...')
    """

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
    bucket = authority
    if "@" in authority:
        bucket, options = _parse_account(kind, authority, options)
    if not _BUCKET(bucket):
        raise ValueError("it names no bucket" if not bucket else f"{bucket!r} is no name of a bucket")
    prefix = unquote(prefix).strip("/")
    if prefix and not is_key(prefix):
        raise ValueError(f"{prefix!r} is no prefix of keys")
    location = Location(kind, bucket, prefix, tuple(sorted(options.items())))
    settings(location)
    return location


def _parse_query(kind: str, query: str) -> dict[str, str]:
    known = _OPTIONS[kind]
    options: dict[str, str] = {}
    for option in filter(None, query.split("&")):
        name, equals, value = option.partition("=")
        if name not in known:
            close = get_close_matches(name.lower(), known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            # a secret with an unescaped & looks like an option
            shown = repr(name) if re.fullmatch(r"[A-Za-z_]{1,40}", name) and equals else "(not shown)"
            raise ValueError(f"unknown option {shown}{hint}; known options: {', '.join(sorted(known))}")
        if name in options:
            raise ValueError(f"option {name!r} is given twice")
        options[name] = unquote(value)
    return options


def _parse_account(kind: str, authority: str, options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Container, and options with the account, of ``container@account.dfs.core.windows.net``."""
    bucket, _, host = authority.rpartition("@")
    if kind != "az":
        raise ValueError(
            "user and password belong into the environment, or into the options "
            f"{' and '.join(name for name, option in _OPTIONS[kind].items() if option.secret)}"
        )
    match = _HOST(host)
    if match is None:
        raise ValueError("after '@', a host such as account.dfs.core.windows.net is expected")
    account, cloud = match.groups()
    if options.setdefault("account", account) != account:
        raise ValueError("the account in the host and the option 'account' differ")
    if cloud != _AZURE_CLOUD:
        options.setdefault("endpoint", f"https://{account}.blob.{cloud}")
    return bucket, options


def settings(location: Location) -> Settings:
    """Convert the options of a location into arguments of obstore; ValueError names an invalid option."""
    groups: dict[str, dict[str, Any]] = {"config": {}, "client": {}, "retry": {}, "backoff": {}}
    for name, text in location.options:
        option = _OPTIONS[location.kind][name]
        try:
            groups[option.group][option.name] = option.parse(text)
        except ValueError as error:
            raise ValueError(f"option {name!r} {error}") from None
    if groups["backoff"]:
        groups["retry"]["backoff"] = groups["backoff"]
    if location.kind == "gs":
        _point_to_emulator(groups["config"])
    return Settings(groups["config"], groups["client"], groups["retry"])


def client_options(location: Location) -> dict[str, str | int]:
    """The same, by the names that other clients of the library object_store know, such as Polars."""
    config, client, retry = settings(location)
    options: dict[str, str | int] = {n: _to_text(value) for n, value in {**config, **client}.items()}
    return options | {name: value for name, value in retry.items() if name == "max_retries"}


def _to_text(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{int(value.total_seconds() * 1000)}ms"
    return str(value).lower() if isinstance(value, bool) else str(value)


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def load_library(kind: str) -> ObstoreModules:
    """Import obstore, once per process; ModuleNotFoundError names the extra of the kind of store."""
    state = _state
    with state.lock:
        if state.library is None:
            state.library = _load_second_copy() if state.forked else _import_library(kind)
        return state.library


def _import_library(kind: str) -> ObstoreModules:
    try:
        obstore = importlib.import_module("obstore")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"stores at {kind}:// need obstore: pip install 'kartothek_cube[{_EXTRAS[kind]}]'", name="obstore"
        ) from None
    return ObstoreModules(
        obstore, importlib.import_module("obstore.store"), importlib.import_module("obstore.exceptions")
    )


def _load_second_copy() -> ObstoreModules:
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
    return ObstoreModules(copy, copy._store, copy.exceptions)


def get_client(location: Location) -> Any:
    """The client of a location, with its pool of connections: one per process, location and environment."""
    state = _state
    # credentials in the environment may be replaced during the life of a process
    environment = tuple(item for item in os.environ.items() if _ENVIRONMENT(item[0]))
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
    raise _translate(problem, errors, location, key)


def _translate(problem: Exception, errors: Any, location: Location, key: str) -> Exception:
    text = remove_secrets(problem, location)
    if _NO_BUCKET(str(problem)):
        return ObjectStoreError(f"there is no bucket {location.bucket!r} at {location.kind}:// ({text})")
    if isinstance(problem, FileNotFoundError):
        return KeyError(key)
    if isinstance(problem, (errors.AlreadyExistsError, errors.PreconditionError)):
        return FileExistsError(errno.EEXIST, text, key)
    if isinstance(problem, (errors.PermissionDeniedError, errors.UnauthenticatedError)):
        return PermissionError(errno.EACCES, text, location.url)
    if isinstance(problem, errors.NotSupportedError):
        return NotImplementedError(text)
    return ObjectStoreError(f"{location.url}: {text}")


def remove_secrets(problem: Exception, location: Location) -> str:
    """First paragraph of an error message, without secrets."""
    text = str(problem).partition("\n\nDebug source")[0]
    # signatures are parameters of URLs
    text = re.sub(r"\?[^\s'\"]+", "?...", " ".join(text.split()))
    secrets = location.secrets + [
        value for name, value in os.environ.items() if _ENVIRONMENT(name) and _SECRET_NAME(name)
    ]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_SECRET:
            text = text.replace(secret, "***")
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} ..."
