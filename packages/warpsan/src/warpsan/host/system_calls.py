"""Functions that the driver gives to every kernel: ``vprintf``, ``__assertfail``, ``malloc`` and ``free`` (CUDA C++
Programming Guide, "Formatted Output", "Assertion", "Dynamic Global Memory Allocation").

Sizes of the arguments, and text of a printf, for both engines.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

import numpy as np

from warpsan.engine.arrays import Array
from warpsan.errors import IllegalAccess
from warpsan.host.geometry import Dim3
from warpsan.ptx.ir import Instruction

__all__ = ["ARGUMENT_BYTES", "LaneMemory", "formatted", "freed_in_vain", "nothing_there"]

ARGUMENT_BYTES: dict[str, tuple[int, ...]] = {
    "vprintf": (8, 8),
    "__assertfail": (8, 8, 4, 8, 8),
    "malloc": (8,),
    "free": (8,),
}
"""Argument sizes in bytes by name: format and argument buffer; message, file, line, function and character size; number
of bytes; pointer.
"""

_FORMAT = re.compile(rb"%(?:%|([-+ #0]*)(\*|\d+)?(\.(?:\*|\d*))?(hh|h|ll|l|j|z|t)?([diuxXocsfFeEgGp]))")
_WIDE = (b"ll", b"l", b"j", b"z", b"t")
_NARROW = {b"hh": 8, b"h": 16}


class LaneMemory(ABC):
    """Memory of one lane at generic addresses."""

    @abstractmethod
    def stretch(self, address: int) -> Array:
        """The bytes from an address to the end of its buffer.

        Raises
        ------
        IllegalAccess
            If no buffer contains the address.
        """

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at an address."""
        content: bytes = self.stretch(address)[:size].tobytes()
        return content.ljust(size, b"\0")

    def string(self, address: int) -> bytes:
        """The text up to a zero byte."""
        stretch = self.stretch(address)
        zeros = np.flatnonzero(stretch == 0)
        content: bytes = stretch[: zeros[0] if len(zeros) else len(stretch)].tobytes()
        return content


def nothing_there(instruction: Instruction, address: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for a system call with an address outside all buffers."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line} is given the address {address:#x}, where "
        f"there is nothing (block {block}, thread {thread})"
    )


def freed_in_vain(instruction: Instruction, address: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for ``free`` of an address without an allocation."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line}: free is given {address:#x}, which malloc did "
        f"not return or which is free already (block {block}, thread {thread})"
    )


def formatted(memory: LaneMemory, template: int, buffer: int) -> tuple[str, int]:
    """Text of a printf, and number of its arguments; each argument is aligned to its size in the buffer."""
    taken = offset = 0

    def argument(size: int) -> int:
        nonlocal taken, offset
        begin = -(-offset // size) * size
        taken, offset = taken + 1, begin + size
        return int.from_bytes(memory.read(buffer + begin, size), "little")

    def one(match: re.Match[bytes]) -> bytes:
        flags, width, precision, length, kind = match.groups()
        if kind is None:
            return b"%"
        if width == b"*":
            width = b"%d" % _signed(argument(4), 32)
        if precision == b".*":
            precision = b".%d" % _signed(argument(4), 32)
        spec = b"%" + flags + (width or b"") + (precision or b"")
        if kind == b"s":
            return (spec + b"s") % memory.string(argument(8))
        if kind == b"p":
            return (spec + b"s") % (b"0x%x" % argument(8))
        if kind in b"fFeEgG":
            return (spec + kind) % float(np.uint64(argument(8)).view(np.float64))
        if kind == b"c":
            return (spec + b"c") % (argument(4) & 0xFF)
        value = argument(8 if length in _WIDE else 4)
        bits = _NARROW.get(length, 64 if length in _WIDE else 32)
        value &= (1 << bits) - 1
        return (spec + (kind if kind in b"xXo" else b"d")) % (_signed(value, bits) if kind in b"di" else value)

    return _FORMAT.sub(one, memory.string(template)).decode("latin-1"), taken


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value
