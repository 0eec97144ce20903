"""The command line: one subcommand per stage.

Exit codes: 0 good; 1 judged wrong, gate failed or bundle rejected; 2 bad input or usage, one line on stderr; 3 the
machine failed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from sdpalab.version import __version__
from warpsan.terminal.exits import run_app, top
from warpsan.terminal.invocation import Tool
from warpsan.terminal.lazy import CommandEntry, group_of

__all__ = ["COMMANDS", "TOOL", "app", "main"]

_TOOL = "warpsan.commands"
"""Package of the simulator's commands."""
_AS_IT_IS = {"allow_interspersed_args": False}

COMMANDS = {
    "repro": CommandEntry("The main job: build, gate and judge; a bundle and a report.", one_thread=True),
    "kernels": CommandEntry("The shipped kernels: ideas, types, knobs, numerics."),
    "doctor": CommandEntry("Requirements of the lab on this machine, and missing ones."),
    "new": CommandEntry("Write a kernel that passes, its launch and its test."),
    "build": CommandEntry("Registers, spills, shared memory, SASS; the static gate."),
    "judge": CommandEntry("Is it attention? If not, why not, and at which line?", one_thread=True),
    "audit": CommandEntry("Submissions in public formats: verdicts and origins.", one_thread=True),
    "serve": CommandEntry("Judge submissions over HTTP: queue, batches, metrics.", one_thread=True),
    "mcp": CommandEntry("Tools for agents: build, judge, sanitize, explain, profile."),
    "sanitize": CommandEntry("Races and memory errors, in every order of the warps."),
    "run": CommandEntry("A CUDA program as it is, with no GPU; its hazards.", _AS_IT_IS, package=_TOOL),
    "capture": CommandEntry("Run it, and leave a launch file.", _AS_IT_IS, package=_TOOL),
    "launch": CommandEntry("Run a .cu or .ptx file once, and keep its buffers.", package=_TOOL),
    "counters": CommandEntry("Instructions, sectors, wavefronts and bank conflicts.", package=_TOOL),
    "explain": CommandEntry("What a kind of hazard means, an example, the mend.", package=_TOOL),
    "instructions": CommandEntry("The PTX instructions that the simulator executes.", package=_TOOL),
    "speed-of-light": CommandEntry("The least time that a GPU can take, and what binds."),
    "bench": CommandEntry("Time kernels and peers on a GPU, interleaved."),
    "profile": CommandEntry("Costs by source line: simulated, or on a GPU."),
    "tune": CommandEntry("Search a kernel's configurations; never a wrong one.", one_thread=True),
    "prove": CommandEntry("Judge kernels on this GPU, and keep the verdicts.", one_thread=True),
    "torch-matrix": CommandEntry("Judge one kernel with several versions of torch."),
    "report": CommandEntry("The HTML report of a bundle, or of a search.", one_thread=True),
    "compare": CommandEntry("Two bundles side by side.", one_thread=True),
    "verify": CommandEntry("Check a bundle: every digest and every verdict again.", one_thread=True),
    "campaign": CommandEntry("Long runs that leave a record in evidence/.", one_thread=True),
}
"""All subcommands, in the order of ``--help``."""

app = typer.Typer(
    name="sdpalab",
    cls=group_of("sdpalab.commands", COMMANDS),
    help="Fused attention kernels for NVIDIA GPUs, and the lab that builds, simulates, judges and measures them.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CHECK = "SDPALAB_CHECK_DOCUMENTS"
"""Environment variable of the tests; if set, each document is validated against its model before it is written."""


def _check(document: Mapping[str, Any]) -> None:
    if os.environ.get(_CHECK):
        from sdpalab.commands.documents import check_document

        check_document(document)


TOOL = Tool("sdpalab", __version__, _check)


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
