"""The library obstore: its import, its clients (one per store and process, also after a fork), its errors."""

from __future__ import annotations

import errno
import glob
import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from typing import Any, NamedTuple, ParamSpec, TypeVar

from kartothek_cube.core.store.obstore.url import Location, settings

__all__ = ("Connection", "ObstoreModules", "ObjectStoreError", "call_translated", "library", "sanitized")

_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}
_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_ENVIRONMENT = re.compile(r"AWS_|GOOGLE_|AZURE_|.*_PROXY$", re.IGNORECASE).match
_SECRET_NAME = re.compile(r"SECRET|TOKEN|KEY|SAS|PASS", re.IGNORECASE).search
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist").search
_SHOWN = 500
_SHORT = 6

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ObjectStoreError(OSError):
    """A request to an object store failed, in spite of retries."""


class ObstoreModules(NamedTuple):
    """The parts of obstore: functions, classes of stores, classes of errors."""

    functions: Any
    stores: Any
    errors: Any


class _ProcessState:
    """What belongs to one process."""

    def __init__(self, forked: bool) -> None:
        self.lock = threading.Lock()
        self.forked = forked
        self.library: ObstoreModules | None = None
        self.clients: dict[object, Any] = {}


_state = _ProcessState(forked=False)
# clients of the parent process: their threads do not exist here, and to drop them might wait for these
_abandoned: list[_ProcessState] = []


def _after_fork() -> None:
    global _state
    _abandoned.append(_state)
    _state = _ProcessState(forked="obstore" in sys.modules)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def library(kind: str) -> ObstoreModules:
    """
    Import obstore.

    Parameters
    ----------
    kind
        Kind of store that needs it.

    Returns
    -------
    Library

    Raises
    ------
    ModuleNotFoundError
        It is not installed; names the extra.
    """
    state = _state
    with state.lock:
        if state.library is None:
            state.library = _private_copy() if state.forked else _imported(kind)
        return state.library


def _imported(kind: str) -> ObstoreModules:
    try:
        obstore = importlib.import_module("obstore")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"stores at {kind}:// need obstore: pip install 'kartothek_cube[{_EXTRAS[kind]}]'", name="obstore"
        ) from None
    return ObstoreModules(
        obstore, importlib.import_module("obstore.store"), importlib.import_module("obstore.exceptions")
    )


def _private_copy() -> ObstoreModules:
    """
    Load obstore a second time, from a copy in memory.

    Its threads, which do all the work, are left behind by a fork, and it does not start new ones: every
    request would wait forever. A second copy knows nothing of the first one.
    """
    spec = importlib.util.find_spec("obstore")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/_obstore*.so")]
    if len(found) != 1 or not hasattr(os, "memfd_create"):
        raise RuntimeError(
            "object stores were used before this process was forked: "
            "start processes by 'spawn' or 'forkserver'"
        )
    descriptor = os.memfd_create("obstore")
    try:
        with open(found[0], "rb") as source, os.fdopen(os.dup(descriptor), "wb") as target:
            target.write(source.read())
        path = f"/proc/self/fd/{descriptor}"
        # the last part of the name decides about the entry point
        name = f"kartothek_cube_{os.getpid()}._obstore"
        loader = ExtensionFileLoader(name, path)
        copy = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))  # type: ignore[arg-type]
        loader.exec_module(copy)
    finally:
        os.close(descriptor)
    return ObstoreModules(copy, copy._store, copy.exceptions)


class Connection:
    """
    Gives the client of a store, with its pool of connections: the same for all users in a process.

    Parameters
    ----------
    location
        The store.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._found: tuple[_ProcessState, Any] | None = None

    @property
    def client(self) -> Any:
        """
        The client.

        Raises
        ------
        ModuleNotFoundError
            obstore is not installed.
        ValueError
            An option or a variable of the environment makes no sense.
        """
        state = _state
        if self._found is None or self._found[0] is not state:
            self._found = state, _client(state, self.location)
        return self._found[1]


def _client(state: _ProcessState, location: Location) -> Any:
    # credentials in the environment may be replaced while we run
    environment = tuple(item for item in os.environ.items() if _ENVIRONMENT(item[0]))
    loaded = library(location.kind)
    with state.lock:
        found = state.clients.get((location, environment))
        if found is None:
            found = state.clients[location, environment] = _open(loaded, location)
        return found


def _open(loaded: ObstoreModules, location: Location) -> Any:
    config, options, retry = settings(location)
    kind = getattr(loaded.stores, _CLASSES[location.kind])
    problem: Exception
    try:
        return kind(
            location.bucket,
            prefix=location.prefix or None,
            config=config,
            client_options=options or None,
            retry_config=retry or None,
        )
    except (loaded.errors.BaseError, ValueError, TypeError, OverflowError) as error:
        problem = error
    raise ValueError(sanitized(problem, location))


def call_translated(
    location: Location, key: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """
    Call a function of obstore; its errors become those of stores, without secrets.

    Parameters
    ----------
    location
        The store.
    key
        Key of the blob, for messages.
    function
        What to call with the other arguments.

    Raises
    ------
    KeyError
        There is no such blob.
    FileExistsError
        A precondition does not hold.
    PermissionError
        The credentials are missing, wrong or not sufficient.
    ObjectStoreError
        Anything else, such as a missing bucket.
    """
    errors = library(location.kind).errors
    problem: Exception
    try:
        return function(*args, **kwargs)
    except (errors.BaseError, FileNotFoundError) as error:
        problem = error
    # outside of the handler: the error of obstore, which shows more than it should, is not to be the context
    raise _translated(problem, errors, location, key)


def _translated(problem: Exception, errors: Any, location: Location, key: str) -> Exception:
    text = sanitized(problem, location)
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


def sanitized(problem: Exception, location: Location) -> str:
    """
    The first line of a message, without secrets.

    Parameters
    ----------
    problem
        Error of obstore.
    location
        The store.

    Returns
    -------
    str
    """
    text = str(problem).partition("\n\nDebug source")[0]
    # signatures travel as parameters
    text = re.sub(r"\?[^\s'\"]+", "?...", " ".join(text.split()))
    secrets = location.secrets + [
        value for name, value in os.environ.items() if _ENVIRONMENT(name) and _SECRET_NAME(name)
    ]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORT:
            text = text.replace(secret, "***")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
