"""The click group of the command line: global options, and commands that are imported on first use."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

import click

from kartothek_cube.cli import context
from kartothek_cube.core.errors import unknown_names

_HELP = ("-h", "--help")


#: module and help text of each command, by group
_GROUPS = {
    "Inspect": {
        "changes": ("maintain", "List the partitions that have changed since an earlier state."),
        "info": ("inspect", "Show columns, types and partitions of the datasets."),
        "lineage": ("maintain", "Show from what the datasets were computed, and which are stale."),
        "ls": ("inspect", "List the cubes of the store (without CUBE)."),
        "query": ("query", "Query the cube: interactively, or to a table or file."),
        "report": ("inspect", "Write an HTML report about the cube."),
        "sql": ("query", "Run SQL on the cube: interactively, or to a table or file."),
        "stats": ("inspect", "Count files, bytes, partitions and rows."),
        "verify": ("inspect", "Check all files of the cube against its headers."),
    },
    "Maintain": {
        "adopt": ("maintain", "Copy a Parquet directory, Delta or Iceberg table into the cube."),
        "cleanup": ("maintain", "Delete files that no dataset refers to."),
        "compact": ("maintain", "Merge the files of each partition into one."),
        "compute": ("maintain", "Compute a dataset by a function, where its inputs have changed."),
        "copy": ("maintain", "Copy the cube to another store."),
        "delete": ("maintain", "Delete the cube or some of its datasets."),
        "delete-rows": ("maintain", "Delete the cells that meet conditions."),
        "history": ("maintain", "List, keep and restore older states."),
        "index": ("maintain", "Build secondary indices."),
        "staged": ("maintain", "Show, publish or discard a staged write."),
        "publish": ("maintain", "Publish the datasets as Delta tables."),
        "unpublish": ("maintain", "Stop publishing the datasets."),
    },
}
_MODULES = {name: module for group in _GROUPS.values() for name, (module, _) in group.items()}
#: commands that work on all cubes of a store if there is no CUBE, or a store in its place
_OF_STORES = ("ls", "sql")


class CubeCli(click.Group):
    """The command group; imports commands on first use and reports every error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands."""
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in _MODULES:
            return None
        module = import_module(f".{_MODULES[cmd_name]}", __package__)
        return cast(click.Command, getattr(module, cmd_name.replace("-", "_")))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by group, without importing them."""
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Allow ``ls`` and ``sql`` without a cube, and options behind it; help for no arguments."""
        if not args:
            args = ["--help"]
        parser = self.make_parser(ctx)
        params, command_args, _ = parser.parse_args(list(args))
        start = len(args) - len(command_args)
        cube = params.get("cube")
        is_alone = not command_args or command_args[0].startswith("-")
        # a statement is no command: "sql info" is the command of a cube called sql
        is_statement = cube == "sql" and not is_alone and command_args[0] not in _MODULES
        if cube in _MODULES and cube not in _OF_STORES and is_alone and not ctx.resilient_parsing:
            if set(_HELP).isdisjoint(command_args):
                context.usage_error(f"Missing cube or command: {ctx.command_path} CUBE {cube}")
            # the help of a command needs no cube
            return super().parse_args(ctx, ["CUBE", str(cube), *_HELP[:1]])
        if (cube in _OF_STORES and is_alone) or is_statement:
            args.insert(start - 1, "")
        elif command_args and command_args[0].startswith("-"):
            # options between the cube and the command precede the cube for click
            between, remaining, _ = parser.parse_args(list(command_args))
            n_between = len(command_args) - len(remaining) - isinstance(between.get("cube"), str)
            stop = start + n_between
            args = [*args[: start - 1], *args[start:stop], args[start - 1], *args[stop:]]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest one for an unknown name."""
        name, cube = args[0], ctx.params.get("cube")
        if name not in _MODULES and not ctx.resilient_parsing:
            if cube in _MODULES:
                context.usage_error(f"The cube must precede the command: {ctx.command_path} {name} {cube}")
            context.usage_error(unknown_names("command", [name], _MODULES))
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments; prints help and version."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            context.forget_pipe()
            raise click.exceptions.Exit(context.BROKEN_PIPE) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        # the reader of the output has closed the pipe (``| head``): not an error
        except BrokenPipeError:
            context.forget_pipe()
            ctx.exit(context.BROKEN_PIPE)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; print errors as one line and exit, unless ``--debug`` or ``standalone_mode=False``."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        context.open_closed_streams()
        arguments = list(sys.argv[1:] if args is None else args)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            # like an error, so that unfinished files are deleted
            before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(context.TERMINATED))
        try:
            code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as error:
            if "--debug" in arguments and not isinstance(error, click.Abort | click.ClickException):
                raise
            # click could not parse the arguments
            text = " ".join(arguments)
            named = (c for c in context.COLORS if f"--color={c}" in text or f"--color {c}" in text)
            code = context.report_error(error, context.use_color(next(named, "auto")))
        finally:
            if is_main:
                signal.signal(signal.SIGTERM, before)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    name="kartothek_cube",
    cls=CubeCli,
    params=context.global_options(),
    context_settings={"help_option_names": list(_HELP)},
    epilog="The options may also follow the command, and CUBE COMMAND -h lists those of a command. "
    "Exit codes: 0 success, 1 aborted, 2 usage or data error, 3 problems found, 4 internal error.",
)
@click.version_option(package_name="kartothek_cube")
@click.argument("cube", shell_complete=context.complete_cubes)
@click.pass_context
def cli(ctx: click.Context, /, cube: str, **options: Any) -> None:
    """Inspect, query and maintain the cube CUBE; ls and sql work without it, on all cubes."""
    if context.is_path(cube):
        if ctx.invoked_subcommand not in _OF_STORES:
            masked = context.mask_store(cube)
            context.usage_error(f"{masked} is a store: pass it by --store, and the cube before the command")
        options["store_name"], cube = cube, ""
    ctx.obj = context.CliContext(**options, prefix=cube)
