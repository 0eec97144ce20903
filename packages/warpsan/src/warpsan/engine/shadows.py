"""Shadows of registers that may be undefined, and the records that check them.

Such a register has a shadow row, whose bits are 1 for its undefined bits. If undefined bytes of shared memory are
tracked, a row of origins follows: the pc, plus one, of the load or the store to shared memory that the bits came from,
or 0 if the register was never set. A use of an undefined value is noted (:func:`warpsan.engine.hazards.note_reached`),
or ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from warpsan.analysis.definedness import Undefined
from warpsan.engine import rules
from warpsan.engine.assembler import Assembler, bits_of
from warpsan.engine.hazards import note_fault, note_reached
from warpsan.engine.lanes import WORD64, Lanes, where
from warpsan.engine.layout import OPERANDS, RECORD_WORDS
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.ptx.ir import Immediate, Register
from warpsan.ptx.types import TYPES

__all__ = [
    "SHADOW",
    "add_shadows",
    "all_undefined_where",
    "any_undefined",
    "has_shadow",
    "never_set",
    "origin_row",
    "pass_origins_on",
    "set_shadow",
    "shadow_bytes",
    "shadow_row",
    "shadow_type",
    "use_registers",
]

SHADOW = "~"
"""Prefix of a register's name that gives the name of its shadow."""
_ORIGIN = "^"
"""... and of its origins."""
_MANY = RECORD_WORDS - OPERANDS
_AT_ONCE = 4
"""Number of operands whose shadows one record checks, with their origins."""


def add_shadows(asm: Assembler, undefined: Undefined) -> None:
    """Give registers that may be undefined their shadows: all ones at first."""
    for name in sorted(undefined.registers):
        type_ = asm.types.get(name)
        if type_ is None:
            continue  # damaged PTX: decoding reports it
        row = asm.allocate(bits_of(type_))
        asm.types[SHADOW + name], asm.rows[SHADOW + name] = type_, row
        if type_.kind == "pred":
            asm.ones.append(row)
        if asm.tracking:
            asm.types[_ORIGIN + name], asm.rows[_ORIGIN + name] = TYPES["u32"], asm.hidden(_ORIGIN + name, 32)


def has_shadow(asm: Assembler, name: str) -> bool:
    """Whether a register may be undefined somewhere."""
    return SHADOW + name in asm.rows


def shadow_row(asm: Assembler, name: str) -> int:
    """The row of a register's shadow."""
    return asm.rows[SHADOW + name]


def origin_row(asm: Assembler, name: str) -> int:
    """The row of the origins of a register's undefined bits."""
    return asm.rows[_ORIGIN + name]


def shadow_type(asm: Assembler, name: str) -> str:
    """The type of a register's shadow."""
    type_ = asm.types[SHADOW + name]
    return "pred" if type_.kind == "pred" else f"b{type_.bits}"


