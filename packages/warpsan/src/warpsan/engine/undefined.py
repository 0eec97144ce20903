"""Records that track undefined registers, for the ``memory`` check (:mod:`warpsan.report.undefined`).

Instructions that move bits are also executed on shadows (:mod:`.shadows`); results of other instructions are undefined
as a whole if an operand is. If undefined bytes of memory are tracked, they are tracked through products and stores to
shared memory too. A branch that only selects values then makes these undefined at its reconvergence point
(:mod:`warpsan.report.undefined`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from warpsan.analysis.definedness import Undefined, computes, follows_load, is_followed, stores_shared, writes
from warpsan.analysis.fusion import registers_in
from warpsan.engine import rules
from warpsan.engine.assembler import HANDLERS, Assembler
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.layout import OPERANDS, RECORD_WORDS
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.shadows import (
    SHADOW,
    all_undefined_where,
    any_undefined,
    has_shadow,
    never_set,
    origin_row,
    pass_origins_on,
    set_shadow,
    shadow_bytes,
    shadow_row,
    shadow_type,
    use_registers,
)
from warpsan.ptx.grammar import Computation, Form, form_of
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Pair, Register, Symbol, TensorAddress, Vector
from warpsan.ptx.matrices import WarpProduct
from warpsan.ptx.modifiers import find_handler, types_of
from warpsan.ptx.opcodes import opcode_of, spaces_of
from warpsan.semantics.tracked import track_load, track_product, track_store

__all__ = ["follow_stores", "follow_undefined", "meetings", "ways_meet"]

_PRIVATE = {"global", "local", "param"}


def follow_undefined(asm: Assembler, instruction: Instruction, undefined: Undefined) -> None:
    """Append the shadow records of an instruction, and the checks of its uses, before its own records."""
    reads = undefined.reads.get(instruction.pc, frozenset())
    targets = [name for name in writes(asm.entry, instruction) if has_shadow(asm, name)]
    if (
        not reads
        and not targets
        and not (asm.tracking and follows_load(instruction, track_unwritten_global=asm.track_unwritten_global))
    ):
        return
    asm.begin(instruction)
    condition = instruction.guard.register.name if instruction.guard is not None else ""
    if condition not in reads:
        _act(asm, instruction, reads, targets)
    elif instruction.pc in asm.regions:
        _decide(asm, instruction.pc, condition)
    elif asm.tracking and _passes_on(asm, instruction) and writes(asm.entry, instruction):
        # A result of lanes under an undefined condition is undefined, without a use yet.
        _act(asm, instruction, reads - {condition}, targets)
        asm.guard = 0
        flag = shadow_row(asm, condition)
        all_undefined_where(asm, flag, targets)
        for name in targets:
            row = origin_row(asm, name)
            sources = [flag, origin_row(asm, condition), row]
            asm.lanewise("undefined.chosen", where, [row], sources, ["u32"], ["pred", "u32", "u32"])
    else:
        guard, asm.guard = asm.guard, 0  # all lanes that reach a branch on it evaluate it
        use_registers(asm, [condition], "as a predicate")
        asm.guard = guard
        _act(asm, instruction, reads, targets)


def _passes_on(asm: Assembler, instruction: Instruction) -> bool:
    """Whether undefined operands only make results undefined, without being a use."""
    return computes(instruction) or (asm.tracking and is_followed(instruction))


def _act(asm: Assembler, instruction: Instruction, reads: frozenset[str], targets: Sequence[str]) -> None:
    """Update the shadows of the lanes that execute an instruction."""
    if reads and _passes_on(asm, instruction):
        if instruction.opcode == "mma":
            _product(asm, instruction, reads)
        elif targets:
            _propagate(asm, instruction, reads, targets)
        return
    if asm.tracking and _is_tracked_store(instruction):
        _store(asm, instruction, reads)
        return
    _uses(asm, instruction, reads)
    if _accumulates(instruction):
        _clear_all(asm, targets)
        return
    for name in targets:
        set_shadow(asm, name, 0)
    if asm.tracking and follows_load(instruction, track_unwritten_global=asm.track_unwritten_global):
        track_load(asm, instruction, _named(asm, instruction.operands[0]))


def _named(asm: Assembler, operand: Operand) -> list[str]:
    """The registers of an operand that have shadows, and empty names for the rest."""
    items = asm.vector(operand)
    return [item.name if isinstance(item, Register) and has_shadow(asm, item.name) else "" for item in items]


# ---- branches that only decide what is computed ----------------------------------------------------------------------


def _waiting(asm: Assembler, pc: int) -> int:
    """The row of lanes that have not reached the reconvergence point of a branch, by the origins of their
    predicates."""
    return asm.hidden(f"waits for {pc}", 32)


def _decide(asm: Assembler, pc: int, condition: str) -> None:
    """A branch on a value that may be undefined. It is a use only if the register was never set."""
    asm.guard = 0
    never_set(asm, condition, "as a predicate", forget=False)
    sources = [shadow_row(asm, condition), origin_row(asm, condition)]
    asm.lanewise(
        "undefined.decides",
        lambda bad, origin: where(bad, origin, 0),
        [_waiting(asm, pc)],
        sources,
        ["u32"],
        ["pred", "u32"],
    )


def meetings(asm: Assembler, undefined: Undefined) -> dict[int, list[int]]:
    """Branches with a possibly undefined predicate, by the number of the block at which they reconverge."""
    result: dict[int, list[int]] = {}
    for pc, region in asm.regions.items():
        guard = asm.entry.instructions[pc].guard
        if guard is not None and guard.register.name in undefined.reads.get(pc, ()):
            result.setdefault(region.meeting, []).append(pc)
    return result


def ways_meet(asm: Assembler, branches: Sequence[int], first: Instruction) -> None:
    """Append, before the first instruction of a block, that values computed in these branches are undefined if their
    predicates were."""
    for pc in branches:
        region = asm.regions[pc]
        asm.begin(first)
        asm.guard = 0
        waiting, flag = _waiting(asm, pc), asm.temporary(1)
        asm.lanewise("undefined.waits", lambda origin: origin != 0, [flag], [waiting], ["pred"], ["u32"])
        targets = sorted(name for name in region.writes if has_shadow(asm, name))
        all_undefined_where(asm, flag, targets)
        for name in targets:
            row = origin_row(asm, name)
            asm.lanewise("undefined.chosen", where, [row], [flag, waiting, row], ["u32"], ["pred", "u32", "u32"])
        asm.lanewise("mov.b32", lambda x: x, [waiting], [asm.number(0, "b32")], ["b32"], ["b32"])


# ---- results that are as undefined as operands -----------------------------------------------------------------------


def _propagate(asm: Assembler, instruction: Instruction, reads: frozenset[str], targets: Sequence[str]) -> None:
    opcode = instruction.opcode
    if asm.tracking:
        pass_origins_on(asm, sorted(reads), targets, across=opcode in ("shfl", "movmatrix"))
    if opcode in ("and", "or"):
        _logic(asm, instruction, targets[0])
        return
    if asm.tracking and _by_halves(asm, instruction, targets[0]):
        return
    moved = _bits_moved(instruction)
    sources = instruction.operands[1 + moved :] if moved else ()
    decisive = [name for operand in sources for name in registers_in(operand) if name in reads]
    if not moved:
        decisive = sorted(reads)
    flag = any_undefined(asm, decisive) if decisive else 0
    if moved:
        target, *operands = instruction.operands
        given = (_of(asm, target, target=True), *(_of(asm, each) for each in operands[:moved]), *operands[moved:])
        other = replace(instruction, operands=given)
        handler = find_handler(HANDLERS, other.text)
        assert handler is not None
        handler(asm, other, form_of(instruction, Form))
        second = target.second if isinstance(target, Pair) else None
        for each in registers_in(second) if second is not None else ():
            if has_shadow(asm, each):
                set_shadow(asm, each, 0)
    if decisive:
        all_undefined_where(asm, flag, targets, else_defined=not moved)


def _by_halves(asm: Assembler, instruction: Instruction, target: str) -> bool:
    """Handle packed arithmetic on two halves, and conversions of two floats into the halves of a register. Returns
    whether it is one."""
    opcode = instruction.opcode
    if (
        not any(each.is_float and each.lanes == 2 for each in types_of(instruction))
        or opcode.startswith("set")
        or (opcode_of(instruction).moves and opcode != "cvt")
    ):
        return False
    converts = opcode == "cvt"
    sources = [_of(asm, operand) for operand in instruction.operands[1:]]
    types = [shadow_type(asm, each.name.removeprefix(SHADOW)) for each in sources if isinstance(each, Register)]
    if {shadow_type(asm, target), *types} != {"b32"} or len(sources) > 3 or (converts and len(sources) != 2):
        return False
    function = _halves_of_floats if converts else _halves
    rows = [asm.source(each, "b32") for each in sources]
    name = f"undefined.{'floats' if converts else 'halves'}.{len(rows)}"
    asm.lanewise(name, function, [shadow_row(asm, target)], rows, ["b32"], ["b32"] * len(rows))
    return True


def _halves(*shadows: Lanes) -> Lanes:
    whole = shadows[0]
    for shadow in shadows[1:]:
        whole = whole | shadow
    return where((whole & 0xFFFF) != 0, whole.like(0xFFFF), 0) | where((whole >> 16) != 0, whole.like(0xFFFF0000), 0)


def _halves_of_floats(upper: Lanes, lower: Lanes) -> Lanes:
    return where(upper != 0, upper.like(0xFFFF0000), 0) | where(lower != 0, lower.like(0xFFFF), 0)


def _of(asm: Assembler, operand: Operand, *, target: bool = False) -> Operand:
    """The shadow of an operand as an operand; an operand without one is defined, or not relevant as a target."""
    if isinstance(operand, Vector):
        return Vector(tuple(_of(asm, item, target=target) for item in operand.items))
    if isinstance(operand, Pair):
        return Pair(_of(asm, operand.first, target=target), Symbol("_"))
    if isinstance(operand, Register) and has_shadow(asm, operand.name):
        return Register(SHADOW + operand.name)
    return Symbol("_") if target else Immediate(0)


def _logic(asm: Assembler, instruction: Instruction, target: str) -> None:
    """The shadow of a result that one defined operand may decide alone."""
    type_ = types_of(instruction)[-1].name
    disjunction = instruction.opcode == "or"

    def function(a: Lanes, b: Lanes, x: Lanes, y: Lanes) -> Lanes:
        left, right = (~a, ~b) if disjunction else (a, b)
        return (x | left) & (y | right) & (x | y)

    values = [asm.source(operand, type_) for operand in instruction.operands[1:]]
    shadows = [asm.source(_of(asm, operand), type_) for operand in instruction.operands[1:]]
    row = shadow_row(asm, target)
    asm.lanewise(f"undefined.{instruction.opcode}.{type_}", function, [row], [*values, *shadows], [type_], [type_] * 4)


def _product(asm: Assembler, instruction: Instruction, reads: frozenset[str]) -> None:
    """An mma; a register that was never set is a use at once. For shapes other than 16 by 8, any undefined element
    makes all sums undefined."""
    for name in sorted(reads):
        never_set(asm, name, "as an operand")
    d, a, b, c = (_named(asm, operand) for operand in instruction.operands[:4])
    names = [name for name in (*d, *a, *b, *c) if name]
    if form_of(instruction, WarpProduct).shape.startswith("m16n8") and all(
        shadow_bytes(asm, name) == 4 for name in names
    ):
        track_product(asm, (a, b, c, d))
        return
    sources, targets = sorted(reads), [name for name in d if name]
    pass_origins_on(asm, sources, targets, across=True)
    flag = any_undefined(asm, sources)
    asm.record(NativeOperation("undefined.any.across", _any_lane), [flag])
    all_undefined_where(asm, flag, targets, else_defined=True)


def _any_lane(code: OperationCode) -> None:
    code.store(0, code.all_or_none(code.any_of(code.source(0, "pred"))))


# ---- stores to shared memory -----------------------------------------------------------------------------------------


def _is_tracked_store(instruction: Instruction) -> bool:
    """Whether undefined bits of its stored values are tracked: it may store to shared memory."""
    return instruction.opcode in ("st", "stmatrix") and not _PRIVATE & spaces_of(instruction)


def _store(asm: Assembler, instruction: Instruction, reads: frozenset[str]) -> None:
    """The address is a use at once, and so is a register that was never set if its bits cannot be tracked."""
    address, value = instruction.operands[:2]
    use_registers(asm, [name for name in registers_in(address) if name in reads], "as an address")
    if not stores_shared(instruction):
        width = types_of(instruction)[0].bits
        for name in sorted(reads & set(registers_in(value))):
            never_set(asm, name, "as a stored value", width)


def follow_stores(asm: Assembler, instruction: Instruction, undefined: Undefined) -> None:
    """Append the undefined bytes that an instruction leaves in shared memory, after its own records."""
    reads = undefined.reads.get(instruction.pc, frozenset())
    if not asm.tracking or not stores_shared(instruction):
        return
    if reads & set(registers_in(instruction.operands[1])):
        asm.begin(instruction)
        track_store(asm, instruction, _named(asm, instruction.operands[1]))


# ---- uses ------------------------------------------------------------------------------------------------------------


def _uses(asm: Assembler, instruction: Instruction, reads: frozenset[str]) -> None:
    """The operands whose undefined values are a use."""
    stores = instruction.opcode == "st"
    private = not {"local", "param"}.isdisjoint(spaces_of(instruction))
    width = types_of(instruction)[0].bits if stores else 0
    accumulates = _accumulates(instruction)
    for place, operand in enumerate(instruction.operands):
        address = isinstance(operand, (Address, TensorAddress))
        if stores and private and not address:
            continue
        names = [name for name in registers_in(operand) if name in reads]
        role = "as an address" if address else "as a stored value" if stores else "as an operand"
        if accumulates and place == 0:
            continue
        fault = rules.STORED_UNSET if stores_shared(instruction) and not address else rules.NEVER_SET
        use_registers(asm, names, role, 0 if address else width, fault=fault)
    if accumulates:  # they count if scale-d holds
        before, asm.guard = asm.guard, asm.source(instruction.operands[3], "pred") | 1
        if instruction.guard is not None:
            asm.guard = _both(asm, before, asm.guard) | 1
        use_registers(asm, [name for name in registers_in(instruction.operands[0]) if name in reads], "as an operand")
        asm.guard = before


def _both(asm: Assembler, guard: int, other: int) -> int:
    """Append records that find the lanes in which two guards hold, the first as an instruction has it. Returns a
    row."""
    row, asm.guard = asm.temporary(1), 0

    def function(one: Lanes, two: Lanes) -> Lanes:
        return (~one if guard & 2 else one) & two

    name = f"undefined.both{'.not' * bool(guard & 2)}"
    asm.lanewise(name, function, [row], [guard & ~3, other & ~3], ["pred"], ["pred", "pred"])
    return row


def _accumulates(instruction: Instruction) -> bool:
    return instruction.opcode == "wgmma" and len(instruction.operands) > 3


_MANY = RECORD_WORDS - OPERANDS


def _clear_all(asm: Assembler, names: Sequence[str]) -> None:
    """Accumulators of wgmma are many, and all defined from then on; each record handles a few."""
    for begin in range(0, len(names), _MANY):
        part = names[begin : begin + _MANY]
        kinds = [shadow_type(asm, name) for name in part]
        asm.record(
            NativeOperation(f"undefined.clear.{'.'.join(kinds)}", _clear(kinds)),
            [shadow_row(asm, name) for name in part],
        )


def _clear(kinds: Sequence[str]) -> Callable[[OperationCode], None]:
    def build(code: OperationCode) -> None:
        for k, type_ in enumerate(kinds):
            code.store(k, code.constant(type_, 0))

    return build


def _bits_moved(instruction: Instruction) -> int:
    """The number of sources whose bits an instruction moves: executed on their shadows, it gives the result's
    shadow."""
    if instruction.opcode == "cvt" and not _only_integers(instruction):
        return 0
    return opcode_of(instruction).moves


def _only_integers(instruction: Instruction) -> bool:
    """Whether a conversion keeps low bits and extends or drops high ones."""
    form = form_of(instruction, Computation)
    return not any(form.modes) and not form.flags and not any(type_.is_float for type_ in form.types)
