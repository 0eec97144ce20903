"""Ways to keep the cores busy: outputs are judged behind those that are computed, and a second set of a candidate's
processes is started where it pays. Until then one launch on the simulator may use every core."""

from __future__ import annotations

import statistics
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
PAYS_SECONDS = 15.0
"""What is left must take so long for a second set of processes: it starts in a second of CPU time, and decodes the same
code again, which takes seconds for kernels of many modules."""


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
        self._begun, self._last = 0, time.monotonic()
        self._seconds: list[float] = []
        self._decided = False

    def begin(self) -> None:
        """A case begins.

        The median of the cases so far stands for those that are left: the first case decodes and compiles, and the
        large ones come early.
        """
        done, self._begun = self._begun, self._begun + 1
        now = time.monotonic()
        if done:
            self._seconds.append(now - self._last)
        self._last = now
        if done < FIRST_CASES or self._decided:
            return
        if (self._cases - done) * statistics.median(self._seconds) > PAYS_SECONDS:
            self._decided = True
            self._more()
