"""Sums and products with the carry flag (PTX ISA, "Extended-Precision Integer Arithmetic")."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction, Operand
from warpsan.semantics.integer import product_part

__all__: list[str] = []


@native("add.cc", "sub.cc", "addc", "subc")
def _sum(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    subtracts, bits = form.name.startswith("sub"), f"u{form.type.bits}"
    d, a, b = instruction.operands

    def function(x: Lanes, y: Lanes, *carry: Lanes) -> tuple[Lanes, Lanes]:
        total = x - y if subtracts else x + y
        return _with_carry(total, x < y if subtracts else total < x, carry, subtracts=subtracts)

    name = f"{'sub' if subtracts else 'add'}.{bits}"
    carry_in = form.name in ("addc", "subc")
    _carried(asm, name, function, d, [(a, bits), (b, bits)], carry_in=carry_in, carry_out=_carries(form))


@native("mad.lo.cc", "mad.hi.cc", "madc.lo", "madc.hi")
def _product(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    mode, type_, bits = form.name.split(".")[1], form.type, f"u{form.type.bits}"
    d, a, b, c = instruction.operands

    def function(x: Lanes, y: Lanes, z: Lanes, *carry: Lanes) -> tuple[Lanes, Lanes]:
        product = product_part(mode, type_, x, y).as_type(bits)
        total = product + z
        return _with_carry(total, total < product, carry, subtracts=False)

    sources = [(a, type_.name), (b, type_.name), (c, bits)]
    name, carry_in = f"mad.{mode}.{type_.name}", form.name.startswith("madc")
    _carried(asm, name, function, d, sources, carry_in=carry_in, carry_out=_carries(form))


def _carries(form: Computation) -> bool:
    return form.name.endswith("cc") or "cc" in form.flags


def _with_carry(total: Lanes, over: Lanes, carry: tuple[Lanes, ...], *, subtracts: bool) -> tuple[Lanes, Lanes]:
    """An unsigned sum or difference, and whether it left the type's range, with an optional carry or borrow in."""
    for each in carry:
        bit = each.to(total.type)
        over = over | (total < bit if subtracts else total + bit < total)
        total = total - bit if subtracts else total + bit
    return total, over


def _carried(
    asm: Assembler,
    name: str,
    function: Callable[..., tuple[Lanes, Lanes]],
    target: Operand,
    sources: list[tuple[Operand, str]],
    *,
    carry_in: bool,
    carry_out: bool,
) -> None:
    """Append the record of an operation with the carry flag as second result, and perhaps as last source."""
    types, flag = [type_ for _, type_ in sources], asm.hidden("carry", 1)
    rows = [asm.source(operand, type_) for operand, type_ in sources]
    bits = types[-1]
    row, finish = asm.target(target, bits)
    places = [row, flag if carry_out else asm.temporary(1)]
    if carry_in:
        rows, types = [*rows, flag], [*types, "pred"]
    asm.lanewise(f"carry.{name}{'.in' * carry_in}", function, places, rows, [bits, "pred"], types)
    finish()
