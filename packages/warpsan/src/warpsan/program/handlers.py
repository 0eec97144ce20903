"""Table of handlers for calls of the CUDA runtime, filled by the modules with the handlers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from warpsan.program.state import ProgramState
from warpsan.program.wire import Request

__all__ = ["HANDLERS", "Handler", "handles", "int32", "nothing", "uint32", "word"]

Handler = Callable[[ProgramState, Request], Sequence[bytes]]
"""Function of a call that returns the bytes of its results, in argument order."""

HANDLERS: dict[str, Handler] = {}
"""Handlers by call name."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for calls."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register


def nothing(*names: str) -> None:
    """Register calls that succeed without effect."""
    for name in names:
        handles(name)(lambda state, request: ())


def word(value: int) -> bytes:
    """Bytes of a pointer, a size or a handle."""
    return value.to_bytes(8, "little")


def uint32(value: int) -> bytes:
    """Bytes of an ``unsigned`` or an enumeration."""
    return value.to_bytes(4, "little")


def int32(value: int) -> bytes:
    """Bytes of an ``int``."""
    return struct.pack("<i", value)
