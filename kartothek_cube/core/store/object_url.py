"""URLs of object stores: scheme, bucket, prefix and options, as arguments of obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple
from urllib.parse import unquote

from kartothek_cube.core.store import blob_store

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
            close = get_close_matches(name.lower(), known, n=1)
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
