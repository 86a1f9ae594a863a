"""Pins: readers of hours keep the state that they read from being deleted by garbage collections."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from types import TracebackType
from typing import Self

from kartothek_cube.core.commit import header_store
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import load_snapshot
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.history import put_pin
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.maintenance.garbage import store_time
from kartothek_cube.io_components.maintenance.history import make_token

# The order of requests: put the pins, then read the headers again. If they still have the pinned states, a
# garbage collection that deletes files of these adds its tombstones later, and lists the pins after that.


class CubePin:
    """
    A state of a cube that garbage collections keep; made by :func:`pin_cube`.

    Attributes
    ----------
    token : str
        The state, for ``as_of``.
    expires : datetime.datetime
        When the pin stops to count unless it is renewed, UTC, by the clock of the store.
    """

    def __init__(self, cube: Cube, blobs: BlobStore, lease: timedelta) -> None:
        self._cube, self._blobs, self._lease = cube, blobs, lease
        self._id, self._ended = gen_uuid(), Event()
        self._keys: list[str] = []
        for _ in header_store.attempts():
            self._datasets = load_snapshot(cube, blobs, None).datasets
            self.token = make_token(self._datasets, blobs)
            self.renew()
            if make_token(load_snapshot(cube, blobs, None).datasets, blobs) == self.token:
                break
            self.release()
        else:
            raise ConcurrentWriteError(cube.ktk_dataset_uuid(cube.seed_dataset))
        self._ended.clear()

    def renew(self) -> None:
        """Extend the lease, from now on. In a ``with`` block this is done in the background."""
        prefix = self._cube.ktk_dataset_uuid(self._cube.seed_dataset)
        now = store_time(self._blobs, f"{prefix}.{gen_uuid()}.tmp")
        expires = int(now + self._lease.total_seconds())
        self.expires = datetime.fromtimestamp(expires, UTC)
        states = dict(entry.split("@") for entry in self.token.split(","))
        keys = [put_pin(self._blobs, ds, states[n], expires, self._id) for n, ds in self._datasets.items()]
        self._blobs.delete([key for key in self._keys if key not in keys])
        self._keys = keys

    def release(self) -> None:
        """End the pin."""
        self._ended.set()
        self._blobs.delete(self._keys)
        self._keys = []

    def _renew_until_the_end(self) -> None:
        while not self._ended.wait(self._lease.total_seconds() / 3):
            # the store may be available again before the lease ends
            with suppress(Exception):
                self.renew()

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._renew_until_the_end, name="renew-pin", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.release()

    def __repr__(self) -> str:
        return f"<pin of cube {self._cube.uuid_prefix} until {self.expires:%Y-%m-%d %H:%M:%S} UTC>"


def pin_cube(cube: Cube, store: StoreInput, lease: timedelta = timedelta(hours=1)) -> CubePin:
    """Pin the current state of a cube."""
    ensure_cube(cube)
    if not isinstance(lease, timedelta):
        raise TypeError(f"lease is a datetime.timedelta, such as timedelta(hours=1), not {lease!r}")
    if lease < timedelta(seconds=10):
        raise ValueError(f"lease is at least ten seconds, as it has to be renewed in time, not {lease}")
    return CubePin(cube, open_blobs(store), lease)
