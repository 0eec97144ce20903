"""Declarations of a kernel: configurations, numerics, static limits and supported features of a problem."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sdpalab.errors import UserError
from sdpalab.problem import FEATURES, Problem

__all__ = [
    "MISSION_LIMITS",
    "Config",
    "Knob",
    "Numerics",
    "Quantisation",
    "StaticLimits",
    "UnsupportedProblem",
    "check_features",
    "feature_constants",
]

Knob = int | str


class UnsupportedProblem(UserError):
    """Raised if the kernel does not compute this problem, or has no such configuration; the message has the reason."""


class Config(Mapping[str, Knob]):
    """Frozen, hashable set of knobs. Its text form, ``BLOCK_M=64 BLOCK_N=64``, identifies the configuration."""

    def __init__(self, knobs: Mapping[str, Knob] | None = None, /, **more: Knob) -> None:
        self._knobs: dict[str, Knob] = {**(knobs or {}), **more}

    def __getitem__(self, name: str) -> Knob:
        return self._knobs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def __len__(self) -> int:
        return len(self._knobs)

    def __hash__(self) -> int:
        return hash(frozenset(self._knobs.items()))

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in sorted(self._knobs.items()))

    def __repr__(self) -> str:
        return f"Config({self})"

    def int(self, name: str) -> int:
        """The knob as an integer; raises UnsupportedProblem if it is not one."""
        try:
            return int(self._knobs[name])
        except (KeyError, ValueError):
            raise UnsupportedProblem(f"knob {name} must be an integer, and the configuration is {self}") from None

    def but(self, **changes: Knob) -> Config:
        """A copy with some knobs changed."""
        return Config(self._knobs | changes)


@dataclass(frozen=True)
class Quantisation:
    """Quantisation of Q, K and V by the kernel itself, from inputs in the problem's dtype.

    The rows of each head are split into blocks of ``rows`` rows from row 0; the last block may be shorter. A block x
    [rows, D] is replaced by the type's nearest numbers (ties to even) to x / s, with s = max|x| / 448, or 1 if that is
    0, both quotients in float32. The products multiply these numbers; the scales s are applied in float32.

    Attributes
    ----------
    dtype : str
        ``float8_e4m3fn``, whose largest number is 448.
    rows : int
        Rows that share a scale, equal for Q, K and V; 0 for all rows of a head.
    """

    dtype: str = "float8_e4m3fn"
    rows: int = 0


@dataclass(frozen=True)
class Numerics:
    """Intended arithmetic of a kernel, the basis of the judge's error bounds.

    Attributes
    ----------
    accumulate : str
        Accumulator type of the matrix products: ``float32``, or, for a problem in float16, ``float16``: rounded to
        float16 after every few terms, as on tensor cores. The softmax statistics (maximum and sum) are float32 in
        either case.
    probabilities : str
        Type to which P is rounded before P V: ``problem`` (the problem's own dtype), ``float32``, ``float16``,
        ``bfloat16`` or ``float8_e4m3fn``. The weights are exp(s - m), at most 1, and summed before they are rounded.
    probability_scale : float
        Factor on P before it is rounded to float8, divided out of O at the end: above 0, at most 448, the largest
        number of the type. 1 for the other types.
    quantised : Quantisation, optional
        Quantisation of Q, K and V by the kernel; None if it computes with the inputs directly.
    normalise : str
        ``after``: the product P V is divided by the sum of the weights at the end, as in flash attention; ``before``:
        each weight is divided by the sum before it is rounded to the type of P, as in an unfused softmax.
    products : str
        Operand type of both matrix products: ``problem``, the problem's own dtype; or ``tf32``, for a problem in
        float32: the tensor cores then keep 11 significant bits of Q, K, P and V.
    tanh : str
        Accuracy of the tanh of a soft cap: ``float32``, within a few roundings; or ``approx``, as ``tanh.approx.f32``,
        with a relative error up to 2**-11.
    accumulate_terms : int, optional
        Terms added to a float16 accumulator before it is rounded: 4, 8 or 16. None: the number that the tensor cores of
        the target architecture add in one step. Kernels whose instructions have a smaller K declare it: 8 for
        ``mma.m16n8k8`` on sm_90.
    score_gradients : str
        In the backward pass, type to which dS is rounded before the products that give dQ and dK: ``problem`` or
        ``float32``. ``probabilities`` is that of P before the product that gives dV.
    value_gradients : str
        Type of dP = dO V^T: ``float32``, or ``problem`` where it is rounded, as by autograd of a product in 16 bits.
    partial_rows : int
        Query rows whose parts of dK and dV are added up in float32; the sum of these sums, and of the query heads of a
        group, is rounded to the problem's type after each addition. 0: all sums are float32.
    unordered : tuple of str
        Outputs whose parts are added in float32 in an order that varies from run to run, as by atomics. Two runs may
        then differ by the rounding of these sums; all other outputs have equal bits.
    """

    accumulate: str = "float32"
    probabilities: str = "problem"
    probability_scale: float = 1.0
    quantised: Quantisation | None = None
    normalise: str = "after"
    products: str = "problem"
    tanh: str = "float32"
    accumulate_terms: int | None = None
    score_gradients: str = "problem"
    value_gradients: str = "float32"
    partial_rows: int = 0
    unordered: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values; the last seven only where they differ from their default."""
        usual: dict[str, Any] = {
            "products": "problem",
            "tanh": "float32",
            "accumulate_terms": None,
            "score_gradients": "problem",
            "value_gradients": "float32",
            "partial_rows": 0,
            "unordered": [],
        }
        values = {**asdict(self), "unordered": list(self.unordered)}
        return {name: value for name, value in values.items() if name not in usual or usual[name] != value}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Numerics:
        """The inverse of :meth:`to_dict`; raises TypeError on an unknown field."""
        quantised = fields.get("quantised")
        further = {"quantised": Quantisation(**quantised) if quantised else None}
        return cls(**{**fields, **further, "unordered": tuple(fields.get("unordered", ()))})


@dataclass(frozen=True)
class StaticLimits:
    """Limits on the resources of the compiled kernel, checked on every build.

    None means no declared limit: the figure is then shown beside the mission's limit (sm_89, D=64;
    :data:`MISSION_LIMITS`), and no build fails for it.

    Attributes
    ----------
    registers : int, optional
        Largest number of registers of a thread.
    shared_bytes : int, optional
        Largest shared memory of a block, static and dynamic.
    spill_bytes, stack_bytes : int, optional
        Largest numbers of bytes of spills, and of stack of a thread.
    min_blocks_per_sm : int, optional
        Smallest number of blocks that an SM must hold.
    reason : str
        Explanation of these limits.
    """

    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    min_blocks_per_sm: int | None = None
    reason: str = "the kernel declares none"

    def value(self, name: str) -> int:
        """The limit of that name: the declared one, or the mission's."""
        declared = getattr(self, name)
        return int(getattr(MISSION_LIMITS, name) if declared is None else declared)

    def but(self, **changes: int | str) -> StaticLimits:
        """A copy with some limits changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


MISSION_LIMITS = StaticLimits(120, 64 * 1024, 0, 0, 1, "the mission's defaults")
"""Limits of the mission, all declared: the starting point of shipped kernels."""


def check_features(name: str, features: Collection[str], *, lse: bool) -> None:
    """Raise UserError unless all of ``features`` are :data:`sdpalab.problem.FEATURES`; a kernel of gradients, which
    reads the log-sum-exp of the rows, may not also write it (``lse``)."""
    unknown = [each for each in features if each not in FEATURES]
    if isinstance(features, str) or unknown:
        raise UserError(f"kernel {name!r}: features must hold some of {', '.join(FEATURES)}, not {features!r}")
    if lse and "backward" in features:
        raise UserError(f"kernel {name!r}: lse must be False, because the log-sum-exp is an input of a gradient")


def feature_constants(problem: Problem, features: Collection[str]) -> dict[str, int | float]:
    """Compile-time constants of :data:`sdpalab.problem.FEATURES` that a kernel supports; neutral values if unset."""
    constants: dict[str, int | float] = {}
    if "window_size" in features:
        constants["WINDOW_LEFT"], constants["WINDOW_RIGHT"] = problem.window_size or (-1, -1)
    if "softcap" in features:
        constants["SOFTCAP"] = problem.softcap
    for name in ("kv_lengths", "q_lengths", "alibi_slopes", "sinks", "bottom_right"):
        if name in features:
            constants[name.upper()] = int(bool(getattr(problem, name)))
    if "head_dim_v" in features:
        constants["HEAD_DIM_V"] = problem.dim_v
    if "varlen" in features:
        constants["VARLEN"] = int(problem.varlen)
    if "paged" in features:
        constants["PAGE_SIZE"] = problem.paged
    if "e4m3_cache" in features:
        constants["E4M3_CACHE"] = int(problem.e4m3_cache)
    if "attn_mask" in features:
        form = problem.mask_form
        constants["ATTN_MASK"] = 0 if form is None else 1 if form.type == "bool" else 2
        constants["ATTN_MASK_PER_BATCH"] = int(form is not None and form.per_batch)
        constants["ATTN_MASK_PER_HEAD"] = int(form is not None and form.per_head)
    return constants
