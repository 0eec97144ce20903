"""Exchange between the lanes of a warp (PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync",
"bar.warp.sync"). A live lane of a mask that does not take part is reported; a result that depends on it is poison."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from warpsan.engine import layout, rules
from warpsan.engine.access import gather, note_lanes
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.clocks import lanes_meet
from warpsan.engine.groups import REDUCTIONS, reduce_groups
from warpsan.engine.hazards import note_fault
from warpsan.engine.lane_races import meet_partly
from warpsan.engine.lanes import WORD32, WORD64, Lanes, where
from warpsan.engine.layout import WARP
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction, Symbol

__all__ = ["needs_whole_warp"]


def _members(code: OperationCode, k: int) -> Lanes:
    """For each lane, the members of its group that take part, as bits. A wrong mask is noted, or ends the run.

    A mask is wrong if it contains a live thread that is absent, or omits one that is present.
    """
    b = code.builder
    mask = code.source(k, "u32")
    live = b.trunc(code.context("current_live"), WORD32)
    absent = code.spread(b.and_(live, b.not_(code.mask)), "u32")
    own = mask.each("u32", [1 << lane for lane in range(WARP)])
    missing = mask & absent
    for bad, kind in ((missing != 0, rules.NAMES_ABSENT), ((mask & own) == 0, rules.LEAVES_OUT)):
        note_lanes(code, code.those(bad), mask.to("s64"), missing.to("s64"), kind, 0)
    return mask & code.spread(code.mask, "u32")


def needs_whole_warp(code: OperationCode) -> None:
    """A missing lane is noted without any other effect, or ends the run."""
    code.together, b = True, code.builder
    with b.if_then(b.icmp_signed("!=", code.mask, WORD32(-1)), likely=False):
        code.note(code.mask, note_fault, WORD64(rules.PARTIAL_WARP), WORD64(0))
        b.ret(WORD64(layout.DONE))


def _source_lane(mode: str, lane: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
    """The lane that each lane reads, and whether it is within its segment (otherwise a lane reads itself); all s32."""
    bound, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    first = lane & segment
    last = first | (clamp & ~segment)
    if mode == "up":
        source = lane - bound
        valid = source >= last
    else:
        places = {"down": lane + bound, "bfly": lane ^ bound, "idx": first | (bound & ~segment)}
        source = places[mode]
        valid = source <= last
    return where(valid, source, lane), valid


@native("shfl")
def _shfl(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    (mode,) = form.modes
    target, value, offset, clamp, mask = instruction.operands
    first, second = asm.pair(target)

    def build(code: OperationCode) -> None:
        group = _members(code, 5)
        lane = group.each("s32", range(WARP))
        source, valid = _source_lane(mode, lane, code.source(3, "s32"), code.source(4, "s32"))
        begin = code.spread(code.builder.ptrtoint(code.row(2), WORD64), "s64")
        read = gather(code, begin + (source.to("s64") << 2), "u32", 4)
        readable = ((group >> source.as_type("u32")) & 1) != 0
        code.store(0, where(readable, read, -1))
        if second is not None:
            code.store(1, valid)

    sources = [
        asm.source(operand, type_)
        for operand, type_ in ((value, "b32"), (offset, "s32"), (clamp, "s32"), (mask, "u32"))
    ]
    places = [asm.target(first, "b32")]
    if second is not None:
        places.append(asm.target(second, "pred"))
    name = f"shfl.{mode}{'.p' * (second is not None)}"
    rows = [row for row, _ in places] + [0] * (2 - len(places))
    asm.record(NativeOperation(name, build), [*rows, *sources])
    for _, finish in places:
        finish()


@native("vote")
def _vote(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    def build(code: OperationCode) -> None:
        group = _members(code, 2)
        b = code.builder
        votes = b.and_(b.bitcast(code.source(1, "pred").value, WORD32), code.mask)
        yes = code.spread(votes, "u32") & group
        results = {
            "all": yes == group,
            "any": yes != 0,
            "uni": (yes == group) | (yes == 0),
            "ballot": yes,
        }
        code.store(0, results[form.modes[0]])

    target, vote, mask = instruction.operands
    sources = [asm.source(vote, "pred"), asm.source(mask, "u32")]
    place, finish = asm.target(target, form.type.name)
    asm.record(NativeOperation(f"vote.{form.modes[0]}", build), [place, *sources])
    finish()


@native("elect")
def _elect(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The leader is the first thread that takes part."""
    target, mask = instruction.operands
    first, second = asm.pair(target)
    if second is None:
        raise asm.unsupported("expected destinations d|p")

    def build(code: OperationCode) -> None:
        group = _members(code, 2)
        lowest = group & (group.like(0) - group)
        own = group.each("u32", [1 << lane for lane in range(WARP)])
        number = group.like(0)
        for k, pattern in enumerate((0xAAAAAAAA, 0xCCCCCCCC, 0xF0F0F0F0, 0xFF00FF00, 0xFFFF0000)):
            number = number | where((lowest & pattern) != 0, number.like(1 << k), 0)
        code.store(0, number)
        code.store(1, lowest == own)

    source = asm.source(mask, "u32")
    places = asm.target(first, "b32"), asm.target(second, "pred")
    asm.record(NativeOperation("elect", build), [*(row for row, _ in places), source])
    for _, finish in places:
        finish()