def shadow_bytes(asm: Assembler, name: str) -> int:
    """The bytes of an element of a register's shadow."""
    return max(1, asm.types[SHADOW + name].bits // 8)


def set_shadow(asm: Assembler, name: str, value: int) -> None:
    """Set all bits of a register to undefined (1) or defined (0)."""
    type_ = shadow_type(asm, name)
    constant = asm.source(Immediate(-value if type_ != "pred" else value), type_)
    asm.lanewise(f"mov.{type_}", lambda x: x, [shadow_row(asm, name)], [constant], [type_], [type_])


# ---- what follows from operands --------------------------------------------------------------------------------------


def any_undefined(asm: Assembler, names: Sequence[str]) -> int:
    """Append records that find the lanes in which any of these registers is undefined. Returns the row of that
    predicate."""
    flag = asm.temporary(1)
    asm.lanewise("mov.pred", lambda x: x, [flag], [asm.number(0, "pred")], ["pred"], ["pred"])
    for begin in range(0, len(names), _AT_ONCE):
        part = names[begin : begin + _AT_ONCE]
        types = [shadow_type(asm, name) for name in part]
        rows = [shadow_row(asm, name) for name in part]
        asm.lanewise(f"undefined.any.{'.'.join(types)}", _any, [flag], [flag, *rows], ["pred"], ["pred", *types])
    return flag


def _bad(shadow: Lanes) -> Lanes:
    return shadow if shadow.type == "pred" else shadow != 0


def _any(*shadows: Lanes) -> Lanes:
    return reduce(lambda one, other: one | other, map(_bad, shadows))


def all_undefined_where(asm: Assembler, flag: int, names: Sequence[str], *, else_defined: bool = False) -> None:
    """Append records that make all bits of registers undefined in the lanes of a predicate, and keep or define the
    others."""
    for name in names:
        type_, row = shadow_type(asm, name), shadow_row(asm, name)
        before = asm.source(Immediate(0), type_) if else_defined else row
        asm.lanewise(f"undefined.where.{type_}", _ones_where, [row], [flag, before], [type_], ["pred", type_])


def _ones_where(condition: Lanes, before: Lanes) -> Lanes:
    return where(condition, before.like(-1), before)


def pass_origins_on(asm: Assembler, sources: Sequence[str], targets: Sequence[str], *, across: bool = False) -> None:
    """Append records that give registers the greatest origin of the undefined ones among others; ``across``: of all
    lanes. They precede a change of the shadows."""
    greatest = asm.temporary(32)
    asm.lanewise("mov.b32", lambda x: x, [greatest], [asm.number(0, "b32")], ["b32"], ["b32"])
    for begin in range(0, len(sources), _AT_ONCE):
        part = sources[begin : begin + _AT_ONCE]
        types = [shadow_type(asm, name) for name in part]
        rows = [*(shadow_row(asm, name) for name in part), *(origin_row(asm, name) for name in part)]
        kinds = ["u32", *types, *["u32"] * len(part)]
        asm.lanewise(f"undefined.origin.{'.'.join(types)}", _greatest, [greatest], [greatest, *rows], ["u32"], kinds)
    if across:
        asm.record(NativeOperation("undefined.origin.across", _greatest_of_warp), [greatest])
    for name in targets:
        asm.lanewise("mov.b32", lambda x: x, [origin_row(asm, name)], [greatest], ["b32"], ["b32"])


def _greatest(before: Lanes, *rest: Lanes) -> Lanes:
    result, many = before, len(rest) // 2
    for shadow, origin in zip(rest[:many], rest[many:], strict=True):
        mine = where(_bad(shadow), origin, 0)
        result = where(mine > result, mine, result)
    return result


def _greatest_of_warp(code: OperationCode) -> None:
    mine = where(code.active, code.source(0, "u32"), 0)
    code.store(0, code.spread(mine.greatest(), "u32"))


# ---- uses ------------------------------------------------------------------------------------------------------------


def use_registers(
    asm: Assembler, names: Sequence[str], role: str, width: int = 0, *, fault: int = rules.NEVER_SET
) -> None:
    """Append records that note the lanes in which registers used in a role are undefined, or end the run there; for
    a stored register, the low ``width`` bits count. ``fault`` is the kind of fault if undefined bytes are not
    tracked."""
    most = _MANY // 2 if asm.tracking else _MANY
    kinds = [f"b{width}" if width else shadow_type(asm, name) for name in names]
    begin = 0
    while begin < len(names):
        end = begin + 1
        while end < len(names) and end < begin + most and kinds[end] == kinds[begin]:
            end += 1
        part, type_ = names[begin:end], kinds[begin]
        rows = [asm.source(Register(SHADOW + name), type_) for name in part]
        asm.uses[len(asm.records)] = tuple((name, role) for name in part)
        if asm.tracking:
            rows += [origin_row(asm, name) for name in part]
        build = partial(_used, type_=type_, many=len(part), tracking=asm.tracking, fault=fault)
        kind = f"{type_}.{len(part)}.{'origins' if asm.tracking else fault}"
        asm.record(NativeOperation(f"undefined.use.{kind}", build), rows)
        begin = end


def _used(code: OperationCode, *, type_: str, many: int, tracking: bool, fault: int) -> None:
    b = code.builder
    for k in range(many):
        lanes = code.those(_bad(code.source(k, type_)))
        if tracking:
            code.note(lanes, note_reached, WORD64(k), b.ptrtoint(code.row(many + k), WORD64))
        else:
            code.note(lanes, note_fault, WORD64(fault), WORD64(k))


def never_set(asm: Assembler, name: str, role: str, width: int = 0, *, forget: bool = True) -> None:
    """Append records that note the lanes in which a register used in a role was never set; it then counts as set
    there, unless that is disabled. For a stored register, the low ``width`` bits count."""
    type_ = shadow_type(asm, name)
    looked_at = f"b{width}" if width and type_ != "pred" and width < int(type_[1:]) else type_
    row = shadow_row(asm, name)
    operands = [row, origin_row(asm, name), asm.source(Register(SHADOW + name), looked_at)]

    def build(code: OperationCode) -> None:
        bad = _bad(code.source(2, looked_at)) & (code.source(1, "u32") == 0)
        code.note(code.those(bad), note_fault, WORD64(rules.NEVER_SET), WORD64(0))
        if forget:
            shadow = code.source(0, type_)
            code.store(0, shadow & ~bad if type_ == "pred" else where(bad, shadow.like(0), shadow))

    asm.uses[len(asm.records)] = ((name, role),)
    kind = f"{looked_at}.{type_}{'.forget' * forget}"
    asm.record(NativeOperation(f"undefined.unset.{kind}", build), operands)
