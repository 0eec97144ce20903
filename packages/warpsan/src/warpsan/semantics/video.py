"""SIMD video instructions, on two halves or four bytes of a word: vadd2, vabsdiff4 and others (PTX ISA, "SIMD Video
Instructions"). Their forms with lane masks and selectors are not modelled."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction

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
def _video(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """One operation on the halves or bytes of two words; with ``.add``, the sum of the results added to a third."""
    operation, bits = _OPERATIONS[form.name[:-1]], 32 // int(form.name[-1])
    (to, first, second), saturates, adds = form.types, "sat" in form.flags, "add" in form.flags
    if saturates and adds:
        raise asm.unsupported("either .sat or .add")
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
    name = ".".join((form.name, to.name, first.name, second.name))
    sources = [(operand, "u32") for operand in (a, b, c)]
    asm.compute(f"{name}{'.sat' * saturates}{'.add' * adds}", function, [(d, "u32")], sources)
