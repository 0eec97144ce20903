"""Calls of device functions, and returns from them (PTX ISA, "call", "ret").

A function has one set of registers and ``.param`` variables for each lane, shared by all its calls, and a row with the
call of each lane: its number among the calls of that function. A call through a register compares it with the addresses
of all functions that it may reach. Functions of the driver call back into Python (:mod:`~warpsan.engine.host`).
Recursive functions save their state (:mod:`.frames`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, Constant, native
from warpsan.engine.host import HOST_OPERATION, HostCall
from warpsan.errors import UnsupportedInstruction
from warpsan.host.system_calls import ARGUMENT_BYTES
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Function, Immediate, Instruction, Operand, Register, Symbol, Variable, Vector
from warpsan.ptx.linking import callee, function_label, is_indirect
from warpsan.ptx.names import short_name
from warpsan.ptx.types import TYPES
from warpsan.semantics.frames import caller_row, circle_of_call, restore_frame, save_frame
from warpsan.semantics.move import local_load, local_store

__all__ = ["return_to_calls"]


@native("call")
def _call(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Calls of functions that the PTX defines, directly or through a register, and of ``vprintf``, ``__assertfail``,
    ``malloc`` and ``free``.

    The copies of arguments may also write to lanes that do not take part in the call, because these are not in the
    function.
    """
    if is_indirect(instruction):
        _call_through_register(asm, instruction)
        return
    function = asm.entry.functions.get(callee(instruction))
    if function is None and callee(instruction) in ARGUMENT_BYTES:
        _call_driver(asm, instruction)
        return
    if function is None:
        name = short_name(callee(instruction))
        raise asm.unsupported(f"the function {name} is declared, and the PTX does not define it")
    if circle_of_call(asm, instruction, function) is not None:  # lanes that do not call may be in the function
        asm.guard = asm.guard_word(instruction)
    _enter(asm, instruction, function)
    asm.guard = 0
    asm.end |= {"end": layout.END_BRANCH, "target": asm.program.block_of_label[function_label(function.name)]}


def _call_driver(asm: Assembler, instruction: Instruction) -> None:
    """A call of a function of the driver, by the lanes for which the guard holds. A failed assertion ends the
    launch."""
    name = callee(instruction)
    results, _, arguments = instruction.operands[:3]
    assert isinstance(results, Vector)
    assert isinstance(arguments, Vector)
    _check_bytes(asm, arguments.items, ARGUMENT_BYTES[name])
    if name == "__assertfail":
        asm.end["end"] = layout.END_STOP
    sizes = [_bytes(asm, each) for each in results.items]
    if name == "malloc":
        _check_bytes(asm, results.items, (8,))
    elif any(size not in ((4, 8) if name == "vprintf" else ()) for size in sizes):
        raise asm.unsupported(f"such results of {name} are not modelled")
    asm.guard = asm.guard_word(instruction)
    given = [(_load(asm, each, size), size) for each, size in zip(arguments.items, ARGUMENT_BYTES[name], strict=True)]
    places = [(asm.temporary(8 * size), size) for size in sizes]
    asm.host_calls.append(HostCall(name, tuple(given), tuple(places), instruction))
    asm.record(HOST_OPERATION, [0, 0, 0, len(asm.host_calls) - 1])
    for operand, (row, size) in zip(results.items, places, strict=True):
        _store(asm, operand, row, size)
    asm.guard = 0


def _check_bytes(asm: Assembler, operands: Sequence[Operand], sizes: tuple[int, ...]) -> None:
    """Unsupported unless arguments and results have these numbers of bytes."""
    if tuple(_bytes(asm, each) for each in operands) != sizes:
        raise asm.unsupported(f"expected arguments of {', '.join(map(str, sizes))} bytes")


def _call_through_register(asm: Assembler, instruction: Instruction) -> None:
    """Each lane calls the function at its address. The launch ends if that function has other parameters, or does
    not exist."""
    address, number = asm.source(instruction.operands[1], "u64"), asm.temporary(32)
    _set(asm, number, -1)
    asm.end |= {"end": layout.END_INDEXED, "end_a": number, "end_d": address}
    reached = [asm.entry.functions[name] for name in asm.entry.targets]
    targets = [function for function in reached if _suits(asm, instruction, function)]
    guard = asm.guard_word(instruction)
    for function in reached:
        here, own = asm.temporary(1), asm.constant(Constant("symbol", function.name, 64))
        asm.lanewise("mov.pred", lambda x: x, [here], [asm.source(Immediate(0), "pred")], ["pred"], ["pred"])
        asm.guard = guard
        asm.lanewise("call.target", lambda a, b: a == b, [here], [address, own], ["pred"], ["u64", "u64"])
        asm.guard = here | 1
        unlike = _unlike(asm, instruction, function)
        if unlike is None:
            _enter(asm, instruction, function)
            _set(asm, number, targets.index(function))
        else:
            asm.end_with(unlike)
        asm.guard = 0
    asm.end |= {"end_b": len(asm.lists), "end_c": len(targets)}
    asm.lists += [asm.program.block_of_label[function_label(function.name)] for function in targets]


