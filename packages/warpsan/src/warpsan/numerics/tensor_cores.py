"""Sums of products in one tensor-core instruction, by architecture.

A sum is a chain of blocks. In each block, all products and the partial sum are aligned to the greatest exponent among
them, truncated (toward zero) after ``fraction`` bits, added exactly, and rounded once: to f32 toward zero, to f16 to
nearest even. A product's exponent is the sum of its factors' exponents. Subnormals have the least exponent of their
type (of f16 if 8-bit factors are unpacked to f16); zeros have none. A sum that is zero or rounds to zero is +0; an f32
sum beyond the range is infinite.

Sources: words of eight GPUs published in MATLAB-tensor-core b12b5a7 (Khattak and Mikaitis, "Accurate Models of NVIDIA
Tensor Cores", arXiv 2512.07004), models of MMA-Sim c785138 (arXiv 2511.10909), and the machine code for 8-bit factors
in ``mma.sync`` of sm_90. The tests compare this module with the words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["EMIN", "FAR", "SPECIAL_EXPONENT", "ZERO_EXPONENT", "SumRule", "rule_of"]

EMIN = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0, "f32": -126}
"""Exponent of subnormal numbers by type; significands are otherwise in [1, 2)."""

ZERO_EXPONENT, SPECIAL_EXPONENT, FAR = -5_000, 12_000, 2_500
"""Pseudo-exponents of zeros, and of infinities and NaN, in 16 bits. The greatest exponent of a block exceeds ``FAR``
with any infinity or NaN, also beside a zero, and is below ``-FAR`` if all terms are zero.
"""

_EIGHT_BITS = ("e4m3", "e5m2")


@dataclass(frozen=True)
class SumRule:
    """Summation rule of one instruction.

    Attributes
    ----------
    blocks : tuple of tuple of int
        Indices along K of each block's products, in the order of the blocks.
    fraction : int
        Fraction bits kept in an aligned term, after its leading digit.
    precision : int
        Fraction bits of an f32 result, 23 or less.
    addend_last : bool
        Whether the sum starts at zero, and C is added last, rounded to nearest even.
    least : tuple of int
        Exponents of subnormal factors of A and of B.
    evidence : {"words", "model", "nearest"}
        Evidence for the rule: words of a GPU, public models only, or none (rule of the nearest known architecture).
    source : str
        GPUs with such words, or another source of the rule.
    """

    blocks: tuple[tuple[int, ...], ...]
    fraction: int
    precision: int
    addend_last: bool
    least: tuple[int, int]
    evidence: str
    source: str

    @property
    def name(self) -> str:
        """A short text that differs between different rules for one K."""
        widths = "_".join(str(len(block)) for block in self.blocks)
        least = "_".join(str(-exponent) for exponent in self.least)
        return f"{widths}.f{self.fraction}.{self.precision}.e{least}{'.last' * self.addend_last}"


@lru_cache(maxsize=512)
def rule_of(target: str, unit: str, kind: str, depth: int, result: str, kind_b: str | None = None) -> SumRule:
    """The summation rule of an instruction.

    Parameters
    ----------
    target : str
        The module's ``.target``, such as ``sm_90a``.
    unit : {"mma", "wmma", "wgmma", "tcgen05"}
    kind : str
        Type of the factors: f16, bf16, tf32, e4m3, e5m2, e2m3, e3m2 or e2m1.
    depth : int
        K of the instruction.
    result : {"f32", "f16"}
    kind_b : str, optional
        Type of B's factors if it is the other 8-bit type; ``kind`` is then the type of A.

    Returns
    -------
    SumRule
        For an unknown architecture, the rule of the nearest older one.
    """
    number = int(re.sub(r"\D", "", target) or 0)
    known = max((each for each in _KNOWN if each <= number), default=min(_KNOWN))
    eight = kind in _EIGHT_BITS
    width, fraction, precision, source = _KNOWN[known](unit, kind, depth, result)
    split = eight and unit in ("mma", "wmma") and known in (90, 100)
    if split:  # unpacked to f16, in two instructions of two out of each four
        blocks = tuple(tuple(k for k in range(depth) if k % 4 // 2 == half) for half in range(2))
    else:
        blocks = tuple(tuple(range(at, min(at + width, depth))) for at in range(0, depth, width))
    evidence = "nearest" if known != number or not source else "model" if source in _MODELS else "words"
    return SumRule(
        blocks,
        fraction,
        23 if result == "f16" else precision,
        split,
        (EMIN["f16"], EMIN["f16"]) if split else (EMIN[kind], EMIN[kind_b or kind]),
        evidence,
        source if evidence != "nearest" else f"sm_{known}",
    )


_MMA_SIM, _SASS = "MMA-Sim", "MMA-Sim's sums in the order of the machine code"
_MODELS = (_MMA_SIM, _SASS)

Numbers = tuple[int, int, int, str]
"""Products per block, fraction, precision, and evidence: GPUs, a model, or none."""


def _volta(unit: str, kind: str, depth: int, result: str) -> Numbers:
    return 4, 23, 23, "V100" if kind == "f16" else ""


def _turing(unit: str, kind: str, depth: int, result: str) -> Numbers:
    return 8, 24, 23, _MMA_SIM if kind == "f16" else ""


def _ampere(unit: str, kind: str, depth: int, result: str) -> Numbers:
    if kind in _EIGHT_BITS:
        return 16, 13, 13, ""
    return 4 if kind == "tf32" else 8, 24, 23, "A100, A2"


def _ada(unit: str, kind: str, depth: int, result: str) -> Numbers:
    if kind in _EIGHT_BITS:
        return 16, 13, 13, "Ada" if result == "f16" else "Ada, L40S"
    return 4 if kind == "tf32" else 8, 24, 23, "Ada, L40S"


def _hopper(unit: str, kind: str, depth: int, result: str) -> Numbers:
    eight = kind in _EIGHT_BITS
    if unit == "wgmma":
        gpus = "H100, H200" if result == "f32" else _MMA_SIM
        return (depth, 13, 13, gpus) if eight else (depth, 25, 23, _MMA_SIM)
    return depth, 25, 23, _SASS if eight and result == "f32" else "H100, H200"


def _blackwell(unit: str, kind: str, depth: int, result: str) -> Numbers:
    return depth, 25, 23, {"wgmma": "", "tcgen05": _MMA_SIM}.get(unit, "B200")


def _consumer_blackwell(unit: str, kind: str, depth: int, result: str) -> Numbers:
    return depth, 25, 23, "" if unit == "wgmma" else _MMA_SIM


_KNOWN = {
    70: _volta,
    75: _turing,
    80: _ampere,
    86: _ampere,
    89: _ada,
    90: _hopper,
    100: _blackwell,
    120: _consumer_blackwell,
}
"""Rules by architecture, from the ``.target``."""
