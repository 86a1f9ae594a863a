"""Commands that change stored data."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeAlias

import attrs
import click
import pyarrow as pa

from kartothek_cube.cli import context as cli
from kartothek_cube.cli import output
from kartothek_cube.cli.context import CliContext, CubeCommand, StoreCommand, usage_error
from kartothek_cube.core.arguments import split_names
from kartothek_cube.core.errors import DatasetExistsError, check_names, format_count
from kartothek_cube.display import plain_text_table

option = cli.option


def _count_files(state: CliContext, names: Iterable[str]) -> str:
    return format_count(sum(len(state.datasets[name].partition_table) for name in names), "data file")


Counts: TypeAlias = dict[str, int]


def _print_counts(counts: Mapping[str, Counts], as_json: bool, describe: Callable[[Counts], str]) -> None:
    """Print the counts of each dataset: a line, or JSON."""
    if as_json:
        cli.print_json(counts)
        return
    for name, count in sorted(counts.items()):
        cli.label(name, f": {describe(count)}")


# -- index -----------------------------------------------------------------------------------------


@click.command(cls=CubeCommand)
@click.argument("dataset", shell_complete=cli.complete_datasets)
@click.argument("columns", shell_complete=cli.complete_columns)
@click.option(
    "--statistics", is_flag=True, help="Keep the minimum and maximum of each file instead of all its values."
)
@cli.pass_state
def index(state: CliContext, dataset: str, columns: str, statistics: bool) -> None:
    """Build secondary indices on COLUMNS of DATASET; COLUMNS are comma-separated names or patterns.

    All values of these columns are read once. Afterwards, queries with conditions on them open fewer files.
    """
    from kartothek_cube.core.cube import consistency
    from kartothek_cube.io import eager

    check_names("", "dataset", [dataset], state.datasets)
    metadata = state.datasets[dataset]
    selected = cli.match(columns, consistency.get_dataset_columns(metadata), "column")
    to_index = sorted(selected - set(metadata.partition_keys))
    if not to_index:
        usage_error(f"Partition keys need no index: {', '.join(sorted(selected))}")
    with state.progress("index"):
        if statistics:
            state.opened.build_column_statistics(to_index, dataset)
        else:
            eager.build_dataset_indices(state.store, metadata.uuid, to_index)
    done = "Statistics of" if statistics else "Indexed"
    cli.echo(f"{done} {', '.join(to_index)} of {dataset}: {_count_files(state, [dataset])} read.")


# -- copy ------------------------------------------------------------------------------------------


@click.command(cls=CubeCommand)
@click.option(
    "--tgt_store",
    "--tgt-store",
    "tgt_store",
    required=True,
    shell_complete=cli.complete_stores,
    metavar="STORE",
    help="Target: a directory, which need not exist, a URL, or a name in the YAML file.",
)
@option("--overwrite/--no-overwrite", default=False, help="Replace datasets that exist in the target store.")
@option("--cleanup/--no-cleanup", default=True, help="Delete replaced datasets first, including their files.")
@cli.pass_datasets("copied")
@cli.yes_option
def copy(
    state: CliContext, names: list[str], tgt_store: str, overwrite: bool, cleanup: bool, yes: bool
) -> None:
    """Copy the cube to another store."""
    from kartothek_cube.core.cube import discover
    from kartothek_cube.io.opened_cube import OpenedCube
    from kartothek_cube.io_components.maintenance.copy import CopyCube

    if tgt_store == state.store_name:
        usage_error("--tgt_store must be a different store than --store")
    if not names:
        cli.echo("No dataset selected, nothing to copy.")
        return
    target, masked = state.open_store(tgt_store, create=True), cli.mask_store(tgt_store)
    existing = discover.discover_ktk_cube_dataset_ids(state.prefix, target) if overwrite else set()
    replaced = [name for name in names if name in existing]
    try:
        # before anything is deleted: two names may refer to the same store
        CopyCube(state.cube, state.store, target, overwrite, names).plan()
        if replaced:
            cli.confirm(f"Replace {', '.join(replaced)} of cube {state.prefix} in {masked}?", yes)
            if cleanup:
                OpenedCube(state.cube, target).delete(replaced)
        with state.progress("copy"):
            state.opened.copy_to(target, overwrite=overwrite, datasets=names)
    except DatasetExistsError as error:
        usage_error(f"Dataset {error.dataset_uuid} exists in {masked}; pass --overwrite to replace it")
    files = _count_files(state, names)
    cli.echo(f"Copied {', '.join(names)} of cube {state.prefix} to {masked} ({files}).")


# -- adopt -----------------------------------------------------------------------------------------


_stage_option = click.option(
    "--stage",
    type=cli.FILE,
    help="Do not commit: put the staged write into this file, for query --as-of and staged.",
)


def _run_write(state: CliContext, title: str, write: Callable[..., Any], stage: str | None) -> Any:
    """Run a write; or stop it before its commit, put its handle into a file, and return None."""
    with state.progress(title):
        if stage is None:
            return write()
        with output.replace_file(stage) as file:
            staged = write(publish=False)
            pickle.dump(staged, file)
    cli.echo(repr(staged))
    return None


@click.command(cls=StoreCommand)
@click.argument("source", shell_complete=cli.complete_files)
@click.argument("dataset", shell_complete=cli.complete_datasets)
@click.option("--snapshot", type=int, help="Version of a Delta table, id of a snapshot of an Iceberg table.")
@click.option("--dimensions", help="Dimension columns of a new cube, comma-separated.")
@click.option(
    "--partitions",
    help="Partition columns of a new cube, comma-separated, or transforms such as 'month(DAY)'; '' for none.",
)
@click.option("--index", "indexed", help="Further columns of a new cube to index, comma-separated.")
@click.option(
    "--partition-on",
    help="Partition columns of the dataset, comma-separated; by default those of the cube. '' for none.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="COLUMN=TYPE",
    help="Arrow type of a column that is a directory, e.g. STORE=string; may be repeated.",
)
@click.option(
    "--link/--no-link",
    default=None,
    help="Whether to make hard links instead of copies; by default for Delta and Iceberg tables only.",
)
@click.option("--overwrite", is_flag=True, help="Replace the dataset if it exists.")
@_stage_option
@cli.yes_option
@cli.pass_state
def adopt(
    state: CliContext,
    /,
    source: str,
    dataset: str,
    dimensions: str | None,
    partitions: str | None,
    indexed: str | None,
    partition_on: str | None,
    types: tuple[str, ...],
    stage: str | None,
    yes: bool,
    **options: Any,
) -> None:
    """Copy the table SOURCE of another system as DATASET.

    SOURCE is a directory of Parquet files or its URL, the directory of a Delta table, or the metadata file of
    an Iceberg table. With --dimensions and --partitions, the dataset is the seed of a new cube.
    """
    from kartothek_cube.core.cube import discover
    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.transforms import parse_transform
    from kartothek_cube.io.opened_cube import OpenedCube
    from kartothek_cube.io_components.write.adopt import AdoptDataset

    if dimensions and partitions is not None:
        store = state.open_store(state.store_name, create=True)
        keys = [parse_transform(column) for column in split_names(partitions)]
        index = split_names(indexed)
        cube = Cube(split_names(dimensions), keys, state.prefix, seed_dataset=dataset, index_columns=index)
    elif dimensions or partitions or indexed:
        usage_error("A new cube needs both --dimensions and --partitions; '' for no partition columns")
    else:
        state.require_seed()
        store, cube = state.store, state.cube
    pairs = [text.partition("=") for text in types]
    if not all(column and name for column, _, name in pairs):
        usage_error("--type has the form COLUMN=TYPE, such as STORE=string")
    options["types"] = {column: name for column, _, name in pairs}
    options["partition_on"] = None if partition_on is None else split_names(partition_on)
    is_replaced = options["overwrite"] and stage is None
    if is_replaced and not yes and dataset in discover.discover_ktk_cube_dataset_ids(state.prefix, store):
        # only a table that exists and fits is worth a question
        AdoptDataset(source, cube, store, dataset, **options).job()
        cli.confirm(f"Replace {dataset} of cube {state.prefix}?", yes)
    adopt = partial(OpenedCube(cube, store).adopt, source, dataset, **options)
    try:
        done = _run_write(state, "adopt", adopt, stage)
    except DatasetExistsError as error:
        usage_error(f"Dataset {error.dataset_uuid} exists; pass --overwrite to replace it")
    if done is not None:
        files = f"{done.n_linked:,} linked, {done.n_copied:,} copied, {done.n_rewritten:,} rewritten"
        rows = format_count(done.n_rows, "row")
        cli.echo(f"Adopted {rows} as {dataset} of cube {state.prefix} (files: {files}).")


# -- delete ----------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@cli.pass_datasets("deleted")
@cli.yes_option
def delete(state: CliContext, names: list[str], yes: bool) -> None:
    """Delete the cube or some of its datasets."""
    if not names:
        cli.echo("No dataset selected, nothing to delete.")
        return
    files, is_whole = _count_files(state, names), len(names) == len(state.datasets)
    target = "the whole cube" if is_whole else "part of cube"
    cli.confirm(f"Delete {target} {state.prefix} ({', '.join(names)}; {files})?", yes)
    state.opened.delete(names)
    cli.echo(f"Deleted {', '.join(names)} of cube {state.prefix} ({files}).")
    if state.cube.seed_dataset in names and not is_whole:
        cli.echo("The remaining datasets cannot be queried without the seed dataset.", err=True)


# -- changes, compute, lineage ----------------------------------------------------------------------


@click.command(cls=CubeCommand)
@click.option("--since", metavar="TOKEN|VERSION|TIME", help="Earlier state; by default, all is new.")
@cli.pass_datasets("compared")
@cli.as_json
def changes(state: CliContext, names: list[str], since: str | None, as_json: bool) -> None:
    """List the partitions of each dataset in which rows were added, changed or removed.

    The token of the newest state comes last: --since TOKEN lists what has changed later.
    """
    earlier = None if since is None else cli.parse_as_of(since, "--since")
    changes = state.opened.changes(earlier, datasets=names)
    if as_json:
        cli.print_json({"partitions": changes.partitions.to_dict("records"), "token": changes.token})
        return
    table = pa.Table.from_pandas(changes.partitions, preserve_index=False)
    output.write_tables("table", None, table.schema, [table])
    cli.label("token:", f" {changes.token}")


@click.command(cls=CubeCommand)
@click.argument("function", metavar="MODULE:FUNCTION")
@click.argument("dataset", shell_complete=cli.complete_datasets)
@cli.where_option("Conditions on the cells that the function gets.")
@click.option("-c", "--columns", help="Payload columns that it gets, comma-separated; all by default.")
@click.option(
    "--everything", is_flag=True, help="Compute all partitions, whether inputs have changed or not."
)
@_stage_option
@cli.pass_state
def compute(
    state: CliContext,
    function: str,
    dataset: str,
    where: tuple[str, ...],
    columns: str | None,
    everything: bool,
    stage: str | None,
) -> None:
    """Compute DATASET by a function of a DataFrame, for the partitions whose inputs have changed.

    The module is in the current directory, or installed.
    """
    compute = partial(
        state.opened.compute,
        _import_function(function),
        dataset,
        conditions=where or None,
        payload_columns=None if columns is None else split_names(columns),
        changed_since=None if everything else "last",
    )
    result = _run_write(state, "compute", compute, stage)
    if result is not None:
        cli.echo(repr(result)[1:-1])


def _import_function(name: str) -> Callable[..., Any]:
    sys.path.insert(0, os.getcwd())
    try:
        function: Callable[..., Any] = resolve_name(name)
    except Exception as error:
        usage_error(f"Cannot import {name!r}: {type(error).__name__}: {error}")
    if not callable(function):
        usage_error(f"{name!r} is no function: expected MODULE:FUNCTION, such as forecast:predict")
    return function


@click.command(cls=CubeCommand)
@click.option("--openlineage", is_flag=True, help="Print run events of OpenLineage, as JSON.")
@cli.pass_state
def lineage(state: CliContext, openlineage: bool) -> None:
    """Show from which versions each dataset was computed, by which job, and which are stale."""
    lineage = state.opened.lineage()
    if openlineage:
        cli.print_json(lineage.to_openlineage(cli.mask_store(state.store_name)))
    else:
        for description in map(str, lineage.datasets.values()):
            cli.echo(description)


# -- delete-rows, staged ---------------------------------------------------------------------------


@click.command("delete-rows", cls=CubeCommand)
@cli.where_option('Conditions as of query, e.g. "customer = 5".')
@click.option("--everything", is_flag=True, help="Delete all rows, instead of --where.")
@_stage_option
@cli.pass_datasets("changed")
@cli.yes_option
@cli.as_json
def delete_rows(
    state: CliContext,
    names: list[str],
    where: tuple[str, ...],
    everything: bool,
    stage: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the cells that meet conditions, with their rows in all datasets.

    The replaced files stay in the store until the next cleanup.
    """
    conditions = [text for text in where if text.strip()]
    if bool(conditions) == everything:
        usage_error("Pass either --where with conditions, or --everything to delete all rows")
    delete = partial(state.opened.delete_rows, "all" if everything else conditions, names)
    if stage is None and not yes:
        with state.progress("query"):
            n_cells = len(state.opened.query(conditions, columns=()).to_arrow())
        question = f"Delete {format_count(n_cells, 'cell')} of cube {state.prefix} ({', '.join(names)})?"
        cli.confirm(question, yes=not n_cells and not everything)
    counts = _run_write(state, "delete", delete, stage)
    if counts is not None:
        _print_counts(counts, as_json, _describe_deletion)


