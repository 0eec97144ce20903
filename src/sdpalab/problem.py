"""One frozen attention problem, its work, and the named shapes.

O = softmax(scale * Q K^T + mask) V with Q [B, H, Sq, D], K and V [B, Hkv, Skv, D], O [B, H, Sq, D].
The causal mask is torch's ``is_causal``: query i sees keys 0..i (aligned to the top left), also when Sq != Skv.

Two further fields change the scores, in the vocabulary of FlashAttention's interface:

- ``window_size=(left, right)``: query i sees keys i - left to i + right, aligned as the causal mask is; -1 is no bound;
- ``softcap``: a score s becomes softcap * tanh(s / softcap), after the scale and before any mask.

O of a row that sees no key is 0, and its log-sum-exp -inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from sdpalab.errors import UserError

__all__ = [
    "DTYPES",
    "EXTRAS",
    "MISSION",
    "NAMED_PROBLEMS",
    "TWELVE_CASES",
    "Problem",
    "ProblemError",
    "Scoring",
    "parse_shape",
    "parse_window",
]

DTYPES: dict[str, int] = {"float16": 2, "bfloat16": 2}
"""Element types a problem may have, with their size in bytes."""


EXTRAS = ("window_size", "softcap")
"""Fields that most problems lack. They are in :meth:`Problem.to_dict` only where they are set, and a kernel or callable
has to declare that it computes problems with them."""


class ProblemError(UserError):
    """An invalid shape, dtype, scale, window or soft cap of an attention problem."""


class _PlainScoring(TypedDict):
    scale: float
    causal: bool


class Scoring(_PlainScoring, total=False):
    """How scores are made of Q K^T: the arguments, beside the arrays, of every function that computes attention."""

    window_size: tuple[int, int]
    softcap: float


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
    window_size : (int, int), optional
        ``(left, right)``: query i sees keys i - left to i + right only; -1 is no bound. Under ``causal`` the right side
        is 0, whatever is given. Default: no window, which ``(-1, -1)`` is, too; so is ``(-1, 0)`` under ``causal``.
    softcap : float, optional
        A score s becomes softcap * tanh(s / softcap). Default: 0, which is none.

    Raises
    ------
    ProblemError
        If a size is not a positive integer, ``kv_heads`` does not divide ``heads``, the dtype is unknown, the scale is
        not finite, a side of the window is not an integer from -1 up, or the soft cap is negative or not finite.
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
    window_size: tuple[int, int] | None = None
    softcap: float = 0.0

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
        window_size: Sequence[int] | None = None,
        softcap: float = 0.0,
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
        if not _is_number(softcap) or softcap < 0.0:
            raise ProblemError(f"softcap must be a positive number, or 0 for none, not {softcap!r}")
        for name, value in sizes.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "causal", causal)
        object.__setattr__(self, "scale", 1.0 / math.sqrt(head_dim) if scale is None else float(scale))
        object.__setattr__(self, "window_size", _window(window_size, causal))
        object.__setattr__(self, "softcap", float(softcap))

    @property
    def extras(self) -> tuple[str, ...]:
        """Those of :data:`EXTRAS` that this problem has."""
        return tuple(name for name in EXTRAS if getattr(self, name))

    @property
    def scoring(self) -> Scoring:
        """How its scores are made: ``scale``, ``causal`` and its :attr:`extras`, as keyword arguments."""
        scoring: Scoring = {"scale": self.scale, "causal": self.causal}
        if self.window_size is not None:
            scoring["window_size"] = self.window_size
        if self.softcap:
            scoring["softcap"] = self.softcap
        return scoring

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
        if self.window_size is not None:
            left, right = (self.seq_q + self.seq_kv if side < 0 else side for side in self.window_size)
            rows = range(min(self.seq_q, self.seq_kv + left))
            pairs = sum(min(row + right, self.seq_kv - 1) - max(row - left, 0) + 1 for row in rows)
        elif self.causal:
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
        """Least DRAM traffic in bytes: Q, K and V read once, O written once.

        Of a problem with a window only those rows of Q that see a key, and keys that a row sees, are read.
        """
        queries, keys = self.seq_q, self.seq_kv
        if self.window_size is not None:
            left, right = self.window_size
            queries = queries if left < 0 else min(queries, self.seq_kv + left)
            keys = keys if right < 0 else min(keys, self.seq_q + right)
        q = self.batch * self.heads * (queries + self.seq_q) * self.head_dim
        kv = self.batch * self.kv_heads * keys * self.head_dim
        return DTYPES[self.dtype] * (q + 2 * kv)

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
        if self.window_size is not None:
            text += " window={},{}".format(*self.window_size)
        if self.softcap:
            text += f" softcap={self.softcap:g}"
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
        """All fields as plain JSON values, of :data:`EXTRAS` those that are set; ``Problem(**d)`` is the inverse."""
        extras = {name: getattr(self, name) for name in self.extras}
        if self.window_size is not None:
            extras["window_size"] = list(self.window_size)
        return {name: value for name, value in asdict(self).items() if name not in EXTRAS} | extras


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _window(sides: Sequence[int] | None, causal: bool) -> tuple[int, int] | None:
    """The window in its one form: None if it hides nothing that the causal mask does not."""
    if sides is None:
        return None
    valid = isinstance(sides, (tuple, list)) and len(sides) == 2
    if not valid or any(isinstance(side, bool) or not isinstance(side, int) or side < -1 for side in sides):
        raise ProblemError(
            f"window_size must be two integers (left, right) from 0 up, or -1 for no bound, not {sides!r}"
        )
    left, right = sides
    if causal:
        return (left, 0) if left >= 0 else None
    return None if left == right == -1 else (left, right)


def parse_window(text: str) -> tuple[int, int]:
    """Read ``L,R`` as on the command line.

    Raises
    ------
    ProblemError
        If there are not two integers.
    """
    try:
        left, right = (int(side) for side in text.split(","))
    except ValueError:
        raise ProblemError(
            f"--window takes two integers L,R such as 128,0, with -1 for no bound, not {text!r}"
        ) from None
    return left, right


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
