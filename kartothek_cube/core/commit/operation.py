"""Operations on several datasets: all of their commits become visible at once, or none does.

The header of one dataset, the coordinator, decides. The other datasets, the participants, are committed
first: their headers say in which operation they take part, and where the state before is archived. Then the
commit of the coordinator lists the operation for each participant. Until it does, readers take the archived
states (kartothek_cube.core.cube.discover).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum

import attrs

from kartothek_cube.core import caching, clock, errors, header, history, naming
from kartothek_cube.core.commit.header_store import BaseState, attempts, edit_header
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset_files import HeaderBlob, parse_header_shared, read_header
from kartothek_cube.core.header import CommitRecord, Participation, parse_record
from kartothek_cube.core.store import BlobStore, PreconditionFailed, Token, check_owned
from kartothek_cube.core.uuid import gen_uuid


@attrs.frozen
class Decision:
    """The part of the coordinator: its commit is that of the operation."""

    operation: str
    #: lineage of the coordinator, as the participants name it
    lineage: str
    #: uuids of the datasets that are committed already
    participants: tuple[str, ...]
    #: version of its header before the first of them was committed; None if there was none
    token: Token

    def check(self, blobs: BlobStore, base: BaseState) -> None:
        """Raise OperationAborted if another writer has aborted the operation."""
        # With the same version no writer can have done so since: to abort is to change this header. Else each
        # participant must still be as it was committed, after this base was read.
        if self.token is not None and base.token == self.token:
            return
        if base.old is not None and (base.record is None or base.record.lineage != self.lineage):
            # other software, or another operation that has created it: the participants name another lineage
            raise OperationAborted(self.operation)
        if base.record is not None and self.operation in base.record.aborted:
            raise OperationAborted(self.operation)
        for record in [read_record(blobs, uuid) for uuid in self.participants]:
            part = None if record is None else record.participation
            if part is None or part.operation != self.operation:
                raise OperationAborted(self.operation)


class Single(Enum):
    """The part of the only commit of an operation, which calls the hooks of commits."""

    SINGLE = "single"


#: role of a commit in an operation; None if it is an operation of its own
Role = Participation | Decision | Single | None


class OperationAborted(Exception):
    """Internal: another writer has aborted an operation before it could commit."""


class Status(Enum):
    """Facts about an operation."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: its writer is running, or was killed
    PENDING = "pending"


def read_record(blobs: BlobStore, uuid: str) -> CommitRecord | None:
    """The record in the newest header of a dataset; None if there is none."""
    with suppress(errors.DatasetNotFoundError):
        return parse_stored_record(read_header(uuid, blobs), uuid)
    return None


def parse_stored_record(stored: HeaderBlob, uuid: str) -> CommitRecord | None:
    """The record in a header as stored; None if it has none."""
    return parse_record(parse_header_shared(stored, uuid).header)


def pending_participation(state: DatasetMetadata) -> Participation | None:
    """The participation of a state in an operation that may not be committed."""
    participation = header.participation_of(state.extra)
    return None if participation is None or participation.before is None else participation


def is_hidden(state: DatasetMetadata) -> bool:
    """Whether a rollback has hidden the dataset in this state, which is absent for readers."""
    return bool((state.extra.get(header.COMMIT_RECORD) or {}).get("hidden"))


def rename_operations(state: DatasetMetadata, uuids: Mapping[str, str]) -> DatasetMetadata:
    """A committed state as its copy has it, beside copies of others; the same if nothing changes."""
    record = parse_record(state.extra)
    if record is None:
        return state
    participation = record.participation
    if participation is not None:
        # without the coordinator, which is not copied, it is not known whether an operation is committed
        new = uuids.get(participation.coordinator)
        participation = None if new is None else attrs.evolve(participation.settle(), coordinator=new)
    participants = {uuids.get(uuid, uuid): name for uuid, name in record.participants.items()}
    copied = attrs.evolve(record, participation=participation, participants=participants, aborted=())
    return state if copied == record else with_record(state, copied)


def status_of(uuid: str, participation: Participation, record: CommitRecord | None, exists: bool) -> Status:
    """The status of an operation according to the record of its coordinator."""
    if not exists and participation.creates:
        return Status.PENDING
    if record is None:
        # The coordinator was deleted, or other software wrote it: it is unknown. An acknowledged write must
        # not disappear, so that its state counts.
        return Status.COMMITTED
    if record.lineage != participation.lineage and not record.reserved:
        # an operation that has lost against another one which created the coordinator; else as above
        lost = participation.creates and not record.interrupted
        return Status.ABORTED if lost else Status.COMMITTED
    if record.participants.get(uuid) == participation.operation:
        return Status.COMMITTED
    return Status.ABORTED if participation.operation in record.aborted else Status.PENDING


