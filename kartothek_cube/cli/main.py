"""The click group of the command line: global options, and commands that are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from kartothek_cube.cli.context import CliContext
from kartothek_cube.cli.options import complete_cubes, complete_files, complete_stores
from kartothek_cube.cli.terminal import BROKEN_PIPE, closest, forget_pipe, report_error, usage_error

__all__ = ("cli",)

_HELP = ("-h", "--help")
#: key of click's context: whether to load the cube before the options of the command are parsed
_LOAD = f"{__name__}.load"


class _Entry(NamedTuple):
    """A command: its module and help text, and whether the cube has to be loaded before it runs."""

    module: str
    help: str
    needs_cube: bool = True


_GROUPS = {
    "Inspect": {
        "info": _Entry("inspect", "Show columns, types and partitions of the datasets."),
        "ls": _Entry("inspect", "List the cubes of the store (without CUBE).", False),
        "query": _Entry("query", "Query the cube: interactively, or to a table or file."),
        "report": _Entry("report", "Write an HTML report about the cube."),
        "stats": _Entry("inspect", "Count files, bytes, partitions and rows."),
        "verify": _Entry("inspect", "Check all files of the cube against its headers.", False),
    },
    "Maintain": {
        "cleanup": _Entry("maintain", "Delete files that no dataset refers to."),
        "compact": _Entry("maintain", "Merge the files of each partition into one."),
        "copy": _Entry("maintain", "Copy the cube to another store."),
        "delete": _Entry("maintain", "Delete the cube or some of its datasets."),
        "history": _Entry("maintain", "List, keep and restore older states."),
        "index": _Entry("maintain", "Build secondary indices."),
    },
}
_COMMANDS = {name: entry for group in _GROUPS.values() for name, entry in group.items()}
_COLORS = {"always": True, "auto": None, "off": False}


class CubeCli(click.Group):
    """The command group; imports commands on first use and reports every error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"kartothek_cube.cli.commands.{_COMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by group, without importing them."""
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, entry.help) for name, entry in commands.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Allow ``ls`` without a cube; without any argument, show the help."""
        if not args:
            args = ["--help"]
        params, command_args, _ = self.make_parser(ctx).parse_args(list(args))
        if params.get("cube") == "ls" and (not command_args or command_args[0].startswith("-")):
            args.insert(len(args) - len(command_args) - 1, "")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and record whether it needs the cube."""
        name = args[0]
        if name not in _COMMANDS and not ctx.resilient_parsing:
            _fail_unknown_command(ctx, name)
        entry = _COMMANDS.get(name)
        ctx.meta[_LOAD] = entry is not None and entry.needs_cube and set(_HELP).isdisjoint(args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        # the reader of the output has closed the pipe (``| head``): not an error
        except BrokenPipeError:
            forget_pipe()
            ctx.exit(BROKEN_PIPE)

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
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as error:
            if "--debug" in arguments and not isinstance(error, click.Abort | click.ClickException):
                raise
            code = report_error(error, _parse_color(arguments))
        sys.exit(code if isinstance(code, int) else 0)


def _parse_color(args: Sequence[str]) -> bool | None:
    """Read ``--color`` from arguments that click could not parse."""
    text = " ".join(args)
    return next(
        (on for name, on in _COLORS.items() if f"--color={name}" in text or f"--color {name}" in text), None
    )


def _fail_unknown_command(ctx: click.Context, name: str) -> NoReturn:
    cube = ctx.params.get("cube")
    if cube in _COMMANDS:
        usage_error(f"The cube must precede the command: {ctx.command_path} {name} {cube}")
    hint = closest(name, _COMMANDS) or f" Available commands: {', '.join(sorted(_COMMANDS))}."
    usage_error(f"No such command {name!r}.{hint}")


@click.group(
    name="kartothek_cube",
    cls=CubeCli,
    context_settings={"help_option_names": list(_HELP)},
    epilog="Exit codes: 0 success, 1 aborted, 2 usage or data error, 3 problems found, 4 internal error.",
)
@click.option(
    "--skv",
    default="skv.yml",
    show_default=True,
    envvar="KARTOTHEK_CUBE_SKV",
    show_envvar=True,
    help="YAML file with store configurations.",
    shell_complete=complete_files,
)
@click.option(
    "--store",
    default="dataset",
    envvar="KARTOTHEK_CUBE_STORE",
    show_envvar=True,
    show_default=True,
    shell_complete=complete_stores,
    help="Store: a name in the YAML file, or a URL such as hfs:///data or s3://bucket.",
)
@click.option(
    "-j",
    "--n_threads",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of threads (0: number of cores).",
)
@click.option(
    "--color",
    type=click.Choice(list(_COLORS)),
    default="auto",
    show_default=True,
    help="When to use colours.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.version_option(package_name="kartothek_cube")
@click.argument("cube", shell_complete=complete_cubes)
@click.pass_context
def cli(ctx: click.Context, skv: str, store: str, n_threads: int, color: str, debug: bool, cube: str) -> None:
    """Inspect, query and maintain the cube with the prefix CUBE."""
    ctx.color = _COLORS[color]
    state = ctx.obj = CliContext(skv, store, n_threads, ctx.color, cube)
    ctx.with_resource(state.limited())
    if ctx.meta.get(_LOAD):
        _ = state.cube
