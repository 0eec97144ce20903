"""Calls of device functions, and returns from them (PTX ISA, "call", "ret"), by the rules of
:mod:`sdpalab.sim.isa.call`.

A function has one set of registers and ``.param`` variables for each lane, wherever it is called from, and a row for
where each lane was called: its number among the calls of that function. A call through a register compares it with the
addresses of all functions that it may reach. Functions that call themselves and system calls are left to the reference
engine.
"""

from __future__ import annotations

from sdpalab.sim.ir import Function, Immediate, Instruction, Operand, Register, Symbol, Variable, Vector
from sdpalab.sim.linking import callee, function_label, is_indirect
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import Assembler, Constant, NotNative
from sdpalab.sim.native.operations.move import local_load, local_store
from sdpalab.sim.types import TYPES

__all__ = ["call_words", "return_words"]


def call_words(asm: Assembler, instruction: Instruction, words: list[int]) -> None:
    """Append what a call copies, and set the words of a block that it ends.

    Lanes that do not take part in the call may be written to, too: they are not in the function.

    Raises
    ------
    NotNative
        For calls that are not native.
    """
    if is_indirect(instruction):
        _call_through_register(asm, instruction, words)
        return
    function = asm.entry.functions.get(callee(instruction))
    if function is None or function.name in asm.entry.circles:
        raise NotNative(f"call of {callee(instruction)}")
    _enter(asm, instruction, function)
    words[layout.END] = layout.END_BRANCH
    words[layout.TARGET] = asm.program.block_of_label[function_label(function.name)]


def _call_through_register(asm: Assembler, instruction: Instruction, words: list[int]) -> None:
    """Each lane calls the function whose address it has; where there is none, the launch is left to the reference
    engine."""
    address, number = asm.source(instruction.operands[1], "u64"), asm.temporary(32)
    _set(asm, number, -1)
    words[layout.END], words[layout.END_A], words[layout.END_B] = layout.END_INDEXED, number, len(asm.lists)
    targets = [asm.entry.functions[name] for name in asm.entry.targets if name not in asm.entry.circles]
    targets = [function for function in targets if _suits(asm, instruction, function)]
    for place, function in enumerate(targets):
        here, own = asm.temporary(1), asm.constant(Constant("symbol", function.name, 64))
        asm.lanewise("call.target", lambda a, b: a == b, [here], [address, own], ["pred"], ["u64", "u64"])
        asm.guard = here | 1
        _enter(asm, instruction, function)
        _set(asm, number, place)
        asm.guard = 0
    words[layout.END_C] = len(targets)
    asm.lists += [asm.program.block_of_label[function_label(function.name)] for function in targets]


def _enter(asm: Assembler, instruction: Instruction, function: Function) -> None:
    """Append the copies of the arguments, and where the lanes come from."""
    taken = instruction.operands[2]
    assert isinstance(taken, Vector)
    for formal, actual in _pairs(function.params, taken.items):
        _copy(asm, formal, actual)
    _set(asm, _caller(asm, function), _calls(asm, function).index(instruction.pc))


def _set(asm: Assembler, row: int, value: int) -> None:
    """Append the record that sets a row of 32 bits."""
    asm.lanewise("mov.b32", lambda x: x, [row], [asm.number(value, "u32")], ["b32"], ["b32"])


def return_words(asm: Assembler, instruction: Instruction, words: list[int]) -> None:
    """Append what a return copies for each call of its function, and set the words of a block that it ends."""
    (name, *_) = instruction.operands
    assert isinstance(name, Symbol)
    function = asm.entry.functions[name.name]
    if function.name in asm.entry.circles:
        raise NotNative("a return from a function that calls itself")
    caller, resumes = _caller(asm, function), []
    for number, pc in enumerate(_calls(asm, function)):
        call = asm.entry.instructions[pc]
        given = call.operands[0]
        assert isinstance(given, Vector)
        here = asm.temporary(1)
        rows = [caller, asm.number(number, "u32")]
        asm.lanewise("call.from", lambda a, b: a == b, [here], rows, ["pred"], ["u32", "u32"])
        asm.guard = here | 1
        for formal, actual in _pairs(function.results, given.items):
            _copy(asm, actual, formal)
        asm.guard = 0
        ends = [block.end.pc if block.end is not None else -1 for block in asm.program.blocks]
        resumes.append(ends.index(pc) + 1)
    words[layout.END], words[layout.END_A] = layout.END_INDEXED, caller
    words[layout.END_B], words[layout.END_C] = len(asm.lists), len(resumes)
    asm.lists += resumes