def operation_status(blobs: BlobStore, uuid: str, participation: Participation) -> Status:
    """Status of an operation in which a dataset participates, by the header of its coordinator."""
    # Call it after the header of the participant was read. That an operation is committed never changes, and
    # the process that has committed it knows.
    if caching.CACHE.get(("operation", uuid, participation.operation)):
        return Status.COMMITTED
    record, exists = None, True
    try:
        record = parse_stored_record(read_header(participation.coordinator, blobs), participation.coordinator)
    except errors.DatasetNotFoundError:
        exists = False
    status = status_of(uuid, participation, record, exists)
    if status is Status.COMMITTED:
        remember_committed(uuid, participation.operation)
    return status


def remember_committed(uuid: str, operation: str) -> None:
    """Note that an operation is committed, for readers in this process."""
    caching.CACHE.put(("operation", uuid, operation), b"", True, len(operation))


# -- writers that meet an operation --------------------------------------------------------------------------

#: Looks at a pending operation before it is aborted, with growing pauses of 2.3 s in total: commits of the
#: other datasets take some requests each. A slow writer that is aborted begins again.
_LOOKS = 14
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.4


def settle(blobs: BlobStore, read: Callable[[], BaseState], *, replaces: bool = False) -> BaseState:
    """Read a dataset in order to change it, without the part of an operation that has not committed."""
    looks, seen = 0, None
    while True:
        base = read()
        participation = base.participation
        if participation is None or participation.before is None:
            return _without_hidden(base)
        status = operation_status(blobs, base.uuid, participation)
        if status is Status.COMMITTED:
            return _without_hidden(attrs.evolve(base, participation=participation.settle()))
        if status is Status.ABORTED:
            return _roll_back(blobs, base, participation, replaces)
        if participation.operation != seen:
            looks, seen = 0, participation.operation
        if looks >= _LOOKS:
            abort_operation(blobs, base.uuid, participation)
        else:
            clock.sleep(min(_FIRST_PAUSE_S * 1.6**looks, _LONGEST_PAUSE_S))
        looks += 1


def _without_hidden(base: BaseState) -> BaseState:
    """The base of a commit to a dataset, which is created again if it is hidden."""
    return base if base.state is None or not is_hidden(base.state) else attrs.evolve(base, state=None)


def _roll_back(blobs: BlobStore, base: BaseState, participation: Participation, replaces: bool) -> BaseState:
    """The base of a commit on top of an aborted operation."""
    state = None
    try:
        state = load_before(blobs, base.uuid, participation)
    except (KeyError, errors.CorruptDatasetError) as error:
        if not replaces:
            raise lost_before(base.uuid, participation, error) from error
    before = None if state is None else header.participation_of(state.extra)
    before = None if before is None else before.settle()
    return attrs.evolve(base, state=state, participation=before, aborted=participation)


def load_before(blobs: BlobStore, uuid: str, participation: Participation) -> DatasetMetadata | None:
    """The state before an operation; None if the dataset did not exist; KeyError if it is gone."""
    if not participation.before:
        return None
    check_owned(participation.before, uuid)
    return history.load_snapshot(uuid, blobs, participation.before)


def lost_before(uuid: str, participation: Participation, error: Exception) -> errors.CorruptDatasetError:
    """The error for a state before an operation that is gone or damaged."""
    return errors.CorruptDatasetError(
        participation.before or "",
        f"the state of dataset {uuid!r} before an operation that has failed cannot be read ({error}): "
        "other software may have deleted it. Restore it from a backup, or delete the header of the dataset "
        "and write it again",
    )


def committed_state(blobs: BlobStore, state: DatasetMetadata) -> DatasetMetadata:
    """The newest state of a dataset, or the one before an operation that has not committed."""
    committed = resolve_pending(blobs, state)
    if committed is None or is_hidden(committed):
        raise errors.DatasetNotFoundError(state.uuid)
    return committed


def resolve_pending(blobs: BlobStore, state: DatasetMetadata) -> DatasetMetadata | None:
    """The same, also of a hidden dataset; None if an operation creates it that has not committed."""
    seen = None
    for _ in attempts():
        participation = pending_participation(state)
        if participation is None:
            return state
        if operation_status(blobs, state.uuid, participation) is Status.COMMITTED:
            return state
        try:
            return load_before(blobs, state.uuid, participation)
        except KeyError as error:
            if participation.operation == seen:
                raise lost_before(state.uuid, participation, error) from error
            # the operation was committed or aborted since
            seen = participation.operation
            state = DatasetMetadata.load_from_store(state.uuid, blobs)
    raise errors.ConcurrentWriteError(state.uuid)


def list_committed_states(uuid: str, blobs: BlobStore) -> list[history.DatasetState]:
    """Readable states of a dataset, without that of an operation which has not committed; oldest first."""
    stored = read_header(uuid, blobs)
    states = history.list_states(uuid, blobs, stored)
    newest = DatasetMetadata.load_from_header(stored, uuid, blobs)
    participation = pending_participation(newest)
    if participation is None or (committed := resolve_pending(blobs, newest)) is newest:
        return states
    version = None if committed is None else history.recorded_version(committed)
    if version is None:
        raise errors.DatasetNotFoundError(uuid)
    if version.number >= states[-1].version:
        # replaced since it was read
        return list_committed_states(uuid, blobs)
    older = [state for state in states if state.version < version.number]
    key = participation.before or stored.key
    return [*older, states[-1]._replace(version=version.number, time=version.time, key=key)]


