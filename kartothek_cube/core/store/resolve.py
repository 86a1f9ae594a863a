"""Conversion of the argument `store`, as a URL, factory or store, to a store, a factory or a driver."""

# ruff: noqa: D102 (the protocol documents the methods of the driver)

from __future__ import annotations

import io
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

from simplekv import KeyValueStore
from storefact import get_store_from_url

from kartothek_cube.core.errors import check_names, nearest_names
from kartothek_cube.core.store import blob_store, local, object_store

# All drivers of one dictionary share a lock; dictionaries may share one, too.
_LOCKS = tuple(threading.RLock() for _ in range(64))
# how often a dictionary may change while it is listed
_ATTEMPTS = 1000


class GenericBlobStore(blob_store.BlobStore):
    """Blobs in a simplekv store, or in any object with the same methods."""

    # In-memory stores (`DictStore`, also below decorators) compare and swap under a lock, since no other
    # process can access them. Other stores read, compare and put.

    def __init__(self, store: KeyValueStore) -> None:
        self._store, dictionary = store, find_dictionary(store)
        self._can_swap = dictionary is not None
        self._lock = _LOCKS[(id(store if dictionary is None else dictionary) >> 4) % len(_LOCKS)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    @property
    def store(self) -> KeyValueStore:
        return self._store

    @property
    def can_swap(self) -> bool:
        return self._can_swap

    # reading

    def get(self, key: str) -> bytes:
        with _missing_as_key_error(key):
            return bytes(self._get_method("get")(blob_store.check_key(key)))

    def get_with_token(self, key: str) -> tuple[bytes, blob_store.Token]:
        data = self.get(key)
        return data, data

    def size(self, key: str) -> int:
        with self.open_read(key) as file:
            return file.seek(0, io.SEEK_END)

    def exists(self, key: str) -> bool:
        return bool(self._get_method("__contains__")(blob_store.check_key(key)))

    def open_read(self, key: str) -> BinaryIO:
        with _missing_as_key_error(key):
            file = self._get_method("open")(blob_store.check_key(key))
        if getattr(file, "seekable", bool)():
            return cast(BinaryIO, file)
        file.close()
        return io.BytesIO(self.get(key))

    # writing

    def put(self, key: str, data: blob_store.Data, *, durable: bool = False) -> None:
        put = self._get_method("put")
        # durable: possibly a header, which must not be put between comparison and replacement of a swap
        with self._lock if durable else nullcontext():
            put(blob_store.check_key(key), bytes(data))

    def put_if(self, key: str, data: blob_store.Data, token: blob_store.Token | None) -> blob_store.Token:
        content = bytes(data)
        with self._hold_if_current(key, token):
            self._get_method("put")(key, content)
        return content

    def delete_if(self, key: str, token: blob_store.Token) -> None:
        if token is None:
            raise blob_store.PreconditionFailed(blob_store.check_key(key))
        delete = self._get_method("delete")
        with self._hold_if_current(key, token):
            try:
                delete(key)
            except KeyError:
                # a writer of another process deleted it after the comparison
                raise blob_store.PreconditionFailed(key) from None

    def delete(self, keys: Iterable[str]) -> None:
        delete = self._get_method("delete")
        for key in blob_store.check_keys(keys):
            # Headers have no "/" in their keys: their deletion must not happen within a swap.
            # simplekv does not define the deletion of a missing key: some stores ignore it, some raise.
            with nullcontext() if "/" in key else self._lock, suppress(KeyError):
                delete(key)

    @contextmanager
    def _hold_if_current(self, key: str, token: blob_store.Token | None) -> Iterator[None]:
        blob_store.check_key(key)
        if not self.can_swap:
            blob_store.warn_no_swap(type(self._store))
        with self._lock:
            try:
                current = self.get(key)
            except KeyError:
                current = None
            if current != token:
                raise blob_store.PreconditionFailed(key)
            yield

    # listing

    def list_dir(self, prefix: str) -> blob_store.Keys:
        if not hasattr(self._store, "iter_prefixes"):
            return super().list_dir(prefix)
        blob_store.check_prefix(prefix)
        prefixes = set(self._list_retrying(lambda: self._store.iter_prefixes("/", prefix)))
        keys = [key for key in prefixes if blob_store.is_key(key.removesuffix("/"))]
        return sorted(key for key in keys if key.startswith(prefix))

    def list(self, prefix: str) -> blob_store.Blobs:
        blob_store.check_prefix(prefix)
        has_iterator = getattr(self._store, "iter_keys", None) is not None
        listing = self._get_method("iter_keys" if has_iterator else "keys")
        keys = sorted(self._list_retrying(lambda: listing(prefix)))
        keys = [key for key in keys if key.startswith(prefix) and blob_store.is_key(key)]
        return list(map(blob_store.Blob, keys))

    def _list_retrying(self, listing: Callable[[], Iterable[str]]) -> blob_store.Keys:
        for _ in range(_ATTEMPTS):
            try:
                return list(listing())
            except RuntimeError:
                # a dictionary changed during its iteration
                if not self.can_swap:
                    raise
        return list(listing())

    def _get_method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] | None = getattr(self._store, name, None)
        if method is None:
            raise io.UnsupportedOperation(f"{type(self._store).__name__} has no method {name!r}")
        return method


