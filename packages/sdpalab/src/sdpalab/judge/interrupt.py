"""Ctrl-C as a callback instead of an exception in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

__all__ = ["SLEEP_SECONDS", "Interrupt", "wait_for"]

SLEEP_SECONDS = 0.5
"""Sleep of a thread that waits for Ctrl-C, in seconds; a signal just before the sleep does not end it."""


def wait_for(work: Future[Any]) -> None:
    """Wait until ``work`` is done; Ctrl-C is handled meanwhile."""
    while not work.done():
        wait([work], timeout=SLEEP_SECONDS)


class Interrupt:
    """Ends judgements early, in any thread.

    Attributes
    ----------
    happened : bool
    """

    def __init__(self) -> None:
        self.happened = False
        self._actions: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which Ctrl-C triggers this interrupt.

        The handler is not installed outside the main thread, or if another handler is installed.
        """
        ours = threading.current_thread() is threading.main_thread()
        if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self.now)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextlib.contextmanager
    def on_interrupt(self, action: Callable[[], None]) -> Iterator[None]:
        """Context in which the interrupt calls ``action`` from the main thread; at once if it has happened already."""
        self._actions.append(action)
        if self.happened:
            action()
        try:
            yield
        finally:
            self._actions.remove(action)

    def now(self, *_: Any) -> None:
        """Trigger the interrupt; repeated calls have no effect. Also a signal handler."""
        if not self.happened:
            self.happened = True
            for action in tuple(self._actions):
                action()
