"""The end of a verification: compare indices with the data, and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.commit import IndexUpdate
from kartothek_cube.core.errors import CorruptDatasetError, format_count
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.verify.plan import VerifyPlan, plan_verify
from kartothek_cube.io_components.verify.report import Problem, Report
from kartothek_cube.io_components.verify.run import (
    VerifyContext,
    VerifyResult,
    VerifyTask,
    merge_verify_results,
    run_verify,
)

__all__ = (
    "finish_verify",
    "verify_dataset_job",
)

_EXAMPLES = 3

Describe = Callable[[Ints], list[str]]


def finish_verify(plan: VerifyPlan, store: StoreInput, findings: Iterable[VerifyResult]) -> Report:
    """Compare the indices with the data, and report."""
    result = merge_verify_results(findings)
    problems = [*plan.problems, *result.problems]
    indices = {} if plan.dataset is None else plan.dataset.secondary_indices
    blobs = open_blobs(store)
    for index in indices.values():
        problems += _index_problems(plan, index, result, blobs)
    checked = {"datasets": 1, "files": result.files, "rows": result.rows, "indices": len(indices)}
    return Report(_sort_problems(problems), checked)


def _sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda p: (p.dataset, p.kind, p.key, p.message))


def _index_problems(
    plan: VerifyPlan, index: ExplicitSecondaryIndex, result: VerifyResult, blobs: BlobStore
) -> Iterator[Problem]:
    column, key = index.column, index.index_storage_key or f"{plan.uuid} (inline)"
    try:
        # without the recorded type: to load an index of another type is an error, which is reported below
        stored = index if index.loaded else ExplicitSecondaryIndex(column, index_storage_key=key)
        loaded = stored.load(blobs)
    except KeyError:
        yield Problem(plan.uuid, "missing-index", key, f"the index of {column} does not exist", column)
        return
    except (CorruptDatasetError, ValueError, NotImplementedError) as error:
        text = f"the index of {column} cannot be read: {error}"
        yield Problem(plan.uuid, "unreadable-index", key, text, column)
        return
    data = loaded.columns_data
    if plan.dataset is None or data is None:
        return
    schema = plan.dataset.schema
    if schema is not None:
        dtype = schema.field(column).type if column in schema.names else None
        if dtype is None or not (pa.types.is_null(dtype) or data.values.type.equals(dtype)):
            text = f"the index of {column} has type {data.values.type}, but the dataset says {dtype}"
            yield Problem(plan.uuid, "index-type", key, text, column)
            return
    yield from _unknown_partitions(plan, column, key, data)
    if column in result.entries:
        yield from _differences(plan, column, key, data, result.entries[column])


def _unknown_partitions(plan: VerifyPlan, column: str, key: str, data: IndexColumns) -> Iterator[Problem]:
    if plan.dataset is None or not plan.dataset.explicit_partitions:
        return
    used = data.labels.take(pa.array(np.unique(data.codes)))
    unknown = used.filter(pa.array(plan.dataset.partition_table.positions(used) < 0)).to_pylist()
    if unknown:
        text = (
            f"the index of {column} knows {format_count(len(unknown), 'partition')} that the dataset does "
            f"not have, such as {unknown[0]}"
        )
        yield Problem(plan.uuid, "index-unknown-partition", key, text, column)


def _differences(
    plan: VerifyPlan, column: str, key: str, index: IndexColumns, data: IndexUpdate
) -> Iterator[Problem]:
    """Entries of the data that are not in the index, and the other way round."""
    stored = index.keep_labels(data.covered)
    same = data.entries.values.type.equals(index.values.type)
    actual = data.entries if same else IndexColumns.empty(index.values.type)
    if not same and len(data.entries):
        actual = data.entries.cast(index.values.type)
    if stored.equals(actual):
        return
    left, right, describe = _number_entries(stored, actual)
    texts = {
        "index-incomplete": (np.setdiff1d(right, left), "has no entries for"),
        "index-excess": (np.setdiff1d(left, right), "has entries that the data does not have:"),
    }
    for kind, (pairs, text) in texts.items():
        if len(pairs):
            examples = "; ".join(describe(pairs[:_EXAMPLES]))
            n_values = format_count(len(pairs), "value")
            message = f"the index of {column} {text} {n_values} in partitions, as {examples}"
            yield Problem(plan.uuid, kind, key, message, column)


def _number_entries(a: IndexColumns, b: IndexColumns) -> tuple[Ints, Ints, Describe]:
    """Number the entries of two indices, equal entries alike; and a function that describes numbers."""
    sides = [part.pairs()[0] for part in (a, b)]
    values = pa.concat_arrays(sides).dictionary_encode()
    labels = pa.concat_arrays([part.entry_labels() for part in (a, b)]).dictionary_encode()
    size = max(len(labels.dictionary), 1)
    codes = values.indices.to_numpy().astype(np.int64) * size + labels.indices.to_numpy()

    def describe(pairs: Ints) -> list[str]:
        rows = [(values.dictionary[int(p // size)], labels.dictionary[int(p % size)]) for p in pairs]
        return [f"{value.as_py()!r} in {label.as_py()}" for value, label in rows]

    return codes[: len(sides[0])], codes[len(sides[0]) :], describe


def verify_dataset_job(
    dataset: DatasetFactory, *, deep: bool = True
) -> Job[VerifyContext, VerifyTask, VerifyResult, Report]:
    """Check the files of a dataset, then its indices."""
    plan = plan_verify(dataset.dataset_uuid, dataset.store_factory, deep=deep)
    return Job(
        name="verify_dataset",
        description=f"verify dataset {dataset.dataset_uuid}",
        # None if the header is unreadable: then there are no tasks either
        context=cast(VerifyContext, plan.context),
        tasks=plan.tasks,
        run=run_verify,
        finish=partial(finish_verify, plan, dataset.store_factory),
        steps=("prepare", "files", "report"),
        files=sum(len(task.keys) for task in plan.tasks),
    )
