"""Command line of ``warpsan``: one subcommand per task, and the exit codes.

0 no hazard; 1 hazards; 2 bad input or usage, one line on stderr; 3 the machine failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from warpsan.terminal.exits import run_app, top
from warpsan.terminal.invocation import Tool
from warpsan.terminal.lazy import CommandEntry, group_of
from warpsan.version import __version__

__all__ = ["COMMANDS", "TOOL", "app", "main"]

COMMANDS = {
    "run": CommandEntry("Run an unmodified CUDA program without a GPU.", {"allow_interspersed_args": False}),
    "sanitize": CommandEntry("Find races and memory errors of a .cu or .ptx file."),
    "launch": CommandEntry("Run a .cu or .ptx file once, and keep its buffers."),
    "capture": CommandEntry("Run a program, and write a launch file.", {"allow_interspersed_args": False}),
    "counters": CommandEntry("Count instructions, sectors, wavefronts, bank conflicts."),
    "explain": CommandEntry("Explain a hazard kind: meaning, example, fix."),
    "instructions": CommandEntry("List the supported PTX instructions."),
    "doctor": CommandEntry("Check the requirements on this machine."),
}
"""All subcommands, in the order of ``--help``."""

TOOL = Tool("warpsan", __version__)

app = typer.Typer(
    name="warpsan",
    cls=group_of("warpsan.commands", COMMANDS),
    help="Run and check CUDA without a GPU.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _top(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> int:
    return top(TOOL, context, version)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: the arguments of the process.
    """
    return run_app(app, TOOL, arguments)
