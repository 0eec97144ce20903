"""One frozen attention problem, its work, and the named shapes.

O = softmax(scale * Q K^T + mask) V with Q [B, H, Sq, D], K and V [B, Hkv, Skv, D], O [B, H, Sq, D].
The causal mask is torch's ``is_causal``: query i sees keys 0..i (aligned to the top left), also when Sq != Skv.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sdpalab.errors import UserError

__all__ = ["DTYPES", "MISSION", "NAMED_PROBLEMS", "TWELVE_CASES", "Problem", "ProblemError", "parse_shape"]

DTYPES: dict[str, int] = {"float16": 2, "bfloat16": 2}
"""Element types a problem may have, with their size in bytes."""


class ProblemError(UserError):
    """An invalid shape, dtype or scale of an attention problem."""


@dataclass(frozen=True)
class Problem:
    """One scaled-dot-product-attention problem.

    Parameters
    ----------
    batch, heads, seq_q, head_dim : int
        B, H, Sq and D; each at least 1.
    kv_heads : int, optional
        Hkv; must divide ``heads`` (grouped-query attention). Default: ``heads``.
    seq_kv : int, optional
        Skv. Default: ``seq_q``.
    dtype : {"float16", "bfloat16"}
        Type of Q, K, V and O.
    causal : bool
        Query i sees keys 0..i only (top-left aligned, as torch's ``is_causal``).
    scale : float, optional
        Factor on Q K^T. Default: 1 / sqrt(head_dim).

    Raises
    ------
    ProblemError
        If a size is not a positive integer, ``kv_heads`` does not divide ``heads``, the dtype is unknown or the
        scale is not finite.
    """

    batch: int
    heads: int
    seq_q: int
    head_dim: int
    kv_heads: int = 0
    seq_kv: int = 0
    dtype: str = "float16"
    causal: bool = False
    scale: float = 0.0

    def __init__(
        self,
        batch: int,
        heads: int,
        seq_q: int,
        head_dim: int,
        *,
        kv_heads: int | None = None,
        seq_kv: int | None = None,
        dtype: str = "float16",
        causal: bool = False,
        scale: float | None = None,
    ) -> None:
        sizes = {
            "batch": batch,
            "heads": heads,
            "seq_q": seq_q,
            "head_dim": head_dim,
            "kv_heads": heads if kv_heads is None else kv_heads,
            "seq_kv": seq_q if seq_kv is None else seq_kv,
        }
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ProblemError(f"{name} must be a positive integer, not {value!r}")
        if heads % sizes["kv_heads"]:
            raise ProblemError(f"kv_heads must divide heads, and {sizes['kv_heads']} does not divide {heads}")
        if dtype not in DTYPES:
            raise ProblemError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        if not isinstance(causal, bool):
            raise ProblemError(f"causal must be True or False, not {causal!r}")
        if scale is not None and not (isinstance(scale, (int, float)) and math.isfinite(scale)):
            raise ProblemError(f"scale must be a finite number, not {scale!r}")
        for name, value in sizes.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "causal", causal)
        object.__setattr__(self, "scale", 1.0 / math.sqrt(head_dim) if scale is None else float(scale))

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of Q and of O: (B, H, Sq, D)."""
        return (self.batch, self.heads, self.seq_q, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of K and of V: (B, Hkv, Skv, D)."""
        return (self.batch, self.kv_heads, self.seq_kv, self.head_dim)

    @property
    def group(self) -> int:
        """Query heads that share one K/V head."""
        return self.heads // self.kv_heads

    @property
    def scores(self) -> int:
        """Number of (query, key) pairs that the mask lets through, over all heads."""
        if self.causal:
            full = min(self.seq_q, self.seq_kv)
            pairs = full * (full + 1) // 2 + (self.seq_q - full) * self.seq_kv
        else:
            pairs = self.seq_q * self.seq_kv
        return self.batch * self.heads * pairs

    @property
    def flops(self) -> int:
        """Floating-point operations of the two products, 4*D for each visible (query, key) pair."""
        return 4 * self.head_dim * self.scores

    @property
    def exponentials(self) -> int:
        """Least number of exponentials: one for each visible (query, key) pair."""
        return self.scores

    @property
    def least_bytes(self) -> int:
        """Least DRAM traffic in bytes: Q, K and V read once, O written once."""
        q = self.batch * self.heads * self.seq_q * self.head_dim
        kv = self.batch * self.kv_heads * self.seq_kv * self.head_dim
        return DTYPES[self.dtype] * (2 * q + 2 * kv)

    @property
    def label(self) -> str:
        """Short unambiguous name, such as ``1x8x512x64``, ``2x8x333x64/kv2x400 causal bf16``."""
        text = f"{self.batch}x{self.heads}x{self.seq_q}x{self.head_dim}"
        if (self.kv_heads, self.seq_kv) != (self.heads, self.seq_q):
            text += f"/kv{self.kv_heads}x{self.seq_kv}"
        if self.causal:
            text += " causal"
        if self.dtype != "float16":
            text += f" {self.dtype}"
        if self.scale != 1.0 / math.sqrt(self.head_dim):
            text += f" scale={self.scale:g}"
        return text

    def with_(self, **changes: Any) -> Problem:
        """A copy with some fields changed, validated like any other.

        What had its default (``kv_heads``, ``seq_kv``, ``scale``) has it again, from the changed fields.
        """
        fields = self.to_dict()
        if self.kv_heads == self.heads:
            fields["kv_heads"] = None
        if self.seq_kv == self.seq_q:
            fields["seq_kv"] = None
        if self.scale == 1.0 / math.sqrt(self.head_dim):
            fields["scale"] = None
        return Problem(**(fields | changes))

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values; ``Problem(**d)`` is the inverse."""
        return asdict(self)


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """Read ``B,H,S,D`` as on the command line.

    Raises
    ------
    ProblemError
        If there are not four integers, or one is below 1.
    """
    parts = text.split(",")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        raise ProblemError(f"--shape takes four integers B,H,S,D such as 1,8,512,64, not {text!r}") from None
    if len(numbers) != 4:
        raise ProblemError(f"--shape takes four integers B,H,S,D such as 1,8,512,64, and {text!r} has {len(numbers)}")
    for name, number in zip("BHSD", numbers, strict=True):
        if number < 1:
            raise ProblemError(f"--shape {text!r}: {name} must be at least 1, not {number}")
    batch, heads, seq, dim = numbers
    return batch, heads, seq, dim


MISSION = Problem(1, 8, 512, 64)
"""The mission shape: faster than torch's SDPA on an L4, and correct."""

TWELVE_CASES: tuple[tuple[Problem, int], ...] = tuple(
    (problem, seed)
    for problem in (Problem(1, 2, 64, 64), Problem(1, 4, 128, 64), MISSION, Problem(2, 2, 64, 64))
    for seed in (0, 1, 2)
)
"""The twelve cases of the original contract: four shapes, three seeds each."""

NAMED_PROBLEMS: dict[str, Problem] = {
    "mission": MISSION,
    "mission-causal": MISSION.with_(causal=True),
    "small": Problem(1, 2, 64, 64),
    "ragged": Problem(2, 4, 333, 64),
    "gqa": Problem(1, 8, 512, 64, kv_heads=2),
    "wide": Problem(1, 4, 129, 128),
    "prefill-4k": Problem(1, 8, 4096, 64),
}
"""Shapes with a name, for the command line's ``--shape NAME`` and for benchmarks."""
