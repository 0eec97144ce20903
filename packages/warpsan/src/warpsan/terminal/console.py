"""Consoles of the subcommands, and files written in one step."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from rich.console import Console
from rich.text import Text

from warpsan.errors import MachineError, UserError

__all__ = [
    "INTERRUPTED",
    "OUTPUT",
    "conclude",
    "console_for",
    "print_set_aside",
    "progress_console",
    "silence",
    "verdict_text",
    "write_json",
    "write_text",
]

INTERRUPTED = 130
"""Exit code of a command after an interrupt from the keyboard."""
_PIPE_WIDTH = 120
"""Width of output to a file or a pipe, in columns."""


@dataclass
class OutputStyle:
    """``--quiet`` and ``--no-color`` of this command line."""

    quiet: bool = False
    no_color: bool = False


OUTPUT = OutputStyle()


def console_for(json_target: str | None = None, *, option: str = "--json") -> Console:
    """The console for results: stdout, or stderr if the document goes to stdout.

    Raises
    ------
    UserError
        If the directory of ``json_target`` does not exist, before a long job starts.
    """
    if json_target not in (None, "-") and not Path(str(json_target)).absolute().parent.is_dir():
        raise UserError(f"{option} {json_target}: there is no directory {Path(str(json_target)).absolute().parent}")
    console = _console(sys.stderr if json_target == "-" else sys.stdout)
    console.quiet = OUTPUT.quiet
    return console


def progress_console() -> Console:
    """The console for progress: stderr; silent with ``--quiet``."""
    console = _console(sys.stderr)
    console.quiet = OUTPUT.quiet
    return console


def conclude(console: Console, *parts: Any) -> None:
    """Print the outcome of a command on one line, also with ``--quiet``."""
    silent, console.quiet = console.quiet, console.quiet and not OUTPUT.quiet
    console.print(*parts, soft_wrap=True)
    console.quiet = silent


class _Console(Console):
    """A console that ignores a closed pipe (``warpsan instructions | head``): the command keeps its exit code."""

    def on_broken_pipe(self) -> None:
        """Stop output."""
        self.quiet = True
        silence(self.file)


def silence(stream: IO[str]) -> None:
    """Discard all further output to a broken pipe, including Python's flush at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _console(stream: IO[str]) -> Console:
    plain = not stream.isatty()
    width = _PIPE_WIDTH if plain and "COLUMNS" not in os.environ else None
    color: Literal["auto"] | None = None if OUTPUT.no_color else "auto"
    return _Console(file=stream, markup=False, highlight=False, width=width, color_system=color)


def verdict_text(good: bool | None, word: str) -> Text:
    """``word`` in green if good, red if bad, yellow if neither."""
    return Text(word, style={True: "green", False: "bold red", None: "yellow"}[good])


def print_set_aside(console: Console, words: str) -> None:
    """Print one dim line with the host code that is not compiled; no line without words."""
    if words:
        console.print(Text(words, style="dim"), soft_wrap=True)


def write_json(target: str | None, data: Any, *, option: str = "--json") -> None:
    """Write ``data`` to the file ``target`` atomically; ``-`` is stdout.

    Raises
    ------
    UserError
        If the file cannot be written.
    MachineError
        If the disk is full.
    """
    if target is None:
        return
    write_text(target, json.dumps(data, indent=2, allow_nan=False) + "\n", option=option)


def write_text(target: str, text: str, *, option: str) -> None:
    """Write ``text`` to a file atomically, or to stdout; raises as :func:`write_json`."""
    if target == "-":
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            silence(sys.stdout)
        return
    path = Path(target)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        message = f"{option} {target}: cannot write: {error.strerror}"
        raise (MachineError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError)(message) from None
