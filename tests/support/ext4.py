"""A real file system on a file, that can lose its power; only the superuser can make one, on Linux."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

#: EXT4_IOC_SHUTDOWN: from now on nothing is written any more, as if the power had failed
_SHUTDOWN = 0x8004587D
#: not even what is in memory of the journal
_NO_FLUSH = struct.pack("I", 2)

#: how the file system is mounted, from the default to the one that promises least
OPTIONS = ("data=ordered", "noauto_da_alloc", "data=writeback,noauto_da_alloc", "data=journal")


def is_possible() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        return False
    return all(map(shutil.which, ("mkfs.ext4", "mount", "umount")))


class Ext4:
    """A file system on a file, which is made if it is not there, mounted in a folder."""

    def __init__(self, image: Path, folder: Path, options: str = OPTIONS[0]) -> None:
        self._image, self.folder, self._options = image, folder, options
        folder.mkdir(exist_ok=True)
        if not image.exists():
            with open(image, "wb") as file:
                file.truncate(64 << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)

    def mount(self) -> None:
        command = ["mount", "-t", "ext4", "-o", f"loop,{self._options}", str(self._image), str(self.folder)]
        subprocess.run(command, check=True)

    def unmount(self) -> None:
        for _ in range(100):
            if subprocess.run(["umount", str(self.folder)], check=False, capture_output=True).returncode == 0:
                return
            # a process that was killed may still be about to close its files
            time.sleep(0.05)
        subprocess.run(["umount", str(self.folder)], check=True)

    def __enter__(self) -> Ext4:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()


def cut_power(folder: Path) -> None:
    # not the one below
    assert os.path.ismount(folder) and os.stat(folder).st_dev != os.stat(folder.parent).st_dev
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, _NO_FLUSH)
    finally:
        os.close(descriptor)
