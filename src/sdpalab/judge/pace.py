"""Two ways to keep the cores busy: outputs are judged behind those that are computed, and a second set of a candidate's
processes is started where it pays."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

__all__ = ["Behind", "Pace"]

MOST_BEHIND = 2
"""Outputs that wait to be judged: more would only hold memory."""
FIRST_CASES = 8
"""Cases after which it is estimated how long the others take."""
PAYS_SECONDS = 8.0
"""What is left must take so long for a second set of processes: it starts in a second or two of CPU time, and decodes
the same code again."""


class Behind:
    """Work in a thread of its own, in order, while the caller goes on. An exception in it is raised in the caller.

    As a context it ends when all of the work is done, or at once if the caller fails.
    """

    def __init__(self) -> None:
        self._pool, self._pending = ThreadPoolExecutor(1), deque[Future[None]]()

    def submit(self, work: Callable[[], None]) -> None:
        """Add work; waits while there is as much as may wait."""
        while len(self._pending) >= MOST_BEHIND:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(work))

    def __enter__(self) -> Behind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        while kind is None and self._pending:
            self._pending.popleft().result()


class Pace:
    """Calls ``more`` once, as soon as the cases so far show that the rest of ``cases`` takes long."""

    def __init__(self, cases: int, more: Callable[[], None]) -> None:
        self._cases, self._more = cases, more
        self._begun, self._start = 0, time.monotonic()
        self._decided = False

    def begin(self) -> None:
        """A case begins."""
        done, self._begun = self._begun, self._begun + 1
        if done < FIRST_CASES or self._decided:
            return
        left = (self._cases - done) * (time.monotonic() - self._start) / done
        if left > PAYS_SECONDS:
            self._decided = True
            self._more()