def state_as_of(uuid: str, blobs: BlobStore, as_of: history.AsOf) -> DatasetMetadata:
    """Load the state of a dataset as of a version or time; raises StateNotFoundError."""
    history.check_as_of(as_of)
    states = list_committed_states(uuid, blobs)
    state = history.select_state(uuid, states, as_of)
    if state is None:
        raise errors.StateNotFoundError(uuid, str(as_of), history.name_states(states))
    loaded = history.load_state(uuid, blobs, state)
    if is_hidden(loaded):
        raise errors.StateNotFoundError(uuid, str(as_of), history.name_states(states), remedy=history.HIDDEN)
    return loaded


def abort_operation(blobs: BlobStore, uuid: str, participation: Participation) -> None:
    """Prevent the commit of a pending operation in which a dataset participates."""

    def add(record: CommitRecord) -> CommitRecord | None:
        if status_of(uuid, participation, record, True) is not Status.PENDING:
            return None
        return attrs.evolve(record, aborted=(*record.aborted, participation.operation))

    for _ in attempts():
        try:
            return _edit_record(blobs, participation.coordinator, add)
        except errors.DatasetNotFoundError:
            if not participation.creates:
                return None
        # A header without a dataset takes its place: the operation would create the coordinator.
        aborted = (participation.operation,)
        record = CommitRecord(gen_uuid(), lineage=participation.lineage, aborted=aborted, reserved=True)
        reserved = with_record(DatasetMetadata(participation.coordinator, partitions={}), record)
        with suppress(PreconditionFailed):
            blobs.put_if(naming.metadata_key_from_uuid(reserved.uuid), reserved.to_json(), None)
            return None
    return None


def forget_aborted(blobs: BlobStore, participation: Participation) -> None:
    """Remove an operation from the aborted ones of its coordinator, once a participant is rolled back."""
    # From then on the operation cannot commit, since its writer looks at all participants. Before, the note
    # must stay.
    uuid = participation.coordinator

    def remove(record: CommitRecord) -> CommitRecord:
        others = tuple(name for name in record.aborted if name != participation.operation)
        return attrs.evolve(record, aborted=others)

    # a note that stays does no harm
    with suppress(Exception):
        _edit_record(blobs, uuid, remove)
        stored = read_header(uuid, blobs, with_token=True)
        record = parse_stored_record(stored, uuid)
        if record is not None and record.reserved and not record.aborted:
            blobs.delete_if(stored.key, stored.token)
    delete_before(blobs, participation.before)


def count_deleted_versions(blobs: BlobStore, coordinator: str, uuids: Sequence[str]) -> None:
    """Count the versions of datasets that are about to be deleted in those of their cube."""
    # before their headers are deleted: if this process dies in between, a number is left out
    states = []
    for uuid in uuids:
        with suppress(errors.DatasetNotFoundError):
            states.append(DatasetMetadata.load_from_store(uuid, blobs, load_schema=False))
    # and one for the deletion, unless readers do not notice it
    number = sum((history.version_number(state) or 0) + (not is_hidden(state)) for state in states)

    def add(state: DatasetMetadata) -> DatasetMetadata | None:
        record, version = parse_record(state.extra), history.recorded_version(state)
        if record is None or record.version is None or version is None or not number:
            return None
        counted = {**record.version, "deleted": version.deleted + number}
        return with_record(state, attrs.evolve(record, version=counted))

    edit_header(blobs, coordinator, add)


def forget_participants(blobs: BlobStore, coordinator: str, uuids: Sequence[str]) -> None:
    """Remove deleted datasets from the participants of a coordinator."""

    def stays(uuid: str) -> bool:
        return uuid not in uuids or any(map(blobs.exists, naming.header_keys(uuid)))

    def remove(record: CommitRecord) -> CommitRecord:
        # after the coordinator was read: one that was created again since is listed again, or will be
        others = {uuid: name for uuid, name in record.participants.items() if stays(uuid)}
        return attrs.evolve(record, participants=others)

    _edit_record(blobs, coordinator, remove)


def _edit_record(blobs: BlobStore, uuid: str, change: Callable[[CommitRecord], CommitRecord | None]) -> None:
    """Change the record of the newest header; an equal record, or None, leaves it as it is."""

    def edit(state: DatasetMetadata) -> DatasetMetadata | None:
        record = parse_record(state.extra)
        new = None if record is None else change(record)
        return None if new is None or new == record else with_record(state, new)

    edit_header(blobs, uuid, edit)


def delete_before(blobs: BlobStore, key: str | None) -> None:
    """Delete the archived state before an operation, unless the history of the dataset has it."""
    if key and history.is_before_key(key):
        # garbage at worst; a reader that needs it looks at the headers again
        with suppress(Exception):
            blobs.delete([key])


def with_record(state: DatasetMetadata, record: CommitRecord) -> DatasetMetadata:
    """The same state with another record."""
    return state.copy(extra={**state.extra, header.COMMIT_RECORD: record.to_field()})
