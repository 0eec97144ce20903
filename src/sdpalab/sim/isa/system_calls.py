"""Calls of functions that the driver gives to every kernel (:mod:`sdpalab.sim.system_calls`; PTX ISA, "call")."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sdpalab.sim.decode import Decoder, Step
from sdpalab.sim.errors import DeviceAssertion
from sdpalab.sim.ir import Instruction, Operand
from sdpalab.sim.isa.parameters import parameter_place
from sdpalab.sim.machine import Machine
from sdpalab.sim.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, WINDOW_BITS
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.selection import Array, Selection, indices
from sdpalab.sim.system_calls import ARGUMENT_BYTES, LaneMemory, formatted, freed_in_vain, nothing_there

__all__ = ["SYSTEM_CALLS", "SystemCall"]

SystemCall = Callable[[Decoder, Instruction, Sequence[Operand], Sequence[Operand]], Step]
"""``call(decoder, instruction, results, arguments)``: what the call does."""


def _places(
    decoder: Decoder, instruction: Instruction, operands: Sequence[Operand], sizes: tuple[int, ...]
) -> list[Array]:
    """The arguments or results, which have that many bytes each."""
    places = [parameter_place(decoder, instruction, operand) for operand in operands]
    if tuple(place.itemsize for place in places) != sizes:
        raise Mods(instruction).unsupported(f"expected arguments of {', '.join(map(str, sizes))} bytes")
    return places


def _vprintf(decoder: Decoder, instruction: Instruction, results: Sequence[Operand], given: Sequence[Operand]) -> Step:
    """``vprintf(format, buffer)``: each lane's text goes to the launch's output, in the order of the lanes."""
    machine = decoder.machine
    formats, buffers = _places(decoder, instruction, given, ARGUMENT_BYTES["vprintf"])
    counts = [parameter_place(decoder, instruction, operand) for operand in results]

    def step(sel: Selection) -> None:
        for lane in indices(sel):
            memory = _MachineMemory(machine, int(lane), instruction)
            text, many = formatted(memory, int(formats[lane]), int(buffers[lane]))
            machine.printed.append(text)
            for count in counts:
                count[lane] = many

    return step


def _assertfail(
    decoder: Decoder, instruction: Instruction, results: Sequence[Operand], given: Sequence[Operand]
) -> Step:
    """``__assertfail(message, file, line, function, character size)``: the launch ends."""
    machine = decoder.machine
    message, file, line, function, _ = _places(decoder, instruction, given, ARGUMENT_BYTES["__assertfail"])

    def step(sel: Selection) -> None:
        lane = int(indices(sel)[0])
        memory = _MachineMemory(machine, lane, instruction)
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
    (sizes,) = _places(decoder, instruction, given, ARGUMENT_BYTES["malloc"])
    places = _places(decoder, instruction, results, (8,))

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
    (pointers,) = _places(decoder, instruction, given, ARGUMENT_BYTES["free"])

    def step(sel: Selection) -> None:
        heap, space = machine.heap, machine.spaces["global"]
        assert heap is not None
        for lane in indices(sel):
            address = int(pointers[lane])
            if address and not heap.free(address):
                raise freed_in_vain(instruction, address, *machine.where(int(lane)))
        heap.publish(space)

    return step


SYSTEM_CALLS: dict[str, SystemCall] = {
    "vprintf": _vprintf,
    "__assertfail": _assertfail,
    "malloc": _malloc,
    "free": _free,
}
"""By name, what a call of a function does that the PTX declares and the driver defines."""


class _MachineMemory(LaneMemory):
    def __init__(self, machine: Machine, lane: int, instruction: Instruction) -> None:
        self.machine, self.lane, self.instruction = machine, lane, instruction

    def stretch(self, address: int) -> Array:
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
        raise nothing_there(self.instruction, address, *machine.where(self.lane))
