"""The command line of ``warpsan``: one subcommand a task, and what its exit codes mean.

0 good; 1 hazards; 2 bad input or usage, one line on stderr; 3 the machine failed.
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
    "run": CommandEntry("A CUDA program as it is, with no GPU; its hazards.", {"allow_interspersed_args": False}),
    "sanitize": CommandEntry("Races and memory errors of a .cu or .ptx file."),
    "launch": CommandEntry("Run a .cu or .ptx file once, and keep its buffers."),
    "capture": CommandEntry("Run a program, and leave a launch file.", {"allow_interspersed_args": False}),
    "counters": CommandEntry("Instructions, sectors, wavefronts and bank conflicts."),
    "explain": CommandEntry("What a kind of hazard means, an example, the mend."),
    "instructions": CommandEntry("The PTX instructions that the simulator executes."),
    "doctor": CommandEntry("What warpsan needs from this machine."),
}
"""Every subcommand, in the order of ``--help``."""

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
        Default: those of the process.
    """
    return run_app(app, TOOL, arguments)
