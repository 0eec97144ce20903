"""Faults that the stand-in driver is to have, and its log, a JSON object a line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Fault", "Faults", "Log", "read_log"]


@dataclass(frozen=True)
class Fault:
    """One call that goes wrong, once.

    Attributes
    ----------
    function : str
        Of which call; of all if empty.
    nth : int
        Which call of it in the process, from 1.
    result : int
        The CUresult that it returns instead of doing anything; with an error that a kernel causes, the context is lost.
    hang : bool
        It never returns.
    process : str
        Only in processes with this in their command line.
    once : str
        A file that the first process which gets here makes: no other one has the fault. None if empty.
    """

    function: str = ""
    nth: int = 1
    result: int = 999
    hang: bool = False
    process: str = ""
    once: str = ""


class Faults:
    """Counts calls, and says which fail."""

    def __init__(self, faults: list[Fault]) -> None:
        command = " ".join(sys.orig_argv)
        self.waiting = [fault for fault in faults if fault.process in command]
        self._counts: dict[str, int] = {}
        self.seen: list[str] = []
        """All calls, in order."""

    def arm(self, fault: Fault) -> None:
        """This one instead of all others, counted from the next call on."""
        self._counts.clear()
        self.seen.clear()
        self.waiting = [fault]

    def next(self, function: str) -> Fault | None:
        """The fault of this call, if it has one."""
        self.seen.append(function)
        for key in ("", function):
            self._counts[key] = self._counts.get(key, 0) + 1
        for fault in self.waiting:
            if fault.function in ("", function) and self._counts[fault.function] == fault.nth:
                self.waiting.remove(fault)
                return fault if self._first(fault) else None
        return None

    @staticmethod
    def _first(fault: Fault) -> bool:
        if not fault.once:
            return True
        try:
            os.close(os.open(fault.once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            return False
        return True


class Log:
    """Appends to a file, which processes may share; nothing without one, or where it cannot be written."""

    def __init__(self, path: str) -> None:
        self._file = -1
        try:
            if path:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            print(f"stand-in driver: no log: {error}", file=sys.stderr)

    def write(self, **entry: Any) -> None:
        if self._file >= 0:
            os.write(self._file, (json.dumps({"pid": os.getpid(), **entry}) + "\n").encode())


def read_log(path: Path) -> list[dict[str, Any]]:
    """All entries, in the order in which they were written."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
