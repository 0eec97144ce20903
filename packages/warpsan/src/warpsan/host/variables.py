"""Variables of a launch: where each lies, and what it begins with (PTX ISA, "State Spaces", "Variables")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warpsan.analysis.derived import derived
from warpsan.engine.machine import Symbols
from warpsan.host.arena import Arena
from warpsan.host.memory import generic_base
from warpsan.ptx.ir import Entry, Instruction, PtxModule, Register, Symbol, TensorAddress, Variable
from warpsan.ptx.linking import function_address
from warpsan.ptx.names import short_name

__all__ = [
    "circle_frames",
    "fill_in_addresses",
    "names_used",
    "place_global_variables",
    "place_variables",
    "takes_parameter_addresses",
]

_WORD = 16
_STACK, _LEAST_DEPTH = 4096, 16
"""Bytes for the local variables of functions that call themselves (four times what CUDA gives a thread by default), and
how deep such calls may be at least."""

Addresses = dict[str, tuple[str, int]]
"""(space, address) of each variable by name."""


def place_global_variables(module: PtxModule, variables: Iterable[Variable], arena: Arena) -> Addresses:
    """Place those of the variables that lie in global memory, with what they begin with, but for addresses in them."""
    addresses: Addresses = {}
    for variable in variables:
        if variable.space in ("global", "const"):
            content = variable.data.ljust(variable.size, b"\0")
            place = arena.add(f"variable {short_name(variable.name)}", content, variable.size)
            addresses[variable.name] = variable.space, place
    return addresses


def fill_in_addresses(
    module: PtxModule, variables: Iterable[Variable], addresses: Mapping[str, tuple[str, int]], arena: Arena
) -> None:
    """Fill the addresses into the variables that begin with some."""
    for variable in variables:
        if variable.relocations and variable.space in ("global", "const"):
            arena.fill_in(addresses[variable.name][1], _relocated(module, variable, addresses))


def place_variables(
    module: PtxModule,
    code: Entry,
    dynamic_smem: int,
    parameters: int | None,
    arena: Arena,
    placed: Mapping[str, tuple[str, int]] | None = None,
) -> Symbols:
    """Addresses of everything that the entry can name. Dynamic shared memory begins behind the static.

    Parameters
    ----------
    module, code
    dynamic_smem : int
        Bytes.
    parameters : int, optional
        The address of the parameter block, where the entry takes addresses of parameters.
    arena : Arena
    placed : mapping, optional
        Where the module's variables in global memory lie, if they were placed before this launch.
    """
    used = set(_names_of(code))
    pending = list(used)
    while pending:  # a variable may hold addresses of others
        variable = module.variables.get(pending.pop())
        held = {each.name for each in variable.relocations} - used if variable is not None else set()
        used |= held
        pending += held
    visible: dict[str, Variable] = {name: var for name, var in module.variables.items() if name in used}
    visible |= code.variables
    addresses: Addresses = {
        name: ("function", function_address(module, name))
        for name in (*used, *code.targets)
        if name in module.functions
    }
    addresses |= placed or {}
    mine = [variable for name, variable in visible.items() if name not in addresses]
    addresses |= place_global_variables(module, mine, arena)
    tops = {"shared": 0, "local": 0}
    stacked = _stacked(code)
    dynamic_align = 16
    for name, variable in visible.items():
        if variable.space in tops or variable.space == "param":
            if variable.size == 0:
                dynamic_align = max(dynamic_align, variable.align)
            elif name not in stacked:  # what passes through a device function's call lies in local memory
                space = "local" if variable.space == "param" else variable.space
                top = -(-tops[space] // variable.align) * variable.align
                addresses[name] = space, top
                tops[space] = top + variable.size
    frames = circle_frames(code)
    for circle, (size, most) in frames.items():
        begin = -(-tops["local"] // _WORD) * _WORD
        for name, offset in _offsets(code, stacked, circle)[0].items():
            addresses[name] = "local", begin + offset
        tops["local"] = begin + size * most
    start = -(-tops["shared"] // dynamic_align) * dynamic_align
    for name, variable in visible.items():
        if variable.space == "shared" and variable.size == 0:
            addresses[name] = "shared", start
    fill_in_addresses(module, mine, addresses, arena)
    if parameters is not None:
        addresses |= {param.name: ("param", parameters + param.offset) for param in code.params}
    shared = start + dynamic_smem if dynamic_smem else tops["shared"]
    return Symbols(addresses, shared, tops["local"], frames)


def circle_frames(code: Entry) -> dict[frozenset[str], tuple[int, int]]:
    """For each circle of functions with local variables, the bytes of these, and how many times they are there."""
    stacked = _stacked(code)
    sizes = {circle: -(-_offsets(code, stacked, circle)[1] // _WORD) * _WORD for circle in stacked.values()}
    return {circle: (size, max(_LEAST_DEPTH, _STACK // size)) for circle, size in sizes.items()}


def _stacked(code: Entry) -> dict[str, frozenset[str]]:
    """The local variables of functions that call themselves, with their circles."""
    return {
        variable.name: circle
        for function, circle in code.circles.items()
        for variable in code.functions[function].variables.values()
        if variable.space == "local" and variable.size
    }


def _offsets(code: Entry, stacked: Mapping[str, frozenset[str]], circle: frozenset[str]) -> tuple[dict[str, int], int]:
    """Where the local variables of a circle lie in its frame, and their bytes."""
    offsets, top = {}, 0
    for name in (each for each in stacked if stacked[each] == circle):
        variable = code.variables[name]
        top = -(-top // variable.align) * variable.align
        offsets[name] = top
        top += variable.size
    return offsets, top


def takes_parameter_addresses(code: Entry) -> bool:
    """Whether the entry takes the address of a parameter: a load of one by its name does not."""
    return not _names_of(code).isdisjoint(param.name for param in code.params)


@derived
def _names_of(code: Entry) -> frozenset[str]:
    """What :func:`names_used` finds in an entry."""
    return frozenset(names_used(code.instructions))


def _relocated(module: PtxModule, variable: Variable, addresses: Mapping[str, tuple[str, int]]) -> bytes:
    """A variable's initial value with the addresses that it holds; 0 for what the PTX only declares."""
    content = bytearray(variable.data.ljust(variable.size, b"\0"))
    for each in variable.relocations:
        space, address = addresses.get(each.name, ("", function_address(module, each.name)))
        value = address + each.addend + (generic_base(space) if each.generic and space else 0) if address else 0
        content[each.offset : each.offset + each.size] = value.to_bytes(8, "little")[: each.size]
    return bytes(content)


def names_used(instructions: Iterable[Instruction]) -> set[str]:
    """Variables and functions by name, and the parameters whose address is taken: a load of one does not need it."""
    names: set[str] = set()
    taking = (each for each in instructions if each.opcode != "ld" or "param" not in {mod[:5] for mod in each.mods})
    stack: list[Any] = [
        operand for instruction in taking for operand in instruction.operands if not isinstance(operand, Register)
    ]
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