def _describe_deletion(count: Counts) -> str:
    rows, partitions = count["rows_deleted"], count["partitions"]
    return f"{format_count(rows, 'row')} deleted in {format_count(partitions, 'partition')}"


@click.command(cls=CubeCommand)
@click.argument("file", type=cli.FILE, shell_complete=cli.complete_files)
@click.option("--publish", is_flag=True, help="Commit the write.")
@click.option("--discard", is_flag=True, help="Delete its files.")
@cli.pass_state
def staged(state: CliContext, /, file: str, publish: bool, discard: bool) -> None:
    """Show what a staged write changes; publish or discard it.

    FILE is one of --stage, or a pickle of what a write with publish=False returned. A pickle can run
    any code: pass files of your own jobs only.
    """
    if publish and discard:
        usage_error("Pass either --publish or --discard")
    write = cli.read_staged(file)
    if write.cube is None or write.cube.uuid_prefix != state.prefix:
        usage_error(f"{write!r} is no write to cube {state.prefix}")
    if publish:
        state.opened.publish_staged(write)
    elif discard:
        state.opened.discard_staged(write)
    cli.echo(f"{write!r}{': published' if publish else ': discarded' if discard else ''}")


# -- cleanup ---------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@option(
    "--retention",
    "retention_text",
    default=f"{cli.DEFAULT_RETENTION // timedelta(hours=1)}h",
    help="Keep files younger than this, as running writes may need them: 90min, 24h, 7d, or 0.",
)
@click.option("--dry-run", is_flag=True, help="List the files without deleting them.")
@cli.yes_option
@cli.pass_state
def cleanup(state: CliContext, retention_text: str, dry_run: bool, yes: bool) -> None:
    """Delete orphaned files, which no dataset refers to, and older states.

    Overwrites, removals and failed writes leave such files behind. States stay readable until they were
    replaced longer ago than the retention.
    """
    from kartothek_cube.io_components.maintenance import garbage

    retention = _parse_duration(retention_text)
    blobs, young = cli.list_garbage_by_age(state.cube, state.store, retention)
    files, n_states = cli.describe_garbage(blobs), garbage.count_states(blob.key for blob in blobs)
    states = f", with {format_count(n_states, 'older state')} of its datasets" if n_states else ""
    if dry_run:
        for blob in blobs:
            cli.echo(blob.key)
        cli.echo(f"{files} would be deleted{states}.", err=True)
    elif blobs:
        files += f" of cube {state.prefix}{states}"
        cli.confirm(f"Delete {files}?", yes)
        state.opened.cleanup(retention=retention)
        cli.echo(f"Deleted {files}.")
    else:
        cli.echo("There are no orphaned files to delete.")
    if young and retention is not None:
        verb = "is" if len(young) == 1 else "are"
        kept = f"{cli.describe_garbage(young)} {verb} younger than {retention_text} and kept"
        cli.echo(f"{kept}.", err=True)