@native("match")
def _match(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    every, type_ = form.modes[0] == "all", form.type
    target, value, mask = instruction.operands
    first, second = asm.pair(target)
    if second is not None and not every:
        raise asm.unsupported("only .all has a predicate result")

    def build(code: OperationCode) -> None:
        group = _members(code, 3)
        values, same = code.source(2, type_.name), group.like(0)
        for lane in range(WARP):
            equal = values == values.shuffled([lane] * WARP)
            same = same | where(equal, group.like(1 << lane), 0)
        same = same & group
        if not every:
            code.store(0, same)
            return
        code.store(0, where(same == group, group, 0))
        code.store(1, same == group)

    sources = [asm.source(value, type_.name), asm.source(mask, "u32")]
    places = [asm.target(first, "b32"), asm.target(second or Symbol("_"), "pred")]
    name = f"match.{'all' if every else 'any'}.{type_.name}"
    asm.record(NativeOperation(name, build), [*(row for row, _ in places), *sources])
    for _, finish in places:
        finish()


def _reduce_groups(code: OperationCode, group: Lanes, operation: Any) -> None:
    """Reduce the values of each lane's group, a few lanes of the warp, and return."""
    b, scratch = code.builder, code.pointer("scratch")
    groups, values, results = (code.at(scratch, WORD64(4 * WARP * k)) for k in range(3))
    b.store(group.value, groups, align=4)
    b.store(code.source(1, "u32").value, values, align=4)
    code.call(reduce_groups, b.ptrtoint(scratch, WORD64), operation)
    code.store(0, code.load(results, "u32", WARP, align=4))
    b.ret(WORD64(layout.DONE))


@native("redux")
def _redux(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    (operation,), type_, kind = form.modes, form.type, form.type.kind
    intrinsic = {"min": f"{'s' if kind == 's' else 'u'}min", "max": f"{'s' if kind == 's' else 'u'}max"}
    neutral = {"min": (1 << (31 if kind == "s" else 32)) - 1, "max": -(1 << 31) if kind == "s" else 0, "and": -1}

    def build(code: OperationCode) -> None:
        b = code.builder
        group = _members(code, 2)
        alone = code.any_of(group != code.spread(code.mask, "u32"))
        with b.if_then(alone, likely=False):  # lanes of several groups
            number = WORD64(REDUCTIONS.index(intrinsic.get(operation, operation)))
            _reduce_groups(code, group, number)
        values = where(code.active, code.source(1, "u32"), neutral.get(operation, 0))
        name = f"llvm.vector.reduce.{intrinsic.get(operation, operation)}.v{WARP}i32"
        module = b.module
        function = module.globals.get(name) or ir.Function(module, ir.FunctionType(WORD32, [values.value.type]), name)
        code.store(0, code.spread(b.call(function, [values.value]), "u32"))

    target, value, mask = instruction.operands
    sources = [asm.source(value, type_.name), asm.source(mask, "u32")]
    place, finish = asm.target(target, type_.name)
    asm.record(NativeOperation(f"redux.{operation}.{type_.name}", build), [place, *sources])
    finish()


@native("activemask")
def _activemask(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The lanes that execute together here; the scheduler chooses them, as on hardware."""
    place, finish = asm.target(instruction.operands[0], "b32")
    asm.record(NativeOperation("activemask", lambda code: code.store(0, code.spread(code.mask, "u32"))), [place])
    finish()


@native("bar.warp", "barrier.warp")
def _bar_warp(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """The scheduler has converged the warp; this checks that all members have arrived."""

    def build(code: OperationCode) -> None:
        members = _members(code, 0)
        if asm.checked:
            b = code.builder
            whole = b.icmp_unsigned("==", b.zext(code.mask, WORD64), code.context("current_live"))
            groups = code.any_of(members != code.spread(code.mask, "u32"))
            with b.if_else(b.and_(whole, b.not_(groups))) as (together, partly):
                with together:
                    code.call(lanes_meet, b.ptrtoint(code.base, WORD64))
                with partly:
                    words = (b.ptrtoint(each, WORD64) for each in (code.registers, code.record))
                    mask = b.zext(code.mask, WORD64)
                    code.call(meet_partly, *words, mask, b.ptrtoint(code.base, WORD64))

    members = asm.source(instruction.operands[0], "u32")
    asm.record(NativeOperation(f"bar.warp{'.checked' * asm.checked}", build), [members])
