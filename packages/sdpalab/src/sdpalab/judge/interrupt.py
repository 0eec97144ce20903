"""Ctrl-C as a call to what goes on, in place of an exception at whatever line the main thread is."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

__all__ = ["SLEEP_SECONDS", "Interrupt", "wait_for"]

SLEEP_SECONDS = 0.5
"""How long a thread that hears Ctrl-C sleeps at a time: a signal that comes just before it sleeps does not wake it."""


def wait_for(work: Future[Any]) -> None:
    """Wait until ``work`` is done; Ctrl-C is heard meanwhile."""
    while not work.done():
        wait([work], timeout=SLEEP_SECONDS)


class Interrupt:
    """Ends judgements early, in whatever threads they run.

    Attributes
    ----------
    happened : bool
    """

    def __init__(self) -> None:
        self.happened = False
        self._actions: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """In this block Ctrl-C is this interrupt.

        Where this is not the main thread, or something else handles the signal, that stays as it is.
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
    def calls(self, action: Callable[[], None]) -> Iterator[None]:
        """In this block the interrupt calls ``action``, from the main thread; at once if it has happened already."""
        self._actions.append(action)
        if self.happened:
            action()
        try:
            yield
        finally:
            self._actions.remove(action)

    def now(self, *_: Any) -> None:
        """Take effect, once however often it is called; also a handler of signals."""
        if not self.happened:
            self.happened = True
            for action in tuple(self._actions):
                action()
