"""Resolution of what users pass as a store (URL, factory or store) into a store, a factory or a driver."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from simplekv import KeyValueStore
from storefact import get_store_from_url

from kartothek_cube.core.errors import check_names
from kartothek_cube.core.store.blob_store import BlobStore
from kartothek_cube.core.store.object_client import SCHEMES, parse_url
from kartothek_cube.core.store.simplekv_driver import GenericBlobStore
from kartothek_cube.core.typing import StoreFactory, StoreInput

_EXPECTED = "a simplekv store, a function without arguments that returns one, a directory, or a URL such as 'hfs:///data'"
_PICKLE_ERRORS = (pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError)
_REGISTRY: dict[str, tuple[Callable[[str], KeyValueStore], Callable[[str], object] | None]] = {}
_DRIVERS: list[tuple[Callable[[Any], bool], Callable[[Any], BlobStore]]] = []
_LOCAL_PACKAGES = {"simplekv", "storefact", "minimalkv"}
_LOCAL_CLASSES = {"FilesystemStore", "HFilesystemStore", "WebFilesystemStore"}


def register_scheme(
    *schemes: str, opener: Callable[[str], KeyValueStore], check: Callable[[str], object] | None = None
) -> None:
    """Open URLs of these schemes by a function; the last registration of a scheme wins.

    Parameters
    ----------
    schemes
        Schemes in lower case, without ``://``.
    opener
        Function of the whole URL that returns a store; raises ValueError for an invalid URL.
    check
        Function of the whole URL that raises the same errors without opening the store.
    """
    _REGISTRY.update(dict.fromkeys(schemes, (opener, check)))


@dataclass(frozen=True, repr=False)
class UrlStoreFactory:
    """Factory of the store at a URL; picklable, and its repr contains no passwords."""

    url: str

    def __call__(self) -> KeyValueStore:
        """Open the store (ValueError: the URL has an unknown scheme or is otherwise invalid)."""
        opener, _ = _find_scheme(self.url)
        try:
            return opener(self.url)
        except (ValueError, TypeError, KeyError) as error:
            raise _invalid_url_error(self.url, error) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redact_url(self.url)!r})"


@dataclass(frozen=True)
class ConstantStoreFactory:
    """Factory of an open store; picklable if the store is."""

    store: KeyValueStore

    def __call__(self) -> KeyValueStore:
        """Return the store."""
        return self.store


def is_store(candidate: object) -> bool:
    """Whether this is a store: of simplekv, or any other object with the methods ``get`` and ``open``.

    >>> is_store("hmemory://"), is_store(ensure_store("hmemory://"))
    (False, True)
    """
    if isinstance(candidate, BlobStore):
        return True
    # Other methods (`put`, `delete`, `iter_keys`, ...) are looked up on use: a read-only store has no `put`.
    # A class is a factory of stores, even if it has all their methods.
    if isinstance(candidate, type):
        return False
    return callable(getattr(candidate, "get", None)) and callable(getattr(candidate, "open", None))


def ensure_store(store: StoreInput) -> KeyValueStore:
    """Turn a store, a factory, a URL or a directory into a store.

    Parameters
    ----------
    store
        A store is returned unchanged; a factory is called; a URL is opened (``hmemory://``: a new store each
        time). A directory is a :class:`pathlib.Path`, or a text such as ``/data`` or ``./data``; it need
        not exist before something is written.

    Returns
    -------
    KeyValueStore

    Raises
    ------
    TypeError
        It is none of them, or the factory does not return a store.
    ValueError
        The URL has an unknown scheme or is otherwise invalid.

    Examples
    --------
    >>> store = ensure_store("hmemory://")
    >>> ensure_store(store) is store, ensure_store(lambda: store) is store
    (True, True)
    >>> ensure_store("hmemry://")
    Traceback (most recent call last):
    ValueError: unknown scheme in the store URL 'hmemry://' (did you mean 'hmemory'?); known schemes: ...
    """
    if is_store(store):
        return store
    result = lazy_store(store)()
    if not is_store(result):
        raise TypeError(
            f"expected {_EXPECTED}; the function returned an object of class {_class_name(result)}"
        )
    return result


def lazy_store(store: StoreInput) -> StoreFactory:
    """Turn a store, a factory, a URL or a directory into a picklable factory.

    Parameters
    ----------
    store
        A factory is returned unchanged, and not called. The path of a directory becomes absolute.

    Returns
    -------
    callable

    Raises
    ------
    TypeError
        It is none of them, or a store that cannot be pickled (pass its factory or URL then).
    ValueError
        The URL has an unknown scheme or option.

    Examples
    --------
    >>> lazy_store("hfs:///data")
    UrlStoreFactory('hfs:///data')
    """
    if isinstance(store, str | os.PathLike):
        url = to_url(store)
        _check_url(url)
        return UrlStoreFactory(url)
    if callable(store):
        return store
    if not is_store(store):
        given = "None" if store is None else f"an object of class {_class_name(store)}"
        raise TypeError(f"expected {_EXPECTED}, got {given}")
    try:
        pickle.dumps(store)
    except _PICKLE_ERRORS as error:
        raise TypeError(
            f"a store of class {_class_name(store)} cannot be pickled ({error}): pass a factory or a URL"
        ) from error
    return ConstantStoreFactory(store)


def to_url(store: str | os.PathLike[str]) -> str:
    """URL of a store; that of its directory for a path.

    >>> to_url("/data/sales 2025"), to_url("file:///data"), to_url("hfs://data")
    ('hfs:///data/sales%202025', 'hfs:///data', 'hfs://data')
    """
    if isinstance(store, os.PathLike):
        path = os.fspath(store)
        if not isinstance(path, str):
            raise TypeError(f"expected {_EXPECTED}, got a path of bytes: {path!r}")
        return _directory_url(os.path.expanduser(path))
    scheme, separator, _ = store.partition("://")
    if separator and scheme.lower() == "file":
        parts = urlsplit(store)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ValueError(f"cannot open a store at {redact_url(store)!r}: expected file:///path")
        query = f"?{parts.query}" if parts.query else ""
        return _directory_url(unquote(parts.path)) + query
    if separator or not _is_path(store):
        return store
    return _directory_url(os.path.expanduser(store))


def _is_path(text: str) -> bool:
    """Whether a text without scheme is the path of a directory; a plain name is one if it exists."""
    if text.startswith(("/", "./", "../", "~/")) or text in (".", "..", "~"):
        return True
    return ":" not in text and ("/" in text or (bool(text) and os.path.isdir(text)))


def _directory_url(path: str) -> str:
    return f"hfs://{quote(os.path.abspath(path))}"


def check_reopens(store: object) -> None:
    """Raise ValueError for a URL, or its factory, that opens a new, empty store each time.

    >>> check_reopens(lazy_store("hmemory://"))
    Traceback (most recent call last):
    ValueError: hmemory:// is a new, empty store each time it is opened, so what is written would be lost: ...
    """
    if isinstance(store, str):
        store = lazy_store(store)
    if isinstance(store, UrlStoreFactory):
        scheme = store.url.partition("://")[0].lower()
        if scheme in _MEMORY:
            raise ValueError(
                f"{scheme}:// is a new, empty store each time it is opened, so what is written would be "
                f"lost: open it once, store = ensure_store('{scheme}://'), and pass the store"
            )


_MEMORY = ("hmemory", "memory")
#: options of URLs that storefact opens, by scheme
_OPTIONS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("fs", "hfs"), frozenset({"create_if_missing", "durable"})),
    **dict.fromkeys(_MEMORY, frozenset({"create_if_missing"})),
    "redis": frozenset({"create_if_missing"}),
    "hs3": frozenset({"create_if_missing"}),
    **dict.fromkeys(
        ("azure", "hazure"),
        frozenset(
            {
                "blob_endpoint",
                "create_if_missing",
                "default_endpoints_protocol",
                "max_block_size",
                "max_connections",
                "max_single_put_size",
                "socket_timeout",
                "use_sas",
            }
        ),
    ),
}


def _parse_options(url: str) -> dict[str, str]:
    """Options of a URL that storefact opens; raises ValueError for unknown ones."""
    scheme = url.partition("://")[0].lower()
    options = parse_qs(urlsplit(url).query, keep_blank_values=True)
    check_names("", "option", options, _OPTIONS[scheme])
    return {name: values[-1] for name, values in options.items()}


def _parse_flag(options: dict[str, str], name: str) -> bool:
    # Python's spelling of the values is what some tools write
    value = options.get(name, "true").lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name!r} must be 'true' or 'false', got {value!r}")
    return value == "true"


def _open_with_storefact(url: str) -> KeyValueStore:
    _parse_options(url)
    try:
        return get_store_from_url(url)
    except (ValueError, TypeError, KeyError) as error:
        # storefact's message lacks the known schemes
        raise ValueError(f"{error}; {_list_known_schemes()}") from error


def _open_directory(url: str) -> KeyValueStore:
    """Open a store in a directory, which the first write creates unless the URL forbids that."""
    create_if_missing, durable = _parse_directory_options(url)
    template = _parse_directory_url(url)
    # None if decorators wrap the store
    root = getattr(template, "root", None)
    if isinstance(root, str) and not create_if_missing and not os.path.isdir(root):
        raise ValueError(
            f"the directory {root} does not exist, and create_if_missing=false; {_list_known_schemes()}"
        )
    # a store of its own for each caller: users may set attributes
    store = object.__new__(type(template))
    store.__dict__.update(vars(template))
    if not durable:
        # an attribute of the store is pickled with it
        store.durable = False
    return store


# Cached: parsing the URL takes longer than reading a header.
@lru_cache(maxsize=64)
def _parse_directory_url(url: str) -> KeyValueStore:
    base, hash_sign, fragment = url.partition("#")
    # storefact would create the directory of a store that is only read
    store = _open_with_storefact(f"{base.partition('?')[0]}?create_if_missing=false{hash_sign}{fragment}")
    # an empty root would be the working directory of each process
    if getattr(store, "root", None) == "":
        raise ValueError(f"it names no directory; {_list_known_schemes()}")
    return store


@lru_cache(maxsize=64)
def _parse_directory_options(url: str) -> tuple[bool, ...]:
    options = _parse_options(url)
    return tuple(_parse_flag(options, name) for name in ("create_if_missing", "durable"))


def _find_scheme(url: str) -> tuple[Callable[[str], KeyValueStore], Callable[[str], object] | None]:
    """Opener and check of the scheme of a URL; raises ValueError for unknown ones."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() in _REGISTRY:
        return _REGISTRY[scheme.lower()]
    close = get_close_matches(scheme.lower(), _REGISTRY, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    if not separator and ":" not in url and url and not close:
        hint = f" (is it a directory? ./{url})"
    raise ValueError(f"unknown scheme in the store URL {redact_url(url)!r}{hint}; {_list_known_schemes()}")


def _check_url(url: str) -> None:
    _, check = _find_scheme(url)
    if check is not None:
        try:
            check(url)
        except ValueError as error:
            raise _invalid_url_error(url, error) from error


def _invalid_url_error(url: str, error: Exception) -> ValueError:
    return ValueError(f"cannot open a store at {redact_url(url)!r}: {error}")


def _list_known_schemes() -> str:
    return "known schemes: " + ", ".join(f"{scheme}://" for scheme in sorted(_REGISTRY))


def redact_url(url: str) -> str:
    """URL without user, password and options, which may be secret."""
    return re.sub(r"//.*@", "//***@", url.partition("?")[0], flags=re.DOTALL)


def _class_name(candidate: Any) -> str:
    return f"{type(candidate).__module__}.{type(candidate).__qualname__}"


def register_driver(matches: Callable[[Any], bool], driver: Callable[[Any], BlobStore]) -> None:
    """Serve matching stores by a driver; drivers registered later are asked first.

    Parameters
    ----------
    matches
        Function of the user's store: whether the driver serves it.
    driver
        Function of the user's store that returns its `BlobStore`.
    """
    _DRIVERS.insert(0, (matches, driver))


def open_blobs(store: StoreInput | BlobStore) -> BlobStore:
    """Open a store, factory or URL; a `BlobStore` is returned unchanged. Errors as those of `ensure_store`.

    >>> blobs = open_blobs("hmemory://")
    >>> blobs.put("sales/table/_common_metadata", b"PAR1", durable=True)
    >>> blobs.list("sales/")
    [Blob(key='sales/table/_common_metadata', size=None, mtime=None)]
    """
    if isinstance(store, BlobStore):
        return store
    opened = ensure_store(store)
    if isinstance(opened, BlobStore):
        return opened
    for matches, driver in _DRIVERS:
        if matches(opened):
            return driver(opened)
    return GenericBlobStore(opened)


def _is_directory(store: Any) -> bool:
    """Whether this is exactly a store in a directory; subclasses and patched methods may differ."""
    kind = type(store)
    return (
        os.name == "posix"
        and kind.__name__ in _LOCAL_CLASSES
        and kind.__module__.partition(".")[0] in _LOCAL_PACKAGES
        and not any(callable(getattr(kind, name, None)) for name in vars(store))
        and isinstance(store.root, str)
    )


def _make_local_driver(store: Any) -> BlobStore:
    # needs fcntl, which only POSIX systems have
    from kartothek_cube.core.store.local import LocalBlobStore

    return LocalBlobStore(store)


def _is_object_store(store: Any) -> bool:
    return type(store).__module__ == f"{__package__}.object_store"


def _open_url(url: str) -> KeyValueStore:
    from kartothek_cube.core.store.object_store import open_url

    return open_url(url)


register_driver(_is_directory, _make_local_driver)
register_driver(_is_object_store, lambda store: store.blobs)
register_scheme(
    "azure",
    "hazure",
    "hmemory",
    "hs3",
    "memory",
    "redis",
    opener=_open_with_storefact,
    check=_parse_options,
)
register_scheme("fs", "hfs", opener=_open_directory, check=_parse_directory_options)
register_scheme(*SCHEMES, opener=_open_url, check=parse_url)
