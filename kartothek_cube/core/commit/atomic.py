"""Atomic commits of several datasets, and the undo of one that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import attrs

from kartothek_cube.core import dataset_files, errors, history, hooks
from kartothek_cube.core.commit import header_store, operation
from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.commit.header_store import BaseState, CommitReceipt
from kartothek_cube.core.commit.optimistic import (
    Result,
    announce_commit,
    commit,
    commit_state,
    restore_schema,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.header import COMMIT_RECORD, CommitRecord, Participation, parse_record
from kartothek_cube.core.store import BlobStore, PreconditionFailed, Token
from kartothek_cube.core.uuid import gen_uuid

_LOGGER = logging.getLogger(__name__)


#: commits one of the datasets in the given role
Step = Callable[[operation.Role], Result]


#: calls a function with each item, in order or several at once; all calls have ended with the results
Mapper = Callable[[Callable[[str], Result | None], Sequence[str]], Iterable[Result | None]]


def commit_operation(
    blobs: BlobStore,
    coordinator: str,
    steps: Mapping[str, Step],
    info: history.OperationInfo | None = None,
    *,
    creates: bool = False,
    final_lineage: str | None = None,
    run: Mapper = map,
    validate: Callable[[], None] = lambda: None,
) -> dict[str, DatasetMetadata]:
    """Commit several datasets at once; the header of the coordinator, whose step is the last, decides."""
    # With `creates`, a dataset may be created of which the coordinator names an operation that its header, if
    # there is one, does not name: then a single step takes part in an operation, too.
    # `final_lineage` is that of a coordinator which is created and whose final header is given, with those of
    # all participants, in the receipts.
    # `validate` is called after the commit, which is undone if it raises an error. Of two writers that do so,
    # the one that commits last sees what the other one has committed.
    others = {*steps} - {coordinator}
    record = operation.read_record(blobs, coordinator) if len(steps) < 2 and creates and others else None
    named = {} if record is None else record.participants
    if len(steps) < 2 and all(_takes_part(blobs, uuid, named[uuid]) for uuid in others.intersection(named)):
        committed = {uuid: step(operation.Single.SINGLE) for uuid, step in steps.items()}
        alone = [receipt for _, receipt in committed.values()]
        _validate(blobs, validate, *alone)
        if alone and hooks.COMMIT_HOOKS:
            announce_commit(info, alone)
        return {uuid: state for uuid, (state, _) in committed.items()}
    for _ in header_store.attempts():
        # another writer aborts the operation if this one is too slow
        with suppress(operation.OperationAborted):
            return _commit_once(blobs, coordinator, steps, info, final_lineage, run, validate)
    raise errors.ConcurrentWriteError(coordinator)


def _validate(blobs: BlobStore, validate: Callable[[], None], *receipts: CommitReceipt) -> None:
    """Undo commits, of which the first decides, if the datasets are not valid."""
    for _ in header_store.attempts():
        try:
            return validate()
        except Exception as error:
            try:
                for receipt in receipts[:1]:
                    rollback(blobs, receipt)
            except errors.ConcurrentWriteError:
                # a later commit is on top: these ones stay, unless the other writer does not undo its own
                failure = error
                continue
            undo_all(blobs, receipts[1:])
            raise
    detail = (
        "with a commit of another writer it breaks a rule of its cube, and later commits are on top: "
        "verify_cube names the rule, and what to do"
    )
    raise errors.UnknownOutcomeError(receipts[0].base.uuid, detail) from failure


def _takes_part(blobs: BlobStore, uuid: str, operation_id: str) -> bool:
    """Whether the header of a dataset names an operation as its last one, which a commit on top keeps."""
    with suppress(errors.CorruptDatasetError):
        record = operation.read_record(blobs, uuid)
        part = None if record is None else record.participation
        return part is not None and part.operation == operation_id
    return False


def _commit_once(
    blobs: BlobStore,
    coordinator: str,
    steps: Mapping[str, Step],
    info: history.OperationInfo | None,
    final_lineage: str | None,
    run: Mapper,
    validate: Callable[[], None],
) -> dict[str, DatasetMetadata]:
    lineage, token, creates = _coordinator_version(blobs, coordinator, final_lineage or gen_uuid())
    operation_id = gen_uuid()
    role = Participation(operation_id, coordinator, lineage, creates=creates)
    others = {uuid: step for uuid, step in steps.items() if uuid != coordinator}
    results, receipts = _commit_participants(blobs, others, role, run)
    decision = operation.Decision(operation_id, lineage, tuple(r.base.uuid for r in receipts), token)

    def touch(role: operation.Role) -> Result:
        """Commit a coordinator that does not change."""
        table = DatasetMetadata.load_from_store(coordinator, blobs, load_schema=False).table_name
        return commit(blobs, ChangeSet(coordinator, table, info=info), role=role)

    try:
        result, decided = steps.get(coordinator, touch)(decision if receipts else None)
        if creates and not _confirm(blobs, coordinator, operation_id, receipts):
            rollback(blobs, decided)
            raise operation.OperationAborted(operation_id)
    except errors.UnknownOutcomeError:
        # readers see all of the operation or none, as do later writers
        raise
    except Exception:
        undo_all(blobs, receipts)
        raise
    _validate(blobs, validate, decided, *receipts)
    for receipt in receipts:
        operation.remember_committed(receipt.base.uuid, operation_id)
    for receipt in receipts:
        operation.delete_before(blobs, receipt.before)
    if creates and lineage == final_lineage and all(receipt.final for receipt in (*receipts, decided)):
        # that of the coordinator last. Readers that meet headers of both kinds read them again: a failure
        # costs them requests, no more.
        with suppress(Exception):
            for receipt in (*receipts, decided):
                _replace_header(blobs, receipt, receipt.final)
    if receipts:
        # else the coordinator is the only commit
        announce_commit(info, [*receipts, decided] if coordinator in steps else receipts)
    return {**results, coordinator: result} if coordinator in steps else results


def _commit_participants(
    blobs: BlobStore, steps: Mapping[str, Step], role: operation.Role, run: Mapper
) -> tuple[dict[str, DatasetMetadata], list[CommitReceipt]]:
    """States of all participants, receipts of those that have changed; all of them are committed, or none."""
    results: dict[str, DatasetMetadata] = {}
    receipts: list[CommitReceipt] = []
    failures: dict[str, Exception] = {}

    def commit_participant(uuid: str) -> Result | None:
        try:
            return None if failures else steps[uuid](role)
        except Exception as error:
            # raised when the other commits have ended, whose receipts are needed to undo them
            failures[uuid] = error
            return None

    try:
        # their order does not matter: no reader sees one before the coordinator is committed
        for uuid, committed in zip(steps, run(commit_participant, list(steps)), strict=True):
            if committed is not None:
                results[uuid], receipt = committed
                if receipt.header != receipt.base.header:
                    receipts.append(receipt)
        if failures:
            raise next(failures[uuid] for uuid in steps if uuid in failures)
    except Exception as error:
        undo_all(blobs, receipts)
        if isinstance(error, errors.UnknownOutcomeError) and error.__cause__ is not None:
            # nothing is unknown: the operation is not committed
            raise error.__cause__ from error
        raise
    return results, receipts


def _replace_header(blobs: BlobStore, receipt: CommitReceipt, header: bytes) -> Token:
    """Put another header in place of that of a commit; return its version."""
    uuid, key = receipt.base.uuid, receipt.base.header_key
    return header_store.compare_and_swap_header(blobs, uuid, key, header, receipt.header, receipt.token)


def _confirm(blobs: BlobStore, coordinator: str, operation_id: str, receipts: list[CommitReceipt]) -> bool:
    """Record in participants and receipts that the operation is committed; False if it was aborted."""
    # If the operation creates the coordinator, there may have been no header in which an abort is noted.
    # And the participants must not depend on the coordinator, should that be deleted.
    for number, receipt in enumerate(receipts):
        record = parse_record(receipt.state.extra)
        if record is None or record.participation is None:
            continue
        settled = attrs.evolve(record, commit=gen_uuid(), participation=record.participation.settle())
        uuid = receipt.base.uuid
        header = header_store.render(operation.with_record(receipt.state, settled), receipt.base.header_key)
        try:
            token = _replace_header(blobs, receipt, header)
            receipts[number] = attrs.evolve(receipt, header=header, token=token)
        except PreconditionFailed:
            # it has changed: committed, with other commits on top, or aborted
            newest = operation.read_record(blobs, uuid)
            part = None if newest is None else newest.participation
            if part is None or operation_id not in (part.operation, part.previous):
                decider = operation.read_record(blobs, coordinator)
                if decider is None or decider.participants.get(uuid) == operation_id:
                    return False
        except Exception:
            # the coordinator says that it is committed
            continue
    return True


def _coordinator_version(blobs: BlobStore, uuid: str, new_lineage: str) -> tuple[str, Token, bool]:
    """Lineage and version of the header of a coordinator, and whether that dataset has to be created."""

    def add_record(state: DatasetMetadata) -> DatasetMetadata | None:
        record = CommitRecord(gen_uuid(), lineage=gen_uuid(), interrupted=True)
        return None if COMMIT_RECORD in state.extra else operation.with_record(state, record)

    with suppress(errors.DatasetNotFoundError):
        for _ in header_store.attempts():
            stored = dataset_files.read_header(uuid, blobs, with_token=True)
            record = operation.parse_stored_record(stored, uuid)
            if record is not None:
                return record.lineage, stored.token, record.reserved
            # other software wrote it, and readers would not know whether it is committed
            header_store.edit_header(blobs, uuid, add_record)
        raise errors.ConcurrentWriteError(uuid)
    return new_lineage, None, True


# -- undo ----------------------------------------------------------------------------------------------------


def rollback(blobs: BlobStore, receipt: CommitReceipt) -> None:
    """Undo a commit of an operation; raises ConcurrentWriteError if another one is on top of it."""
    base = receipt.base
    if receipt.header == base.header and not receipt.is_landed:
        return
    # A header of an aborted operation is not put back: nothing shows any more that it was aborted, and what
    # the state before was; nor one that is not known, as the answer to the commit was lost. Else False if the
    # header is no longer that of the commit.
    restore = partial(header_store.restore_header, blobs, base.header_key, receipt.header, base.header)
    is_known = base.aborted is None and not receipt.is_landed
    if is_known and header_store.retry_request(restore):
        header_store.retry_request(lambda: restore_schema(blobs, base, receipt.schema))
        return
    # others have added notes, such as tombstones, or have rolled it back already
    pending = operation.pending_participation(receipt.state)
    if pending is not None:
        header_store.retry_request(lambda: operation.abort_operation(blobs, base.uuid, pending))
        header_store.retry_request(lambda: finish_operation(blobs, base.uuid))
    newest = operation.read_record(blobs, base.uuid)
    # a dataset that is deleted since has no part of it any more
    if (pending is None or newest is None) and blobs.exists(base.header_key):
        detail = "A part of an operation that has failed stays, as there are later commits. Repeat it."
        raise errors.ConcurrentWriteError(base.uuid, detail=detail)


def finish_operation(blobs: BlobStore, uuid: str) -> bool:
    """Restore the state before an operation whose writer was killed; False if there is none."""

    def read() -> BaseState:
        table = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False).table_name
        return header_store.read_optional_base(blobs, uuid, table, "")

    # A slow writer whose operation is aborted here by mistake begins again.
    for _ in header_store.attempts():
        try:
            base = operation.settle(blobs, read)
        except (errors.DatasetNotFoundError, errors.CorruptDatasetError):
            # the latter for a damaged dataset, or its archived state is missing: verification reports it
            return False
        if base.aborted is None:
            return False
        with suppress(PreconditionFailed):
            if base.state is None:
                blobs.delete_if(base.header_key, base.token)
                operation.forget_aborted(blobs, base.aborted)
            else:
                files = dataset_files.file_keys(base.state)
                commit_state(blobs, base, base.state, files, replaces=True, is_repair=True)
            return True
    raise errors.ConcurrentWriteError(uuid)


def undo_all(blobs: BlobStore, receipts: Sequence[CommitReceipt]) -> None:
    """Undo the commits of an operation, the last one first."""
    # The failure that made this necessary is the one to raise, so that another one here is only logged.
    for receipt in reversed(receipts):
        try:
            rollback(blobs, receipt)
            operation.delete_before(blobs, receipt.before)
        except Exception as error:
            _LOGGER.error("A commit to dataset %s could not be taken back: %s", receipt.base.uuid, error)