def _enter(asm: Assembler, instruction: Instruction, function: Function) -> None:
    """Append the copies of the arguments, and the call of each lane.

    Raises
    ------
    UnsupportedInstruction
        If the arguments or the results are not those of the function.
    """
    unlike = _unlike(asm, instruction, function)
    if unlike is not None:
        raise unlike
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


def return_to_calls(asm: Assembler, instruction: Instruction) -> None:
    """Append the copies of a return for each call of its function, and set the words of the block that it
    ends."""
    (name, *_) = instruction.operands
    assert isinstance(name, Symbol)
    function, guard = asm.entry.functions[name.name], asm.guard_word(instruction)
    caller, resumes = asm.temporary(32), []  # a restored frame has others
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
    asm.end |= {"end": layout.END_INDEXED, "end_a": caller, "end_d": -1}
    asm.end |= {"end_b": len(asm.lists), "end_c": len(resumes)}
    asm.lists += resumes


def _calls(asm: Assembler, function: Function) -> list[int]:
    """The calls that may reach a function, by their pc: the index is their number."""
    reached = function.name in asm.entry.targets
    return [
        each.pc
        for each in asm.entry.instructions
        if each.opcode == "call"
        and (callee(each) == function.name or (reached and is_indirect(each)))
        and _suits(asm, each, function)
    ]


def _suits(asm: Assembler, call: Instruction, function: Function) -> bool:
    """Whether the arguments and results of a call match those of a function."""
    return _unlike(asm, call, function) is None


def _unlike(asm: Assembler, call: Instruction, function: Function) -> UnsupportedInstruction | None:
    """The exception for a call whose arguments or results do not match those of a function."""
    given, _, taken = call.operands[:3]
    assert isinstance(given, Vector)
    assert isinstance(taken, Vector)
    try:
        _check_passed(asm, function, function.params, taken.items, "arguments")
        _check_passed(asm, function, function.results, given.items, "results")
    except UnsupportedInstruction as why:
        return why
    return None


def _check_passed(
    asm: Assembler, function: Function, formal: Sequence[Operand], actual: Sequence[Operand], what: str
) -> None:
    """Unsupported if the arguments or results of a call do not match those of a function, by number and size."""
    name = short_name(function.name)
    if len(formal) != len(actual):
        raise asm.unsupported(f"{name} has {len(formal)} {what}, and {len(actual)} are given")
    for inner, outer in zip(formal, actual, strict=True):
        if isinstance(inner, Register) and inner.name not in asm.rows:
            continue  # never read
        size = _bytes(asm, inner)
        passed = size if isinstance(outer, Immediate) and size in (1, 2, 4, 8) else _bytes(asm, outer)
        if passed != size:
            raise asm.unsupported(f"{passed} bytes are passed for {size} bytes of {name}")


def _pairs(targets: Sequence[Operand], sources: Sequence[Operand]) -> list[tuple[Operand, Operand]]:
    return list(zip(targets, sources, strict=True))


def _copy_all(
    asm: Assembler, pairs: Sequence[tuple[Operand, Operand]], between: Callable[[], None] | None = None
) -> None:
    """Append the copies of arguments or results: registers, or whole ``.param`` variables.

    With ``between``, all are read before, and written after the records that it appends.
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
    """(offset, bytes) of the pieces of an argument or a result."""
    to, origin = _variable(asm, target), _variable(asm, source)
    if isinstance(target, Register) and target.name not in asm.rows:
        return []  # never read
    size = _bytes(asm, target)
    width = size  # of a register
    if to is not None and origin is not None:
        width = min(8, to.align, origin.align, size & -size)
    return [(offset, width) for offset in range(0, size, width)]


def _load(asm: Assembler, source: Operand, size: int, offset: int = 0) -> int:
    """The row of so many bytes of an argument or a result; a ``.param`` variable is loaded."""
    origin = _variable(asm, source)
    if origin is None:
        return asm.source(source, f"b{8 * size}")
    row = asm.temporary(8 * size)
    asm.record(local_load(8 * size, aligned=origin.align % size == 0), [_address(asm, origin), offset, row])
    return row


def _store(asm: Assembler, target: Operand, row: int, size: int, offset: int = 0) -> None:
    """Append the record that copies a row to an argument or a result."""
    to, type_ = _variable(asm, target), f"b{8 * size}"
    if to is not None:
        asm.record(local_store(8 * size, aligned=to.align % size == 0), [_address(asm, to), offset, row])
        return
    place, finish = asm.target(target, type_)
    asm.lanewise(f"mov.{type_}", lambda x: x, [place], [row], [type_], [type_])
    finish()


def _variable(asm: Assembler, operand: Operand) -> Variable | None:
    """The ``.param`` variable of an operand."""
    variable = asm.entry.variables.get(operand.name) if isinstance(operand, Symbol) else None
    return variable if variable is not None and variable.space == "param" else None


def _bytes(asm: Assembler, operand: Operand) -> int:
    """Bytes of a register or a ``.param`` variable."""
    variable = _variable(asm, operand)
    if variable is not None:
        return variable.size
    type_ = asm.type_of(operand) or (TYPES["u32"] if isinstance(operand, Register) else None)
    if type_ is None or type_.kind == "pred":
        raise asm.unsupported(f"expected a register or a .param variable, not {operand}")
    return type_.bytes


def _address(asm: Assembler, variable: Variable) -> int:
    return asm.constant(Constant("symbol", variable.name, 64))
