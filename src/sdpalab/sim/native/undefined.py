"""Records that follow undefined registers, for the ``memory`` check (:mod:`sdpalab.sim.checks.registers`).

Beside a register that may be read before it was written is a row of its shadow, whose bits are 1 where its own are
undefined. What moves bits is executed on shadows too; other results are undefined as a whole where an operand is. A use
of what is undefined ends the native run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sdpalab.sim.checks.registers import bits_moved
from sdpalab.sim.decode import Mods, find_handler
from sdpalab.sim.definedness import Undefined, computes, loads_shared, writes
from sdpalab.sim.fusion import registers_in
from sdpalab.sim.ir import Address, Immediate, Instruction, Operand, Pair, Register, Symbol, TensorAddress, Vector
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import HANDLERS, Assembler, NotNative, bits_of
from sdpalab.sim.native.lanes import WORD32, WORD64, Lanes, where
from sdpalab.sim.native.layout import OPERANDS, RECORD_WORDS
from sdpalab.sim.native.operation import NativeOperation, OperationCode
from sdpalab.sim.native.operations.tracked import track_load, track_matrices, track_product, track_store
from sdpalab.sim.native.suspects import note_fault
from sdpalab.sim.opcodes import opcode_of
from sdpalab.sim.types import TYPES

__all__ = ["add_shadows", "follow_stores", "follow_undefined"]

_SHADOW = "~"
"""Before a register's name, the name of its shadow."""


def add_shadows(asm: Assembler, undefined: Undefined) -> None:
    """Give registers that may be undefined their shadows: all ones at first."""
    for name in sorted(undefined.registers):
        type_ = asm.types.get(name)
        if type_ is None or name not in asm.rows:
            raise NotNative(f"register {name} may be undefined")
        row = asm.allocate(bits_of(type_))
        asm.types[_SHADOW + name], asm.rows[_SHADOW + name] = type_, row
        if type_.kind == "pred":
            asm.ones.append(row)


def follow_undefined(asm: Assembler, instruction: Instruction, undefined: Undefined) -> None:
    """Append what an instruction means for shadows, and the checks of its uses; before its own records."""
    reads = undefined.reads.get(instruction.pc, frozenset())
    targets = [name for name in writes(asm.entry, instruction) if _shadow(asm, name)]
    if not reads and not targets:
        return
    asm.begin(instruction)
    if instruction.guard is not None and instruction.guard.register.name in reads:
        if asm.tracking and computes(instruction):
            _compute_or_not(asm, instruction, instruction.guard.register, reads, targets)
            return
        guard, asm.guard = asm.guard, 0  # a branch on it is decided by all who come here
        _use(asm, instruction.guard.register, "pred", "as a predicate")
        asm.guard = guard
    if asm.tracking and _track(asm, instruction, reads, targets):
        return
    if computes(instruction) and reads:
        if targets:
            _propagate(asm, instruction, reads, targets)
        return
    _uses(asm, instruction, reads)
    if _accumulates(instruction):
        _accumulated(asm, instruction, reads, targets)
        return
    for name in targets:
        _set(asm, name, 0)


def _compute_or_not(
    asm: Assembler, instruction: Instruction, condition: Register, reads: frozenset[str], targets: Sequence[str]
) -> None:
    """What lanes compute under a condition that may be undefined is undefined then, and does not matter yet."""
    others = reads - {condition.name}
    if others and targets:
        _propagate(asm, instruction, others, targets)
    else:
        for name in targets:
            _set(asm, name, 0)
    asm.guard = 0
    flag = asm.source(Register(_SHADOW + condition.name), "pred")
    for name in targets:
        type_, row = _bits(asm, name), asm.rows[_SHADOW + name]
        asm.lanewise(f"undefined.where.{type_}", _ones_where, [row], [flag, row], [type_], ["pred", type_])


