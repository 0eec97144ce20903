"""Calls of device functions, and returns from them (PTX ISA, "call", "ret"), by the rules of
:mod:`sdpalab.sim.isa.call`.

A function has one set of registers and ``.param`` variables for each lane, wherever it is called from, and a row for
where each lane was called: its number among the calls of that function. Those that call themselves, calls through
registers and system calls are left to the reference engine.
"""

from __future__ import annotations

from sdpalab.sim.ir import Function, Immediate, Instruction, Operand, Register, Symbol, Variable, Vector
from sdpalab.sim.linking import callee, function_label
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
    function = asm.entry.functions.get(callee(instruction))
    if function is None or function.name in asm.entry.circles:
        raise NotNative(f"call of {callee(instruction) or 'an address'}")
    taken = instruction.operands[2]
    assert isinstance(taken, Vector)
    for formal, actual in _pairs(function.params, taken.items):
        _copy(asm, formal, actual)
    number = _calls(asm, function).index(instruction.pc)
    row = asm.number(number, "u32")
    asm.lanewise("mov.b32", lambda x: x, [_caller(asm, function)], [row], ["b32"], ["b32"])
    words[layout.END] = layout.END_BRANCH
    words[layout.TARGET] = asm.program.block_of_label[function_label(function.name)]


def return_words(asm: Assembler, instruction: Instruction, words: list[int]) -> None:
    """Append what a return copies for each call of its function, and set the words of a block that it ends."""
    (name, *_) = instruction.operands
    assert isinstance(name, Symbol)
    function = asm.entry.functions[name.name]
    if function.name in asm.entry.circles or name.name in asm.entry.targets:
        raise NotNative("a return from a function that calls itself, or is called through a register")
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
    """The calls of a function, by their pc: their places here are their numbers."""
    return [each.pc for each in asm.entry.instructions if each.opcode == "call" and callee(each) == function.name]


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
    size = to.size if to is not None else _size(asm, target)
    if not isinstance(source, Immediate) and size != (origin.size if origin is not None else _size(asm, source)):
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


def _size(asm: Assembler, operand: Operand) -> int:
    """Bytes of a register."""
    type_ = asm.type_of(operand) or (TYPES["u32"] if isinstance(operand, Register) else None)
    if type_ is None or type_.kind == "pred":
        raise NotNative(f"an argument {operand}")
    return type_.bytes


def _address(asm: Assembler, variable: Variable) -> int:
    return asm.constant(Constant("symbol", variable.name, 64))
