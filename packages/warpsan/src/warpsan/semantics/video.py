"""SIMD video instructions, on two halves or four bytes of a word: vadd2, vabsdiff4 and others (PTX ISA, "SIMD Video
Instructions"). Their forms with lane masks and selectors are not modelled."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.ptx.ir import Instruction
from warpsan.ptx.modifiers import Mods, require

__all__: list[str] = []

_OPERATIONS: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vavrg": lambda x, y: (x + y + (x + y >= 0).to("s32")) >> 1,
    "vabsdiff": lambda x, y: where(x > y, x - y, y - x),
    "vmin": lambda x, y: where(x < y, x, y),
    "vmax": lambda x, y: where(x > y, x, y),
}


@native(*(f"{name}{lanes}" for name in _OPERATIONS for lanes in (2, 4)))
def _video(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """One operation on the halves or bytes of two words; with ``.add``, the sum of the results added to a third."""
    types = [mods.type() for _ in range(3)]
    for type_ in types:
        require(mods, type_, ("u32", "s32"))
    saturates, adds = mods.flag("sat"), mods.flag("add")
    mods.done()
    if saturates and adds:
        raise mods.unsupported("either .sat or .add")
    operation, bits = _OPERATIONS[instruction.opcode[:-1]], 32 // int(instruction.opcode[-1])
    to, first, second = types
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to.signed else (0, (1 << bits) - 1)

    def part(words: Lanes, k: int, kind: str) -> Lanes:
        """Part ``k`` of u32 words as a number."""
        return ((words << 32 - bits * (k + 1)).as_type(kind) >> 32 - bits).as_type("s32")

    def function(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
        total = z if adds else z.like(0)
        for k in range(32 // bits):
            result = operation(part(x, k, first.name), part(y, k, second.name))
            if adds:
                total = total + result.as_type("u32")
                continue
            if saturates:
                result = where(result < low, result.like(low), where(result > high, result.like(high), result))
            total = total | (result.as_type("u32") & (1 << bits) - 1) << k * bits
        return total

    d, a, b, c = instruction.operands
    name = ".".join((instruction.opcode, *(type_.name for type_ in types)))
    sources = [(operand, "u32") for operand in (a, b, c)]
    asm.compute(f"{name}{'.sat' * saturates}{'.add' * adds}", function, [(d, "u32")], sources)