def find_dictionary(store: KeyValueStore) -> object:
    """The dictionary of an in-memory store, also below decorators; None for other stores."""
    while hasattr(store, "_dstore"):
        store = store._dstore
    is_memory = any(kind.__name__ == "DictStore" for kind in type(store).__mro__)
    return getattr(store, "d", None) if is_memory else None


@contextmanager
def _missing_as_key_error(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise KeyError(key) from None


# -- what users pass as a store ------------------------------------------------------------------------------

_EXPECTED = "a simplekv store, a function without arguments that returns one, a directory, or a URL such as 'hfs:///data'"
_REGISTRY: dict[str, tuple[Callable[[str], KeyValueStore], Callable[[str], object] | None]] = {}
_DRIVERS: list[tuple[Callable[[Any], bool], Callable[[Any], blob_store.BlobStore]]] = []
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
    """Whether this is a store: of simplekv, or any other object with the methods ``get`` and ``open``."""
    if isinstance(candidate, blob_store.BlobStore):
        return True
    # Other methods (`put`, `delete`, `iter_keys`, ...) are looked up on use: a read-only store has no `put`.
    # A class is a factory of stores, even if it has all their methods.
    if isinstance(candidate, type):
        return False
    return callable(getattr(candidate, "get", None)) and callable(getattr(candidate, "open", None))


def ensure_store(store: blob_store.StoreInput) -> KeyValueStore:
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
        kind = _class_name(result)
        raise TypeError(f"expected {_EXPECTED}; the function returned an object of class {kind}")
    return result


def lazy_store(store: blob_store.StoreInput) -> blob_store.StoreFactory:
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
        _, check = _find_scheme(url)
        try:
            if check is not None:
                check(url)
        except ValueError as error:
            raise _invalid_url_error(url, error) from error
        return UrlStoreFactory(url)
    if callable(store):
        return store
    if not is_store(store):
        given = "None" if store is None else f"an object of class {_class_name(store)}"
        raise TypeError(f"expected {_EXPECTED}, got {given}")
    try:
        pickle.dumps(store)
    except (pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        problem = f"cannot be pickled ({error}): pass a factory or a URL"
        raise TypeError(f"a store of class {_class_name(store)} {problem}") from error
    return ConstantStoreFactory(store)


def to_url(store: str | os.PathLike[str]) -> str:
    """URL of a store; that of its directory for a path."""
    if isinstance(store, os.PathLike):
        path = os.fspath(store)
        if not isinstance(path, str):
            raise TypeError(f"expected {_EXPECTED}, got a path of bytes: {path!r}")
        return _directory_url(os.path.expanduser(path))
    # Spark and Java write one slash
    if store[:6].lower() == "file:/":
        parts = urlsplit(store)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ValueError(f"cannot open a store at {redact_url(store)!r}: expected file:///path")
        query = f"?{parts.query}" if parts.query else ""
        return _directory_url(unquote(parts.path)) + query
    is_url = "://" in store or not _is_path(store)
    return store if is_url else _directory_url(os.path.expanduser(store))


def _is_path(text: str) -> bool:
    """Whether a text without scheme is the path of a directory; a plain name is one if it exists."""
    if text.startswith(("/", "./", "../", "~/")) or text in (".", "..", "~"):
        return True
    return ":" not in text and ("/" in text or (bool(text) and os.path.isdir(text)))


def _directory_url(path: str) -> str:
    return f"hfs://{quote(os.path.abspath(path))}"


def check_reopens(store: object) -> None:
    """Raise ValueError for a URL, or its factory, that opens a new, empty store each time."""
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
_OPTIONS: dict[str, str] = {
    **dict.fromkeys(("fs", "hfs"), "create_if_missing durable"),
    **dict.fromkeys((*_MEMORY, "redis", "hs3"), "create_if_missing"),
    **dict.fromkeys(
        ("azure", "hazure"),
        "blob_endpoint create_if_missing default_endpoints_protocol max_block_size max_connections "
        "max_single_put_size socket_timeout use_sas",
    ),
}


def _parse_options(url: str) -> dict[str, str]:
    """Options of a URL that storefact opens; raises ValueError for unknown ones."""
    scheme = url.partition("://")[0].lower()
    options = parse_qs(urlsplit(url).query, keep_blank_values=True)
    check_names("", "option", options, _OPTIONS[scheme].split())
    return {name: values[-1] for name, values in options.items()}


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
    if isinstance(root, str) and not os.path.isdir(root):
        # not "exists": a concurrent writer may have created the directory since
        if os.path.isfile(root):
            raise ValueError(f"{root} is a file; a store is a directory")
        if not create_if_missing:
            problem = f"the directory {root} does not exist, and create_if_missing=false"
            raise ValueError(f"{problem}; {_list_known_schemes()}")
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
    options = {"create_if_missing": "true", "durable": "true", **_parse_options(url)}
    for name, value in options.items():
        # Python's spelling of the values is what some tools write
        if value.lower() not in ("true", "false"):
            raise ValueError(f"option {name!r} must be 'true' or 'false', got {value.lower()!r}")
    return tuple(options[name].lower() == "true" for name in ("create_if_missing", "durable"))


def _find_scheme(url: str) -> tuple[Callable[[str], KeyValueStore], Callable[[str], object] | None]:
    """Opener and check of the scheme of a URL; raises ValueError for unknown ones."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() in _REGISTRY:
        return _REGISTRY[scheme.lower()]
    close = nearest_names(scheme, _REGISTRY)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    if not separator and ":" not in url and url:
        hint += f" (is it a directory? ./{url})"
    raise ValueError(f"unknown scheme in the store URL {redact_url(url)!r}{hint}; {_list_known_schemes()}")


def _invalid_url_error(url: str, error: Exception) -> ValueError:
    return ValueError(f"cannot open a store at {redact_url(url)!r}: {error}")


def _list_known_schemes() -> str:
    return "known schemes: " + ", ".join(f"{scheme}://" for scheme in sorted(_REGISTRY))


def redact_url(url: str) -> str:
    """URL without user, password and options, which may be secret."""
    return re.sub(r"//.*@", "//***@", url.partition("?")[0], flags=re.DOTALL)


def _class_name(candidate: Any) -> str:
    return f"{type(candidate).__module__}.{type(candidate).__qualname__}"


def register_driver(matches: Callable[[Any], bool], driver: Callable[[Any], blob_store.BlobStore]) -> None:
    """Serve matching stores by a driver; drivers registered later are asked first.

    Parameters
    ----------
    matches
        Function of the user's store: whether the driver serves it.
    driver
        Function of the user's store that returns its `BlobStore`.
    """
    _DRIVERS.insert(0, (matches, driver))


def open_blobs(store: blob_store.StoreInput | blob_store.BlobStore) -> blob_store.BlobStore:
    """Open a store, factory or URL (errors: see `ensure_store`); a `BlobStore` is returned unchanged."""
    if isinstance(store, blob_store.BlobStore):
        return store
    opened = ensure_store(store)
    if isinstance(opened, blob_store.BlobStore):
        return opened
    for matches, driver in _DRIVERS:
        if matches(opened):
            return driver(opened)
    return GenericBlobStore(opened)


def _is_directory(store: Any) -> bool:
    """Whether this is exactly a store in a directory; subclasses and patched methods may differ."""
    kind = type(store)
    return (
        kind.__name__ in _LOCAL_CLASSES
        and kind.__module__.partition(".")[0] in _LOCAL_PACKAGES
        and not [name for name in vars(store) if callable(getattr(kind, name, None))]
        and isinstance(store.root, str)
    )


register_driver(_is_directory, local.LocalBlobStore)
register_driver(lambda store: type(store) is object_store.ObjectStore, lambda store: store.blobs)
register_scheme(*_OPTIONS, opener=_open_with_storefact, check=_parse_options)
register_scheme("fs", "hfs", opener=_open_directory, check=_parse_directory_options)
register_scheme(*object_store.SCHEMES, opener=object_store.open_url, check=object_store.parse_url)
