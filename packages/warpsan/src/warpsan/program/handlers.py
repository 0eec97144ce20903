"""The table of what calls of the CUDA runtime do here: filled by the modules of the families of calls."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from warpsan.program.state import ProgramState
from warpsan.program.wire import Request

__all__ = ["HANDLERS", "Handler", "handles", "int32", "nothing", "uint32", "word"]

Handler = Callable[[ProgramState, Request], Sequence[bytes]]
"""Takes a call, and returns the bytes of its results, in the order of the arguments."""

HANDLERS: dict[str, Handler] = {}
"""By the name of the call."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a function for calls."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register


def nothing(*names: str) -> None:
    """Register calls that succeed without any effect here."""
    for name in names:
        handles(name)(lambda state, request: ())


def word(value: int) -> bytes:
    """A pointer, a size or a handle."""
    return value.to_bytes(8, "little")


def uint32(value: int) -> bytes:
    """An ``unsigned`` or an enumeration."""
    return value.to_bytes(4, "little")


def int32(value: int) -> bytes:
    """An ``int``."""
    return struct.pack("<i", value)
