"""Commands that change what is stored: ``index``, ``copy``, ``delete``, ``cleanup``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from kartothek_cube.cli import completion
from kartothek_cube.cli.context import CliContext, pass_state
from kartothek_cube.cli.errors import closest, usage_error
from kartothek_cube.cli.options import chosen_datasets, confirm, datasets_option, match, yes_option

if TYPE_CHECKING:
    from kartothek_cube.core.typing import StoreFactory

__all__ = ("cleanup", "copy", "delete", "index")


# -- index -----------------------------------------------------------------------------------------


@click.command()
@click.argument("dataset", shell_complete=completion.datasets)
@click.argument("columns", shell_complete=completion.columns)
@pass_state
def index(state: CliContext, dataset: str, columns: str) -> None:
    """
    Build indices in DATASET for COLUMNS: names or patterns, separated by commas.

    The values of these columns are read once; from then on conditions on them choose files.
    """
    from kartothek_cube.core.cube.consistency import get_dataset_columns
    from kartothek_cube.io.eager import build_dataset_indices

    found = state.datasets.get(dataset)
    if found is None:
        hint, known = closest(dataset, state.datasets), ", ".join(sorted(state.datasets))
        usage_error(f"Dataset {dataset!r} does not exist.{hint} Known datasets are {known}.")
    wanted = match(columns, get_dataset_columns(found), "column")
    chosen = sorted(wanted - set(found.partition_keys))
    if not chosen:
        usage_error(f"Partition keys are indexed anyway: {', '.join(sorted(wanted))}")
    with state.progress("index"):
        build_dataset_indices(state.store, found.uuid, chosen)


# -- copy ------------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--tgt_store",
    "--tgt-store",
    "tgt_store",
    required=True,
    shell_complete=completion.stores,
    help="Store to copy to: a name in the YAML file, or a URL. A missing directory is created.",
)
@click.option(
    "--overwrite/--no-overwrite",
    default=False,
    show_default=True,
    help="Whether datasets that exist in the target are replaced.",
)
@click.option(
    "--cleanup/--no-cleanup",
    default=True,
    show_default=True,
    help="Whether, when they are replaced, they are deleted first, so that none of their files remains.",
)
@datasets_option("copied")
@yes_option
@pass_state
def copy(
    state: CliContext,
    tgt_store: str,
    overwrite: bool,
    cleanup: bool,
    include: str | None,
    exclude: str | None,
    yes: bool,
) -> None:
    """Copy the cube from one store to another."""
    from kartothek_cube.core.errors import DatasetExistsError
    from kartothek_cube.io.eager_cube import copy_cube, delete_cube

    if tgt_store == state.store_name:
        usage_error("The target is the source: --tgt_store has to be another store than --store")
    wanted = chosen_datasets(state.datasets, include, exclude)
    target = state.open_store(tgt_store, create=True)
    replaced = sorted(wanted & _existing(state, target)) if overwrite else []
    if replaced:
        confirm(f"Replace {', '.join(replaced)} of cube {state.prefix} in {tgt_store}?", yes)
        if cleanup:
            delete_cube(state.cube, target, replaced)
    try:
        with state.progress("copy"):
            copy_cube(state.cube, state.store, target, overwrite=overwrite, datasets=wanted)
    except DatasetExistsError as error:
        usage_error(f"Dataset {error.dataset_uuid} exists in {tgt_store} already; --overwrite replaces it")


def _existing(state: CliContext, store: StoreFactory) -> set[str]:
    from kartothek_cube.core.cube.discover import discover_ktk_cube_dataset_ids

    return discover_ktk_cube_dataset_ids(state.prefix, store)


# -- delete ----------------------------------------------------------------------------------------


@click.command()
@datasets_option("deleted")
@yes_option
@pass_state
def delete(state: CliContext, include: str | None, exclude: str | None, yes: bool) -> None:
    """Delete the cube, or some of its datasets."""
    from kartothek_cube.io.eager_cube import delete_cube

    wanted = sorted(chosen_datasets(state.datasets, include, exclude))
    if not wanted:
        return
    files = sum(len(state.datasets[name].partition_table) for name in wanted)
    what = "the whole cube" if len(wanted) == len(state.datasets) else "part of cube"
    confirm(f"Delete {what} {state.prefix} ({', '.join(wanted)}; {files:,} data files)?", yes)
    delete_cube(state.cube, state.store, wanted)


# -- cleanup ---------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--retention",
    default="24h",
    show_default=True,
    help="Keep files that are younger, they may belong to work that goes on: 90min, 24h, 7d, or 0.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@yes_option
@pass_state
def cleanup(state: CliContext, retention: str, dry_run: bool, yes: bool) -> None:
    """Remove files that no dataset refers to: what overwrites, removals and failures left behind."""
    from kartothek_cube.io_components.maintenance.garbage import delete_garbage, list_cube_garbage
    from kartothek_cube.io_components.runtime.progress import bytes_text

    blobs = list_cube_garbage(state.cube, state.store, _duration(retention))
    size = bytes_text(sum(blob.size or 0 for blob in blobs))
    if dry_run:
        for blob in blobs:
            click.echo(blob.key)
        click.echo(f"{len(blobs):,} files ({size}) would be deleted.", err=True)
    elif blobs:
        confirm(f"Delete {len(blobs):,} files ({size}) of cube {state.prefix} that nothing refers to?", yes)
        delete_garbage(state.store, [blob.key for blob in blobs])


_UNITS = {"": "hours", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _duration(text: str) -> timedelta | None:
    """Read a duration such as ``90min``, ``24h`` or ``7d``; 0 is None."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h|d|w|)\s*", text.lower())
    number = 0.0 if found is None else float(found[1])
    if found is None or (number and not found[2]):
        usage_error(
            f"Cannot read --retention {text!r}: expected a number and a unit, such as 90min, 24h or 7d"
        )
    return timedelta(**{_UNITS[found[2]]: number}) or None
