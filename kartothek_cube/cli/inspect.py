"""The commands ``info``, ``stats``, ``ls``, ``verify`` and ``report``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kartothek_cube.cli import context as cli
from kartothek_cube.cli.context import CliContext, CubeCommand, StoreCommand, headline, label, usage_error
from kartothek_cube.core.errors import CorruptDatasetError, format_count

if TYPE_CHECKING:
    import pyarrow as pa

    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset import DatasetMetadata
    from kartothek_cube.io_components.maintenance.verify_dataset import Report

#: of metadata keys
_INTERNAL_PREFIXES = ("ktk_", "klee_", "kartothek_cube", "pandas")


# -- info ------------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@cli.as_json
@cli.pass_state
def info(state: CliContext, as_json: bool) -> None:
    """Show columns, types and partitions of the datasets."""
    cube, datasets = state.cube, state.datasets
    if not datasets:
        usage_error(f"Cube {state.prefix} has no datasets, only orphaned files; delete them by cleanup")
    description = _describe_cube(cube, datasets)
    if as_json:
        cli.print_json(description)
        return
    types = description["types"]
    headline("Infos")
    label("UUID Prefix:", f"        {cube.uuid_prefix}")
    _print_columns("Dimension Columns:", cube.dimension_columns, types)
    derived = {t.name: f"{types.get(t.name, 'unknown')}, {t!r}" for t in cube.transforms}
    _print_columns("Partition Columns:", cube.partition_columns, {**types, **derived})
    _print_columns("Index Columns:", description["index_columns"], types)
    if not cube.index_columns:
        cli.echo()
    label("Seed Dataset:", f"      {cube.seed_dataset if cube.seed_dataset in datasets else 'none'}")
    for name, dataset in datasets.items():
        cli.echo()
        _print_dataset(name, dataset, description["datasets"][name])
        if (version := _describe_publication(state, dataset)) is not None:
            label("Published:", f" {version}")


def _print_columns(title: str, names: Iterable[str], types: Mapping[str, object]) -> None:
    label(title)
    for name in names:
        cli.echo(f"  - {name}: {types.get(name, 'unknown')}")


def _print_dataset(name: str, dataset: DatasetMetadata, description: Mapping[str, Any]) -> None:
    headline(f"Dataset: {name}")
    _print_columns("Partition Keys:", dataset.partition_keys, column_types({"": dataset}))
    label("Partitions:", f" {description['partitions']}")
    label("Metadata:")
    text = json.dumps(_user_metadata(dataset), indent=2, sort_keys=True, default=str)
    for line in text.splitlines():
        cli.echo(f"  {line}")
    if description["contract"]:
        label("Contract:")
        for rule in description["contract"]:
            cli.echo(f"  - {rule}")
    if description["statistics"]:
        _print_columns("Column Statistics:", description["statistics"], column_types({"": dataset}))
    for title, columns in (("Dimension", "dimension_columns"), ("Payload", "payload_columns")):
        _print_columns(f"{title} Columns:", description[columns], description[columns])


def _describe_cube(cube: Cube, datasets: Mapping[str, DatasetMetadata]) -> dict[str, Any]:
    """Describe a cube and its datasets, for JSON."""
    types = {name: str(dtype) for name, dtype in sorted(column_types(datasets).items())}
    return {
        "uuid_prefix": cube.uuid_prefix,
        "seed_dataset": cube.seed_dataset,
        "dimension_columns": list(cube.dimension_columns),
        "partition_columns": list(cube.partition_columns),
        "transforms": {transform.name: transform.to_dict() for transform in cube.transforms},
        "index_columns": sorted(cube.index_columns),
        "suppress_index_on": sorted(cube.suppress_index_on),
        "types": types,
        "datasets": {name: _describe_dataset(cube, dataset) for name, dataset in datasets.items()},
    }


def _describe_dataset(cube: Cube, dataset: DatasetMetadata) -> dict[str, Any]:
    from kartothek_cube.core.cube.consistency import get_dataset_columns
    from kartothek_cube.core.pruning import statistics_columns
    from kartothek_cube.io_components.maintenance.overview import count_partitions

    visible, columns = get_dataset_columns(dataset), sorted(column_types({"": dataset}).items())
    types = {name: str(dtype) for name, dtype in columns if name in visible}
    dimensions = {name: types[name] for name in types if name in cube.dimension_columns}
    others = types.keys() - dimensions.keys() - set(cube.partition_columns)
    return {
        "uuid": dataset.uuid,
        "partition_keys": list(dataset.partition_keys),
        "partitions": count_partitions(dataset),
        "files": len(dataset.partition_table),
        "metadata": dataset.metadata,
        "contract": _describe_contract(dataset),
        "indices": sorted(set(dataset.indices) - set(dataset.partition_keys)),
        "statistics": list(statistics_columns(dataset.metadata)),
        "dimension_columns": dimensions,
        "payload_columns": {name: types[name] for name in types if name in others},
    }


def _describe_contract(dataset: DatasetMetadata) -> list[str]:
    """The rules of a dataset, or what is wrong with them."""
    from kartothek_cube.core.contract import Contract

    try:
        rules = Contract.of(dataset.uuid, dataset.metadata).rules
    except ValueError as error:
        return [str(error)]
    return [f"{rule}{'' if rule.checked else ', not checked on older rows'}" for rule in rules]


def column_types(datasets: Mapping[str, DatasetMetadata]) -> dict[str, pa.DataType]:
    """Types of all columns; null only if the column is null in all datasets."""
    from kartothek_cube.core.cube import consistency

    types = consistency.column_types(datasets.values())
    return {name: dtype for name, dtype in types.items() if not cli.is_internal_column(name)}


def _user_metadata(dataset: DatasetMetadata) -> dict[str, Any]:
    """Metadata without the keys of the library, whose content is shown elsewhere; times in UTC."""
    metadata = {k: v for k, v in dataset.metadata.items() if not k.startswith(_INTERNAL_PREFIXES)}
    time = metadata.get("creation_time")
    # stored in UTC, without a zone
    if isinstance(time, str) and re.fullmatch(r"[\d-]+T[\d:.]+", time):
        metadata["creation_time"] = f"{time}+00:00"
    return metadata


def _describe_publication(state: CliContext, dataset: DatasetMetadata) -> str | None:
    """Version and state of the published table of a dataset; None if there is none."""
    from kartothek_cube.core.naming import PUBLISH
    from kartothek_cube.core.store import open_blobs
    from kartothek_cube.io_components.publication.published_table import find_publication

    try:
        table = find_publication(open_blobs(state.store), dataset)
    except CorruptDatasetError:
        return "Delta table with a damaged log (see verify)"
    if table is None:
        return None
    age = "" if table.is_current else ", of an older state"
    cause = ", by each commit" if dataset.metadata.get(PUBLISH) else ""
    return f"Delta table, version {table.version}{age}{cause}"


# -- stats -----------------------------------------------------------------------------------------


@click.command(cls=CubeCommand)
@cli.pass_datasets("counted")
@cli.as_json
def stats(state: CliContext, names: list[str], as_json: bool) -> None:
    """Count files, bytes, partitions and rows."""
    opened, selected = state.opened, {name: state.datasets[name] for name in names}
    with state.progress("stats"):
        statistics = opened.stats(selected)
    total = {key: sum(values[key] for values in statistics.values()) for key in ("blobsize", "files")}
    if as_json:
        cli.print_json({"datasets": statistics, "total": total})
        return
    for name, values in sorted(statistics.items()):
        _print_stats(name, values)
        cli.echo()
    _print_stats("__total__", total)


def _print_stats(name: str, values: dict[str, int]) -> None:
    headline(name)
    for key in sorted(values):
        label(f"{key}:", f"  {values[key]:,}")


# -- ls --------------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@cli.as_json
@cli.pass_state
def ls(state: CliContext, as_json: bool) -> None:
    """List the cubes of the store with their datasets."""
    from kartothek_cube.core.cube.discover import list_cubes

    cubes = {state.prefix: list(state.datasets)} if state.prefix else list_cubes(state.store)
    if as_json:
        cli.print_json(cubes)
        return
    width = max(map(len, cubes), default=0)
    for name, ids in cubes.items():
        label(name.ljust(width), f"  {', '.join(ids)}")
    if not cubes:
        cli.echo("There are no cubes in this store.", err=True)


# -- verify ----------------------------------------------------------------------------------------


class _VerifyCommand(CubeCommand):
    """``verify``; a cube that exists but cannot be loaded is damaged."""

    def load_cube(self, ctx: click.Context, state: CliContext) -> None:
        """Load the cube; exit with cli.DAMAGED if that is impossible."""
        from kartothek_cube.core.cube.discover import list_cubes

        try:
            state.require_seed()
        except click.UsageError as error:
            if state.prefix not in list_cubes(state.store):
                raise
            cli.echo(f"{state.prefix}: {cli.one_line(error)}")
            ctx.exit(cli.DAMAGED)


@click.command(cls=_VerifyCommand)
@click.option("--quick", is_flag=True, help="Read file footers only instead of all rows.")
@click.option("--repair", is_flag=True, help="Rebuild wrong and missing indices, restore the schema.")
@cli.pass_datasets("checked")
@cli.as_json
def verify(state: CliContext, names: list[str], quick: bool, repair: bool, as_json: bool) -> None:
    """Check all files of the cube against its headers. Nothing is changed without --repair.

    The exit code is 3 if there are problems.
    """
    if quick and repair:
        usage_error("--repair reads all rows and cannot be combined with --quick")
    opened = state.opened
    with state.progress("verify"):
        report = opened.repair(names) if repair else opened.verify(names, deep=not quick)
    if as_json:
        cli.print_json(report.to_dict())
    else:
        _print_report(report)
    if not report.ok:
        click.get_current_context().exit(cli.DAMAGED)


def _print_report(report: Report) -> None:
    for problem in report.problems:
        cli.echo(str(problem), fg="red")
        cli.echo(f"    {problem.remedy}")
    for problem in report.repaired:
        cli.echo(f"repaired: {problem}", fg="green")
    problems = format_count(len(report.problems), "problem") if report.problems else "no problems"
    cli.echo(f"{problems} in {report.describe_checked()}")


@click.command(cls=CubeCommand)
@cli.option(
    "-o", "--output", type=cli.FILE, default="report.html", help="Output file; - for standard output."
)
@cli.pass_state
def report(state: CliContext, output: str) -> None:
    """Write an HTML report: partitions, growth, columns, index selectivity, warnings.

    The page is a single file without scripts and external resources.
    """
    from kartothek_cube.cli.output import replace_file
    from kartothek_cube.cli.report import build_page, render
    from kartothek_cube.core.store import open_blobs

    with state.progress("report"):
        name = cli.mask_store(state.store_name)
        page = build_page(state.cube, state.datasets, open_blobs(state.store), name)
    html = render(page)
    if output == "-":
        click.echo(html)
        return
    with replace_file(output) as file:
        file.write(html.encode())
    cli.echo(f"Written to {os.path.abspath(output)}", err=True)
