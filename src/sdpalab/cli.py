"""The command line: one subcommand a stage, and what its exit codes mean.

0 good; 1 judged wrong, gate failed or bundle rejected; 2 bad input or usage, one line on stderr; 3 the machine failed.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence

import typer

from sdpalab.commands import (
    bench,
    build,
    campaign,
    compare,
    doctor,
    invocation,
    judge,
    kernels,
    new,
    profile,
    prove,
    report,
    repro,
    run,
    sanitize,
    speed_of_light,
    torch_matrix,
    tune,
    verify,
)
from sdpalab.commands.common import INTERRUPTED
from sdpalab.commands.output_options import with_output_options
from sdpalab.errors import MachineError, UserError

__all__ = ["app", "main"]

app = typer.Typer(
    name="sdpalab",
    help="Fused attention kernels for NVIDIA GPUs, and the lab that builds, simulates, judges and measures them.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    repro.repro,
    kernels.kernels,
    doctor.doctor,
    new.new,
    build.build,
    judge.judge,
    sanitize.sanitize,
    run.run,
    speed_of_light.speed_of_light,
    bench.bench,
    profile.profile,
    tune.tune,
    prove.prove,
    torch_matrix.torch_matrix,
    report.report,
    compare.compare,
    verify.verify,
):
    # What stands behind the program of ``run`` belongs to the program.
    app.command(context_settings={"allow_interspersed_args": command is not run.run})(command)

app.add_typer(campaign.campaign)
for registered in (*app.registered_commands, *campaign.campaign.registered_commands):
    assert registered.callback is not None
    registered.callback = with_output_options(registered.callback)

_GOOD, _BAD_INPUT, _MACHINE = 0, 2, 3
_MACHINE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@app.callback(invoke_without_command=True)
def _top(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> int:
    invocation.INVOCATION.command = context.invoked_subcommand or ""
    if version:
        from sdpalab import __version__

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