def _calls(asm: Assembler, function: Function) -> list[int]:
    """The calls that may be of a function, by their pc: their places here are their numbers."""
    reached = function.name in asm.entry.targets
    return [
        each.pc
        for each in asm.entry.instructions
        if each.opcode == "call"
        and (callee(each) == function.name or (reached and is_indirect(each) and _suits(asm, each, function)))
    ]


def _suits(asm: Assembler, call: Instruction, function: Function) -> bool:
    """Whether the arguments and results of a call are those of a function."""
    given, _, taken = call.operands[:3]
    assert isinstance(given, Vector)
    assert isinstance(taken, Vector)
    return all(
        len(formal) == len(actual)
        and all(
            isinstance(outer, Immediate) or _bytes(asm, inner) == _bytes(asm, outer)
            for inner, outer in zip(formal, actual, strict=True)
        )
        for formal, actual in ((function.params, taken.items), (function.results, given.items))
    )


def _caller(asm: Assembler, function: Function) -> int:
    """The row of the numbers of the calls from which lanes are in a function."""
    name = f"{function.name} called from"
    if name not in asm.rows:
        asm.rows[name] = asm.allocate(32)
    return asm.rows[name]


def _pairs(formal: tuple[Register | Symbol, ...], actual: tuple[Operand, ...]) -> list[tuple[Operand, Operand]]:
    if len(formal) != len(actual):
        raise NotNative("another number of arguments or results")
    return list(zip(formal, actual, strict=True))


def _copy(asm: Assembler, target: Operand, source: Operand) -> None:
    """Append the copy of an argument or a result: registers, or whole ``.param`` variables."""
    to, origin = _variable(asm, target), _variable(asm, source)
    if isinstance(target, Register) and target.name not in asm.rows:
        return  # it is never read
    size = _bytes(asm, target)
    if not isinstance(source, Immediate) and size != _bytes(asm, source):
        raise NotNative("an argument of another size")
    limits = [variable.align for variable in (to, origin) if variable is not None]
    width = min([8, *limits, size & -size])
    if width < size and (to is None or origin is None):
        raise NotNative("an argument whose alignment is less than its size")
    for offset in range(0, size, width):
        if origin is not None:
            row = asm.temporary(8 * width)
            asm.record(local_load(8 * width), [_address(asm, origin), offset, row])
        else:
            row = asm.source(source, f"b{8 * width}")
        if to is not None:
            asm.record(local_store(8 * width), [_address(asm, to), offset, row])
        else:
            type_ = f"b{8 * width}"
            place, finish = asm.target(target, type_)
            asm.lanewise(f"mov.{type_}", lambda x: x, [place], [row], [type_], [type_])
            finish()


def _variable(asm: Assembler, operand: Operand) -> Variable | None:
    """The ``.param`` variable that an operand names."""
    variable = asm.entry.variables.get(operand.name) if isinstance(operand, Symbol) else None
    return variable if variable is not None and variable.space == "param" else None


def _bytes(asm: Assembler, operand: Operand) -> int:
    """Bytes of a register or a ``.param`` variable."""
    variable = _variable(asm, operand)
    if variable is not None:
        return variable.size
    type_ = asm.type_of(operand) or (TYPES["u32"] if isinstance(operand, Register) else None)
    if type_ is None or type_.kind == "pred":
        raise NotNative(f"an argument {operand}")
    return type_.bytes


def _address(asm: Assembler, variable: Variable) -> int:
    return asm.constant(Constant("symbol", variable.name, 64))
