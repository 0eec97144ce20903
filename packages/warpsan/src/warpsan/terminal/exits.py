"""Exit codes of a command line; every error has one sentence on stderr.

0 good; 1 found wrong; 2 bad input or usage; 3 the machine failed; 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import typer

from warpsan.errors import MachineError, UserError
from warpsan.terminal import invocation
from warpsan.terminal.console import INTERRUPTED
from warpsan.terminal.invocation import Tool

__all__ = ["run_app", "top"]

_GOOD, _BAD_INPUT, _MACHINE = 0, 2, 3
_MACHINE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def top(tool: Tool, context: typer.Context, version: bool) -> int:
    """Options before the subcommand: record the command, or print the version.

    Raises
    ------
    UserError
        If the command line has no command.
    typer.Exit
        After the version.
    """
    invocation.INVOCATION.command = context.invoked_subcommand or ""
    if version:
        print(f"{tool.name} {tool.version}")
        raise typer.Exit(_GOOD)
    if context.invoked_subcommand is None:
        raise UserError(f"no command given; '{tool.name} --help' lists them")
    return _GOOD


def run_app(app: Callable[..., Any], tool: Tool, arguments: Sequence[str] | None) -> int:
    """Run a command line and return its exit code; ``arguments`` defaults to those of the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A question mark replaces characters that the terminal cannot show, without a traceback.
            stream.reconfigure(errors="replace")
    invocation.begin(tool, arguments)
    try:
        code = app(None if arguments is None else list(arguments), prog_name=tool.name, standalone_mode=False)
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
            # Usage errors of typer are click's or of its own copy, so they have no common class.
            return _complain(error.format_message(), _BAD_INPUT)
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS):
            return _complain(f"the machine failed: {error or type(error).__name__}", _MACHINE)
        traceback.print_exc()
        return _complain(f"this is a defect of {tool.name}: {type(error).__name__}: {error}", _MACHINE)


def _complain(reason: object, code: int) -> int:
    """Print the reason on one line of stderr; with ``--json`` the document also has it."""
    sentence = " ".join(str(reason).split())
    print(f"{invocation.INVOCATION.tool.name}: {sentence}", file=sys.stderr)
    invocation.write_failure(code, sentence)
    return code
