"""Words of the ring on :class:`~warpsan.engine.lanes.Lanes`: their meaning, and the ring's operations.

:mod:`warpsan.numerics.ring` defines a word. Here a word is a u32; those of 16 and 8 bits are widened to one first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from warpsan.engine.arrays import Array
from warpsan.engine.lanes import POINTER, WORD32, WORD64, Lanes, llvm_type, where, where_any
from warpsan.engine.numeric import copysign, magnitude, widened
from warpsan.numerics.ring import EXPONENTS, LARGE, LN_2, Ring

__all__ = ["RingWords", "Value"]

_LARGEST = float(np.finfo(np.float32).max)
_LEAST = 1e-30

_SIGN = 1 << 31
_NAN = 0x7FFFFFFF
_INFINITE = 0x7F800000

_LARGE16 = {
    "f16": {0xFC00: 0xFF800000, 0xFBFF: 0xFF7FFFFF, 0xFFFE: 0x7F800000, 0xFFFD: 0x7F7FFFFF, 0xFFFF: _NAN},
    "bf16": {0xFF80: 0xFF800000, 0xFF7F: 0xFF7FFFFF, 0xFFFE: 0x7F800000, 0xFFFD: 0x7F7FFFFF, 0xFFFF: _NAN},
}
"""Large words and NaN in 16 bits, and as float32: -inf, -max, +inf, +max. The positive ones of 16 bits are codes."""


@dataclass(frozen=True)
class Value:
    """The meaning of words.

    Attributes
    ----------
    code : Lanes
        u32, below the modulus; 0 for large words and NaN.
    constant : Lanes
        Whether the word is a constant, and not a code.
    large : Lanes
        Whether it is large or NaN.
    shadow : Lanes
        f32: the number of a constant or large word, 1 for a code.
    """

    code: Lanes
    constant: Lanes
    large: Lanes
    shadow: Lanes


class RingWords:
    """The operations of a ring on words."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    # ---- what a word stands for --------------------------------------------------------------------------------------

    def value(self, word: Lanes) -> Value:
        """The meaning of words."""
        constant, number = word >= self.ring.modulus, word.as_type("f32")
        large = constant & ~(magnitude(number) < LARGE)

        def compute() -> tuple[Lanes, Lanes]:
            size = magnitude(number)
            code = where(large, word.like(0), where(constant, self._code_of_constant(word, large), word))
            extreme = where(size < float("inf"), copysign(number.like(_LARGEST), number), number)
            return code, where(constant, where(large, extreme, number), 1)

        code, shadow = where_any(constant, (word, number.like(1)), compute)
        return Value(code, constant, large, shadow)

    def _code_of_constant(self, word: Lanes, large: Lanes) -> Lanes:
        """The code of a constant; undefined for a large word."""
        ring = self.ring
        exponent, mantissa = (word >> 23) & 0xFF, (word & 0x7FFFFF) | 0x800000
        # The power of 2 in the mantissa, from the exponent of its lowest bit as a float.
        twos = ((mantissa & -mantissa).to("f32").as_type("u32") >> 23) - 127
        place = where(large, word.like(0), exponent + twos)
        power = looked_up(ring, "twos", place)
        code = (mantissa >> twos) % ring.modulus * power % ring.modulus
        code = where((word & (_SIGN - 1)) == int(LN_2.view(np.uint32)), word.like(ring.ln_2), code)
        code = where(exponent == 0, (word & (_SIGN - 1)) % ring.modulus, code)
        return where((word & _SIGN) != 0, self.negated(code), code)

    def negated(self, code: Lanes) -> Lanes:
        """-x of a code."""
        return where(code == 0, code, code.like(self.ring.modulus) - code)

    def ordered(self, word: Lanes, *, spaced: bool = True) -> Lanes:
        """Words as f32 for comparison: codes by their number times the ring's spacing, constants and large words by
        their values. For equality they are not ``spaced``: the code of 1 is 1."""
        value, number = self.value(word), word.as_type("s32").to("f32")
        spacing = self.ring.spacing if spaced else 1.0
        return where(value.constant, value.shadow, number if spacing == 1.0 else number * spacing)

    # ---- arithmetic --------------------------------------------------------------------------------------------------

    def add(self, a: Lanes, b: Lanes) -> Lanes:
        """a + b of words."""
        x, y = self.value(a), self.value(b)
        return self._with_large(self._sum(x.code, y.code), [x, y], x.shadow + y.shadow)

    def sub(self, a: Lanes, b: Lanes) -> Lanes:
        """a - b of words."""
        x, y = self.value(a), self.value(b)
        return self._with_large(self._sum(x.code, self.negated(y.code)), [x, y], x.shadow - y.shadow)

    def mul(self, a: Lanes, b: Lanes) -> Lanes:
        """a b of words."""
        x, y = self.value(a), self.value(b)
        return self._with_large(x.code * y.code % self.ring.modulus, [x, y], x.shadow * y.shadow)

    def fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        """a b + c of words."""
        x, y, z = self.value(a), self.value(b), self.value(c)
        code = self._sum(x.code * y.code % self.ring.modulus, z.code)
        return self._with_large(code, [x, y, z], x.shadow * y.shadow + z.shadow)

    def rcp(self, a: Lanes) -> Lanes:
        """1 / a of words."""
        x = self.value(a)
        one = a.like(1).to("f32")
        zero = x.code == 0
        code = self._sum(
            looked_up(self.ring, "inverses.prime", x.code % self.ring.prime),
            looked_up(self.ring, "inverses.order", x.code % self.ring.order),
        )
        result = self._with_large(code, [x], one / x.shadow)
        return where(zero & ~x.large, a.like(_INFINITE), result)

    def div(self, a: Lanes, b: Lanes) -> Lanes:
        """a / b of words."""
        return self.mul(a, self.rcp(b))

    def ex2(self, a: Lanes) -> Lanes:
        """2^a of words: g^a."""
        x = self.value(a)
        code = looked_up(self.ring, "powers", x.code % self.ring.order)
        of_large = where(x.shadow < 0, x.shadow.like(0), x.shadow)
        return self._with_large(code, [x], of_large)

    def lg2(self, a: Lanes) -> Lanes:
        """The logarithm of words; -inf for 0 mod p."""
        x = self.value(a)
        rest = x.code % self.ring.prime
        code = looked_up(self.ring, "logarithms", rest)
        of_large = where(x.shadow < 0, a.like(_NAN).as_type("f32"), x.shadow)
        result = self._with_large(code, [x], of_large)
        return where((rest == 0) & ~x.large, a.like(_SIGN | _INFINITE), result)

    def neg(self, a: Lanes) -> Lanes:
        """-a of words; a constant stays one."""
        return where(a >= self.ring.modulus, a ^ _SIGN, self.negated(a))

    def magnitude(self, a: Lanes) -> Lanes:
        """|a| of words: a code has no sign."""
        return where(a >= self.ring.modulus, a & (_SIGN - 1), a)

    def copysign(self, sign: Lanes, a: Lanes) -> Lanes:
        """a with a constant's sign."""
        signed = where(sign >= self.ring.modulus, sign & _SIGN, sign.like(0))
        size = self.magnitude(a)
        return where(signed != 0, self.neg(size), size)

    def extremum(self, a: Lanes, b: Lanes, *, larger: bool) -> Lanes:
        """The larger or the smaller of words, in their order; the other word if one is a NaN."""
        x, y = self.ordered(a), self.ordered(b)
        chosen = where(x > y if larger else x < y, a, b)
        return where(x.nan, b, where(y.nan, a, chosen))

    def _sum(self, a: Lanes, b: Lanes) -> Lanes:
        """Negation of codes."""
        total = a + b
        return where(total >= self.ring.modulus, total - self.ring.modulus, total)

    def _with_large(self, code: Lanes, sources: Sequence[Value], number: Lanes) -> Lanes:
        """A code as a word; if a source is large or NaN, the floating-point result."""
        large = sources[0].large
        for source in sources[1:]:
            large = large | source.large

        def compute() -> tuple[Lanes]:
            infinite = magnitude(sources[0].shadow) == float("inf")
            for source in sources[1:]:
                infinite = infinite | (magnitude(source.shadow) == float("inf"))
            size = magnitude(number)
            # Only infinite numbers make infinities: the size of a mask's number has no meaning.
            extreme = copysign(number.like(_LARGEST), number)
            held = where((size < float("inf")) | infinite | number.nan, number, extreme)
            held = where((size >= LARGE) & (size < float("inf")), extreme, held)
            held = where(size < _LEAST, held.like(0), held)
            word = where(held.nan, code.like(_NAN), held.as_type("u32"))
            return (where(large, word, code),)

        (result,) = where_any(large, (code,), compute)
        return result

    # ---- narrower words ----------------------------------------------------------------------------------------------

    def widened(self, half: Lanes, type_: str) -> Lanes:
        """Words of f16 or bf16 as words of 32 bits."""
        word = half.to("u32")
        wide = widened(half.as_type("u16"), type_).as_type("u32")
        for short, long in _LARGE16[type_].items():
            wide = where(word == short, word.like(long), wide)
        return where(word < self.ring.modulus, word, wide)

    def narrowed(self, word: Lanes, type_: str) -> Lanes:
        """Words of 32 bits as those of f16 or bf16: codes, large ones and NaN."""
        value = self.value(word)
        result = where(value.large, word.like(0xFFFF), value.code)
        for short, long in _LARGE16[type_].items():
            large = value.large & (value.shadow.as_type("u32") == long)
            result = where(large, word.like(short), result)
        return result.to("u16")

    def widened8(self, byte: Lanes) -> Lanes:
        """Words of 8 bits as words of 32 bits; values other than codes are NaN."""
        word = byte.to("u32")
        return where(word < self.ring.modulus, word, word.like(_NAN))

    def narrowed8(self, word: Lanes) -> Lanes:
        """Words of 32 bits as those of 8, in a u32; a large word is NaN."""
        value = self.value(word)
        return where(value.large, word.like(0xFF), value.code)

    def factor(self, word: Lanes) -> Lanes:
        """Words as f32, for a matrix product: the code's number, or NaN for large ones."""
        value = self.value(word)
        number = value.code.as_type("s32").to("f32")
        return where(value.large, number.like(float("nan")), number)

    def remainder(self, total: Lanes) -> Lanes:
        """Sums of products of factors, f64, as words: their code, or NaN."""
        modulus = float(self.ring.modulus)
        whole = where(total.nan, total.like(0), total)
        rest = whole - (whole * (1 / modulus)).call("floor") * modulus  # off by at most one modulus
        rest = where(rest < 0, rest + modulus, rest)
        rest = where(rest >= modulus, rest - modulus, rest)
        return where(total.nan, whole.constant("u32", _NAN), rest.to("s32").as_type("u32"))


