"""The frame of the command: its options, its list of commands, which are loaded when they are called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from kartothek_cube.cli import completion
from kartothek_cube.cli.context import CliContext
from kartothek_cube.cli.errors import BROKEN_PIPE, closest, forget_pipe, report_error, usage_error

__all__ = ("cli",)

_HELP = ("-h", "--help")
#: where it is noted that the cube is to be loaded before the options of the command count
_LOAD = f"{__name__}.load"


class _Entry(NamedTuple):
    """A command: where it lives, what it does, and whether the cube has to be readable for it."""

    module: str
    help: str
    needs_cube: bool = True


_COMMANDS = {
    "cleanup": _Entry("maintain", "Remove files that no dataset refers to."),
    "compact": _Entry("lifecycle", "Merge the files of each partition into one."),
    "copy": _Entry("maintain", "Copy the cube from one store to another."),
    "delete": _Entry("maintain", "Delete the cube, or some of its datasets."),
    "history": _Entry("lifecycle", "List older states, keep them, return to them."),
    "index": _Entry("maintain", "Build indices of columns."),
    "info": _Entry("inspect", "Show columns, types and partitions of the datasets."),
    "ls": _Entry("inspect", "List all cubes of the store (without CUBE).", False),
    "query": _Entry("query", "Query the cube: interactively, or into a table or file."),
    "report": _Entry("report", "Draw the cube in one HTML page."),
    "stats": _Entry("inspect", "Count files, bytes, partitions and rows."),
    "verify": _Entry("lifecycle", "Check that the cube is what its headers say.", False),
}
_COLORS = {"always": True, "auto": None, "off": False}


class CubeCli(click.Group):
    """The command itself; it loads its commands late and reports every error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"kartothek_cube.cli.commands.{_COMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in sorted(_COMMANDS.items())])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let ``ls`` stand without a cube, and nothing at all for the help."""
        if not args:
            args = ["--help"]
        params, rest, _ = self.make_parser(ctx).parse_args(list(args))
        if params.get("cube") == "ls" and (not rest or rest[0].startswith("-")):
            args.insert(len(args) - len(rest) - 1, "")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and note whether the cube has to be there for it."""
        name = args[0]
        if name not in _COMMANDS and not ctx.resilient_parsing:
            _unknown_command(ctx, name)
        entry = _COMMANDS.get(name)
        ctx.meta[_LOAD] = entry is not None and entry.needs_cube and set(_HELP).isdisjoint(args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run; whoever reads the output may stop at any time."""
        try:
            return super().invoke(ctx)
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
        """Run; errors become one line and an exit code, unless ``--debug`` or ``standalone_mode=False``."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as error:
            if "--debug" in given and not isinstance(error, click.Abort | click.ClickException):
                raise
            code = report_error(error, _color_of(given))
        sys.exit(code if isinstance(code, int) else 0)


def _color_of(args: Sequence[str]) -> bool | None:
    """The colour that was asked for, known before the arguments are parsed."""
    text = " ".join(args)
    return next(
        (on for name, on in _COLORS.items() if f"--color={name}" in text or f"--color {name}" in text), None
    )


def _unknown_command(ctx: click.Context, name: str) -> NoReturn:
    cube = ctx.params.get("cube")
    if cube in _COMMANDS:
        usage_error(f"The name of the cube comes first: {ctx.command_path} {name} {cube}")
    hint = closest(name, _COMMANDS) or f" Commands are {', '.join(sorted(_COMMANDS))}."
    usage_error(f"No such command {name!r}.{hint}")


@click.group(
    name="kartothek_cube",
    cls=CubeCli,
    context_settings={"help_option_names": list(_HELP)},
    epilog="Exit codes: 0 done, 1 aborted, 2 cannot be done as given, 3 damage found, 4 bug.",
)
@click.option(
    "--skv",
    default="skv.yml",
    show_default=True,
    envvar="KARTOTHEK_CUBE_SKV",
    show_envvar=True,
    help="YAML file of stores.",
    shell_complete=completion.files,
)
@click.option(
    "--store",
    default="dataset",
    envvar="KARTOTHEK_CUBE_STORE",
    show_envvar=True,
    show_default=True,
    shell_complete=completion.stores,
    help="Store to use: a name in the YAML file, or a URL such as hfs:///data or s3://bucket.",
)
@click.option(
    "-j",
    "--n_threads",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of threads to use (0: number of cores).",
)
@click.option(
    "--color",
    type=click.Choice(list(_COLORS)),
    default="auto",
    show_default=True,
    help="Whether to use colours.",
)
@click.option("--debug", is_flag=True, help="Show where errors come from.")
@click.version_option(package_name="kartothek_cube")
@click.argument("cube", shell_complete=completion.cubes)
@click.pass_context
def cli(ctx: click.Context, skv: str, store: str, n_threads: int, color: str, debug: bool, cube: str) -> None:
    """Look at the cube whose name is CUBE, query it, and look after it."""
    ctx.color = _COLORS[color]
    state = ctx.obj = CliContext(skv, store, n_threads, ctx.color, cube)
    ctx.with_resource(state.limited())
    if ctx.meta.get(_LOAD):
        _ = state.cube
