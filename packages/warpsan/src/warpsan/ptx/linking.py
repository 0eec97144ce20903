"""Entries with the device functions they call (PTX ISA, "call", "ret", "Kernel and Function Directives").

The code of each called function stands once before the entry's code, after the functions it calls itself. A call
branches there and a return branches back. Lanes in a function therefore run together, before lanes that wait after the
call: divergent calls reconverge where divergent branches do. A function has one set of registers per lane for all call
sites; recursive calls save the registers (:mod:`warpsan.engine.frames`). A call through a register may reach every
function whose address is taken in the module.
"""

from __future__ import annotations

from dataclasses import replace

from warpsan.host.memory import FUNCTION_BASE
from warpsan.ptx.ir import Code, Entry, Function, Instruction, PtxModule, Symbol, Vector

__all__ = ["allocates", "branch_targets", "callee", "function_address", "function_label", "is_indirect", "link"]

_FUNCTION_BYTES = 16
"""Distance between the addresses of two functions, in bytes."""


def link(module: PtxModule, name: str) -> Entry:
    """Link the entry ``name`` with all functions it calls; the entry itself without calls of defined functions.

    Linked calls use no aliases, and a return in a function names the function.
    """
    entry = module.entries[name]
    order: dict[str, Function] = {}
    _collect(module, entry, order)
    targets: tuple[str, ...] = ()
    if any(map(is_indirect, (*entry.instructions, *(each for code in order.values() for each in code.instructions)))):
        targets = tuple(each for each in module.functions if each in _address_taken(module))
        for target in targets:
            if target not in order:
                _collect(module, module.functions[target], order)
                order[target] = module.functions[target]
    if not order:
        return entry
    linked = Entry(name, params=entry.params, directives=entry.directives, functions=order, targets=targets)
    linked.circles = _circles(module, order, targets)
    for code in order.values():
        linked.labels[function_label(code.name)] = len(linked.instructions)
        _append(linked, code, module)
    linked.start = len(linked.instructions)
    _append(linked, entry, module)
    return linked


def is_indirect(instruction: Instruction) -> bool:
    """Whether an instruction is a call through a register."""
    return instruction.opcode == "call" and not callee(instruction)


def callee(instruction: Instruction) -> str:
    """The function that a call names; empty for a call through a register."""
    target = instruction.operands[1] if instruction.opcode == "call" else None
    return target.name if isinstance(target, Symbol) else ""


def allocates(instruction: Instruction) -> bool:
    """Whether an instruction calls the heap of device code."""
    return callee(instruction) in ("malloc", "free")


def branch_targets(instruction: Instruction) -> list[Symbol]:
    """Target labels of an indexed branch, by index."""
    targets = instruction.operands[-1]
    return [item for item in targets.items if isinstance(item, Symbol)] if isinstance(targets, Vector) else []


def function_address(module: PtxModule, name: str) -> int:
    """Address of a function defined in the PTX, the same in all launches; 0 for any other name."""
    names = list(module.functions)
    name = _resolved(module, name)
    return FUNCTION_BASE + _FUNCTION_BYTES * (names.index(name) + 1) if name in module.functions else 0


def function_label(name: str) -> str:
    """Label at the start of a function, in a form that PTX labels cannot have."""
    return f"{name}()"


def _resolved(module: PtxModule, name: str) -> str:
    return module.aliases.get(name, name)


def _collect(module: PtxModule, code: Code, order: dict[str, Function], path: tuple[str, ...] = ()) -> None:
    """Add the functions called from ``code``, each after the functions it calls, except in call cycles."""
    for name in _callees(module, code):
        if name not in order and name not in path:
            _collect(module, module.functions[name], order, (*path, name))
            order.setdefault(name, module.functions[name])


def _callees(module: PtxModule, code: Code) -> list[str]:
    """Defined functions that code calls by name."""
    names = (_resolved(module, callee(each)) for each in code.instructions if each.opcode == "call")
    return [name for name in dict.fromkeys(names) if name in module.functions]


def _address_taken(module: PtxModule) -> set[str]:
    """Functions whose address is taken by an instruction or a variable of the module."""
    names = {each.name for variable in module.variables.values() for each in variable.relocations}
    for code in (*module.entries.values(), *module.functions.values()):
        for instruction in code.instructions:
            if instruction.opcode != "call":
                names.update(each.name for each in instruction.operands if isinstance(each, Symbol))
    return {_resolved(module, name) for name in names} & set(module.functions)


def _circles(module: PtxModule, order: dict[str, Function], targets: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Recursive functions, each with the functions of its call cycle."""
    next_to: dict[str, set[str]] = {}
    for name, code in order.items():
        next_to[name] = set(_callees(module, code))
        if any(map(is_indirect, code.instructions)):
            next_to[name] |= set(targets)
    reach: dict[str, set[str]] = {}
    for name in order:
        reached, waiting = set(), list(next_to[name])
        while waiting:
            other = waiting.pop()
            if other not in reached:
                reached.add(other)
                waiting += next_to[other]
        reach[name] = reached
    return {
        name: frozenset(other for other in reach[name] if name in reach[other]) for name in order if name in reach[name]
    }


def _append(linked: Entry, code: Code, module: PtxModule) -> None:
    first = len(linked.instructions)
    linked.registers |= code.registers
    linked.variables |= code.variables
    linked.labels |= {label: first + pc for label, pc in code.labels.items()}
    for instruction in code.instructions:
        operands = instruction.operands
        if instruction.opcode == "call" and callee(instruction):
            operands = (operands[0], Symbol(_resolved(module, callee(instruction))), *operands[2:])
        elif instruction.opcode == "ret" and isinstance(code, Function):
            operands = (Symbol(code.name), *code.results)
        linked.instructions.append(replace(instruction, pc=first + instruction.pc, operands=operands))
