"""The end of an operation on several datasets, written into the header of each dataset that it created."""

from __future__ import annotations

import attrs

from kartothek_cube.core.commit.backoff import attempts
from kartothek_cube.core.commit.base_state import CommitReceipt, pending_operation
from kartothek_cube.core.commit.header_store import compare_and_swap_header, render
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.header.commit_record import COMMIT_RECORD, parse_record
from kartothek_cube.core.store import BlobStore, PreconditionFailed
from kartothek_cube.core.uuid import gen_uuid

__all__ = ("confirm_pending",)


def confirm_pending(blobs: BlobStore, receipt: CommitReceipt) -> tuple[DatasetMetadata, CommitReceipt]:
    """Confirm that the operation which created a dataset has finished; the receipt covers both commits."""
    # Until then, a repetition of the operation may replace the dataset. So this is where the operation learns
    # whether that has happened.
    operation = pending_operation(receipt.state)
    state, content, token = receipt.state, receipt.header, receipt.token
    for _ in attempts():
        record = parse_record(state.extra)
        if record is None or record.pending is None or record.pending != operation:
            break
        record = attrs.evolve(record, commit=gen_uuid(), pending=None)
        new = state.copy(extra={**state.extra, COMMIT_RECORD: record.to_field()})
        header = render(new, receipt.header_key)
        try:
            token = compare_and_swap_header(blobs, receipt.uuid, receipt.header_key, header, content, token)
        except PreconditionFailed:
            state, _, token, content = DatasetMetadata.load_with_token(receipt.uuid, blobs)
            continue
        return new, attrs.evolve(receipt, header=header, token=token, state=new)
    # what others commit on top of a dataset confirms it as well
    labels = receipt.state.partition_table.labels
    replaced = pending_operation(state) is not None or (state.partition_table.positions(labels) < 0).any()
    if replaced:
        raise ConcurrentWriteError(
            receipt.uuid, labels.to_pylist(), "Another build or extension has replaced the dataset."
        )
    return state, receipt
