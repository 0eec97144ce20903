"""Arguments and variables of a launch: the parameter block, and the buffers of global memory behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpalab.sim.decode import generic_base
from sdpalab.sim.errors import LaunchError, UnsupportedInstruction
from sdpalab.sim.ir import Entry, Param, PtxModule, Symbol, TensorAddress, Variable
from sdpalab.sim.machine import Symbols
from sdpalab.sim.memory import GLOBAL_BASE, Extent, Space
from sdpalab.sim.selection import Array
from sdpalab.sim.tensor_map import DESCRIPTOR_BYTES, PlacedMap, TensorMap

__all__ = ["Arena", "Pointer", "parameter_block", "place_variables"]

_GUARD = 1 << 16
_ALIGN = 256


@dataclass(frozen=True, eq=False)
class Pointer:
    """A launch argument that points into a device buffer: at byte ``offset`` of ``array``, all of which it may reach.

    Several of one array, and tensor maps of it, share the buffer, as pointers into one allocation do.
    """

    array: Array
    offset: int = 0


class Arena:
    """Global memory in the making: buffers one after the other, each with a guard zone behind it."""

    def __init__(self) -> None:
        self.end = _GUARD
        self.extents: list[Extent] = []
        self.contents: list[bytes | Array] = []
        self.arrays: list[tuple[Array, Extent]] = []
        self.tensor_maps: list[PlacedMap] = []

    def add(self, name: str, content: bytes | Array, size: int, shape: tuple[int, ...] = (), itemsize: int = 1) -> int:
        """Place a buffer; its address."""
        extent = Extent(name, self.end, self.end + size, shape, itemsize)
        self.extents.append(extent)
        self.contents.append(content)
        self.end = -(-(extent.end + _GUARD) // _ALIGN) * _ALIGN
        return GLOBAL_BASE + extent.begin

    def add_array(self, name: str, array: Array, called: str = "") -> int:
        """Place an array, once if it is passed twice; its address. What it is ``called`` is for messages of checks."""
        for known, extent in self.arrays:
            if known.ctypes.data == array.ctypes.data and known.nbytes == array.nbytes:
                return GLOBAL_BASE + extent.begin
            if np.may_share_memory(known, array):
                raise LaunchError(f"argument {name} overlaps another argument in part; pass separate arrays")
        place = (called, array.shape, array.itemsize) if called else (name, (), 1)
        address = self.add(place[0], array.reshape(-1).view(np.uint8), array.nbytes, *place[1:])
        self.arrays.append((array, self.extents[-1]))
        return address

    def add_map(self, name: str, tensor: TensorMap, called: str = "") -> bytes:
        """Place a tensor map's array; the descriptor."""
        begin = self.add_array(name, _checked(name, tensor.array), called) - GLOBAL_BASE + tensor.offset
        self.tensor_maps.append(PlacedMap(tensor, begin))
        return tensor.descriptor(len(self.tensor_maps) - 1)

    def fill_in(self, address: int, content: bytes) -> None:
        """Give the buffer at an address its content."""
        place = next(k for k, extent in enumerate(self.extents) if extent.begin == address - GLOBAL_BASE)
        self.contents[place] = content

    def build(self) -> Space:
        """The global space with everything copied in."""
        space = Space("global", self.end, self.end, self.extents or [Extent("nothing", 0, 0)])
        for extent, content in zip(self.extents, self.contents, strict=True):
            place = space.data[extent.begin : extent.end]
            if isinstance(content, bytes):
                place[: len(content)] = np.frombuffer(content, dtype=np.uint8)
            else:
                place[:] = content
        return space

    def copy_back(self, space: Space) -> None:
        """Give the arrays what the kernel left in them."""
        for array, extent in self.arrays:
            array.reshape(-1).view(np.uint8)[:] = space.data[extent.begin : extent.end]


def parameter_block(code: Entry, args: Sequence[Any], arena: Arena, names: Sequence[str] = ()) -> bytes:
    """The bytes of all parameters, with the arrays placed; ``names`` are what the checks call the arrays."""
    if len(args) != len(code.params):
        raise LaunchError(f"{code.name} takes {len(code.params)} arguments, and {len(args)} were given")
    last = code.params[-1] if code.params else None
    block = bytearray(last.offset + last.size if last else 0)
    for place, (param, value) in enumerate(zip(code.params, args, strict=True)):
        called = names[place] if place < len(names) else ""
        raw = _parameter(param, value, f"{place} ({param.name})", arena, called)
        block[param.offset : param.offset + len(raw)] = raw
    return bytes(block)


