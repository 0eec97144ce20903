"""How far work is that takes more than a few seconds, for a progress line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["WorkProgress", "shows_progress"]

_SILENT, _BETWEEN = 2.0, 0.5
"""Seconds before the first sentence, and between two."""
_show: ContextVar[Callable[[str], None] | None] = ContextVar("show", default=None)


@contextmanager
def shows_progress(show: Callable[[str], None]) -> Iterator[None]:
    """Within this context, ``show`` is called with a few words, now and then, by work that takes long."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


class WorkProgress:
    """Counts what is done of some work.

    Parameters
    ----------
    what : str
        What is counted, such as ``recorded events``.
    total : int
        How many there are.
    """

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self._show = _show.get()
        self._next = time.monotonic() + _SILENT

    def advance(self, many: int) -> None:
        """So many more are done."""
        self.done += many
        if self._show is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _BETWEEN
            self._show(f"{self.done:,} of {self.total:,} {self.what}")
