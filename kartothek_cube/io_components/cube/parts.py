"""Writing a cube part by part: elements of input are written independently, one commit ends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import attrs

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.cube.prepare import collect_input, is_frame
from kartothek_cube.io_components.cube.write import CubeWritePlan, merge_writes, prepare, run_write
from kartothek_cube.io_components.cube.write_finish import abort_error, finish_write
from kartothek_cube.io_components.write import WriteResult
from kartothek_cube.utils.converters import converter_str_set_optional

__all__ = (
    "declared_ids",
    "commit_parts",
    "iter_input",
    "without_commit_state",
    "with_write_id",
    "write_part",
    "write_parts",
)

Written = dict[str, WriteResult]


def declared_ids(ktk_cube_dataset_ids: str | Iterable[str] | None, default: Iterable[str] = ()) -> set[str]:
    """
    The datasets for which there may be input, where the input itself is not known yet.

    Parameters
    ----------
    ktk_cube_dataset_ids
        Ids, or None for the default.
    default
        Ids.

    Returns
    -------
    set of str

    Examples
    --------
    >>> announced("weather"), announced(None, ["seed"])
    ({'weather'}, {'seed'})
    """
    ids = converter_str_set_optional(ktk_cube_dataset_ids)
    return set(default if ids is None else ids)


def iter_input(data: Any) -> Iterable[Any]:
    """
    Elements of the input of a write, taken one at a time.

    Parameters
    ----------
    data
        A frame or a dict of dataset id to frame, which are one element, or an iterable of these and None.

    Returns
    -------
    iterable

    Raises
    ------
    TypeError
        It is something else.

    Examples
    --------
    >>> list(elements_of({"weather": None}))
    [{'weather': None}]
    """
    if data is None or is_frame(data) or isinstance(data, Mapping):
        return [data]
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise TypeError(
            "Expected an iterable of frames, or of dicts of dataset id to frame, "
            f"but got an object of type {type(data).__name__}"
        )
    return data


def with_write_id(plan: CubeWritePlan) -> CubeWritePlan:
    """
    A plan for an engine that may run tasks again, even those that wrote what has been committed.

    Its commit recognises what an earlier run of the same plan committed, and changes nothing then.
    """
    write_id = gen_uuid()[:16]
    changes = {
        name: attrs.evolve(change, context=attrs.evolve(change.context, write_id=write_id))
        for name, change in plan.changes.items()
    }
    return attrs.evolve(plan, changes=changes)


def without_commit_state(plan: CubeWritePlan) -> CubeWritePlan:
    """A plan without what only its commit needs; it stays small however large the cube is."""
    changes = {
        name: attrs.evolve(change, metadata={}, scope=None, expected=None)
        for name, change in plan.changes.items()
    }
    return attrs.evolve(plan, changes=changes)


def write_part(plan: CubeWritePlan, element: Any, *, unique: bool = True) -> Written:
    """
    Check and write one element of input; no state is touched.

    Parameters
    ----------
    plan
        The write.
    element
        A frame (meant for the seed), a dict of dataset id to frame, or None.
    unique
        Whether cells that occur twice within the element are an error.

    Returns
    -------
    dict
        By dataset id what was written, for the element's datasets without rows as well.

    Raises
    ------
    ValueError, TypeError
        If the element breaks a rule of the cube; nothing of it is written then.
    """
    frames = collect_input(element, plan.cube)
    written = run_write(plan, prepare(plan, frames, unique=unique))
    contexts = {name: plan.changes[name].context for name in frames}
    return {name: written.get(name, WriteResult(c.uuid, c.table)) for name, c in contexts.items()}


def write_parts(plan: CubeWritePlan, elements: Iterable[Any]) -> Written:
    """Write elements one after the other; no more than one of them is held at a time."""
    return merge_writes(list(map(partial(write_part, plan), elements)))


def commit_parts(
    plan: CubeWritePlan, parts: Iterable[Mapping[str, WriteResult]]
) -> dict[str, DatasetMetadata]:
    """
    Commit what was written part by part.

    Parameters
    ----------
    plan
        The write.
    parts
        What :func:`write_part` returned, in any order or merged, each once.

    Returns
    -------
    dict
        Dataset id to new metadata.

    Raises
    ------
    MultiTableCommitAborted
        If a new dataset got no rows, or the datasets do not form the cube; nothing is changed then.
    """
    results = merge_writes(parts)
    _check_rows(plan, results)
    return finish_write(plan, results)


def _check_rows(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> None:
    new = {name for name, change in plan.changes.items() if change.mode != "update"}
    empty = sorted(name for name in new & set(results) if not len(results[name].labels))
    seed = plan.cube.seed_dataset
    if empty:
        problem = f"Cannot write empty datasets: {', '.join(empty)}"
    elif plan.operation == "build" and seed not in results:
        problem = f'Seed data ("{seed}") is missing: a new cube needs it, but it was not in the input'
    else:
        return
    raise abort_error(plan, problem) from ValueError(problem)
