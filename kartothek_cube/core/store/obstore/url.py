"""URLs of object stores: bucket, prefix and options, checked before anything is opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from kartothek_cube.core.store.keys import is_key

__all__ = ("SCHEMES", "Location", "Settings", "parse_url", "settings")

SCHEMES = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Scheme of a URL -> kind of store."""

_BUCKET = re.compile(r"[A-Za-z0-9$_][A-Za-z0-9$._-]*").fullmatch
_HOST = re.compile(r"([a-z0-9]+)\.(?:dfs|blob)\.([a-z0-9.-]+)").fullmatch
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|min|m|h)?").fullmatch
_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_AZURE_CLOUD = "core.windows.net"


class Settings(NamedTuple):
    """Arguments for a store of obstore."""

    config: dict[str, Any]
    client: dict[str, Any]
    retry: dict[str, Any]


def _text(value: str) -> str:
    if not value:
        raise ValueError("is empty")
    return value


def _flag(value: str) -> bool:
    if value.lower() not in _TRUTH:
        raise ValueError(f"is {value!r}, but must be true or false")
    return _TRUTH[value.lower()]


def _count(value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise ValueError(f"is {value!r}, but must be a whole number")
    return int(value)


def _factor(value: str) -> float:
    if not re.fullmatch(r"\d{1,3}(\.\d{1,6})?", value) or float(value) < 1:
        raise ValueError(f"is {value!r}, but must be a number of at least 1")
    return float(value)


def _duration(value: str) -> timedelta:
    match = _DURATION(value)
    if match is None or len(value) > 15:
        raise ValueError(f"is {value!r}, but must be a time such as 500ms, 30s or 2min")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2] or "s"])


class _Option(NamedTuple):
    """How obstore calls an option, where it belongs, and how its value is read."""

    name: str
    group: str = "config"
    read: Callable[[str], Any] = _text
    secret: bool = False


Options: TypeAlias = Mapping[str, _Option]


def _options(texts: str, flags: str, secrets: str) -> dict[str, _Option]:
    known = {name: _Option(name) for name in texts.split()}
    known |= {name: _Option(name, read=_flag) for name in flags.split()}
    return known | {name: _Option(name, secret=True) for name in secrets.split()}


_COMMON: Options = {
    **{name: _Option(name, "client", _flag) for name in ("allow_http", "allow_invalid_certificates")},
    **{
        name: _Option(name, "client", _duration)
        for name in ("timeout", "connect_timeout", "pool_idle_timeout")
    },
    "pool_max_idle_per_host": _Option("pool_max_idle_per_host", "client"),
    # proxies may have passwords
    "proxy_url": _Option("proxy_url", "client", secret=True),
    "user_agent": _Option("user_agent", "client"),
    "max_retries": _Option("max_retries", "retry", _count),
    "retry_timeout": _Option("retry_timeout", "retry", _duration),
    "init_backoff": _Option("init_backoff", "backoff", _duration),
    "max_backoff": _Option("max_backoff", "backoff", _duration),
    "backoff_base": _Option("base", "backoff", _factor),
}
_KNOWN: Mapping[str, Options] = {
    "s3": {
        **_COMMON,
        **_options(
            "region endpoint checksum_algorithm server_side_encryption sse_kms_key_id conditional_put "
            "metadata_endpoint container_credentials_relative_uri",
            "virtual_hosted_style_request unsigned_payload skip_signature imdsv1_fallback s3_express "
            "sse_bucket_key_enabled request_payer",
            "access_key_id secret_access_key session_token sse_customer_key_base64",
        ),
    },
    "gs": {
        **_COMMON,
        **_options(
            "service_account application_credentials", "skip_signature", "service_account_key bearer_token"
        ),
        "endpoint": _Option("base_url"),
    },
    "az": {
        **_COMMON,
        **_options(
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
    """Where the blobs of a store are; pickles, and shows no secrets.

    Parameters
    ----------
    kind
        ``s3``, ``gs`` or ``az``.
    bucket
        Bucket or container.
    prefix
        What comes before each key, without the ``/`` between them; may be empty.
    options
        Options of the URL, by name, as text.

    Examples
    --------
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
        """What must not be shown."""
        return [value for name, value in self.options if _KNOWN[self.kind][name].secret]


def parse_url(url: str) -> Location:
    """
    Take the URL of an object store apart and check its options.

    Parameters
    ----------
    url
        ``s3://bucket/prefix?region=eu-west-1``, ``gs://...``, ``az://container/prefix?account=name`` or
        ``abfss://container@name.dfs.core.windows.net/prefix``. Bucket, prefix and options are
        percent-encoded; ``+`` stands for itself.

    Returns
    -------
    Location

    Raises
    ------
    ValueError
        Something is wrong with it; names the option, never its value if that may be secret.

    Examples
    --------
    >>> parse_url("s3://sales/2025/?region=eu-west-1").url
    's3://sales/2025'
    >>> parse_url("s3://sales?regoin=eu-west-1")
    Traceback (most recent call last):
    ValueError: unknown option 'regoin' (did you mean 'region'?); known options: access_key_id, ...
    """
    scheme, _, rest = url.partition("://")
    kind = SCHEMES[scheme.lower()]
    path, _, query = rest.partition("?")
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
    known = _KNOWN[kind]
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
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
            f"{' and '.join(name for name, option in _KNOWN[kind].items() if option.secret)}"
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
    """
    Tell what obstore is to be told.

    Parameters
    ----------
    location
        The store.

    Returns
    -------
    Settings

    Raises
    ------
    ValueError
        An option has no sensible value; names the option.
    """
    groups: dict[str, dict[str, Any]] = {"config": {}, "client": {}, "retry": {}, "backoff": {}}
    for name, text in location.options:
        option = _KNOWN[location.kind][name]
        try:
            groups[option.group][option.name] = option.read(text)
        except ValueError as error:
            raise ValueError(f"option {name!r} {error}") from None
    if groups["backoff"]:
        groups["retry"]["backoff"] = groups["backoff"]
    if location.kind == "gs":
        _point_to_emulator(groups["config"])
    return Settings(groups["config"], groups["client"], groups["retry"])


def _point_to_emulator(config: dict[str, Any]) -> None:
    """Without signatures, obstore asks for a token all the same, unless the account says otherwise."""
    if config.get("skip_signature") and "base_url" in config and "service_account_key" not in config:
        endpoint = config.pop("base_url").replace("\\", "").replace('"', "")
        config["service_account_key"] = (
            f'{{"gcs_base_url": "{endpoint}", "disable_oauth": true, "client_email": "", "private_key": "", '
            '"private_key_id": ""}'
        )
