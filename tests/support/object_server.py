"""A small and fast object store over HTTP, with the protocols of S3 and of Google Cloud Storage (XML).

It keeps blobs in memory, waits before each answer if told so, notes all requests and misbehaves on demand.
As a program (argument: seconds to wait) it tells its port, and ends when its standard input does.
"""

import asyncio
import hashlib
import os
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cached_property
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

Fault = Literal["refuse", "lose answer", "fail after", "cut"]


@dataclass(frozen=True)
class Request:
    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        what = self.key or "?" + "&".join(sorted(self.query))
        return f"{self.method} {what} {self.headers.get('range', '')}".strip()


@dataclass(frozen=True)
class Stored:
    data: bytes
    generation: int
    attributes: dict[str, str]
    time: float = field(default_factory=time.time)

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def head(self, length: int) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class ObjectServer:
    """One server; every bucket exists, all have the same blobs. Conditional writes: obey, ignore, refuse."""

    def __init__(self, latency: float = 0.0, page: int = 1000, conditions: str = "obey") -> None:
        self.latency = latency
        self.page = page
        self.conditions = conditions
        self.blobs: dict[str, Stored] = {}
        self.requests: MutableSequence[Request] = []
        self.faults: list[tuple[str, str, Fault]] = []
        self.port = 0
        #: most requests under way at once
        self.peak = 0
        self._running = 0
        self._generation = 1000

    def fail(self, method: str, key: str, fault: Fault, times: int = 1) -> None:
        """Misbehave at the next requests of this method whose keys contain a text."""
        self.faults += [(method, key, fault)] * times

    def url(self, kind: str = "s3", bucket: str = "bucket", options: str = "") -> str:
        common = (
            f"endpoint=http://127.0.0.1:{self.port}&allow_http=true&max_retries=3&init_backoff=5ms{options}"
        )
        if kind == "gs":
            return f"gs://{bucket}?{common}&skip_signature=true"
        return (
            f"s3://{bucket}?{common}&region=us-east-1&access_key_id=testing&secret_access_key=secret_of_tests"
        )

    # connections

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._answer_one(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _read_request(reader)
        self._running += 1
        self.peak = max(self.peak, self._running)
        try:
            self.requests.append(request)
            if self.latency:
                await asyncio.sleep(self.latency)
            fault = self._fault(request)
            answer = Answer(503) if fault == "refuse" else self.answer(request)
        finally:
            self._running -= 1
        if fault == "lose answer":
            raise ConnectionAbortedError
        if fault == "fail after":
            answer = Answer(500)
        body = b"" if request.method == "HEAD" else answer.body
        writer.write(answer.head(len(answer.body)))
        writer.write(body[: len(body) // 2] if fault == "cut" else body)
        await writer.drain()
        if fault == "cut":
            raise ConnectionAbortedError

    def _fault(self, request: Request) -> Fault | None:
        for number, (method, key, fault) in enumerate(self.faults):
            if method == request.method and key in request.key:
                del self.faults[number]
                return fault
        return None

    # what is asked

    def answer(self, request: Request) -> Answer:
        if request.key:
            return getattr(self, f"_{request.method.lower()}")(request)
        if request.method == "POST" and "delete" in request.query:
            return self._delete_many(request)
        return self._list(request.query) if request.method == "GET" else Answer(200)

    def _get(self, request: Request) -> Answer:
        stored = self.blobs.get(request.key)
        if stored is None:
            return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        headers = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.time, usegmt=True),
            "x-goog-generation": str(stored.generation),
            **stored.attributes,
        }
        if "range" not in request.headers:
            return Answer(200, stored.data, headers)
        size = len(stored.data)
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        start, end = max(0, size - int(last or 0)), size
        if first:
            start, end = int(first), min(int(last) + 1 if last else size, size)
        if start >= size:
            return Answer(416, b"<Error><Code>InvalidRange</Code></Error>")
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return Answer(206, stored.data[start:end], headers)

    _head = _get

    def _put(self, request: Request) -> Answer:
        refused = self._refused(request)
        if refused is not None:
            return refused
        self._generation += 1
        attributes = {
            n: v for n, v in request.headers.items() if n.startswith(("x-amz-meta-", "x-goog-meta-"))
        }
        stored = self.blobs[request.key] = Stored(request.body, self._generation, attributes)
        return Answer(200, b"", {"ETag": stored.etag, "x-goog-generation": str(stored.generation)})

    def _refused(self, request: Request) -> Answer | None:
        names = {"if-match", "if-none-match", "x-goog-if-generation-match"} & set(request.headers)
        if not names or self.conditions == "ignore":
            return None
        if self.conditions == "refuse":
            return Answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        there = self.blobs.get(request.key)
        (name,) = names
        value = request.headers[name]
        if name == "if-none-match":
            good = there is None
        elif name == "if-match":
            good = there is not None and there.etag == value
        else:
            good = (there.generation if there else 0) == int(value)
        return None if good else Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")

    def _delete(self, request: Request) -> Answer:
        refused = self._refused(request)
        if refused is not None:
            return refused
        return Answer(404 if self.blobs.pop(request.key, None) is None else 204)

    def _delete_many(self, request: Request) -> Answer:
        keys = [e.text or "" for e in ET.fromstring(request.body).iter() if e.tag.endswith("Key")]
        for key in keys:
            self.blobs.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return Answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        entries: dict[str, str] = {}
        for key in sorted(self.blobs):
            if not key.startswith(prefix):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if end < 0 else key[: end + 1]
            if name > after and name not in entries:
                folder = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                entries[name] = self._entry(key) if end < 0 else folder
        page = list(entries)[: self.page]
        more = len(page) < len(entries)
        parts = [entries[name] for name in page]
        parts.append(f"<IsTruncated>{str(more).lower()}</IsTruncated>")
        if more:
            parts.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        return Answer(200, f"<ListBucketResult>{''.join(parts)}</ListBucketResult>".encode())

    def _entry(self, key: str) -> str:
        stored = self.blobs[key]
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.time))
        return (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size>"
            f"<LastModified>{moment}</LastModified><ETag>{escape(stored.etag)}</ETag></Contents>"
        )


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path = urlsplit(target)
    key = unquote(path.path.removeprefix("/")).partition("/")[2]
    return Request(method, key, dict(parse_qsl(path.query, keep_blank_values=True)), headers, body)


@contextmanager
def running(**options: Any) -> Iterator[ObjectServer]:
    from kartothek_cube.core.store import object_store

    # the port may be that of an earlier server, which could do less
    object_store._CAN_SWAP.clear()
    server = ObjectServer(**options)
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_close(listener), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(listener: asyncio.Server) -> None:
    listener.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _main(latency: float) -> None:
    server = ObjectServer(latency)
    listener = await server.start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    asyncio.get_running_loop().run_in_executor(None, lambda: (sys.stdin.read(), os._exit(0)))
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1])))
