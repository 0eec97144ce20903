"""Runs the parts of ``gpu_suite.sh``: each in a session of its own, with a limit, recorded as soon as it ends."""

from __future__ import annotations

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

__all__ = ["DONE", "Runner"]

DONE = frozenset({"passed", "failed", "skipped"})
"""States of a part that came to its end; ``failed`` is exit code 1: something was found to be wrong."""

_GRACE_SECONDS, _DEATH_SECONDS = 5.0, 10.0
"""After an interrupt until it is killed; after that until it is left alone."""
_POLL_SECONDS = 0.05


@dataclass
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    start: float
    limit: float


class Runner:
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
        """Whether every part asked for came to its end, in this call or an earlier one."""
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
                for each in list(running):
                    if self._over(each, waiting):
                        running.remove(each)
                time.sleep(_POLL_SECONDS if running else 0)
        except BaseException:
            for each in running:
                self._kill(each)
                self._keep(each.part, "interrupted", "the suite was interrupted", time.monotonic() - each.start)
            raise

    def _settled(self, part: Part) -> bool:
        """Whether nothing is to be run: it is done, or cannot be done here. Skipped parts are asked about each time."""
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

    def _over(self, each: _Running, waiting: list[Part]) -> bool:
        """Whether a part has ended, or had to be ended; its record is then written."""
        code, seconds = each.process.poll(), time.monotonic() - each.start
        if code is None and seconds < each.limit:
            return False
        if code is None:
            ended = self._kill(each)
            cut = "its limit" if each.limit >= each.part.seconds * self._patience else "the suite's time"
            reason = f"no end within {each.limit:.0f} s, {cut}" + ("" if ended else "; it does not die of SIGKILL")
            self._keep(each.part, "timed out", reason, seconds)
            return True
        self._kill(each)  # what it left running
        each.log.close()
        last = self._last_line(each.part)
        if code == AGAIN and self.deadline - time.monotonic() > 1:
            waiting.insert(0, each.part)
            self._keep(each.part, "again", last, seconds, code)
        elif code == 0:
            self._keep(each.part, "passed", "", seconds, code)
        elif code == 1 and each.part.ended():
            self._keep(each.part, "failed", last, seconds, code)
        else:
            how = f"signal {-code}" if code < 0 else f"exit {code}"
            self._keep(each.part, "error", f"{how}: {last}", seconds, code)
        return True

    def _kill(self, each: _Running) -> bool:
        """End the session: an interrupt first, so that it can clean up; whether it ended."""
        for sign, seconds in ((signal.SIGINT, _GRACE_SECONDS), (signal.SIGKILL, _DEATH_SECONDS)):
            try:
                os.killpg(each.process.pid, sign)
            except (ProcessLookupError, PermissionError):
                return True
            try:
                each.process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
        return each.process.poll() is not None

    def _last_line(self, part: Part) -> str:
        """The last thing that it printed, which says what came of it."""
        lines = [line for line in self._work.log(part.name).read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else "it printed nothing"

    def _keep(self, part: Part, state: str, reason: str, seconds: float = 0.0, code: int | None = None) -> None:
        record: dict[str, Any] = {"state": state, "reason": reason, "seconds": round(seconds, 1), "exit_code": code}
        self._work.keep(part.name, {**describe(part), **record, "when": round(time.time(), 3)})
        self._states[part.name] = state
