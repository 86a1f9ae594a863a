"""The commands ``info``, ``stats``, ``ls``, ``verify`` and ``report``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kartothek_cube.cli.context import (
    DAMAGED,
    CliContext,
    headline,
    is_internal_column,
    label,
    list_cubes,
    mask_store,
    one_line,
    pass_state,
    print_json,
    usage_error,
)
from kartothek_cube.cli.options import (
    CubeCommand,
    RemainderCommand,
    StoreCommand,
    as_json,
    datasets_option,
    select_datasets,
)
from kartothek_cube.core.errors import format_count

if TYPE_CHECKING:
    import pyarrow as pa

    from kartothek_cube.cli.report import Page
    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset import DatasetMetadata
    from kartothek_cube.io_components.verify import Report

#: of metadata keys
_INTERNAL_PREFIXES = ("ktk_", "klee_", "kartothek_cube", "pandas")


# -- info ------------------------------------------------------------------------------------------


@click.command(cls=RemainderCommand)
@as_json
@pass_state
def info(state: CliContext, as_json: bool) -> None:
    """Show columns, types and partitions of the datasets."""
    cube, datasets = state.cube, state.datasets
    if not datasets:
        usage_error(f"Cube {state.prefix} has no datasets, only orphaned files; delete them by cleanup")
    types = column_types(datasets)
    if as_json:
        print_json(_to_dict(cube, datasets, types))
        return
    headline("Infos")
    label("UUID Prefix:", f"        {cube.uuid_prefix}")
    _print_columns("Dimension Columns:", cube.dimension_columns, types)
    derived = {t.name: f"{types.get(t.name, 'unknown')}, {t!r}" for t in cube.transforms}
    _print_columns("Partition Columns:", cube.partition_columns, {**types, **derived})
    _print_columns("Index Columns:", sorted(cube.index_columns), types)
    if not cube.index_columns:
        click.echo()
    label("Seed Dataset:", f"      {cube.seed_dataset if cube.seed_dataset in datasets else 'none'}")
    for name, dataset in datasets.items():
        click.echo()
        headline(f"Dataset: {name}")
        _print_dataset(cube, dataset)
        version = _describe_publication(state, dataset)
        if version is not None:
            label("Published:", f" {version}")


def column_types(datasets: dict[str, DatasetMetadata]) -> dict[str, pa.DataType]:
    """Types of all columns; null only if the column is null in all datasets."""
    import pyarrow as pa

    from kartothek_cube.core.cube.consistency import arrow_schema

    types: dict[str, pa.DataType] = {}
    for dataset in datasets.values():
        for field in arrow_schema(dataset):
            if is_internal_column(field.name):
                continue
            if pa.types.is_null(types.get(field.name, pa.null())):
                types[field.name] = field.type
    return types


def _user_metadata(dataset: DatasetMetadata) -> dict[str, Any]:
    """Metadata without the keys of the library, whose content is shown elsewhere; times in UTC."""
    metadata = {
        key: value for key, value in dataset.metadata.items() if not key.startswith(_INTERNAL_PREFIXES)
    }
    time = metadata.get("creation_time")
    # stored in UTC, without a zone
    if isinstance(time, str) and re.fullmatch(r"[\d-]+T[\d:.]+", time):
        metadata["creation_time"] = f"{time}+00:00"
    return metadata


def _describe_publication(state: CliContext, dataset: DatasetMetadata) -> str | None:
    """What the published table of a dataset shows; None if there is none."""
    from kartothek_cube.core.errors import CorruptDatasetError
    from kartothek_cube.core.naming import PUBLISH
    from kartothek_cube.core.store import open_blobs
    from kartothek_cube.io_components.publication.table import find_publication

    try:
        table = find_publication(open_blobs(state.store), dataset)
    except CorruptDatasetError:
        return "Delta table with a damaged log (see verify)"
    if table is None:
        return None
    age = "" if table.is_current else ", of an older state"
    cause = ", by each commit" if dataset.metadata.get(PUBLISH) else ""
    return f"Delta table, version {table.version}{age}{cause}"


def _print_columns(title: str, names: Iterable[str], types: Mapping[str, object]) -> None:
    label(title)
    for name in names:
        click.echo(f"  - {name}: {types.get(name, 'unknown')}")


def _split_columns(cube: Cube, dataset: DatasetMetadata) -> tuple[list[str], list[str]]:
    """Dimension and payload columns of a dataset, sorted."""
    from kartothek_cube.core.cube.consistency import get_dataset_columns

    columns = {name for name in get_dataset_columns(dataset) if not is_internal_column(name)}
    dimensions = columns & set(cube.dimension_columns)
    return sorted(dimensions), sorted(columns - dimensions - set(cube.partition_columns))


def _print_dataset(cube: Cube, dataset: DatasetMetadata) -> None:
    from kartothek_cube.io_components.maintenance.stats import count_partitions

    types = column_types({"": dataset})
    dimensions, payload = _split_columns(cube, dataset)
    _print_columns("Partition Keys:", dataset.partition_keys, types)
    label("Partitions:", f" {count_partitions(dataset)}")
    label("Metadata:")
    text = json.dumps(_user_metadata(dataset), indent=2, sort_keys=True, default=str)
    click.echo("\n".join(f"  {line}" for line in text.splitlines()))
    _print_columns("Dimension Columns:", dimensions, types)
    _print_columns("Payload Columns:", payload, types)


def _to_dict(
    cube: Cube, datasets: dict[str, DatasetMetadata], types: dict[str, pa.DataType]
) -> dict[str, Any]:
    from kartothek_cube.io_components.maintenance.stats import count_partitions

    def with_types(names: Iterable[str], types: dict[str, pa.DataType]) -> dict[str, str]:
        return {name: str(types.get(name, "unknown")) for name in names}

    descriptions = {}
    for name, dataset in datasets.items():
        dataset_types = column_types({"": dataset})
        dimensions, payload = _split_columns(cube, dataset)
        descriptions[name] = {
            "uuid": dataset.uuid,
            "partition_keys": list(dataset.partition_keys),
            "partitions": count_partitions(dataset),
            "files": len(dataset.partition_table),
            "metadata": dataset.metadata,
            "indices": sorted(set(dataset.indices) - set(dataset.partition_keys)),
            "dimension_columns": with_types(dimensions, dataset_types),
            "payload_columns": with_types(payload, dataset_types),
        }
    return {
        "uuid_prefix": cube.uuid_prefix,
        "seed_dataset": cube.seed_dataset,
        "dimension_columns": list(cube.dimension_columns),
        "partition_columns": list(cube.partition_columns),
        "transforms": {transform.name: transform.to_dict() for transform in cube.transforms},
        "index_columns": sorted(cube.index_columns),
        "suppress_index_on": sorted(cube.suppress_index_on),
        "types": with_types(sorted(types), types),
        "datasets": descriptions,
    }


# -- stats -----------------------------------------------------------------------------------------


@click.command(cls=CubeCommand)
@datasets_option("counted")
@as_json
@pass_state
def stats(state: CliContext, include: str | None, exclude: str | None, as_json: bool) -> None:
    """Count files, bytes, partitions and rows."""
    from kartothek_cube.io.eager_cube import collect_stats

    names = select_datasets(state.datasets, include, exclude)
    selected = {name: dataset for name, dataset in state.datasets.items() if name in names}
    with state.progress("stats"):
        statistics = collect_stats(state.cube, state.store, selected)
    total = {key: sum(values[key] for values in statistics.values()) for key in ("blobsize", "files")}
    if as_json:
        print_json({"datasets": statistics, "total": total})
        return
    for name, values in sorted(statistics.items()):
        _print_stats(name, values)
        click.echo()
    _print_stats("__total__", total)


def _print_stats(name: str, values: dict[str, int]) -> None:
    headline(name)
    for key in sorted(values):
        label(f"{key}:", f"  {values[key]:,}")


# -- ls --------------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@as_json
@pass_state
def ls(state: CliContext, as_json: bool) -> None:
    """List the cubes of the store with their datasets."""
    cubes = list_cubes(state.store)
    cubes = {name: ids for name, ids in cubes.items() if state.prefix in ("", name)}
    if as_json:
        print_json(cubes)
        return
    width = max(map(len, cubes), default=0)
    for name, ids in cubes.items():
        click.echo(click.style(name.ljust(width), bold=True) + f"  {', '.join(ids)}")
    if not cubes:
        click.echo("There are no cubes in this store.", err=True)


# -- verify ----------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@click.option("--quick", is_flag=True, help="Read file footers only instead of all rows.")
@click.option("--repair", is_flag=True, help="Rebuild wrong and missing indices, restore the schema.")
@datasets_option("checked")
@as_json
@pass_state
@click.pass_context
def verify(
    ctx: click.Context,
    state: CliContext,
    quick: bool,
    repair: bool,
    include: str | None,
    exclude: str | None,
    as_json: bool,
) -> None:
    """Check all files of the cube against its headers. Nothing is changed without --repair.

    The exit code is 3 if there are problems.
    """
    if quick and repair:
        usage_error("--repair reads all rows and cannot be combined with --quick")
    _check_loadable(ctx, state)
    report = _verify(state, quick, repair, select_datasets(state.datasets, include, exclude))
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    if not report.ok:
        ctx.exit(DAMAGED)


def _check_loadable(ctx: click.Context, state: CliContext) -> None:
    """Exit with DAMAGED if the cube exists but cannot be loaded."""
    try:
        state.require_seed()
    except click.UsageError as error:
        if state.prefix not in list_cubes(state.store):
            raise
        click.echo(f"{state.prefix}: {one_line(error)}")
        ctx.exit(DAMAGED)


def _verify(state: CliContext, quick: bool, repair: bool, names: set[str]) -> Report:
    from kartothek_cube.io.eager_cube import repair_cube, verify_cube

    with state.progress("verify"):
        if repair:
            return repair_cube(state.cube, state.store, names)
        return verify_cube(state.cube, state.store, names, deep=not quick)


def _print_report(report: Report) -> None:
    for problem in report.problems:
        click.secho(str(problem), fg="red")
        click.echo(f"    {problem.remedy}")
    for problem in report.repaired:
        click.secho(f"repaired: {problem}", fg="green")
    problems = format_count(len(report.problems), "problem") if report.problems else "no problems"
    click.echo(f"{problems} in {report.describe_checked()}")


@click.command(cls=CubeCommand)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    default="report.html",
    show_default=True,
    help="Output file; - for standard output.",
)
@pass_state
def report(state: CliContext, output: str) -> None:
    """Write an HTML report: partitions, growth, columns, index selectivity, warnings.

    The page is a single file without scripts and external resources.
    """
    from importlib.metadata import version

    from kartothek_cube.cli.output import replace_file
    from kartothek_cube.cli.report import build_page
    from kartothek_cube.core.store import open_blobs

    with state.progress("report"):
        name = mask_store(state.store_name)
        page = build_page(
            state.cube, state.datasets, open_blobs(state.store), name, version("kartothek_cube")
        )
    html = render(page)
    if output == "-":
        click.echo(html)
        return
    with replace_file(output) as file:
        file.write(html.encode())
    click.echo(f"Written to {os.path.abspath(output)}", err=True)


def render(page: Page) -> str:
    """Render the page as HTML; all text from the store is escaped."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        usage_error("The report needs Jinja2: pip install 'kartothek_cube[cli]'")

    environment = Environment(
        loader=PackageLoader("kartothek_cube.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["format_count"] = format_count
    return environment.get_template("report.html").render(page=page)
