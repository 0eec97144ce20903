"""Progress of work that takes more than a few seconds, for a progress line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["WorkProgress", "shows_progress"]

_SILENT, _BETWEEN = 2.0, 0.5
"""Seconds before the first sentence, and between sentences."""
_show: ContextVar[Callable[[str], None] | None] = ContextVar("show", default=None)


@contextmanager
def shows_progress(show: Callable[[str], None]) -> Iterator[None]:
    """Call ``show`` with the progress of long work within this context."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


class WorkProgress:
    """Counter of completed work.

    Parameters
    ----------
    what : str
        Counted items, such as ``recorded events``.
    total : int
        Total number of items.
    """

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self._show = _show.get()
        self._next = time.monotonic() + _SILENT

    def advance(self, many: int) -> None:
        """Add ``many`` completed items."""
        self.done += many
        if self._show is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _BETWEEN
            self._show(f"{self.done:,} of {self.total:,} {self.what}")
