"""Functions that the driver gives to every kernel: ``vprintf``, ``__assertfail``, ``malloc`` and ``free`` (PTX ISA,
"call"; CUDA C++ Programming Guide, "Formatted Output", "Assertion", "Dynamic Global Memory Allocation")."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from sdpalab.sim.decode import Decoder, Mods, Step
from sdpalab.sim.errors import DeviceAssertion, IllegalAccess
from sdpalab.sim.ir import Instruction, Operand
from sdpalab.sim.isa.parameters import parameter_place
from sdpalab.sim.machine import Machine
from sdpalab.sim.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, WINDOW_BITS
from sdpalab.sim.selection import Array, Selection, indices

__all__ = ["SYSTEM_CALLS", "SystemCall"]

SystemCall = Callable[[Decoder, Instruction, Sequence[Operand], Sequence[Operand]], Step]
"""``call(decoder, instruction, results, arguments)``: what the call does."""

_FORMAT = re.compile(rb"%(?:%|([-+ #0]*)(\*|\d+)?(\.(?:\*|\d*))?(hh|h|ll|l|j|z|t)?([diuxXocsfFeEgGp]))")
_WIDE = (b"ll", b"l", b"j", b"z", b"t")
_NARROW = {b"hh": 8, b"h": 16}


def _arguments(decoder: Decoder, instruction: Instruction, operands: Sequence[Operand], sizes: str) -> list[Array]:
    """The arguments, which have that many bytes each."""
    places = [parameter_place(decoder, instruction, operand) for operand in operands]
    if [place.itemsize for place in places] != [int(size) for size in sizes]:
        raise Mods(instruction).unsupported(f"expected arguments of {', '.join(sizes)} bytes")
    return places


def _vprintf(decoder: Decoder, instruction: Instruction, results: Sequence[Operand], given: Sequence[Operand]) -> Step:
    """``vprintf(format, buffer)``: each lane's text goes to the launch's output, in the order of the lanes."""
    machine = decoder.machine
    formats, buffers = _arguments(decoder, instruction, given, "88")
    counts = [parameter_place(decoder, instruction, operand) for operand in results]

    def step(sel: Selection) -> None:
        for lane in indices(sel):
            memory = _LaneMemory(machine, int(lane), instruction)
            text, many = _formatted(memory, int(formats[lane]), int(buffers[lane]))
            machine.printed.append(text)
            for count in counts:
                count[lane] = many

    return step


def _assertfail(
    decoder: Decoder, instruction: Instruction, results: Sequence[Operand], given: Sequence[Operand]
) -> Step:
    """``__assertfail(message, file, line, function, character size)``: the launch ends."""
    machine = decoder.machine
    message, file, line, function, _ = _arguments(decoder, instruction, given, "88488")

    def step(sel: Selection) -> None:
        lane = int(indices(sel)[0])
        memory = _LaneMemory(machine, lane, instruction)
        what, where, name = (memory.string(int(each[lane])).decode("latin-1") for each in (message, file, function))
        block, thread = machine.where(lane)
        raise DeviceAssertion(
            f"{where}:{int(line[lane])}: {name}: block {block}, thread {thread}: assertion `{what}` failed "
            f"(PTX line {instruction.line})"
        )

    return step


def _malloc(decoder: Decoder, instruction: Instruction, results: Sequence[Operand], given: Sequence[Operand]) -> Step:
    """``malloc(size)``: each lane gets a buffer of its own, or a null pointer where the heap is full."""
    machine = decoder.machine
    (sizes,) = _arguments(decoder, instruction, given, "8")
    places = _arguments(decoder, instruction, results, "8")

    def step(sel: Selection) -> None:
        heap, space = machine.heap, machine.spaces["global"]
        assert heap is not None
        for lane in indices(sel):
            address = heap.allocate(space, int(sizes[lane]))
            for place in places:
                place[lane] = address
        heap.publish(space)

    return step


def _free(decoder: Decoder, instruction: Instruction, results: Sequence[Operand], given: Sequence[Operand]) -> Step:
    """``free(pointer)``; nothing happens to a null pointer."""
    machine = decoder.machine
    (pointers,) = _arguments(decoder, instruction, given, "8")

    def step(sel: Selection) -> None:
        heap, space = machine.heap, machine.spaces["global"]
        assert heap is not None
        for lane in indices(sel):
            address = int(pointers[lane])
            if address and not heap.free(address):
                block, thread = machine.where(int(lane))
                raise IllegalAccess(
                    f"{instruction.text} at PTX line {instruction.line}: free is given {address:#x}, which malloc did "
                    f"not return or which is free already (block {block}, thread {thread})"
                )
        heap.publish(space)

    return step


SYSTEM_CALLS: dict[str, SystemCall] = {
    "vprintf": _vprintf,
    "__assertfail": _assertfail,
    "malloc": _malloc,
    "free": _free,
}
"""By name, what a call of a function does that the PTX declares and the driver defines."""


class _LaneMemory:
    """Memory as one lane sees it through generic addresses."""

    def __init__(self, machine: Machine, lane: int, instruction: Instruction) -> None:
        self.machine, self.lane, self.instruction = machine, lane, instruction

    def _stretch(self, address: int) -> Array:
        """The bytes from an address to the end of what it lies in."""
        machine, window = self.machine, address >> WINDOW_BITS
        for name, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
            if window == base >> WINDOW_BITS and 0 <= address - base < machine.spaces[name].limit:
                starts = machine.bases[name]
                assert starts is not None
                begin = int(starts[self.lane])
                return machine.spaces[name].data[begin + address - base : begin + machine.spaces[name].limit]
        offset = address - GLOBAL_BASE
        for extent in machine.spaces["global"].extents:
            if extent.begin <= offset < extent.end:
                return machine.spaces["global"].data[offset : extent.end]
        block, thread = machine.where(self.lane)
        raise IllegalAccess(
            f"{self.instruction.text} at PTX line {self.instruction.line} is given the address {address:#x}, where "
            f"there is nothing (block {block}, thread {thread})"
        )

    def read(self, address: int, size: int) -> bytes:
        """Some bytes."""
        content: bytes = self._stretch(address)[:size].tobytes()
        return content.ljust(size, b"\0")

    def string(self, address: int) -> bytes:
        """The text up to a zero byte."""
        stretch = self._stretch(address)
        zeros = np.flatnonzero(stretch == 0)
        content: bytes = stretch[: zeros[0] if len(zeros) else len(stretch)].tobytes()
        return content


def _formatted(memory: _LaneMemory, template: int, buffer: int) -> tuple[str, int]:
    """The text of a printf, and how many arguments it took; each lies in the buffer at a multiple of its size."""
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
