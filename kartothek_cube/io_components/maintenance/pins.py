"""Pins: leases by which readers keep a state of a cube from garbage collections."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Self

from kartothek_cube.core import clock, errors, history
from kartothek_cube.core.commit import header_store
from kartothek_cube.core.cube import discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset_files import file_keys
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.maintenance.cube_history import make_token
from kartothek_cube.io_components.maintenance.garbage import store_time

# The order of requests: put the pins, then read the headers again. If they still have the pinned states, a
# garbage collection that deletes files of these adds its tombstones later, and lists the pins after that.


class CubePin:
    """A state of a cube that garbage collections keep; made by :func:`pin_cube`.

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
            self._datasets = discover.load_snapshot(cube, blobs, None).datasets
            self.token = make_token(self._datasets, blobs)
            self.expires = self._put()
            if make_token(discover.load_snapshot(cube, blobs, None).datasets, blobs) == self.token:
                break
            self.release()
        else:
            raise errors.ConcurrentWriteError(cube.ktk_dataset_uuid(cube.seed_dataset))

    def renew(self) -> None:
        """Extend the lease, from now on. In a ``with`` block this is done in the background.

        Raises StateNotFoundError if it had ended, or was released, and a cleanup has deleted the state since.
        """
        was_pinned, started = bool(self._keys), clock.datetime_utcnow()
        expires = self._put()
        # leases end at full seconds
        latest = expires - self._lease + (clock.datetime_utcnow() - started) + timedelta(seconds=1)
        if not was_pinned or latest >= self.expires:
            self._check_kept()
        self.expires = expires

    def _put(self) -> datetime:
        """Put pins of a new lease in place of the others; return when it ends."""
        prefix = self._cube.ktk_dataset_uuid(self._cube.seed_dataset)
        now = store_time(self._blobs, f"{prefix}.{gen_uuid()}.tmp")
        expires = int(now + self._lease.total_seconds())
        if expires >= 10**10:
            # names of pins have ten digits for it: another one counted for nothing
            raise ValueError(f"lease is so long that it ends after the year 2286: {self._lease}")
        states = dict(entry.split("@") for entry in self.token.split(","))
        keys = [
            history.put_pin(self._blobs, ds, states[n], expires, self._id) for n, ds in self._datasets.items()
        ]
        self._blobs.delete([key for key in self._keys if key not in keys])
        self._keys = keys
        return datetime.fromtimestamp(expires, UTC)

    def _check_kept(self) -> None:
        """End the pin if a garbage collection that has not seen it deletes files of its state."""
        # the order is that of a commit: such a collection has put tombstones, or files are missing already
        try:
            for dataset in self._datasets.values():
                newest = DatasetMetadata.load_from_store(dataset.uuid, self._blobs, load_schema=False)
                tombstones = header_store.list_tombstoned_files(newest.metadata)
                header_store.check_files(self._blobs, dataset.uuid, file_keys(dataset), tombstones)
        except (errors.ConcurrentWriteError, errors.DatasetNotFoundError) as error:
            self.release()
            name, remedy = self._cube.uuid_prefix, "Its pin had ended, and it was deleted since."
            raise errors.StateNotFoundError(name, self.token, kind="Cube", remedy=remedy) from error

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
        if not self._keys:
            self.renew()
        self._ended.clear()
        self._thread = Thread(target=self._renew_until_the_end, name="renew-pin", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.release()

    def __repr__(self) -> str:
        return f"<pin of cube {self._cube.uuid_prefix} until {self.expires:%Y-%m-%d %H:%M:%S} UTC>"


def pin_cube(cube: Cube | str, store: StoreInput, *, lease: timedelta = timedelta(hours=1)) -> CubePin:
    """Keep the current state of a cube from being deleted while it is read, by cleanups of any process.

    In a ``with`` block, the pin is renewed in the background, and ends with the block. Of a process that dies
    it counts until the lease ends. A pin costs a file per dataset. A deletion of the cube ignores it.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    lease
        How long the pin counts, by the clock of the store, unless it is renewed; at least ten seconds.

    Returns
    -------
    CubePin
        Its ``token`` is the state, for the ``as_of`` of queries; methods ``renew()`` and ``release()``.

    Raises
    ------
    ValueError
        There is no such cube, or the lease is too short, or ends after the year 2286.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, cleanup_cube, query_cube_df
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> with pin_cube(cube, store) as pin:
    ...     _ = build_cube(cities.assign(CITY="Ulm"), cube, store, overwrite=True)
    ...     cleanup_cube(cube, store)
    ...     query_cube_df(cube, store, as_of=pin.token)["CITY"].tolist()
    ['Bonn', 'Rom']
    """
    cube = discover.find_cube(cube, store)
    if not isinstance(lease, timedelta):
        raise TypeError(f"lease is a datetime.timedelta, such as timedelta(hours=1), not {lease!r}")
    if lease < timedelta(seconds=10):
        raise ValueError(f"lease is at least ten seconds, as it has to be renewed in time, not {lease}")
    return CubePin(cube, open_blobs(store), lease)