def _parse_duration(text: str) -> timedelta | None:
    """Parse a duration such as ``90min``, ``24h`` or ``7d``; None for 0."""
    units = {"": "hours", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h|d|w|)\s*", text.lower())
    number = 0.0 if parts is None else float(parts[1])
    if parts is None or (number and not parts[2]):
        usage_error(f"Invalid --retention {text!r}: expected a number and a unit, such as 90min, 24h or 7d")
    try:
        return timedelta(**{units[parts[2]]: number}) or None
    except OverflowError:
        usage_error(f"Invalid --retention {text!r}: it is longer than any time")


# -- compact ---------------------------------------------------------------------------------------


@click.command(cls=CubeCommand)
@cli.where_option("Conditions on partition columns, e.g. \"country = 'DE'\".")
@option(
    "--min-files",
    type=click.IntRange(min=1),
    metavar="N",
    default=2,
    help="Skip partitions with fewer files; 1 also rewrites single files from before a change of the schema.",
)
@cli.pass_datasets("compacted")
@cli.as_json
def compact(
    state: CliContext, names: list[str], where: tuple[str, ...], min_files: int, as_json: bool
) -> None:
    """Merge the files of each partition into one and drop superseded rows.

    Query results do not change. The replaced files stay in the store until the next cleanup.
    """
    opened = state.opened
    with state.progress("compact"):
        counts = opened.compact(where or None, names, min_files=min_files)
    _print_counts(counts, as_json, _describe_compaction)