def _parameter(param: Param, value: Any, name: str, arena: Arena, called: str) -> bytes:
    """One argument as the bytes of its parameter."""
    if isinstance(value, (np.ndarray, Pointer)):
        if param.size != 8 or param.type.is_float:
            raise LaunchError(f"argument {name} is an array, and the parameter is a .{param.type.name}")
        array, offset = (value.array, value.offset) if isinstance(value, Pointer) else (value, 0)
        if not 0 <= offset <= array.nbytes:
            raise LaunchError(f"argument {name} points at byte {offset} of an array of {array.nbytes}")
        return (arena.add_array(f"argument {name}", _checked(name, array), called) + offset).to_bytes(8, "little")
    if isinstance(value, TensorMap):
        if param.size != DESCRIPTOR_BYTES:
            raise LaunchError(f"argument {name} is a tensor map, and the parameter has {param.size} bytes")
        return arena.add_map(f"argument {name}", value, called)
    if isinstance(value, bytes):
        if len(value) != param.size:
            raise LaunchError(f"argument {name} has {len(value)} bytes, and the parameter has {param.size}")
        return value
    if param.size != param.type.bytes:
        raise LaunchError(f"argument {name} fills {param.size} bytes; pass bytes")
    if isinstance(value, (int, np.integer)) and not param.type.is_float:
        low, high = -(1 << param.type.bits - 1), (1 << param.type.bits) - 1
        if not low <= int(value) <= high:
            raise LaunchError(f"argument {name} is {value}, which does not fit a .{param.type.name}")
        return (int(value) & high).to_bytes(param.type.bytes, "little")
    if isinstance(value, (int, float, np.integer, np.floating)) and param.type.is_float:
        return np.asarray(float(value)).astype(param.type.dtype).tobytes()
    if isinstance(value, (float, np.floating)) and param.type.kind == "b" and param.type.bits in (32, 64):
        return np.asarray(float(value)).astype(f"f{param.type.bytes}").tobytes()
    raise LaunchError(f"argument {name} is a {type(value).__name__}, and the parameter is a .{param.type.name}")


def _checked(name: str, array: Array) -> Array:
    """An array that can be a device buffer."""
    if not array.flags.c_contiguous:
        raise LaunchError(f"argument {name} is an array that is not contiguous; pass numpy.ascontiguousarray of it")
    if not array.flags.writeable:
        raise LaunchError(f"argument {name} is a read-only array; pass a writable copy")
    return array


def place_variables(module: PtxModule, code: Entry, dynamic_smem: int, params: bytes, arena: Arena) -> Symbols:
    """Addresses of all variables that the entry can name. Dynamic shared memory begins behind the static."""
    used = _names_used(code)
    pending = list(used)
    while pending:  # a variable may hold addresses of others
        variable = module.variables.get(pending.pop())
        held = {each.name for each in variable.relocations} - used if variable is not None else set()
        used |= held
        pending += held
    visible: dict[str, Variable] = {name: var for name, var in module.variables.items() if name in used}
    visible |= code.variables
    addresses: dict[str, tuple[str, int]] = {}
    tops = {"shared": 0, "local": 0}
    dynamic_align = 16
    for name, variable in visible.items():
        if variable.space in ("global", "const"):
            content = variable.data.ljust(variable.size, b"\0")
            addresses[name] = variable.space, arena.add(f"variable {name}", content, variable.size)
        elif variable.size == 0:
            dynamic_align = max(dynamic_align, variable.align)
        else:  # what passes through a device function's call lies in local memory
            space = "local" if variable.space == "param" else variable.space
            top = -(-tops[space] // variable.align) * variable.align
            addresses[name] = space, top
            tops[space] = top + variable.size
    start = -(-tops["shared"] // dynamic_align) * dynamic_align
    for name, variable in visible.items():
        if variable.space == "shared" and variable.size == 0:
            addresses[name] = "shared", start
    if used & {param.name for param in code.params}:
        block = arena.add("the parameters", params, len(params))
        addresses |= {param.name: ("global", block + param.offset) for param in code.params}
    for name, variable in visible.items():
        if variable.relocations:
            arena.fill_in(addresses[name][1], _relocated(variable, addresses))
    shared = start + dynamic_smem if dynamic_smem else tops["shared"]
    return Symbols(addresses, shared, tops["local"])


def _relocated(variable: Variable, addresses: dict[str, tuple[str, int]]) -> bytes:
    """A variable's initial value with the addresses that it holds."""
    content = bytearray(variable.data.ljust(variable.size, b"\0"))
    for each in variable.relocations:
        if each.name not in addresses:
            raise UnsupportedInstruction(
                f"the variable {variable.name} holds the address of {each.name}, which is not a variable", each.line
            )
        space, address = addresses[each.name]
        value = address + each.addend + (generic_base(space) if each.generic else 0)
        content[each.offset : each.offset + each.size] = value.to_bytes(8, "little")[: each.size]
    return bytes(content)


def _names_used(code: Entry) -> set[str]:
    """Variables by name, and the parameters whose address is taken: a load of a parameter does not need one."""
    names: set[str] = set()
    taking = (each for each in code.instructions if each.opcode != "ld" or "param" not in each.mods)
    stack: list[Any] = [operand for instruction in taking for operand in instruction.operands]
    while stack:
        operand = stack.pop()
        if isinstance(operand, Symbol):
            names.add(operand.name)
        if isinstance(operand, TensorAddress):
            stack.append(operand.map)
        stack += getattr(operand, "items", ())
        if getattr(operand, "base", None) is not None:
            stack.append(operand.base)
    return names
