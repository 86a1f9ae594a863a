"""A cluster of Spark on this machine: a master and up to four workers, each at its own address."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"
#: Spark makes a second attempt of a slow task only at another address
MASTER, *WORKERS = [f"127.0.0.{number}" for number in range(1, 6)]


def has_addresses() -> bool:
    """Whether this machine has more than one address for itself, as Linux does."""
    with socket.socket() as probe:
        try:
            probe.bind((WORKERS[0], 0))
        except OSError:
            return False
    return True


@contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """Start a cluster that keeps its files in a directory, give its URL, and end it with its executors."""
    with socket.socket() as probe:
        probe.bind((MASTER, 0))
        port = probe.getsockname()[1]
    url = f"spark://{MASTER}:{port}"
    options = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / "work")]
    processes = [start(directory, "master.Master", MASTER, "--port", str(port))]
    try:
        wait_for(MASTER, port, processes[0])
        processes += [start(directory, "worker.Worker", host, *options, url) for host in WORKERS[:workers]]
        yield url
    finally:
        for process in reversed(processes):
            process.communicate()


def wait_for(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens: applications give up after a minute."""
    for _ in range(3000):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        assert process.poll() is None
        time.sleep(0.1)
    raise TimeoutError("the server does not start")


def start(directory: Path, name: str, host: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a process of the cluster; it ends with its executors when our end of its input closes."""
    env = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
    }
    command = [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", "--host", host]
    with (directory / f"{name}-{host}.log").open("wb") as log:
        return subprocess.Popen(
            ["sh", "-c", '"$@" & read line; kill -9 0', "sh", *command, "--webui-port", "0", *options],
            env=env,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