def _describe_compaction(count: Counts) -> str:
    from kartothek_cube.io_components.runtime import bytes_text

    if not count["partitions"]:
        return "nothing to do"
    return (
        f"{format_count(count['partitions'], 'partition')}; "
        f"{count['files_before']:,} → {format_count(count['files_after'], 'file')}, "
        f"{bytes_text(count['bytes_before'])} → {bytes_text(count['bytes_after'])}, "
        f"{count['rows_before']:,} → {format_count(count['rows_after'], 'row')}"
    )


# -- publish ---------------------------------------------------------------------------------------


@click.command(cls=CubeCommand)
@option("--format", type=click.Choice(["delta", "iceberg"]), default="delta", help="Format of the tables.")
@click.option("--compact", is_flag=True, help="First compact what a table cannot show: overwritten cells.")
@click.option("--on-commit/--not-on-commit", default=None, help="Whether each later commit publishes.")
@cli.pass_datasets("published")
@cli.as_json
def publish(state: CliContext, /, names: list[str], as_json: bool, **options: Any) -> None:
    """Publish the datasets as Delta tables, for other engines.

    Each dataset becomes a table in its directory; no data file is rewritten. Repeat it after changes.
    """
    opened = state.opened
    with state.progress("publish"):
        counts = opened.publish(names, **options)
    _print_counts(counts, as_json, _describe_publication)


