"""Entries with the device functions that they call (PTX ISA, "call", "ret", "Kernel and Function Directives").

A function's code stands once in front of the entry's, the functions that it calls in front of itself. A call branches
there and a return branches back, so that lanes which meet in a function run it together, and those that are in it go
before those that wait behind the call: divergent calls reconverge where divergent branches do. Nothing recursive is
modelled, and so a function has one set of registers and of local variables for each lane, wherever it is called from.
"""

from __future__ import annotations

from dataclasses import replace

from sdpalab.sim.errors import UnsupportedInstruction
from sdpalab.sim.ir import Code, Entry, Function, Instruction, PtxModule, Symbol, Vector
from sdpalab.sim.memory import FUNCTION_BASE

__all__ = ["branch_targets", "callee", "function_address", "function_label", "link"]

_FUNCTION_BYTES = 16
"""Between the addresses of two functions."""


def link(module: PtxModule, name: str) -> Entry:
    """The entry of that name with everything it calls; the entry itself if it calls nothing that is defined.

    Calls name what they call without aliases, and a return in a function names the function.

    Raises
    ------
    UnsupportedInstruction
        If functions call each other in a circle.
    """
    entry = module.entries[name]
    order: dict[str, Function] = {}
    _collect(module, entry, [], order)
    if not order:
        return entry
    linked = Entry(name, params=entry.params, directives=entry.directives, functions=order)
    for code in order.values():
        linked.labels[function_label(code.name)] = len(linked.instructions)
        _append(linked, code, module)
    linked.start = len(linked.instructions)
    _append(linked, entry, module)
    return linked


def callee(instruction: Instruction) -> str:
    """The function that a call names directly; empty for a call through a register."""
    target = instruction.operands[1] if len(instruction.operands) == 3 else None
    return target.name if isinstance(target, Symbol) else ""


def branch_targets(instruction: Instruction) -> list[Symbol]:
    """The labels that an indexed branch may go to, by index."""
    targets = instruction.operands[-1]
    return [item for item in targets.items if isinstance(item, Symbol)] if isinstance(targets, Vector) else []


def function_address(module: PtxModule, name: str) -> int:
    """The address of a function that the PTX defines, the same in all launches; 0 for any other name."""
    names = list(module.functions)
    name = _resolved(module, name)
    return FUNCTION_BASE + _FUNCTION_BYTES * (names.index(name) + 1) if name in module.functions else 0


def function_label(name: str) -> str:
    """The label at the beginning of a function; no label in PTX looks like it."""
    return f"{name}()"


def _resolved(module: PtxModule, name: str) -> str:
    return module.aliases.get(name, name)


def _collect(module: PtxModule, code: Code, path: list[str], order: dict[str, Function]) -> None:
    """Add the functions that are called from ``code``, each behind those it calls itself."""
    for instruction in code.instructions:
        if instruction.opcode != "call":
            continue
        name = _resolved(module, callee(instruction))
        if name in path:
            circle = " calls ".join([*path[path.index(name) :], name])
            raise UnsupportedInstruction(f"recursion is not modelled: {circle}", instruction.line)
        if name in module.functions and name not in order:
            function = module.functions[name]
            _collect(module, function, [*path, name], order)
            order[name] = function


def _append(linked: Entry, code: Code, module: PtxModule) -> None:
    first = len(linked.instructions)
    linked.registers |= code.registers
    linked.variables |= code.variables
    linked.labels |= {label: first + pc for label, pc in code.labels.items()}
    for instruction in code.instructions:
        operands = instruction.operands
        if instruction.opcode == "call" and callee(instruction):
            operands = (operands[0], Symbol(_resolved(module, callee(instruction))), operands[2])
        elif instruction.opcode == "ret" and isinstance(code, Function):
            operands = (Symbol(code.name), *code.results)
        linked.instructions.append(replace(instruction, pc=first + instruction.pc, operands=operands))
