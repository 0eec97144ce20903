"""PTX's fundamental types (PTX ISA, "Fundamental Types") and the NumPy types that hold them."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

__all__ = ["TYPES", "PtxType", "unsigned"]


@dataclass(frozen=True)
class PtxType:
    """A scalar type; ``kind`` is b (bits), u, s, f (IEEE), bf (bfloat16) or pred, ``lanes`` is 2 if packed."""

    name: str
    kind: str
    bits: int
    dtype: np.dtype[np.generic]
    lanes: int = 1

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """True for IEEE floats and bfloat16."""
        return self.kind in ("f", "bf")

    @property
    def signed(self) -> bool:
        """True for signed integers."""
        return self.kind == "s"


def _table() -> dict[str, PtxType]:
    table = {"pred": PtxType("pred", "pred", 8, np.dtype(np.bool_))}
    for bits in (8, 16, 32, 64):
        table[f"u{bits}"] = PtxType(f"u{bits}", "u", bits, np.dtype(f"u{bits // 8}"))
        table[f"b{bits}"] = PtxType(f"b{bits}", "b", bits, np.dtype(f"u{bits // 8}"))
        table[f"s{bits}"] = PtxType(f"s{bits}", "s", bits, np.dtype(f"i{bits // 8}"))
    for bits in (16, 32, 64):
        table[f"f{bits}"] = PtxType(f"f{bits}", "f", bits, np.dtype(f"f{bits // 8}"))
    table["u16x2"] = PtxType("u16x2", "u", 32, np.dtype("u2"), lanes=2)
    table["s16x2"] = PtxType("s16x2", "s", 32, np.dtype("i2"), lanes=2)
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    table["f16x2"] = PtxType("f16x2", "f", 32, np.dtype(np.float16), lanes=2)
    table["f32x2"] = PtxType("f32x2", "f", 64, np.dtype(np.float32), lanes=2)
    table["bf16"] = PtxType("bf16", "bf", 16, bfloat16)
    table["bf16x2"] = PtxType("bf16x2", "bf", 32, bfloat16, lanes=2)
    return table


TYPES: dict[str, PtxType] = _table()
"""Every type by its name as an instruction suffix."""


def unsigned(bits: int) -> np.dtype[np.generic]:
    """The unsigned NumPy type of ``bits`` bits."""
    return np.dtype(f"u{bits // 8}")
