"""The command line that this process runs: what ``main`` was given, for records that say how they were made."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["begin", "command_line"]

_arguments: list[str] = []


def begin(arguments: Sequence[str] | None) -> None:
    """Note the arguments of this command line, by default those of the process."""
    _arguments[:] = sys.argv[1:] if arguments is None else arguments


def command_line() -> list[str]:
    """``sdpalab`` and its arguments."""
    return ["sdpalab", *_arguments]
