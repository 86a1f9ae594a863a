"""Prefetch of files of a remote store: many requests at once, in the order of use, in limited memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Lock
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

import pyarrow as pa

from kartothek_cube.core.errors import MissingFileError
from kartothek_cube.core.store import BlobStore, get_required
from kartothek_cube.io_components.runtime import (
    REMOTE_REQUESTS,
    apply_thread_limit,
    batched,
    progress_advance,
)
from kartothek_cube.serialization import fetch

__all__ = ("FileBytes", "FilePrefetcher", "FileRequest", "fetch_file")

#: content of a file; a buffer may lack columns that were not requested
FileBytes: TypeAlias = bytes | pa.Buffer

#: requests at once when sizes are known: with half as many, threads wait for the network
_MAX_REQUESTS = 2 * REMOTE_REQUESTS
#: bytes that are read before they are needed; but at least so many requests, as a connection is slow
_MEMORY, _MIN_REQUESTS = 256 << 20, 16
#: requests per thread: with more, threads are handed several files at a time
_REQUESTS_PER_THREAD = 8


class FileRequest(NamedTuple):
    """A file to read: its key, the needed columns (None for all), and about which share of it they are."""

    key: str
    columns: Sequence[str] | None
    share: float = 1.0


def fetch_file(blobs: BlobStore, key: str, columns: Sequence[str] | None) -> FileBytes:
    """Content of a file with the needed columns, or with all of them for None; raises MissingFileError."""
    try:
        file = fetch(blobs, key, columns) if blobs.has_ranges else get_required(blobs, key)
    except KeyError as exc:
        raise MissingFileError(key) from exc
    progress_advance(len(file))
    return file


class FilePrefetcher:
    """
    Reads files ahead of their use, on threads of its own, in the order of the requests.

    A context manager; requests that have not begun when it ends are dropped.
    """

    def __init__(self, blobs: BlobStore, requests: Sequence[FileRequest]) -> None:
        self._blobs = blobs
        size = -(-len(requests) // (_REQUESTS_PER_THREAD * _MAX_REQUESTS))
        self._batches = batched(requests, max(1, size))
        self._batch_of = {
            request.key: number for number, batch in enumerate(self._batches) for request in batch
        }
        self._futures: dict[int, Future[dict[str, FileBytes]]] = {}
        self._untaken = [len(batch) for batch in self._batches]
        self._next = 0
        self._limit = apply_thread_limit(REMOTE_REQUESTS)
        #: bytes that have been read
        self.nbytes = 0.0
        self._context = copy_context()  # the listener for progress
        self._lock = Lock()
        threads = min(apply_thread_limit(_MAX_REQUESTS), max(1, len(self._batches)))
        self._pool = ThreadPoolExecutor(threads, "kartothek_cube_prefetch")
        with self._lock:
            self._submit_allowed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._batch_of)

    def close(self) -> None:
        """Drop requests that have not begun, and wait for the others."""
        self._pool.shutdown(cancel_futures=True)

    def __contains__(self, key: object) -> bool:
        return key in self._batch_of

    def size(self, key: str) -> int:
        """Bytes of a file, which stays to be taken."""
        return len(self._wait(self._batch_of[key])[key])

    def take(self, key: str) -> FileBytes:
        """Content of a file; once for each, which lets others be read."""
        number = self._batch_of[key]
        file = self._wait(number).pop(key)
        with self._lock:
            self._untaken[number] -= 1
            if not self._untaken[number]:
                del self._futures[number]
            self._submit_allowed()
        return file

    def _wait(self, number: int) -> dict[str, FileBytes]:
        with self._lock:
            future = self._futures.get(number)
            # whatever the limit, a file that is needed now is read
            future = self._submit(number) if future is None else future
        return future.result()

    def _submit_allowed(self) -> None:
        while self._next < len(self._batches) and len(self._futures) < self._limit:
            if self._next not in self._futures and self._untaken[self._next]:
                self._submit(self._next)
            self._next += 1

    def _submit(self, number: int) -> Future[dict[str, FileBytes]]:
        future = self._pool.submit(self._context.copy().run, self._fetch, self._batches[number])
        self._futures[number] = future
        return future

    def _fetch(self, batch: Sequence[FileRequest]) -> dict[str, FileBytes]:
        files = {request.key: fetch_file(self._blobs, request.key, request.columns) for request in batch}
        size = sum(len(files[request.key]) * request.share for request in batch)
        limit = apply_thread_limit(int(min(max(_MEMORY / max(size, 1.0), _MIN_REQUESTS), _MAX_REQUESTS)))
        with self._lock:
            self.nbytes += size
            if limit != self._limit:
                self._limit = limit
                self._submit_allowed()
        return files
