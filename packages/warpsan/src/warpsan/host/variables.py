"""Variables of a launch: addresses and initial values (PTX ISA, "State Spaces", "Variables")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warpsan.analysis.derived import derived
from warpsan.host.arena import Arena
from warpsan.host.memory import generic_base
from warpsan.host.symbols import Symbols
from warpsan.ptx.ir import Entry, Instruction, PtxModule, Register, Symbol, TensorAddress, Variable
from warpsan.ptx.linking import function_address
from warpsan.ptx.names import short_name
from warpsan.ptx.opcodes import loads_parameter

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
"""Bytes for local variables of recursive functions (four times CUDA's default per thread), and minimum recursion depth.
"""

Addresses = dict[str, tuple[str, int]]
"""Space and address of each variable by name."""


def place_global_variables(module: PtxModule, variables: Iterable[Variable], arena: Arena) -> Addresses:
    """Place the global variables with their initial values, except addresses in them."""
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
    """Fill in the initial values that are addresses."""
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
    """Addresses of all symbols that the entry can use. Dynamic shared memory follows static shared memory.

    Parameters
    ----------
    module, code
    dynamic_smem : int
        Bytes.
    parameters : int, optional
        Address of the parameter block, if the entry takes addresses of parameters.
    arena : Arena
    placed : mapping, optional
        Addresses of global variables that were placed before this launch.
    """
    used = set(_names_of(code))
    pending = list(used)
    while pending:  # a variable may hold addresses of other variables
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
            elif name not in stacked:  # parameters of device function calls lie in local memory
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
    """Bytes and number of frames of the local variables, for each cycle of recursive functions."""
    stacked = _stacked(code)
    sizes = {circle: -(-_offsets(code, stacked, circle)[1] // _WORD) * _WORD for circle in stacked.values()}
    return {circle: (size, max(_LEAST_DEPTH, _STACK // size)) for circle, size in sizes.items()}


def _stacked(code: Entry) -> dict[str, frozenset[str]]:
    """Local variables of recursive functions, with their call cycles."""
    return {
        variable.name: circle
        for function, circle in code.circles.items()
        for variable in code.functions[function].variables.values()
        if variable.space == "local" and variable.size
    }


def _offsets(code: Entry, stacked: Mapping[str, frozenset[str]], circle: frozenset[str]) -> tuple[dict[str, int], int]:
    """Offsets of the local variables of a call cycle in its frame, and the bytes of the frame."""
    offsets, top = {}, 0
    for name in (each for each in stacked if stacked[each] == circle):
        variable = code.variables[name]
        top = -(-top // variable.align) * variable.align
        offsets[name] = top
        top += variable.size
    return offsets, top


def takes_parameter_addresses(code: Entry) -> bool:
    """Whether the entry takes the address of a parameter; a load by name does not."""
    return not _names_of(code).isdisjoint(param.name for param in code.params)


@derived
def _names_of(code: Entry) -> frozenset[str]:
    """Result of :func:`names_used` for an entry."""
    return frozenset(names_used(code.instructions))


def _relocated(module: PtxModule, variable: Variable, addresses: Mapping[str, tuple[str, int]]) -> bytes:
    """Initial value of a variable with addresses filled in; zeros for an external variable."""
    content = bytearray(variable.data.ljust(variable.size, b"\0"))
    for each in variable.relocations:
        space, address = addresses.get(each.name, ("", function_address(module, each.name)))
        value = address + each.addend + (generic_base(space) if each.generic and space else 0) if address else 0
        content[each.offset : each.offset + each.size] = value.to_bytes(8, "little")[: each.size]
    return bytes(content)


def names_used(instructions: Iterable[Instruction]) -> set[str]:
    """Names of used variables and functions, and of parameters whose address is taken; a load does not take it."""
    names: set[str] = set()
    taking = (each for each in instructions if not loads_parameter(each))
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