def _track(asm: Assembler, instruction: Instruction, reads: frozenset[str], targets: Sequence[str]) -> bool:
    """Append what else happens to shadows where undefined bytes of shared memory are followed; whether that is all.

    Products and stores to shared memory pass undefined bytes on. A register that was never set matters there at once.
    """
    unset = asm.unset.get(instruction.pc, frozenset())
    if loads_shared(instruction):
        _uses(asm, instruction, reads)
        for name in targets:
            _set(asm, name, 0)
        rows, size = _shadow_rows(asm, instruction.operands[0])
        if instruction.opcode == "ldmatrix":
            track_matrices(asm, instruction, rows)
        else:
            track_load(asm, instruction, rows, size)
        return True
    if instruction.opcode == "mma" and reads:
        for name in sorted(reads & unset):
            _use(asm, Register(name), _bits(asm, name), "as an operand")
        parts = [_shadow_rows(asm, operand) for operand in instruction.operands[:4]]
        if instruction.guard is not None or any(size != 4 for rows, size in parts if max(rows) >= 0):
            raise NotNative(instruction.text)
        d, a, b, c = (rows for rows, _ in parts)
        track_product(asm, a, b, c, d)
        return True
    if _stores_shared(instruction):
        _uses(asm, instruction, reads & (unset | set(registers_in(instruction.operands[0]))))
        return True
    return False


def follow_stores(asm: Assembler, instruction: Instruction, undefined: Undefined) -> None:
    """Append what an instruction leaves undefined in shared memory; behind its own records."""
    reads = undefined.reads.get(instruction.pc, frozenset())
    if asm.tracking and _stores_shared(instruction) and reads & set(registers_in(instruction.operands[1])):
        asm.begin(instruction)
        track_store(asm, instruction, *_shadow_rows(asm, instruction.operands[1]))


def _stores_shared(instruction: Instruction) -> bool:
    """Whether undefined bits that it stores are followed: it stores to shared memory, by its own name."""
    return instruction.opcode == "st" and any(mod.split("::")[0] == "shared" for mod in instruction.mods)


