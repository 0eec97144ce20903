"""The command line: one subcommand a stage, and what its exit codes mean.

0 good; 1 judged wrong, gate failed or bundle rejected; 2 bad input or usage, one line on stderr; 3 the machine failed.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence

import typer

from sdpalab.commands import invocation
from sdpalab.commands.common import INTERRUPTED
from sdpalab.commands.lazy import CommandEntry, group_of
from sdpalab.errors import MachineError, UserError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "repro": CommandEntry("The main job: build, gate and judge; a bundle and a report.", one_thread=True),
    "kernels": CommandEntry("The shipped kernels: ideas, types, knobs, numerics."),
    "doctor": CommandEntry("What the lab needs from this machine, and what is missing."),
    "new": CommandEntry("Write a kernel that passes, its launch and its test."),
    "build": CommandEntry("Registers, spills, shared memory, SASS; the static gate."),
    "judge": CommandEntry("Is it attention? If not, why not, and at which line?", one_thread=True),
    "sanitize": CommandEntry("Races and memory errors, in every order of the warps."),
    "run": CommandEntry("A CUDA program as it is, with no GPU; its hazards.", {"allow_interspersed_args": False}),
    "capture": CommandEntry("Run it, and leave a launch file.", {"allow_interspersed_args": False}),
    "speed-of-light": CommandEntry("The least time that a GPU can take, and what binds."),
    "bench": CommandEntry("Time kernels and peers on a GPU, interleaved."),
    "profile": CommandEntry("What costs, by source line: simulated, or on a GPU."),
    "tune": CommandEntry("Search a kernel's configurations; never a wrong one.", one_thread=True),
    "prove": CommandEntry("Judge kernels on this GPU, and keep the verdicts.", one_thread=True),
    "torch-matrix": CommandEntry("Judge one kernel with several versions of torch."),
    "report": CommandEntry("The HTML report of a bundle, or of a search.", one_thread=True),
    "compare": CommandEntry("Two bundles side by side.", one_thread=True),
    "verify": CommandEntry("Check a bundle: every digest and every verdict again.", one_thread=True),
    "campaign": CommandEntry("Long runs that leave a record in evidence/.", one_thread=True),
}
"""Every subcommand, in the order of ``--help``."""

app = typer.Typer(
    name="sdpalab",
    cls=group_of(COMMANDS),
    help="Fused attention kernels for NVIDIA GPUs, and the lab that builds, simulates, judges and measures them.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GOOD, _BAD_INPUT, _MACHINE = 0, 2, 3
_MACHINE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@app.callback(invoke_without_command=True)
def _top(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> int:
    invocation.INVOCATION.command = context.invoked_subcommand or ""
    if version:
        from sdpalab.version import __version__

        print(f"sdpalab {__version__}")
        raise typer.Exit(_GOOD)
    if context.invoked_subcommand is None:
        raise UserError("no command given; 'sdpalab --help' lists them")
    return _GOOD


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    invocation.begin(arguments)
    try:
        code = app(None if arguments is None else list(arguments), prog_name="sdpalab", standalone_mode=False)
        return int(code or _GOOD)
    except typer.Exit as stop:
        return stop.exit_code
    except UserError as error:
        return _complain(error, _BAD_INPUT)
    except MachineError as error:
        return _complain(error, _MACHINE)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except Exception as error:
        if hasattr(error, "format_message"):
            # Usage errors; typer has them from click or from its own copy, so they have no one class to name.
            return _complain(error.format_message(), _BAD_INPUT)
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS):
            return _complain(f"the machine failed: {error or type(error).__name__}", _MACHINE)
        traceback.print_exc()
        return _complain(f"this is a defect of the lab: {type(error).__name__}: {error}", _MACHINE)


def _complain(reason: object, code: int) -> int:
    """Print the reason on one line of stderr; with ``--json`` it is in the document, too."""
    sentence = " ".join(str(reason).split())
    print(f"sdpalab: {sentence}", file=sys.stderr)
    invocation.write_failure(code, sentence)
    return code
