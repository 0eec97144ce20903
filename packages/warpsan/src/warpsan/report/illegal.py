"""Texts of illegal accesses: the element of a buffer, and the place that computes its address."""

from __future__ import annotations

from warpsan.engine.rules import MISALIGNED
from warpsan.host.memory import GLOBAL_BASE, Extent
from warpsan.ptx.ir import Address, Entry, Instruction, Register, Symbol
from warpsan.ptx.opcodes import loads_parameter, opcode_of
from warpsan.report.hazard_log import Wording, conflicting_access_of
from warpsan.report.places import Places

__all__ = ["FAULTS", "element", "illegal_access"]

FAULTS = ("misaligned", "out-of-bounds")
"""Kinds of illegal accesses, by the number of the rule."""
_USUALLY_BOUND = "usually a missing bound on the last rows of a tile"
_USUALLY_NULL = "usually an allocation that failed, or an optional argument that is not tested"
_USUALLY_WILD = "usually a pointer that was never set, or one of the host"
_NOWHERE = "far from all memory of the launch"
_NULL_PAGE = 1 << 16
"""Bytes from address 0 whose accesses count as null pointer accesses."""


def illegal_access(places: Places, rule: int, instruction: Instruction, space: str, offset: int, width: int) -> Wording:
    """The text of an illegal access, which the engine suppresses."""
    in_global, where = space == "global", f"{space} memory"
    near = places.space.extent_near(offset) if in_global else None
    if rule == MISALIGNED:
        place = f"byte {offset - near.begin} of {near.name}" if near else f"offset {offset} of {where}"
        what = f"{width}-byte access at {place}, which is not a multiple of {width}"
        return Wording(what, "check the row stride and the vector width")
    usually = _USUALLY_BOUND
    extent = places.homes.get(instruction.pc) or (buffer_of(places, instruction) if in_global else None) or near
    if extent is not None and extent.shape:
        what = f"{width}-byte access at {element(extent, offset, width)}"
    elif extent is not None:
        size = extent.end - extent.begin
        what = f"{width}-byte access at byte {offset - extent.begin} of {extent.name}, which has {size} bytes"
    elif in_global:
        number = GLOBAL_BASE + offset
        null = 0 <= number < _NULL_PAGE
        what = f"{width}-byte access at the address {number % 2**64:#x}, {'a null pointer' if null else _NOWHERE}"
        usually = _USUALLY_NULL if null else _USUALLY_WILD
    else:
        what = f"{width}-byte access at byte {offset} of {where}, which has {places.limits[space]} bytes"
    if near is not None and places.space.holds(offset, width):
        what += f", and this place is in {near.name}"
    address = address_of(places.setup.entry, instruction)
    if address is None:
        return Wording(what, usually)
    return Wording(what + "; its address is computed by {other}", usually, conflicting_access_of(places, address))


def element(extent: Extent, offset: int, width: int) -> str:
    """``k[0, 3, 512, 0], one row past the end of k [1, 4, 512, 64]``: an access of ``width`` bytes at byte ``offset``.

    Rows count up from the last one and down from the first; the axis before the last absorbs the excess.
    """
    first = (offset - extent.begin) // extent.itemsize
    row = extent.shape[-1] if len(extent.shape) > 1 else 1
    rows = (extent.end - extent.begin) // extent.itemsize // max(1, row)
    number, column = divmod(first, max(1, row))
    inside = min(max(number, 0), rows - 1)
    index = [column] if len(extent.shape) > 1 else []
    beyond = number - inside
    for axis, size in enumerate(reversed(extent.shape[:-1] if index else extent.shape)):
        inside, place = divmod(inside, size)
        index.insert(0, place + (beyond if axis == 0 else 0))
    what = f"{extent.name}[{', '.join(map(str, index))}]"
    whole = f"{extent.name} [{', '.join(map(str, extent.shape))}]"
    if not beyond:
        return f"{what}, whose last {offset + width - extent.end} bytes are past the end of {whole}"
    unit = "row" if len(extent.shape) > 1 else "element"
    many = f"one {unit}" if abs(beyond) == 1 else f"{abs(beyond)} {unit}s"
    return f"{what}, {many} {'past the end' if beyond > 0 else 'before the beginning'} of {whole}"


def buffer_of(places: Places, instruction: Instruction) -> Extent | None:
    """The buffer of the only pointer parameter that an access's address is computed from; None if there are several.

    A wrong index may reach the neighbourhood of another buffer; the code shows the intended one.
    """
    writers: dict[Register, list[Instruction]] = {}
    for each in places.setup.entry.instructions:
        if each.operands and isinstance(each.operands[0], Register):
            writers.setdefault(each.operands[0], []).append(each)
    pending = [operand.base for operand in instruction.operands if isinstance(operand, Address)]
    seen: set[Register] = set()
    extents: set[Extent] = set()
    while pending:
        register = pending.pop()
        if not isinstance(register, Register) or register in seen:
            continue
        seen.add(register)
        for writer in writers.get(register, ()):
            if opcode_of(writer).passes_pointers:
                pending += [operand for operand in writer.operands[1:] if isinstance(operand, Register)]
            elif loads_parameter(writer):
                extents |= _pointed_to(places, writer)
    return extents.pop() if len(extents) == 1 else None


def _pointed_to(places: Places, load: Instruction) -> set[Extent]:
    """The buffer that a loaded parameter points to, if it is a pointer."""
    source = load.operands[1]
    base = source.base if isinstance(source, Address) else None
    for param in places.setup.entry.params:
        if isinstance(source, Address) and base == Symbol(param.name) and param.size == 8:
            at = param.offset + source.offset
            offset = int.from_bytes(places.setup.params[at : at + 8], "little") - GLOBAL_BASE
            return {extent for extent in places.space.extents if extent.begin <= offset < extent.end}
    return set()


def address_of(entry: Entry, instruction: Instruction) -> Instruction | None:
    """The last instruction before an access that computes its address, if it has another source line.

    A compiler moves a load to the store of its value, and gives it the store's line: this line is then the load's.
    """
    base = next((operand.base for operand in instruction.operands if isinstance(operand, Address)), None)
    if not isinstance(base, Register) or instruction.loc is None:
        return None
    for earlier in reversed(entry.instructions[: instruction.pc]):
        if earlier.opcode in ("st", "red", "bar", "bra") or not earlier.operands or earlier.operands[0] != base:
            continue
        return earlier if earlier.loc and earlier.loc[:2] != instruction.loc[:2] else None
    return None
