"""Power failures on a model of a disk: what a process does to it is recorded, then replayed up to any moment.

The model promises no more than POSIX does. The content of a file is on disk as of its last ``fsync``; later
changes may be there, in part, or leave an empty file. An entry of a directory (a file created, renamed or
deleted, a directory made or removed) is on disk once that directory was flushed after it; before, it may be
there or not, each one by itself.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: path relative to the disk -> content; None for a directory
Tree = dict[str, bytes | None]

#: calls that are recorded
CALLS = ("open", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fsync", "fdatasync")
#: calls that the model does not know
UNKNOWN = ("link", "symlink", "truncate", "ftruncate")


class Event(NamedTuple):
    """A call that changed something: its path, a second one, and the content of the file at that moment."""

    call: str
    path: str
    target: str = ""
    content: bytes | None = None


@dataclass
class Node:
    """A file or a directory."""

    is_folder: bool
    #: files: the content that was last seen, and that was last flushed
    content: bytes = b""
    flushed: bytes | None = None
    #: directories: the entries that were flushed, and the changes since then
    entries: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def now(self) -> dict[str, Node]:
        return apply(self.entries, self.changes)


class Change(NamedTuple):
    """An entry of a directory that goes, and one that comes, in one step."""

    old: str | None
    new: str | None = None
    node: Node | None = None


def apply(entries: dict[str, Node], changes: list[Change]) -> dict[str, Node]:
    entries = dict(entries)
    for change in changes:
        entries.pop(change.old, None)
        if change.new is not None:
            entries[change.new] = change.node
    return entries


class Disk:
    """A model of a directory; what is there at the beginning is on disk."""

    def __init__(self, root: Path) -> None:
        self.top = Node(is_folder=True)
        nodes = {str(root): self.top}
        for folder, folders, names in os.walk(root):
            for name in folders:
                nodes[f"{folder}/{name}"] = nodes[folder].entries[name] = Node(is_folder=True)
            for name in names:
                content = Path(folder, name).read_bytes()
                nodes[folder].entries[name] = Node(is_folder=False, content=content, flushed=content)

    def _node(self, path: str) -> Node:
        node = self.top
        for name in filter(None, path.split("/")):
            node = node.now()[name]
        return node

    def step(self, event: Event) -> None:
        folder, _, name = event.path.rpartition("/")
        if event.call in ("fsync", "fdatasync"):
            node = self._node(event.path)
            if node.is_folder:
                node.entries, node.changes = node.now(), []
            else:
                node.content = node.flushed = event.content
            return
        parent = self._node(folder)
        if event.call in ("replace", "rename"):
            target_folder, _, new = event.target.rpartition("/")
            assert target_folder == folder, "the model knows no renaming between directories"
            node = parent.now()[name]
            node.content = event.content
            parent.changes.append(Change(name, new, node))
        elif event.call in ("open", "mkdir"):
            parent.changes.append(Change(None, name, Node(is_folder=event.call == "mkdir")))
        else:
            parent.changes.append(Change(name))

    def after_failure(self, lost: str | random.Random) -> Tree:
        """What a power failure leaves if "none", "all" or "contents" of the unflushed changes are lost."""
        # contents: files have names, and are empty, as on ext4
        found: Tree = {}
        lots = lost if isinstance(lost, random.Random) else None
        chance = lots.choice([0.2, 0.5, 0.8, 1]) if lots else float(lost != "all")

        def walk(node: Node, path: str) -> None:
            changes = [c for c in node.changes if (lots.random() < chance if lots else chance)]
            for name, child in apply(node.entries, changes).items():
                below = f"{path}/{name}" if path else name
                found[below] = None if child.is_folder else content(child)
                if child.is_folder:
                    walk(child, below)

        def content(node: Node) -> bytes:
            flushed = node.flushed or b""
            if node.content == flushed:
                return flushed
            if lots is None:
                return node.content if lost == "none" else flushed
            half, zeros = node.content[: len(node.content) // 2], bytes(len(node.content))
            return lots.choice([flushed, half, half + zeros[len(half) :], zeros, node.content])

        walk(self.top, "")
        return found


class Recording:
    """What this process does to a directory by `os`; Arrow writes before files are renamed or flushed."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._lock = threading.RLock()
        self.before = Disk(Path(self._root))
        self._now = Disk(Path(self._root))
        self.events: list[Event] = []

    def __len__(self) -> int:
        return len(self.events)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record what happens within the block."""
        originals = {name: getattr(os, name) for name in (*CALLS, *UNKNOWN)}
        for name, function in originals.items():
            setattr(os, name, self._wrapped(name, function))
        try:
            yield
        finally:
            for name, function in originals.items():
                setattr(os, name, function)
        assert self._now.after_failure("none") == _tree(self._root), "something was done behind our back"

    def replay(self) -> Iterator[tuple[int, Disk]]:
        """Give the disk before the first event and after each one, with their number."""
        yield 0, self.before
        for number, event in enumerate(self.events, 1):
            self.before.step(event)
            yield number, self.before

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # nothing else happens while a call is made and noted
            with self._lock:
                event = self._event(name, *args)
                result = function(*args, **kwargs)
                if event is not None:
                    self.events.append(event)
                    self._now.step(event)
                return result

        return call

    def _event(self, name: str, first: Any, second: Any = None, *_: Any) -> Event | None:
        """What is to be noted of a call that is about to be made."""
        is_number = isinstance(first, int)
        full = os.path.realpath(f"/proc/self/fd/{first}") if is_number else os.path.abspath(first)
        if not f"{full}/".startswith(f"{self._root}/"):
            return None
        assert name not in UNKNOWN, name
        path = full[len(self._root) + 1 :]
        if name == "open":
            return Event(name, path) if second & os.O_CREAT and not os.path.lexists(full) else None
        if name in ("fsync", "fdatasync", "replace", "rename"):
            if not os.path.lexists(full):
                return None
            content = None if os.path.isdir(full) else Path(full).read_bytes()
            target = os.path.abspath(second)[len(self._root) + 1 :] if second is not None else ""
            return Event(name, path, target, content)
        return Event(name, path)


def _tree(root: str) -> Tree:
    paths = ((path.relative_to(root).as_posix(), path) for path in Path(root).rglob("*"))
    return {name: None if path.is_dir() else path.read_bytes() for name, path in paths}


def write_tree(tree: Tree, root: Path) -> None:
    root.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(content)