@click.command(cls=CubeCommand)
@cli.pass_datasets("unpublished")
@cli.yes_option
def unpublish(state: CliContext, names: list[str], yes: bool) -> None:
    """Delete the logs of the published tables. The datasets stay."""
    from kartothek_cube.core.store import open_blobs
    from kartothek_cube.io_components.publication.delta_log import list_log

    blobs = open_blobs(state.store)
    published = [name for name in names if list_log(blobs, state.cube.ktk_dataset_uuid(name))]
    cli.confirm(f"Unpublish {', '.join(published)} of cube {state.prefix}?", yes or not published)
    for name, count in state.opened.unpublish(names).items():
        cli.echo(f"{name}: {'unpublished' if count['files'] else 'was not published'}")


def _describe_publication(count: Counts) -> str:
    changed = count["added"] or count["removed"]
    change = f"{count['added']:,} added, {count['removed']:,} removed" if changed else "nothing changed"
    return f"version {count['version']}, {format_count(count['files'], 'file')} ({change})"


# -- history ---------------------------------------------------------------------------------------

_ROLLBACK = "Restore an older state, with all datasets or those of --include."


@click.command(cls=CubeCommand)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of older states of each dataset to keep from now on, also through cleanups.",
)
@click.option("--rollback", metavar="VERSION|TIME|TOKEN", help=_ROLLBACK)
@cli.pass_datasets("selected")
@cli.as_json
@cli.yes_option
def history(
    state: CliContext, names: list[str], keep: int | None, rollback: str | None, as_json: bool, yes: bool
) -> None:
    """List the states of the cube, to be queried (query --as-of) or restored (--rollback).

    Older states are kept until a cleanup with a shorter retention; --keep sets a number of states that each
    cleanup keeps.
    """
    from kartothek_cube.io.opened_cube import OpenedCube
    from kartothek_cube.io_components.maintenance import cube_history
    from kartothek_cube.io_components.maintenance.rollback import check_rollback

    options = click.get_current_context().params
    is_selected = bool(options["include"] or options["exclude"])
    if keep is not None:
        state.opened.keep_history(keep, names)
        kept = format_count(keep, "older state") if keep else "no older states"
        cli.echo(f"Keeping {kept} of {', '.join(names)} from now on.", err=True)
    if rollback is not None:
        as_of = cli.parse_as_of(rollback, "--rollback")
        # all datasets: also those that a rollback has hidden
        chosen = names if is_selected else None
        check_rollback(state.any_cube, state.store, as_of, chosen)
        cli.confirm(f"Roll back {', '.join(names)} of cube {state.prefix} to {rollback}?", yes)
        OpenedCube(state.any_cube, state.store).rollback(as_of, chosen)
        cli.echo(f"Rolled back {', '.join(names)} to {rollback}.", err=True)
    # a rollback to the same content changes no dataset
    listed = state.opened.history()
    states = [
        entry for entry in listed if not is_selected or not entry.datasets or set(names) & set(entry.datasets)
    ]
    if as_json:
        cli.print_json([{**attrs.asdict(entry), "time": entry.time.isoformat()} for entry in states])
        return
    if len(states) == 1:
        reason = "cleanups delete them, unless --retention or --keep say otherwise"
        cli.echo(f"There are no older states: {reason}.", err=True)
    shown, rows = cube_history.describe_states(states)
    output.echo_cut(plain_text_table(shown, rows))
    for pin in listed.pins:
        cli.echo(str(pin))