def _tables(ring: Ring) -> dict[str, Callable[[], Array]]:
    return {
        "powers": lambda: ring.powers,
        "logarithms": lambda: ring.logarithms,
        "inverses.prime": lambda: ring.inverses[0],
        "inverses.order": lambda: ring.inverses[1],
        "twos": lambda: ring.twos,
    }


assert EXPONENTS.start == -150, "a float's exponent is the place in the table of powers of 2"


def looked_up(ring: Ring, table: str, place: Lanes) -> Lanes:
    """Elements of one of a ring's tables, at valid indices."""
    b = place.builder
    module, name = b.module, f"{ring.arithmetic}.{table}"
    if name not in module.globals:
        values = [ir.Constant(WORD32, int(value)) for value in _tables(ring)[table]()]
        array = ir.Constant(ir.ArrayType(WORD32, len(values)), values)
        held = ir.GlobalVariable(module, array.type, name)
        held.linkage, held.global_constant, held.initializer = "internal", True, array
    begin = b.ptrtoint(module.globals[name], WORD64)
    count, type_ = place.count, llvm_type("u64", place.count)
    one = b.insert_element(ir.Constant(type_, ir.Undefined), begin, WORD32(0))
    begins = b.shuffle_vector(one, one, ir.Constant(llvm_type("u32", count), [0] * count))
    offsets = (place.to("u64") << 2).value
    pointers = b.inttoptr(b.add(begins, offsets), ir.VectorType(POINTER, count))
    everyone = ir.Constant(llvm_type("pred", count), [1] * count)
    vector = llvm_type("u32", count)
    gather = f"llvm.masked.gather.v{count}i32.v{count}p0"
    signature = ir.FunctionType(vector, [pointers.type, WORD32, everyone.type, vector])
    function = module.globals.get(gather) or ir.Function(module, signature, gather)
    nothing = ir.Constant(vector, ir.Undefined)
    return Lanes(b, b.call(function, [pointers, WORD32(4), everyone, nothing]), "u32")