def _shadow_rows(asm: Assembler, operand: Operand) -> tuple[list[int], int]:
    """The rows of the shadows of an operand's registers (-1: defined), and the bytes of such a register."""
    items = asm.vector(operand)
    names = [item.name if isinstance(item, Register) and _shadow(asm, item.name) else "" for item in items]
    sizes = {asm.types[_SHADOW + name].bits // 8 for name in names if name}
    if len(sizes) > 1:
        raise NotNative("registers of several sizes that may be undefined")
    return [asm.rows[_SHADOW + name] if name else -1 for name in names], next(iter(sizes), 4)


def _shadow(asm: Assembler, name: str) -> bool:
    return _SHADOW + name in asm.rows


def _bits(asm: Assembler, name: str) -> str:
    """The type of a register's shadow."""
    type_ = asm.types[_SHADOW + name]
    return "pred" if type_.kind == "pred" else f"b{type_.bits}"


def _set(asm: Assembler, name: str, value: int) -> None:
    """All bits of a register are undefined (1) or defined (0)."""
    type_ = _bits(asm, name)
    constant = asm.source(Immediate(-value if type_ != "pred" else value), type_)
    asm.lanewise(f"mov.{type_}", lambda x: x, [asm.rows[_SHADOW + name]], [constant], [type_], [type_])


def _propagate(asm: Assembler, instruction: Instruction, reads: frozenset[str], targets: Sequence[str]) -> None:
    opcode = instruction.opcode
    if opcode in ("and", "or"):
        _logic(asm, instruction, targets[0])
        return
    if asm.tracking and _by_halves(asm, instruction, targets[0]):
        return
    moved = bits_moved(instruction)
    sources = instruction.operands[1 + moved :] if moved else ()
    decisive = [name for operand in sources for name in registers_in(operand) if name in reads]
    if not moved:
        decisive = sorted(reads)
    flag = asm.temporary(1)
    shadows = [(Register(_SHADOW + name), _bits(asm, name)) for name in decisive]
    types = [type_ for _, type_ in shadows]
    rows = [asm.source(*shadow) for shadow in shadows]
    if len(rows) > 4:
        raise NotNative("more than four operands that may be undefined")
    name = f"undefined.{'.'.join(types) or 'none'}"
    asm.lanewise(name, _any_of, [flag], rows or [asm.number(0, "b32")], ["pred"], types or ["b32"])
    if moved:
        target, *operands = instruction.operands
        given = (_of(asm, target, target=True), *(_of(asm, each) for each in operands[:moved]), *operands[moved:])
        other = replace(instruction, operands=given)
        handler = find_handler(HANDLERS, other)
        if handler is None:
            raise NotNative(instruction.text)
        handler(asm, other, Mods(other))
        second = target.second if isinstance(target, Pair) else None
        for each in registers_in(second) if second is not None else ():
            if _shadow(asm, each):
                _set(asm, each, 0)
    for name in targets:
        type_ = _bits(asm, name)
        row = asm.rows[_SHADOW + name]
        before = row if moved else asm.source(Immediate(0), type_)
        asm.lanewise(f"undefined.where.{type_}", _ones_where, [row], [flag, before], [type_], ["pred", type_])


def _by_halves(asm: Assembler, instruction: Instruction, target: str) -> bool:
    """Packed arithmetic on two halves, and conversions of two floats into the halves of a register; whether it is
    that."""
    opcode, mods = instruction.opcode, instruction.mods
    if (
        not {"f16x2", "bf16x2"} & set(mods)
        or opcode.startswith("set")
        or (opcode_of(instruction).moves and opcode != "cvt")
    ):
        return False
    converts = opcode == "cvt"
    sources = [_of(asm, operand) for operand in instruction.operands[1:]]
    types = [_bits(asm, each.name.removeprefix(_SHADOW)) for each in sources if isinstance(each, Register)]
    if {_bits(asm, target), *types} != {"b32"} or len(sources) > 3 or (converts and len(sources) != 2):
        return False
    function = _halves_of_floats if converts else _halves
    rows = [asm.source(each, "b32") for each in sources]
    name = f"undefined.{'floats' if converts else 'halves'}.{len(rows)}"
    asm.lanewise(name, function, [asm.rows[_SHADOW + target]], rows, ["b32"], ["b32"] * len(rows))
    return True


def _halves(*shadows: Lanes) -> Lanes:
    whole = shadows[0]
    for shadow in shadows[1:]:
        whole = whole | shadow
    return where((whole & 0xFFFF) != 0, whole.like(0xFFFF), 0) | where((whole >> 16) != 0, whole.like(0xFFFF0000), 0)


def _halves_of_floats(upper: Lanes, lower: Lanes) -> Lanes:
    return where(upper != 0, upper.like(0xFFFF0000), 0) | where(lower != 0, lower.like(0xFFFF), 0)


def _any_of(*shadows: Lanes) -> Lanes:
    result = shadows[0] if shadows[0].type == "pred" else shadows[0] != 0
    for shadow in shadows[1:]:
        result = result | (shadow if shadow.type == "pred" else shadow != 0)
    return result


def _ones_where(condition: Lanes, before: Lanes) -> Lanes:
    return where(condition, before.like(-1), before)


def _of(asm: Assembler, operand: Operand, *, target: bool = False) -> Operand:
    """The operand of an operand's shadow; an operand without one is defined, or not relevant as a target."""
    if isinstance(operand, Vector):
        return Vector(tuple(_of(asm, item, target=target) for item in operand.items))
    if isinstance(operand, Pair):
        return Pair(_of(asm, operand.first, target=target), Symbol("_"))
    if isinstance(operand, Register) and _shadow(asm, operand.name):
        return Register(_SHADOW + operand.name)
    return Symbol("_") if target else Immediate(0)


def _logic(asm: Assembler, instruction: Instruction, target: str) -> None:
    """The shadow of what one defined operand may decide alone."""
    type_ = TYPES[instruction.mods[-1]].name
    disjunction = instruction.opcode == "or"

    def function(a: Lanes, b: Lanes, x: Lanes, y: Lanes) -> Lanes:
        left, right = (~a, ~b) if disjunction else (a, b)
        return (x | left) & (y | right) & (x | y)

    values = [asm.source(operand, type_) for operand in instruction.operands[1:]]
    shadows = [asm.source(_of(asm, operand), type_) for operand in instruction.operands[1:]]
    row = asm.rows[_SHADOW + target]
    asm.lanewise(f"undefined.{instruction.opcode}.{type_}", function, [row], [*values, *shadows], [type_], [type_] * 4)


# ---- uses ------------------------------------------------------------------------------------------------------------


def _uses(asm: Assembler, instruction: Instruction, reads: frozenset[str]) -> None:
    """The operands by which undefined values come to matter."""
    stores = instruction.opcode == "st"
    private = not {"local", "param"}.isdisjoint(instruction.mods)
    width = next((TYPES[mod].bits for mod in instruction.mods if mod in TYPES), 0) if stores else 0
    accumulates = _accumulates(instruction)
    for place, operand in enumerate(instruction.operands):
        address = isinstance(operand, (Address, TensorAddress))
        if stores and private and not address:
            continue
        for name in registers_in(operand):
            if name not in reads:
                continue
            if accumulates and place == 0:
                continue
            role = "as an address" if address else "as a stored value" if stores else "as an operand"
            _use(asm, Register(name), f"b{width}" if width and not address else _bits(asm, name), role)


def _use(asm: Assembler, register: Register, type_: str, role: str) -> None:
    """Where a register is undefined, that is noted, or ends the run."""
    row = asm.source(Register(_SHADOW + register.name), type_)

    def build(code: OperationCode) -> None:
        shadow = code.source(0, type_)
        bad = (shadow if type_ == "pred" else shadow != 0) & code.active
        code.note(code.builder.bitcast(bad.value, WORD32), note_fault, WORD64(layout.NEVER_SET), WORD64(0))

    asm.uses[len(asm.records)] = register.name, role
    asm.record(NativeOperation(f"undefined.use.{type_}", build), [row])


# ---- accumulators of wgmma: many registers, so a few to a record -----------------------------------------------------

_MANY = RECORD_WORDS - OPERANDS


def _accumulates(instruction: Instruction) -> bool:
    return instruction.opcode == "wgmma" and len(instruction.operands) > 3


def _accumulated(asm: Assembler, instruction: Instruction, reads: frozenset[str], targets: Sequence[str]) -> None:
    """Accumulators count where ``scale-d`` holds, and are defined from then on."""
    given = [name for name in registers_in(instruction.operands[0]) if name in reads]
    if instruction.guard is not None or any(asm.types[_SHADOW + name].bits != 32 for name in (*given, *targets)):
        raise NotNative("accumulators that may be undefined")
    asm.guard = asm.source(instruction.operands[3], "pred") | 1
    _for_rows(asm, "undefined.use.all", given, _give_up_if_undefined)
    asm.guard = 0
    _for_rows(asm, "undefined.clear", targets, _clear)


def _for_rows(asm: Assembler, name: str, registers: Sequence[str], act: Callable[[OperationCode, int], None]) -> None:
    """Append records that do something with the shadow of each register."""
    for begin in range(0, len(registers), _MANY):
        rows = [asm.rows[_SHADOW + register] for register in registers[begin : begin + _MANY]]

        def build(code: OperationCode, many: int = len(rows)) -> None:
            for k in range(many):
                act(code, k)

        asm.record(NativeOperation(f"{name}.{len(rows)}", build), rows)


def _give_up_if_undefined(code: OperationCode, k: int) -> None:
    code.leave_if(((code.source(k, "b32") != 0) & code.active).any(), layout.UNSET)


def _clear(code: OperationCode, k: int) -> None:
    code.store(k, code.constant("u32", 0))
