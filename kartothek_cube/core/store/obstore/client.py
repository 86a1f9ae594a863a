"""The library obstore: its import, one client per location and process (also after a fork), its errors."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from kartothek_cube.core.store.obstore.url import Location, settings

_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}
_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
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


class Connection:
    """Client of a location with its pool of connections, shared by all users in a process."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._cached: tuple[_ProcessState, Any] | None = None

    @property
    def client(self) -> Any:
        """The client; ModuleNotFoundError without obstore, ValueError for an invalid option or variable."""
        state = _state
        if self._cached is None or self._cached[0] is not state:
            self._cached = state, _get_client(state, self.location)
        return self._cached[1]


def _get_client(state: _ProcessState, location: Location) -> Any:
    # credentials in the environment may be replaced during the life of a process
    environment = tuple(item for item in os.environ.items() if _ENVIRONMENT(item[0]))
    modules = load_library(location.kind)
    with state.lock:
        client = state.clients.get((location, environment))
        if client is None:
            client = state.clients[location, environment] = _open_client(modules, location)
        return client


def _open_client(modules: ObstoreModules, location: Location) -> Any:
    config, options, retry = settings(location)
    kind = getattr(modules.stores, _CLASSES[location.kind])
    problem: Exception
    try:
        return kind(
            location.bucket,
            prefix=location.prefix or None,
            config=config,
            client_options=options or None,
            retry_config=retry or None,
        )
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
