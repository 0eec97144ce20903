"""SIMD video instructions, on two halves or four bytes of a word: vadd2, vabsdiff4 and others (PTX ISA, "SIMD Video
Instructions"). Their forms with lane masks and selectors are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.steps import computed
from sdpalab.sim.modifiers import Mods, require
from sdpalab.sim.selection import Array
from sdpalab.sim.types import TYPES

__all__: list[str] = []


_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": lambda x, y: x + y + (x + y >= 0) >> 1,
    "vabsdiff": lambda x, y: np.abs(x - y),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


@opcode(*(f"{name}{lanes}" for name in _OPERATIONS for lanes in (2, 4)))
def _lanes(decoder: Decoder, instruction: Instruction) -> Step:
    """One operation on the halves or bytes of two words; with ``.add``, the sum of the results added to a third."""
    mods = Mods(instruction)
    types = [mods.type() for _ in range(3)]
    for type_ in types:
        require(mods, type_, ("u32", "s32"))
    saturates, adds = mods.flag("sat"), mods.flag("add")
    mods.done()
    if saturates and adds:
        raise mods.unsupported("either .sat or .add")
    operation, bits = _OPERATIONS[instruction.opcode[:-1]], 32 // int(instruction.opcode[-1])
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    to, first, second = types
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to.signed else (0, (1 << bits) - 1)
    d = decoder.dst(instruction, instruction.operands[0], TYPES["u32"])
    a, b, c = (decoder.src(instruction, instruction.operands[k], TYPES["u32"]) for k in (1, 2, 3))

    def parts(words: Array, signed: bool) -> Array:
        values: Array = (words[:, None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.int64)
        if signed:
            values -= values >> bits - 1 << bits
        return values

    def function(x: Array, y: Array, z: Array) -> Array:
        results = operation(parts(x, first.signed), parts(y, second.signed))
        if adds:
            total: Array = z + results.sum(axis=1)
            return total.astype(np.uint32)
        if saturates:
            results = np.clip(results, low, high)
        lanes: Array = (results & (1 << bits) - 1).astype(np.uint32) << shifts
        result: Array = np.bitwise_or.reduce(lanes, axis=1)
        return result

    return computed(function, d, a, b, c)
