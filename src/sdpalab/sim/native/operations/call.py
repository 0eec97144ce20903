"""Calls of device functions, and returns from them (PTX ISA, "call", "ret"), by the rules of
:mod:`sdpalab.sim.isa.call`.

A function has one set of registers and ``.param`` variables for each lane, wherever it is called from, and a row for
where each lane was called: its number among the calls of that function. A call through a register compares it with the
addresses of all functions that it may reach. Functions of the driver are called back in Python
(:mod:`~sdpalab.sim.native.host`). Functions that call themselves put aside what they have (:mod:`.frames`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sdpalab.sim.ir import Function, Immediate, Instruction, Operand, Register, Symbol, Variable, Vector
from sdpalab.sim.linking import callee, function_label, is_indirect
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import Assembler, Constant, NotNative
from sdpalab.sim.native.host import HOST_OPERATION, HostCall
from sdpalab.sim.native.operations.frames import caller_row, circle_of_call, restore_frame, save_frame
from sdpalab.sim.native.operations.move import local_load, local_store
from sdpalab.sim.system_calls import ARGUMENT_BYTES
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
    if function is None and callee(instruction) in ARGUMENT_BYTES:
        _call_driver(asm, instruction, words)
        return
    if function is None:
        raise NotNative(f"call of {callee(instruction)}")
    if circle_of_call(asm, instruction, function) is not None:  # lanes that do not call may be in the function
        asm.guard = asm.guard_word(instruction)
    _enter(asm, instruction, function)
    asm.guard = 0
    words[layout.END] = layout.END_BRANCH
    words[layout.TARGET] = asm.program.block_of_label[function_label(function.name)]


def _call_driver(asm: Assembler, instruction: Instruction, words: list[int]) -> None:
    """A call of a function of the driver, by the lanes whose guard holds. A failed assertion ends the launch."""
    name = callee(instruction)
    results, _, arguments = instruction.operands[:3]
    assert isinstance(results, Vector)
    assert isinstance(arguments, Vector)
    if tuple(_bytes(asm, each) for each in arguments.items) != ARGUMENT_BYTES[name]:
        raise NotNative(f"other arguments of {name}")
    if name == "__assertfail":
        words[layout.END] = layout.END_STOP
    sizes = [_bytes(asm, each) for each in results.items]
    if any(size not in {"vprintf": (4, 8), "malloc": (8,)}.get(name, ()) for size in sizes):
        raise NotNative(f"other results of {name}")
    asm.guard = asm.guard_word(instruction)
    given = [(_load(asm, each, size), size) for each, size in zip(arguments.items, ARGUMENT_BYTES[name], strict=True)]
    places = [(asm.temporary(8 * size), size) for size in sizes]
    asm.host_calls.append(HostCall(name, tuple(given), tuple(places), instruction))
    asm.record(HOST_OPERATION, [0, 0, 0, len(asm.host_calls) - 1])
    for operand, (row, size) in zip(results.items, places, strict=True):
        _store(asm, operand, row, size)
    asm.guard = 0


def _call_through_register(asm: Assembler, instruction: Instruction, words: list[int]) -> None:
    """Each lane calls the function whose address it has; where there is none, the launch ends."""
    address, number = asm.source(instruction.operands[1], "u64"), asm.temporary(32)
    _set(asm, number, -1)
    words[layout.END], words[layout.END_A], words[layout.END_D] = layout.END_INDEXED, number, address
    targets = [asm.entry.functions[name] for name in asm.entry.targets]
    targets = [function for function in targets if _suits(asm, instruction, function)]
    guard = asm.guard_word(instruction)
    for place, function in enumerate(targets):
        here, own = asm.temporary(1), asm.constant(Constant("symbol", function.name, 64))
        asm.lanewise("mov.pred", lambda x: x, [here], [asm.source(Immediate(0), "pred")], ["pred"], ["pred"])
        asm.guard = guard
        asm.lanewise("call.target", lambda a, b: a == b, [here], [address, own], ["pred"], ["u64", "u64"])
        asm.guard = here | 1
        _enter(asm, instruction, function)
        _set(asm, number, place)
        asm.guard = 0
    words[layout.END_B], words[layout.END_C] = len(asm.lists), len(targets)
    asm.lists += [asm.program.block_of_label[function_label(function.name)] for function in targets]


def _enter(asm: Assembler, instruction: Instruction, function: Function) -> None:
    """Append the copies of the arguments, and where the lanes come from."""
    taken = instruction.operands[2]
    assert isinstance(taken, Vector)
    pairs, circle = _pairs(function.params, taken.items), circle_of_call(asm, instruction, function)
    if circle is None:
        _copy_all(asm, pairs)
    else:
        _copy_all(asm, pairs, partial(save_frame, asm, circle))
    _set(asm, caller_row(asm, function.name), _calls(asm, function).index(instruction.pc))


def _set(asm: Assembler, row: int, value: int) -> None:
    """Append the record that sets a row of 32 bits."""
    asm.lanewise("mov.b32", lambda x: x, [row], [asm.number(value, "u32")], ["b32"], ["b32"])


def return_words(asm: Assembler, instruction: Instruction, words: list[int]) -> None:
    """Append what a return copies for each call of its function, and set the words of a block that it ends."""
    (name, *_) = instruction.operands
    assert isinstance(name, Symbol)
    function, guard = asm.entry.functions[name.name], asm.guard_word(instruction)
    caller, resumes = asm.temporary(32), []  # a frame that is restored has others
    asm.lanewise("mov.b32", lambda x: x, [caller], [caller_row(asm, function.name)], ["b32"], ["b32"])
    for number, pc in enumerate(_calls(asm, function)):
        call = asm.entry.instructions[pc]
        given = call.operands[0]
        assert isinstance(given, Vector)
        here, rows = asm.temporary(1), [caller, asm.number(number, "u32")]
        nobody = asm.source(Immediate(0), "pred")
        asm.lanewise("mov.pred", lambda x: x, [here], [nobody], ["pred"], ["pred"])
        asm.guard = guard
        asm.lanewise("call.from", lambda a, b: a == b, [here], rows, ["pred"], ["u32", "u32"])
        asm.guard = here | 1
        pairs, circle = _pairs(given.items, function.results), circle_of_call(asm, call, function)
        if circle is None:
            _copy_all(asm, pairs)
        else:
            _copy_all(asm, pairs, partial(restore_frame, asm, circle))
        asm.guard = 0
        ends = [block.end.pc if block.end is not None else -1 for block in asm.program.blocks]
        resumes.append(ends.index(pc) + 1)
    words[layout.END], words[layout.END_A], words[layout.END_D] = layout.END_INDEXED, caller, -1
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


def _pairs(targets: Sequence[Operand], sources: Sequence[Operand]) -> list[tuple[Operand, Operand]]:
    if len(targets) != len(sources):
        raise NotNative("another number of arguments or results")
    return list(zip(targets, sources, strict=True))


def _copy_all(
    asm: Assembler, pairs: Sequence[tuple[Operand, Operand]], between: Callable[[], None] | None = None
) -> None:
    """Append the copies of arguments or results: registers, or whole ``.param`` variables.

    With ``between`` all are read before, and written after the records that it appends.
    """
    pieces: list[tuple[Operand, int, int, int]] = []
    for target, source in pairs:
        for offset, width in _widths(asm, target, source):
            row = _load(asm, source, width, offset)
            if between is not None and isinstance(source, Register):
                value = asm.temporary(8 * width)
                asm.lanewise(f"mov.b{8 * width}", lambda x: x, [value], [row], [f"b{8 * width}"], [f"b{8 * width}"])
                row = value
            pieces.append((target, row, width, offset))
            if between is None:
                _store(asm, *pieces.pop())
    if between is not None:
        between()
    for piece in pieces:
        _store(asm, *piece)


def _widths(asm: Assembler, target: Operand, source: Operand) -> list[tuple[int, int]]:
    """(offset, bytes) of the pieces in which an argument or a result is copied."""
    to, origin = _variable(asm, target), _variable(asm, source)
    if isinstance(target, Register) and target.name not in asm.rows:
        return []  # it is never read
    size = _bytes(asm, target)
    if not isinstance(source, Immediate) and size != _bytes(asm, source):
        raise NotNative("an argument of another size")
    limits = [variable.align for variable in (to, origin) if variable is not None]
    width = min([8, *limits, size & -size])
    if width < size and (to is None or origin is None):
        raise NotNative("an argument whose alignment is less than its size")
    return [(offset, width) for offset in range(0, size, width)]


def _load(asm: Assembler, source: Operand, size: int, offset: int = 0) -> int:
    """The row of so many bytes of an argument or a result, which is loaded if it is a ``.param`` variable."""
    origin = _variable(asm, source)
    if origin is None:
        return asm.source(source, f"b{8 * size}")
    if origin.align % size:
        raise NotNative("an argument whose alignment is less than its size")
    row = asm.temporary(8 * size)
    asm.record(local_load(8 * size), [_address(asm, origin), offset, row])
    return row


def _store(asm: Assembler, target: Operand, row: int, size: int, offset: int = 0) -> None:
    """Append the record that copies a row to an argument or a result."""
    to, type_ = _variable(asm, target), f"b{8 * size}"
    if to is not None:
        asm.record(local_store(8 * size), [_address(asm, to), offset, row])
        return
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
