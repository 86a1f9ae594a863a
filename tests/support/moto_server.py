"""Program: the S3 of moto on a port of this machine, which it tells; ends when its standard input does."""

import io
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

_LOCK = threading.Lock()


class Handler(MotoRequestHandler):
    #: connections stay open
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        # head and body of an answer are sent separately; the second must not wait for an acknowledgement
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_request(self, *args: Any) -> None:
        pass


def one_by_one(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Let no two requests meet: moto compares versions first and writes then, S3 does both at once."""

    def call(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with _LOCK:
            return [b"".join(application(environ, start_response))]

    return call


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    application = one_by_one(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=end_with_input, daemon=True).start()
    server.serve_forever()
