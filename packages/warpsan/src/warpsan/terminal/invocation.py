"""The command line of this process, and its JSON document: the envelope of every command's result.

``main`` begins an invocation; a command sets its subject and writes its content; after an error, ``main`` writes the
envelope alone. Every exit code therefore has a document.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from warpsan.errors import MachineError, UserError
from warpsan.terminal.console import console_for, write_json

__all__ = [
    "INVOCATION",
    "OUTCOMES",
    "Tool",
    "begin",
    "command_line",
    "console_and_subject",
    "write_document",
    "write_failure",
]

OUTCOMES = {0: "PASSED", 1: "FAILED", 2: "BAD_INPUT", 3: "MACHINE_FAILED", 130: "INTERRUPTED"}
"""Status of a document without a verdict, by exit code."""


@dataclass(frozen=True)
class Tool:
    """A program with commands: its name and version, and a check for every document before it is written."""

    name: str
    version: str
    check: Callable[[Mapping[str, Any]], None] | None = None


@dataclass
class Invocation:
    """One run of a command line: its arguments, command, subject, and output state."""

    tool: Tool = Tool("", "")
    arguments: list[str] = field(default_factory=list)
    command: str = ""
    subject: str = ""
    written: bool = False


INVOCATION = Invocation()


def begin(tool: Tool, arguments: Sequence[str] | None) -> None:
    """Begin an invocation of a tool with these arguments; default: those of the process."""
    INVOCATION.tool = tool
    INVOCATION.arguments = list(sys.argv[1:] if arguments is None else arguments)
    INVOCATION.command = INVOCATION.subject = ""
    INVOCATION.written = False


def command_line() -> list[str]:
    """The tool's name and its arguments."""
    return [INVOCATION.tool.name, *INVOCATION.arguments]


def console_and_subject(json_target: str | None, subject: str = "") -> Console:
    """The console for results (:func:`~warpsan.terminal.console.console_for`); sets the subject of the document."""
    INVOCATION.subject = subject
    return console_for(json_target)


def write_document(target: str | None, content: Mapping[str, Any], *, status: str, error: str = "") -> None:
    """Write a command's document to the ``--json`` target, ``-`` for stdout; nothing without a target.

    Parameters
    ----------
    target : str, optional
    content : mapping
        Plain JSON values, with the fields of the command's model (:mod:`sdpalab.commands.documents`).
    status : str
        A status of a verdict, or one of :data:`OUTCOMES`.
    error : str
        Error sentence on stderr, for a command with both a result and an error.
    """
    if target is not None:
        _write(target, {**_envelope(status, error), **content})


def write_failure(code: int, reason: str) -> None:
    """Write the envelope of a command that ended with an error, unless its document is already written."""
    target = _json_target(INVOCATION.arguments)
    if target is None or INVOCATION.written:
        return
    # The reason is on stderr in any case; the target of the document may be unusable.
    with contextlib.suppress(UserError, MachineError):
        _write(target, _envelope(OUTCOMES[code], reason))


def _write(target: str, document: Mapping[str, Any]) -> None:
    if INVOCATION.tool.check is not None:
        INVOCATION.tool.check(document)
    write_json(target, document)
    INVOCATION.written = True


def _envelope(status: str, error: str = "") -> dict[str, Any]:
    tool, command = INVOCATION.tool, INVOCATION.command or INVOCATION.tool.name
    return {
        "schema": f"{tool.name}/{command}/1",
        "version": tool.version,
        "command": command,
        "subject": INVOCATION.subject,
        "status": status,
        "error": error,
    }


def _json_target(arguments: Sequence[str]) -> str | None:
    """The value of ``--json`` on a command line that may be invalid."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == "--json":
            return value if equals else next(iter(arguments[place + 1 :]), None)
    return None
