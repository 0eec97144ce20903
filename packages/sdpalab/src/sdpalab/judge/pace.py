"""Parallelism of a judgement: outputs are judged while the next ones are computed, and a second set of a candidate's
processes starts if the remaining time justifies it. Until then one launch on the simulator may use every core."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

__all__ = ["BackgroundJudge", "Pace"]

MOST_BEHIND = 2
"""Largest number of outputs that wait to be judged; it limits memory."""
FIRST_CASES = 8
"""Cases after which the time of the remaining cases is estimated."""
PAYS_SECONDS = 15.0
"""Remaining seconds that justify a second set of processes: its start takes one CPU second, and it decodes the same
code again, which takes seconds for kernels of many modules."""


class BackgroundJudge:
    """Executes work in order in a background thread. Its exceptions are raised in the caller.

    As a context manager it exits when all work is done, or at once if the caller fails.
    """

    def __init__(self) -> None:
        self._pool, self._pending = ThreadPoolExecutor(1), deque[Future[None]]()

    def submit(self, work: Callable[[], None]) -> None:
        """Add work; blocks while the queue is full."""
        while len(self._pending) >= MOST_BEHIND:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(work))

    def __enter__(self) -> BackgroundJudge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        while kind is None and self._pending:
            self._pending.popleft().result()


class Pace:
    """Calls ``more`` once, as soon as the finished cases show that the rest of ``cases`` takes long."""

    def __init__(self, cases: int, more: Callable[[], None]) -> None:
        self._cases, self._more = cases, more
        self._begun, self._last = 0, time.monotonic()
        self._seconds: list[float] = []
        self._decided = False

    def begin(self) -> None:
        """Record the start of a case.

        The estimate uses the median of the finished cases: the first case includes decoding and compilation, and large
        cases come early.
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
