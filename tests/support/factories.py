"""Store factories that survive pickle: one per kind of store, each for a fresh and empty store."""

import atexit
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from urllib.parse import quote

from simplekv import KeyValueStore
from storefact import get_store_from_url

from kartothek_cube.core.utils import lazy_store
from tests.support.object_server import ObjectServer, running

StoreFactory = Callable[[], KeyValueStore]

_MEMORY: dict[str, KeyValueStore] = {}
# A variable: Python 3.13 forgets what `atexit` has in forks, which would wait for the server's thread.
_SERVERS = ExitStack()
atexit.register(_SERVERS.close)


def local(directory: Path) -> StoreFactory:
    return partial(get_store_from_url, f"hfs://{quote(str(directory.absolute()))}?create_if_missing=true")


def memory(directory: Path) -> StoreFactory:
    """Give a factory that returns the same memory store wherever it is called in this process."""
    name = uuid.uuid4().hex
    _MEMORY[name] = get_store_from_url("hmemory://")
    return partial(open_memory, name)


def open_memory(name: str) -> KeyValueStore:
    return _MEMORY[name]


def s3(directory: Path) -> StoreFactory:
    return lazy_store(_small_server().url(bucket=f"bucket/{uuid.uuid4().hex}"))


@cache
def _small_server() -> ObjectServer:
    server = _SERVERS.enter_context(running())
    # it runs until the process ends, and would keep all that was ever written
    server.requests = deque(maxlen=0)
    return server


def moto(directory: Path) -> StoreFactory:
    # needs moto
    from tests.support.servers import s3_url

    return lazy_store(s3_url())


#: name for ``--store`` -> factory of a fresh store, given a directory of its own
STORES: dict[str, Callable[[Path], StoreFactory]] = {"local": local, "memory": memory, "s3": s3, "moto": moto}
