"""The ring of ``numerics="ring"``: the integers mod p (p - 1), for a prime p.

A code has a residue mod p, for sums and weights, and a residue mod p - 1, for exponents. Addition and multiplication
are the ring's. ``ex2(x)`` is g^x mod p for a primitive root g, and 1 mod p - 1, so ``ex2(x + y) = ex2(x) ex2(y)``
exactly. ``lg2`` is its inverse, the discrete logarithm. ``rcp`` inverts mod p, and mod p - 1 if an inverse exists.
Conversions keep the code. ``docs/algebra.md`` proves that correct attention has correct outputs in the ring, and lists
the exceptions.

**Words.** An array element is a code as an unsigned integer in the element's bits: 16 bits hold the 62,750 codes of p =
251, 8 bits the 156 codes of p = 13. Words from p (p - 1) on are floating-point constants:

- a finite constant below 10,000 is m 2^e with m odd, and represents the code of that number: exact mod p and mod the
odd
  part of p - 1, where 2 has an inverse. Mod the power of 2 in p - 1 an integer represents itself, and a fraction m. A
  product of constants is therefore the constant of the product. ln 2 represents the inverse of log2 e;
- an infinite constant, or a finite one from 10,000 on (a mask value), is *large*. Arithmetic with a large word is
  floating-point arithmetic, with 1 in place of a code: ``x - (-inf)`` is +inf, ``ex2(-inf)`` is 0;
- a NaN stays NaN.

**Order.** The order of two codes has no meaning: codes are ordered by their number times :attr:`Ring.spacing`,
constants by their value. Equality of codes is meaningful.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np

from warpsan.engine.arrays import Array

__all__ = ["LARGE", "LN_2", "LOG2_E", "RINGS", "Ring", "has_eight_bits", "ring_of"]

LARGE = 1e4
"""Constants of at least this magnitude count as infinite: masks use -1e4, -1e9, -FLT_MAX, -inf."""
LOG2_E, LN_2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
EXPONENTS = range(-150, 14)
"""Exponents of 2 in constants below :data:`LARGE`."""
_EIGHT_BITS = re.compile(r"\.(e4m3|e5m2)")


@dataclass(frozen=True)
class Ring:
    """The integers mod p (p - 1).

    Attributes
    ----------
    prime : int
        p.
    root : int
        A primitive root g mod p.
    spacing : float
        Distance of neighbouring codes in comparisons with constants. The order has no meaning, but a threshold should
        have codes on both sides: by their number all codes mod 13 * 12 are below 448, and nearly all mod 251 * 250
        above it.
    """

    prime: int
    root: int
    spacing: float = 1.0

    @property
    def name(self) -> str:
        """Name, as in the option ``numerics``."""
        order = "" if self.spacing == 1.0 else "-near" if self.spacing < 1.0 else "-far"
        return f"{self.arithmetic}{order}"

    @property
    def arithmetic(self) -> str:
        """Name without the order of codes."""
        return f"ring-{self.prime}"

    @property
    def order(self) -> int:
        """p - 1, the modulus of exponents."""
        return self.prime - 1

    @property
    def modulus(self) -> int:
        """Number of codes."""
        return self.prime * self.order

    @property
    def even(self) -> int:
        """The largest power of 2 in p - 1."""
        return self.order & -self.order

    @property
    def odd(self) -> int:
        """The odd part of p - 1."""
        return self.order // self.even

    def code(self, by_prime: int, by_odd: int, by_even: int) -> int:
        """The code with these residues mod p, and mod the odd and the even part of p - 1."""
        total = 0
        for part, residue in ((self.prime, by_prime), (self.odd, by_odd), (self.even, by_even)):
            others = self.modulus // part
            total += residue % part * others * (pow(others, -1, part) if part > 1 else 0)
        return total % self.modulus

    # ---- tables ------------------------------------------------------------------------------------------------------

    @cached_property
    def powers(self) -> Array:
        """``ex2`` by exponent mod p - 1, uint32."""
        return self._table(self.code(pow(self.root, x, self.prime), 1, 1) for x in range(self.order))

    @cached_property
    def logarithms(self) -> Array:
        """``lg2`` by argument mod p, uint32; the entry of 0 is arbitrary."""
        table = np.zeros(self.prime, np.uint32)
        table[[pow(self.root, x, self.prime) for x in range(self.order)]] = np.arange(self.order)
        return table

    @cached_property
    def inverses(self) -> tuple[Array, Array]:
        """``rcp`` as a sum of two codes, by argument mod p and mod p - 1, uint32.

        Mod the even part of p - 1, an argument without an inverse maps to 1, like the constant 1 / x: x / 8 equals x
        times 0.125.
        """

        def inverse(x: int, part: int, otherwise: int) -> int:
            return pow(x, -1, part) if part > 1 and gcd(x, part) == 1 else otherwise

        by_prime = self._table(self.code(inverse(x, self.prime, 0), 0, 0) for x in range(self.prime))
        by_order = self._table(
            self.code(0, inverse(x, self.odd, 0), inverse(x, self.even, 1)) for x in range(self.order)
        )
        return by_prime, by_order

    @cached_property
    def twos(self) -> Array:
        """2^e for each e of :data:`EXPONENTS`, uint32."""
        half = pow(2, -1, self.prime), pow(2, -1, self.odd)
        return self._table(
            pow(2, e, self.modulus)
            if e >= 0
            else self.code(pow(half[0], -e, self.prime), pow(half[1], -e, self.odd), 1)
            for e in EXPONENTS
        )

    @cached_property
    def ln_2(self) -> int:
        """The code of ln 2: the inverse of float32 log2 e."""
        code = self.constant(float(LOG2_E))
        return self.code(pow(code, -1, self.prime), pow(code, -1, self.odd), pow(code, -1, self.even))

    def _table(self, values: Any) -> Array:
        return np.array(list(values), np.uint32)

    # ---- values in Python --------------------------------------------------------------------------------------------

    def constant(self, value: float) -> int:
        """The code of a floating-point constant below :data:`LARGE`, rounded to float32.

        Raises
        ------
        ValueError
            If the constant has no code.
        """
        single = np.float32(value)
        if not abs(single) < LARGE:
            raise ValueError(f"{value} is no constant of the ring: it must be below {LARGE:g}")
        if abs(single) == LN_2:
            code = self.ln_2
        else:
            numerator, denominator = abs(float(single)).as_integer_ratio()
            twos = (numerator & -numerator).bit_length() - 1 if numerator else 0
            exponent = twos - (denominator.bit_length() - 1)
            code = (numerator >> twos) * int(self.twos[exponent - EXPONENTS.start]) % self.modulus
        return (self.modulus - code) % self.modulus if single < 0 else code

    def elements(self, draws: Array) -> Array:
        """Codes (int64) for the elements of a kernel's inputs, from random 16-bit numbers.

        ``draws`` is [B, H, S, D]. In a ring for 8-bit types the codes have inverses, because a quantising kernel
        divides by the largest. The largest code differs by head and by group of 32 rows, so that scales differ.
        """
        if self.modulus > 1 << 8:
            return draws.astype(np.int64) % self.modulus
        units = np.array([code for code in range(self.modulus) if gcd(code, self.modulus) == 1], np.int64)
        b, h, s = (np.arange(size) for size in draws.shape[:3])
        most = (3 * b[:, None, None] + 7 * h[:, None] + 5 * (s // 32)) % (len(units) // 2) + len(units) // 2
        codes: Array = units[draws.astype(np.int64) % most[..., None]]
        return codes

    def encoded(self, codes: Array, dtype: Any) -> Array:
        """Codes as an array of a 16- or 32-bit floating-point type, in its bits."""
        held = np.dtype(dtype)
        words: Array = np.ascontiguousarray(codes).astype(np.dtype(f"u{held.itemsize}")).view(held)
        return words

    def decoded(self, array: Array) -> tuple[Array, Array]:
        """Codes (int64) of an array of 16- or 32-bit floating-point words, and a mask of the valid ones.

        NaN and large words are invalid.
        """
        words = np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}")).astype(np.int64)
        codes, known = words.copy(), words < self.modulus
        with np.errstate(all="ignore"):
            floats = array.astype(np.float32)
        finite = np.abs(floats) < LARGE
        for place in zip(*np.nonzero(~known & finite), strict=True):
            codes[place] = self.constant(float(floats[place]))
        codes[~known & ~finite] = 0
        return codes, known | finite

    def product(self, left: Array, right: Array, dtype: Any) -> Array:
        """Matrix product of arrays of words, as words of a type; NaN for invalid factors."""
        (a, a_known), (b, b_known) = self.decoded(left), self.decoded(right)
        words = self.encoded(np.matmul(a, b) % self.modulus, dtype)
        unknown = np.matmul(~a_known, np.ones_like(b_known)) | np.matmul(np.ones_like(a_known), ~b_known)
        words.view(np.uint8).reshape(*words.shape, -1)[unknown] = 0xFF
        return words


RINGS = {ring.name: ring for ring in (Ring(251, 6), Ring(13, 2), Ring(251, 6, 2.0**-13), Ring(13, 2, 64.0))}
"""Rings by their ``numerics`` name. Each has a second order of codes: codes mod 251 * 250 are then all below 8, and
codes mod 13 * 12 reach up to 9,920.
"""


def ring_of(numerics: str, *, eight_bits: bool, reordered: bool = False) -> Ring | None:
    """The ring for a value of ``numerics``; None for other values.

    ``ring`` selects p = 13 for code with 8-bit floating-point types, and p = 251 otherwise; ``reordered`` selects the
    second order of codes.
    """
    if numerics != "ring":
        return RINGS.get(numerics)
    if eight_bits:
        return RINGS["ring-13-far" if reordered else "ring-13"]
    return RINGS["ring-251-near" if reordered else "ring-251"]


def has_eight_bits(ptx: str) -> bool:
    """Whether PTX has 8-bit floating-point types."""
    return _EIGHT_BITS.search(ptx) is not None
