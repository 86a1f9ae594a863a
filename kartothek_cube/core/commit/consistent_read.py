"""Read several datasets in one state: each operation on several of them is seen as a whole, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kartothek_cube.core.commit.operation import Status, load_before, status_of
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.header import CommitRecord, Participation, parse_record, participation_of
from kartothek_cube.core.store import BlobStore

__all__ = ("read_consistently",)

_LOGGER = logging.getLogger(__name__)

#: rounds of reading outdated headers again; each needs another commit between two requests
_ROUNDS = 100


def read_consistently(
    blobs: BlobStore,
    states: dict[str, DatasetMetadata],
    load: Callable[[str], DatasetMetadata | None],
    is_wanted: Callable[[str], bool],
) -> dict[str, DatasetMetadata]:
    """Replace states, read one after the other, that do not belong to the same moment."""
    # Without a write at the same time, nothing is read again. `is_wanted` is asked about new datasets.
    return _Cut(blobs, states, load, is_wanted).resolve()


class _Cut:
    """Headers that are read again until they are those of one moment.

    For each participant, the coordinator names the last operation that is committed. A header that is newer
    or older than the coordinator names another operation: the coordinator is read again if it was read before
    the participant, else the participant is.
    """

    def __init__(
        self,
        blobs: BlobStore,
        states: dict[str, DatasetMetadata],
        load: Callable[[str], DatasetMetadata | None],
        is_wanted: Callable[[str], bool],
    ) -> None:
        self.blobs, self.load, self.is_wanted = blobs, load, is_wanted
        self.states: dict[str, DatasetMetadata | None] = dict(states)
        #: round in which each header was read
        self.read: dict[str, int] = dict.fromkeys(states, 0)
        #: position within the first round
        self.round = 0

    def resolve(self) -> dict[str, DatasetMetadata]:
        coordinators = self._coordinators()
        if not coordinators:
            return {uuid: state for uuid, state in self.states.items() if state is not None}
        for self.round in range(1, _ROUNDS):
            resolved = dict(self.states)
            if all(self._resolve(uuid, resolved) for uuid in coordinators):
                return {
                    uuid: state
                    for uuid, state in resolved.items()
                    if state is not None and self.is_wanted(uuid)
                }
            coordinators = self._coordinators()
        raise ConcurrentWriteError(
            min(coordinators),
            detail="No state of its cube could be read as a whole: it changes all the time.",
        )

    def _coordinators(self) -> list[str]:
        found = set()
        for uuid, state in self.states.items():
            record = _record(state)
            if record is None:
                continue
            if record.participants:
                found.add(uuid)
            if record.participation is not None:
                found.add(record.participation.coordinator)
        return sorted(found)

    def _resolve(self, coordinator: str, resolved: dict[str, DatasetMetadata | None]) -> bool:
        """Resolve the participants of one coordinator; False if headers have changed since."""
        if coordinator not in self.states:
            self._read_again(coordinator)
            resolved[coordinator] = self.states[coordinator]
        header = _record(self.states[coordinator])
        outdated = self._mismatches(coordinator, header)
        if not outdated:
            return True
        if any(self.read[uuid] >= self.read[coordinator] for uuid in outdated if uuid in self.read):
            if self._read_again(coordinator):
                return False
            header = _record(self.states[coordinator])
        # from here on the coordinator is the newer one
        unchanged = True
        for uuid in outdated:
            participation = self._participation(uuid, coordinator)
            if participation is not None and self._is_pending(uuid, participation, header):
                try:
                    resolved[uuid] = load_before(self.blobs, uuid, participation)
                    continue
                except KeyError:
                    # the operation was committed, or aborted, since
                    self._read_again(coordinator)
                    self._read_again(uuid)
                    unchanged = False
                    continue
            # Twice the same: other software wrote or deleted it, which counts as an operation of its own.
            if self._read_again(uuid):
                unchanged = False
        return unchanged

    def _mismatches(self, coordinator: str, header: CommitRecord | None) -> list[str]:
        """Datasets whose last operation is not the one that their coordinator names."""
        known = {} if header is None else header.participants
        found = []
        for uuid in sorted({*self.states, *known}):
            participation = self._participation(uuid, coordinator)
            if self.states[coordinator] is None:
                if participation is not None and participation.creates:
                    found.append(uuid)
                continue
            if header is None or (uuid not in self.states and not self.is_wanted(uuid)):
                continue
            own = None
            if participation is not None and _can_judge(participation, header):
                own = participation.operation
            if own != known.get(uuid):
                found.append(uuid)
        return found

    def _participation(self, uuid: str, coordinator: str) -> Participation | None:
        state = self.states.get(uuid)
        participation = None if state is None else participation_of(state.extra)
        return participation if participation and participation.coordinator == coordinator else None

    def _is_pending(self, uuid: str, participation: Participation, header: CommitRecord | None) -> bool:
        if participation.before is None:
            return False
        coordinator = self.states[participation.coordinator]
        status = status_of(uuid, participation, header, coordinator is not None)
        if status is Status.COMMITTED:
            return False
        # another operation than that before: this header is outdated
        known = None if header is None else header.participants.get(uuid)
        return known == participation.previous

    def _read_again(self, uuid: str) -> bool:
        """Read the newest header of a dataset; whether it has changed."""
        old, new = self.states.get(uuid), self.load(uuid)
        self.states[uuid], self.read[uuid] = new, self.round
        changed = _commit(old) != _commit(new)
        if changed:
            _LOGGER.debug("Dataset %s has changed while a cube was read: its header is read again", uuid)
        return changed


def _can_judge(participation: Participation, header: CommitRecord) -> bool:
    """Whether the coordinator knows what has become of an operation."""
    if participation.lineage == header.lineage:
        return True
    # an operation that would have created the coordinator, which another one did
    return participation.creates and participation.before is not None and not header.interrupted


def _record(state: DatasetMetadata | None) -> CommitRecord | None:
    return None if state is None else parse_record(state.extra)


def _commit(state: DatasetMetadata | None) -> object:
    """What tells headers apart; those of other software by their content."""
    record = _record(state)
    return state if record is None else record.commit
