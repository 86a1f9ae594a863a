"""Verify that datasets and cubes are what their headers say, and repair them: problems and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pandas as pd

from kartothek_cube.core.errors import format_count
from kartothek_cube.display import card, facts, table

_RESTORE = "Restore the file from a backup, roll back to a complete state, or write the rows again."
_REWRITE = "Write the rows of this partition again."
_REPAIR = "Repair the dataset: the index is rebuilt from the data."

#: kind of a problem -> what to do about it
REMEDIES: Mapping[str, str] = {
    "header": "Restore the header from a backup, or delete it and write the dataset again.",
    "two-headers": "Find out which header is outdated, and delete that one.",
    "schema": "Restore the schema file from a backup, or write the dataset again.",
    "missing-schema": "Repair the dataset: the schema is in its header, or in the footers of its files.",
    "schema-pending": "Repair the dataset: the schema of an unfinished write gives way to the right one.",
    "label": "Write the dataset again: the values of its partition keys are unknown.",
    "path": _REWRITE,
    "shared-file": _REWRITE,
    "missing-file": _RESTORE,
    "unreadable-file": _RESTORE,
    "file-schema": _REWRITE,
    "wrong-partition": _REWRITE,
    "null-key": _REWRITE,
    "unsorted": "Compact the cube, or write the rows of this partition again.",
    "duplicate-cells": "Within a partition, compact the cube: the last row of a cell counts. In several "
    "partitions, remove the wrong rows; if all are right, the partition column is a dimension.",
    "missing-index": _REPAIR,
    "unreadable-index": _REPAIR,
    "index-type": _REPAIR,
    "index-unknown-partition": _REPAIR,
    "index-incomplete": _REPAIR,
    "index-excess": _REPAIR,
    "index-absent": "Repair the cube: the index is built from the data.",
    "missing-statistics": "Repair the dataset: the statistics are built from the data.",
    "wrong-statistics": "Repair the dataset: the statistics are built from the data.",
    "history": "Delete this copy of an older state; the dataset itself does not need it.",
    "history-file": "Restore the file from a backup; else the older state cannot be read.",
    "publication": "Publish the dataset again.",
    "publication-log": "Unpublish the dataset, and publish it again.",
    "unfinished-operation": "Repair the cube, or write to the dataset: both return to the state before.",
    "unknown-operation": "Compare the datasets; the next write to the dataset removes this problem.",
    "seed": "Build the seed, or name the right one in the specification of the cube.",
    "cube-table": "Delete this dataset or give it another name: it cannot be part of the cube.",
    "cube-columns": "Write the dataset again with the columns that the cube demands.",
    "cube-metadata": "Use the specification with which the cube was built (discover_cube tells it).",
    "payload-overlap": "Write one of the datasets again without the column.",
    "contract": "Correct the rows, by merge_into_cube, or change the contract by set_contract.",
    "type-conflict": "Write one of the datasets again with the type of the other one.",
}

#: kinds of problems that a repair solves
REPAIRABLE = frozenset(
    {
        "missing-schema",
        "schema-pending",
        "unfinished-operation",
        "missing-index",
        "unreadable-index",
        "index-type",
        "index-unknown-partition",
        "index-incomplete",
        "index-excess",
        "index-absent",
        "missing-statistics",
        "wrong-statistics",
    }
)

_SHOWN = 20
#: what is counted, in plural and singular
_SINGULAR = {"datasets": "dataset", "files": "file", "rows": "row", "indices": "index"}


@attrs.frozen
class Problem:
    """Something that is not as it has to be.

    Attributes
    ----------
    dataset
        Uuid of the dataset; that of the seed, or the prefix, for the cube as a whole.
    kind
        What sort of problem it is, one of a fixed set of words.
    key
        Storage key of the file that is concerned.
    message
        What is wrong.
    column
        Column that is concerned, if it is one.
    """

    dataset: str
    kind: str = attrs.field(validator=attrs.validators.in_(REMEDIES))
    key: str
    message: str
    column: str | None = None

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return REMEDIES[self.kind]

    @property
    def repairable(self) -> bool:
        """Whether a repair solves it."""
        return self.kind in REPAIRABLE

    def to_dict(self) -> dict[str, Any]:
        """All facts, fit for JSON."""
        return {**attrs.asdict(self), "remedy": self.remedy, "repairable": self.repairable}

    def __str__(self) -> str:
        return f"{self.dataset}: {self.kind}: {self.message} [{self.key}]"


def _as_tuple(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(problems)


@attrs.frozen(repr=False)
class Report:
    """The result of a check.

    Attributes
    ----------
    problems
        What is wrong.
    checked
        How many ``datasets``, ``files``, ``rows`` and ``indices`` were looked at.
    repaired
        Problems that were there before a repair and are gone.
    """

    problems: tuple[Problem, ...] = attrs.field(converter=_as_tuple)
    checked: Mapping[str, int] = attrs.field(factory=dict)
    repaired: tuple[Problem, ...] = attrs.field(default=(), converter=_as_tuple)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The report as plain objects, fit for JSON.

        Returns
        -------
        dict
        """
        return {
            "ok": self.ok,
            "checked": dict(self.checked),
            "problems": [problem.to_dict() for problem in self.problems],
            "repaired": [problem.to_dict() for problem in self.repaired],
        }

    def to_pandas(self) -> pd.DataFrame:
        """The problems as a frame, one row each.

        Returns
        -------
        pandas.DataFrame
        """
        columns = ["dataset", "kind", "key", "column", "message", "remedy", "repairable"]
        return pd.DataFrame([problem.to_dict() for problem in self.problems], columns=columns)

    def describe_checked(self) -> str:
        """What was checked, in words."""
        return ", ".join(format_count(n, _SINGULAR.get(what, what), what) for what, n in self.checked.items())

    def __repr__(self) -> str:
        counts = self.describe_checked()
        suffix = f" in {counts}" if counts else ""
        lines = [f"{len(self.problems) or 'no'} problem{'s' * (len(self.problems) != 1)}{suffix}"]
        for problem in self.problems[:_SHOWN]:
            lines += [str(problem), f"    {problem.remedy}"]
        if len(self.problems) > _SHOWN:
            lines.append(f"and {len(self.problems) - _SHOWN} more, see to_pandas()")
        lines += [f"repaired: {problem}" for problem in self.repaired[:_SHOWN]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        checked = facts({"problems": len(self.problems), "repaired": len(self.repaired), **self.checked})
        rows = [(p.dataset, p.kind, p.key, p.message, p.remedy) for p in self.problems]
        return card("", checked, table("Problems", ["dataset", "kind", "key", "message", "remedy"], rows))
