"""What users pass as a store (URL, factory or store) -> a store, or a factory that travels."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qs, urlsplit

from simplekv import KeyValueStore
from storefact import get_store_from_url

from kartothek_cube.core.typing import StoreFactory, StoreInput

__all__ = (
    "ConstantStoreFactory",
    "UrlStoreFactory",
    "ensure_store",
    "is_store",
    "lazy_store",
    "register_scheme",
)

_EXPECTED = "a simplekv store, a function without arguments that returns one, or a URL such as 'hfs:///data'"
_PICKLE_ERRORS = (pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError)
_OPENERS: dict[str, Callable[[str], KeyValueStore]] = {}
_CHECKS: dict[str, Callable[[str], object]] = {}


def register_scheme(
    *schemes: str, opener: Callable[[str], KeyValueStore], check: Callable[[str], object] | None = None
) -> None:
    """Let URLs of these schemes be opened by this function; the last registration wins.

    Parameters
    ----------
    schemes
        Schemes in lower case, without ``://``.
    opener
        Function of the whole URL; raises ValueError if it cannot make sense of it.
    check
        Function of the whole URL that raises the same errors without opening anything.
    """
    _OPENERS.update(dict.fromkeys(schemes, opener))
    for scheme in schemes:
        _CHECKS.pop(scheme, None)
        if check is not None:
            _CHECKS[scheme] = check


@dataclass(frozen=True, repr=False)
class UrlStoreFactory:
    """Factory of the store at a URL; pickles, and shows no passwords.

    Parameters
    ----------
    url
        URL of the store.

    Examples
    --------
    >>> UrlStore("hazure://account:secret@container?create_if_missing=false")
    UrlStore('hazure://***@container')
    """

    url: str

    def __call__(self) -> KeyValueStore:
        """Open the store.

        Returns
        -------
        KeyValueStore

        Raises
        ------
        ValueError
            The URL has an unknown scheme or is otherwise unusable.
        """
        opener = _opener(self.url)
        try:
            return opener(self.url)
        except (ValueError, TypeError, KeyError) as error:
            raise _unusable(self.url, error) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_shown(self.url)!r})"


@dataclass(frozen=True)
class ConstantStoreFactory:
    """Factory of a store that is already there; pickles if the store does.

    Parameters
    ----------
    store
        The store.
    """

    store: KeyValueStore

    def __call__(self) -> KeyValueStore:
        """Return the store.

        Returns
        -------
        KeyValueStore
        """
        return self.store


def is_store(candidate: object) -> bool:
    """Tell whether this is a store: of simplekv, or any other object that can ``get`` and ``open`` keys.

    Whatever else an operation needs (``put``, ``delete``, ``iter_keys`` or ``keys``, ``in``) is asked for
    when it is needed: a store for reading has no ``put``.

    Parameters
    ----------
    candidate
        Anything.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_store("hmemory://"), is_store(ensure_store("hmemory://"))
    (False, True)
    """
    # a class is a factory of stores, even if it has all their methods
    if isinstance(candidate, type):
        return False
    return all(callable(getattr(candidate, name, None)) for name in ("get", "open"))


def ensure_store(store: StoreInput) -> KeyValueStore:
    """Turn a store, a factory or a URL into a store.

    Parameters
    ----------
    store
        A store is returned unchanged; a factory is called; a URL is opened (``hmemory://``: a new store each
        time).

    Returns
    -------
    KeyValueStore

    Raises
    ------
    TypeError
        It is none of them, or the factory does not return a store.
    ValueError
        The URL has an unknown scheme or is otherwise unusable.

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
    """Turn a store, a factory or a URL into a factory that can travel to other processes.

    Parameters
    ----------
    store
        A factory is returned unchanged, and not called.

    Returns
    -------
    callable

    Raises
    ------
    TypeError
        It is none of them, or a store that cannot be pickled (pass its factory or URL then).
    ValueError
        The scheme of the URL is unknown, or an option of an object store.

    Examples
    --------
    >>> lazy_store("hfs:///data")
    UrlStore('hfs:///data')
    """
    if isinstance(store, str):
        _opener(store)
        _check(store)
        return UrlStoreFactory(store)
    if callable(store):
        return store
    if not is_store(store):
        raise TypeError(f"expected {_EXPECTED}, got an object of class {_class_name(store)}")
    try:
        pickle.dumps(store)
    except _PICKLE_ERRORS as error:
        raise TypeError(
            f"a store of class {_class_name(store)} cannot be pickled ({error}): pass a factory or a URL"
        ) from error
    return ConstantStoreFactory(store)


def _open_with_storefact(url: str) -> KeyValueStore:
    try:
        try:
            store = get_store_from_url(url)
        except FileExistsError:
            # somebody else created the directory at the same time
            store = get_store_from_url(url)
    except FileNotFoundError as error:
        raise ValueError(f"there is no such directory; {_known()}") from error
    except (ValueError, TypeError, KeyError) as error:
        # storefact does not tell which schemes there are
        raise ValueError(f"{error}; {_known()}") from error
    # an empty root would be the working directory of each process
    if getattr(store, "root", None) == "":
        raise ValueError(f"it names no directory; {_known()}")
    return store


def _open_directory(url: str) -> KeyValueStore:
    """Open a store in a directory; the store itself bears the option, so that it travels with it."""
    durable = _is_durable(url)
    store = _open_with_storefact(url)
    if not durable:
        store.durable = False
    return store


def _is_durable(url: str) -> bool:
    value = parse_qs(urlsplit(url).query, keep_blank_values=True).get("durable", ["true"])[-1]
    if value not in ("true", "false"):
        raise ValueError(f"option 'durable' must be 'true' or 'false', got {value!r}")
    return value == "true"


def _opener(url: str) -> Callable[[str], KeyValueStore]:
    scheme, separator, _ = url.partition("://")
    opener = _OPENERS.get(scheme.lower())
    if opener is not None and separator:
        return opener
    close = get_close_matches(scheme.lower(), _OPENERS, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    if not separator and "/" in url:
        hint = f" (is it a directory? hfs://{_shown(url)})"
    raise ValueError(f"unknown scheme in the store URL {_shown(url)!r}{hint}; {_known()}")


def _check(url: str) -> None:
    check = _CHECKS.get(_scheme(url))
    if check is not None:
        try:
            check(url)
        except ValueError as error:
            raise _unusable(url, error) from error


def _unusable(url: str, error: Exception) -> ValueError:
    return ValueError(f"cannot open a store at {_shown(url)!r}: {error}")


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _known() -> str:
    return "known schemes: " + ", ".join(f"{scheme}://" for scheme in sorted(_OPENERS))


def _shown(url: str) -> str:
    """Leave out what may be secret: user, password and parameters."""
    return re.sub(r"//.*@", "//***@", url.partition("?")[0], flags=re.DOTALL)


def _class_name(candidate: Any) -> str:
    return f"{type(candidate).__module__}.{type(candidate).__qualname__}"


register_scheme("azure", "hazure", "hmemory", "hs3", "memory", "redis", opener=_open_with_storefact)
register_scheme("fs", "hfs", opener=_open_directory, check=_is_durable)
