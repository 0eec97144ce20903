"""Runs the parts of ``gpu_suite.sh``: each in a session of its own, with a limit, recorded as soon as it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpu_parts import AGAIN, Part, describe
from gpu_records import Workspace

__all__ = ["DONE", "PartRunner", "all_skipped"]

DONE = frozenset({"passed", "failed", "skipped"})
"""States of a finished part; ``failed`` is exit code 1: something was found to be wrong."""

_GRACE_SECONDS, _DEATH_SECONDS = 5.0, 10.0
"""Seconds after an interrupt until it is killed; and after that until it is given up."""
_POLL_SECONDS = 0.05


@dataclass
class _Running:
    """A part that runs; ``ending`` is the reason for which it has to end, and ``since`` the time of that."""

    part: Part
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    start: float
    limit: float
    state: str = ""
    ending: str = ""
    since: float = 0.0
    killed: bool = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def end(self, state: str, why: str) -> None:
        """End it: an interrupt first, so that it can clean up."""
        if not self.ending:
            self.state, self.ending, self.since = state, why, time.monotonic()
            self.signal(signal.SIGINT)

    def gone(self) -> bool:
        """Whether it has ended, or cannot be ended; sends the next signal when that is due."""
        if self.process.poll() is not None:
            self.signal(signal.SIGKILL)  # what it left running
            return True
        waited = time.monotonic() - self.since
        if self.ending and waited > _GRACE_SECONDS and not self.killed:
            self.killed = True
            self.signal(signal.SIGKILL)
        if self.ending and waited > _GRACE_SECONDS + _DEATH_SECONDS:
            self.ending += "; SIGKILL does not end it"
            return True
        return False


class PartRunner:
    """Runs parts until the deadline, on the clock of :func:`time.monotonic`.

    Attributes
    ----------
    deadline : float
        No part goes on beyond it.

    Parameters
    ----------
    work : Workspace
    root : Path
        Where the parts run.
    patience : float
        Each part may take so many times its own limit.
    """

    def __init__(self, work: Workspace, root: Path, patience: float = 1.0) -> None:
        self._work, self._root, self._patience = work, root, patience
        self.deadline = 0.0
        self._states: dict[str, str] = {}

    @property
    def complete(self) -> bool:
        """Whether every requested part has finished, in this call or an earlier one."""
        return set(self._states.values()) <= DONE

    def run(self, parts: Sequence[Part], workers: int = 1) -> None:
        """Run what is not done yet, in order, at most ``workers`` at a time.

        Raises
        ------
        KeyboardInterrupt
            Once what was running is ended and recorded as interrupted.
        """
        waiting = [part for part in parts if not self._settled(part)]
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    begun = self._begin(waiting.pop(0))
                    running += [begun] if begun else []
                self._poll(running, waiting)
        except KeyboardInterrupt:
            for each in running:
                each.end("interrupted", "the suite was interrupted")
            while running:
                self._poll(running, [])
            raise

    def _poll(self, running: list[_Running], waiting: list[Part]) -> None:
        """Record parts that have ended, and end those whose time is over."""
        for each in list(running):
            if each.gone():
                running.remove(each)
                each.log.close()
                self._record(each, waiting)
            elif time.monotonic() - each.start >= each.limit:
                whose = "its limit" if each.limit >= each.part.seconds * self._patience else "the suite's time"
                each.end("timed out", f"no end within {each.limit:.0f} s, {whose}")
        time.sleep(_POLL_SECONDS if running else 0)

    def _settled(self, part: Part) -> bool:
        """Whether the part needs no run: it is done, or cannot run here. Skipped parts are checked each time."""
        if part.skip:
            self._keep(part, "skipped", part.skip)
            return True
        state = self._work.state(part.name).get("state", "")
        self._states[part.name] = state
        return state in DONE - {"skipped"}

    def _begin(self, part: Part) -> _Running | None:
        left = self.deadline - time.monotonic()
        if left <= 1:
            self._keep(part, "not begun", "the time was over")
            return None
        limit = min(part.seconds * self._patience, left)
        print(f"{part.name}: at most {limit:.0f} s", flush=True)
        path = self._work.log(part.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.open("ab" if self._states.get(part.name) == "again" else "wb")
        start = time.monotonic()
        # A session of its own: a signal for it is for all that it starts, and none from the terminal reaches it.
        try:
            process = subprocess.Popen(
                part.command,
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            log.close()
            self._keep(part, "error", f"cannot be started: {error.strerror}")
            return None
        return _Running(part, process, log, start, limit)

    def _record(self, each: _Running, waiting: list[Part]) -> None:
        """The outcome of a part; one whose process had to end, and that has more to do, is put first in line."""
        part, code, seconds = each.part, each.process.returncode, time.monotonic() - each.start
        last = self._last_line(part)
        if each.ending:
            self._keep(part, each.state, each.ending, seconds, code)
        elif code == AGAIN and self.deadline - time.monotonic() > 1:
            waiting.insert(0, part)
            self._keep(part, "again", last, seconds, code)
        elif code == 0 and all_skipped(last):
            self._keep(part, "skipped", last, seconds, code)
        elif code == 0:
            self._keep(part, "passed", "", seconds, code)
        elif code == 1 and part.ended():
            self._keep(part, "failed", last, seconds, code)
        else:
            how = f"signal {-code}" if code < 0 else f"exit {code}"
            self._keep(part, "error", f"{how}: {last}", seconds, code)

    def _last_line(self, part: Part) -> str:
        """The last thing that it printed, which names the outcome."""
        lines = [line for line in self._work.log(part.name).read_text(errors="replace").splitlines() if line.strip()]
        return _shortened(lines[-1].strip()) if lines else "it printed nothing"

    def _keep(self, part: Part, state: str, reason: str, seconds: float = 0.0, code: int | None = None) -> None:
        record: dict[str, Any] = {"state": state, "reason": reason, "seconds": round(seconds, 1), "exit_code": code}
        self._work.keep(part.name, {**describe(part), **record, "when": round(time.time(), 3)})
        self._states[part.name] = state


def all_skipped(line: str) -> bool:
    """Whether pytest's last line says that tests were skipped and that none passed."""
    return " skipped" in line and " passed" not in line


def _shortened(line: str) -> str:
    """At most some 400 characters: the subject is at the beginning, and the outcome at the end."""
    return line if len(line) <= 400 else f"{line[:150]} [...] {line[-250:]}"
